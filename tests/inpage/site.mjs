#!/usr/bin/env node
/**
 * The page itself on a static host, as a person uses it: node tests/inpage/site.mjs
 *
 * Settings of the agent in the page, a scripted endpoint, what is kept of a key, conversations, questions. Prints a line a
 * step, and last `ok` or `failed: <why>`; exits with 1 when something failed.
 */

import assert from "node:assert/strict";
import { chromium } from "@playwright/test";
import { scriptedEndpoint } from "./endpoint.mjs";
import { plainServer } from "./static-server.mjs";

const KEY = "sk-typed-by-a-person";
const server = await plainServer(undefined, { below: "/some/folder/" });
const endpoint = await scriptedEndpoint({ key: KEY });
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
});
try {
  const page = await (await browser.newContext()).newPage();
  page.setDefaultTimeout(120_000);
  const broken = [];
  page.on("pageerror", (error) => broken.push(error.message));

  const ready = () => page.locator("[data-testid=agent-chip].good").waitFor();
  const settings = () => page.getByTestId("agent-settings").click();
  const save = () => page.getByRole("button", { name: "Use these settings" }).click();
  const answer = (text) => page.locator("article.message.agent").last().filter({ hasText: text }).waitFor();
  const kept = () => page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
  const ask = async (text) => {
    await page.getByLabel("Message to the agent").fill(text);
    await page.keyboard.press("Enter");
  };

  await page.goto(server.address);
  await ready();
  await page.locator("[data-testid=sandbox-chip].good").waitFor();
  assert.match(await page.getByTestId("agent-settings").innerText(), /demo script/);
  console.log("no gateway: the agent in the page, with its script");

  await settings();
  await page.getByLabel(/An endpoint that speaks/).check();
  await page.getByLabel("Address").fill("ftp://models.example");
  await page.getByLabel("Model", { exact: true }).fill(endpoint.model);
  await save();
  await page.getByRole("alert").filter({ hasText: "must begin with http" }).waitFor();
  await page.getByLabel("Address").fill(endpoint.address);
  await page.getByLabel("Key (none").fill(KEY);
  await save();
  await page.getByTestId("agent-settings").filter({ hasText: endpoint.model }).waitFor();
  await ask('call search {"pattern": "class ToolHost"}');
  await answer("The tools said");
  assert.ok((await page.locator("#chat").innerText()).includes("Call search"), "the plan is not shown");
  assert.ok(!(await kept()).includes(KEY), "the key was kept without being asked to");
  console.log("an endpoint: settings, plan, tool, answer; the key is not kept");

  await page.reload();
  await ready();
  await answer("The tools said");
  await ask("hello");
  await page.getByText("Check the key in the agent's settings").waitFor();
  console.log("after a reload the conversation is there and the key is not, which is said with a remedy");

  await settings();
  await page.getByLabel("Key (none").fill(KEY);
  await page.getByLabel(/Keep the key/).check();
  await page.getByLabel(/Ask before a tool runs/).check();
  await save();
  await page.waitForFunction((key) => JSON.stringify({ ...localStorage }).includes(key), KEY);
  await ask('call run_python {"code": "6 * 7"}');
  await page.getByRole("button", { name: "Allow", exact: true }).click();
  await answer("42");
  console.log("a kept key, and a question before a tool runs");

  await settings();
  await page.getByLabel(/Keep the key/).uncheck();
  await save();
  await page.waitForFunction((key) => !JSON.stringify({ ...localStorage }).includes(key), KEY);
  assert.ok(!(await kept()).includes(KEY), "the key stayed although taken back");

  await settings();
  await page.getByRole("button", { name: "New conversation" }).click();
  await ready();
  assert.equal(await page.locator("article.message").count(), 0);
  await ask("what is new?");
  await answer("You said: what is new?");
  await settings();
  const list = page.locator(".conversations li");
  await list.nth(1).waitFor();
  await list.filter({ hasText: "call search" }).getByRole("button").first().click();
  await answer("42");
  await settings();
  await list
    .filter({ hasText: "what is new?" })
    .getByRole("button", { name: /^Delete/ })
    .click();
  await list.filter({ hasText: "what is new?" }).waitFor({ state: "detached" });
  console.log("conversations: new, list, open, delete");

  assert.ok(!JSON.stringify(server.requests).includes(KEY), "the site's server saw the key");
  assert.deepEqual(broken, [], "the page threw");
  console.log("ok");
} catch (error) {
  console.log(`failed: ${error.message}`);
  process.exitCode = 1;
} finally {
  await browser.close();
  server.close();
  endpoint.close();
}
