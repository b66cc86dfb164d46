/** The whole path with the demo agent: stock agentpool, the real gateway, the real sandbox. */

import { readFileSync } from "node:fs";
import { complaints, expect, onlyLoopback, test } from "./fixtures.ts";

test("the demo agent answers with tools of the page, and nothing leaves the machine", async ({
  gateway,
  driver,
  page,
}) => {
  const { url, origin } = await gateway();
  const foreign = await onlyLoopback(page, origin);
  const errors = complaints(page);
  await driver.open(url);
  await driver.ready();
  const answer = await driver.ask("Find where ToolHost is defined, read that file and count its lines");
  const lines =
    readFileSync(new URL("../../core/sandport/host/host.py", import.meta.url), "utf8").split("\n").length - 1;
  expect(answer).toContain("core/sandport/host/host.py");
  expect(answer).toContain(`${lines} lines`);

  await driver.panel("Log");
  const log = page.locator("#panel-log");
  for (const tool of ["search", "read_file", "run_python"]) {
    await expect(log.locator(".log-entry.ok .log-name", { hasText: new RegExp(`^${tool}$`) })).toBeVisible();
  }
  expect(foreign).toEqual([]);
  expect(errors).toEqual([]);
});

test("a tool that is added while the agent runs is seen and used by it", async ({
  gateway,
  driver,
  page,
}) => {
  await driver.open((await gateway()).url);
  await driver.ready();
  expect(await driver.ask('Call shout with {"text": "ahoy"}')).not.toContain("AHOY!");
  await driver.panel("Add");
  await page.getByRole("button", { name: "Load into the sandbox" }).click();
  await expect(page.locator("#panel-add").getByRole("status")).toContainText("Loaded: file_types, shout");
  expect(await driver.ask('Call shout with {"text": "ahoy"}')).toContain("AHOY!");
});

test("a reload keeps the token and the address shows none", async ({ gateway, driver, page }) => {
  const { url, token } = await gateway();
  await driver.open(url);
  await driver.agentReady();
  expect(page.url()).not.toContain(token);
  await page.reload();
  await driver.agentReady();
});
