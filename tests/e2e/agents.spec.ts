/** Several agents behind one gateway, several tabs, reloads and restarts. */

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { expect, PageDriver, scripted, startGateway, test, withoutSandbox } from "./fixtures.ts";

let folder: string;
test.beforeAll(() => {
  folder = mkdtempSync(path.join(tmpdir(), "sandport-e2e-"));
});
test.afterAll(() => rmSync(folder, { recursive: true }));

const command = (...options: string[]) => scripted(...options)[1] ?? "";

/** A gateway's settings with two agents, the first of which can load sessions. */
function twoAgents(): string[] {
  const file = path.join(folder, "agents.toml");
  writeFileSync(
    file,
    `[agents.ada]\ncommand = '${command("--load", "--title", "Ada")}'\n\n[agents.bob]\ncommand = '${command("--title", "Bob")}'\n`,
  );
  return ["--config", file];
}

test("a person chooses among the gateway's agents; the choice is kept and can be in the address", async ({
  gateway,
  driver,
  page,
}) => {
  await withoutSandbox(page);
  const { url, origin } = await gateway(twoAgents());
  await driver.open(url);
  await driver.agentReady();
  const choice = page.getByLabel("Agent to talk to");
  await expect(choice).toHaveValue("ada");
  await expect(page.getByTestId("agent-chip")).toContainText("Ada");
  await driver.ask("say hello from ada");

  await choice.selectOption("bob");
  await expect(page.getByTestId("agent-chip")).toContainText("Bob");
  await driver.agentReady();
  await expect(driver.messages("Agent")).toHaveCount(0);
  expect(new URL(page.url()).searchParams.get("agent")).toBe("bob");
  await driver.ask("say hello from bob");
  await page.reload();
  await driver.agentReady();
  await expect(choice).toHaveValue("bob");

  // Back again: this tab's conversation with it is still there.
  await choice.selectOption("ada");
  await expect(driver.messages("Agent")).toHaveText(["hello from ada"]);

  await driver.open(`${origin}/`);
  await driver.agentReady();
  await expect(choice).toHaveValue("ada");
  await driver.open(`${origin}/?agent=bob`);
  await expect(page.getByTestId("agent-chip")).toContainText("Bob");
  await driver.open(`${origin}/?agent=nobody`);
  await driver.agentReady();
  await expect(page.locator(".banner")).toContainText('no agent "nobody" here');
  await expect(choice).toHaveValue("ada");
});

test("switching in the middle of a turn stops it", async ({ gateway, driver, page }) => {
  await withoutSandbox(page);
  await driver.open((await gateway(twoAgents())).url);
  await driver.agentReady();
  await driver.send("wait");
  await page.getByLabel("Agent to talk to").selectOption("bob");
  await driver.agentReady();
  await expect(page.getByRole("button", { name: "Send" })).toBeVisible();
  expect(await driver.ask("say fresh")).toBe("fresh");
  await expect(driver.messages("You")).toHaveText(["say fresh"]);
  await expect(page.locator("#chat .notice, #chat .problem").filter({ hasNotText: "no tools" })).toHaveCount(
    0,
  );
});

test("a reload in the middle of a turn: the conversation is there, and the person is told", async ({
  gateway,
  driver,
  page,
}) => {
  await withoutSandbox(page);
  await driver.open((await gateway(scripted("--load"))).url);
  await driver.agentReady();
  await driver.ask("say one");
  await driver.send("wait");
  await expect(page.getByRole("button", { name: "Stop the agent" })).toBeVisible();
  await page.reload();
  await driver.agentReady();
  await expect(page.getByText("loaded anew before the agent had finished")).toBeVisible();
  await expect(driver.messages("Agent")).toHaveText(["one"]);
  // The agent had not kept that message, so it is there to be sent again.
  await expect(page.getByLabel("Message to the agent")).toHaveValue("wait");
  expect(await driver.ask("say two")).toBe("two");
  await page.reload();
  await driver.agentReady();
  await expect(page.getByText("loaded anew before the agent had finished")).toHaveCount(0);
});

test("two tabs are two conversations", async ({ gateway, driver, page, context }) => {
  const { url } = await gateway(scripted("--load"));
  await withoutSandbox(page);
  await driver.open(url);
  const other = await context.newPage();
  await withoutSandbox(other);
  const second = await new PageDriver(other).open(url);
  await driver.agentReady();
  await second.agentReady();
  await Promise.all([driver.ask("say left"), second.ask("say right")]);
  await Promise.all([page.reload(), other.reload()]);
  await driver.agentReady();
  await second.agentReady();
  await expect(driver.messages("Agent")).toHaveText(["left"]);
  await expect(second.messages("Agent")).toHaveText(["right"]);
});

test("a gateway that is started again is found again, and the conversation goes on", async ({
  driver,
  page,
}) => {
  const tokenFile = path.join(folder, "token");
  writeFileSync(tokenFile, "a-fixed-token-for-one-test-0123456789\n");
  const first = await startGateway([...scripted("--load"), "--token-file", tokenFile]);
  const again = [
    ...scripted("--load"),
    "--token-file",
    tokenFile,
    "--port",
    String(new URL(first.origin).port),
  ];
  await withoutSandbox(page);
  try {
    await driver.open(first.url);
    await driver.agentReady();
    await driver.ask("say before");
  } finally {
    await first.stop();
  }
  await expect(page.getByTestId("agent-chip")).toContainText("Offline");
  const second = await startGateway(again);
  try {
    await page.evaluate(() => window.dispatchEvent(new Event("online")));
    await driver.agentReady();
    await expect(driver.messages("Agent")).toHaveText(["before"]);
    expect(await driver.ask("say after")).toBe("after");
  } finally {
    await second.stop();
  }
});
