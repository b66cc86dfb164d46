/** Sockets that drop, agents that end, and agents that take no tools. */

import type { Page, WebSocketRoute } from "@playwright/test";
import { expect, PageDriver, scripted, test, withoutSandbox } from "./fixtures.ts";

/** Lets every socket of the page through, and keeps a hand on them. */
async function sockets(page: Page): Promise<WebSocketRoute[]> {
  const open: WebSocketRoute[] = [];
  await page.routeWebSocket(/\/acp/, (socket) => {
    socket.connectToServer();
    open.push(socket);
  });
  return open;
}

test("R02, R05: a socket that drops comes back, the session is loaded, nothing is shown twice", async ({
  gateway,
  driver,
  page,
}) => {
  const open = await sockets(page);
  await driver.open((await gateway(scripted("--load"))).url);
  await driver.ready();
  await driver.ask("say one");
  await driver.ask("say two");
  await open[0]?.close({ code: 1001 });
  await expect(page.locator("#chat .notice")).toContainText("Reconnected. The conversation goes on.");
  expect(open).toHaveLength(2);
  await expect(driver.messages("Agent")).toHaveText(["one", "two"]);
  await expect(driver.messages("You")).toHaveText(["say one", "say two"]);
  // The tools are declared again, under ids of their own.
  expect(await driver.ask("tools workspace")).toContain("run_python");
  expect(await driver.ask('call workspace run_python {"code": "6 * 7"}')).toContain('"result":"42"');
});

test("without session/load there is a new session, and the page says so", async ({
  gateway,
  driver,
  page,
}) => {
  const open = await sockets(page);
  await driver.open((await gateway(scripted())).url);
  await driver.ready();
  await driver.ask("say one");
  await open[0]?.close({ code: 1001 });
  await expect(page.locator("#chat .notice")).toContainText("does not remember");
  await expect(driver.messages("Agent")).toHaveText(["one"]);
  expect(await driver.ask("tools workspace")).toContain("run_python");
});

test("R09: a socket that drops in a turn ends the turn, visibly", async ({ gateway, driver, page }) => {
  await withoutSandbox(page);
  const open = await sockets(page);
  await driver.open((await gateway(scripted())).url);
  await driver.agentReady();
  await driver.send("wait");
  await expect(page.getByRole("button", { name: "Stop the agent" })).toBeVisible();
  await open[0]?.close({ code: 1001 });
  await expect(page.getByText("lost before the agent had finished")).toBeVisible();
  await driver.agentReady();
  expect(await driver.ask("say back")).toBe("back");
});

test("R04: 1008 is not retried; a person can", async ({ gateway, driver, page }) => {
  await withoutSandbox(page);
  const open = await sockets(page);
  await driver.open((await gateway(scripted())).url);
  await driver.agentReady();
  await open[0]?.close({ code: 1008, reason: "not this page" });
  await expect(page.locator("#chat .problem")).toContainText("The gateway refuses this page");
  await expect(page.getByTestId("agent-chip")).toContainText("Disconnected");
  await page.evaluate(() => window.dispatchEvent(new Event("online")));
  expect(open).toHaveLength(1);
  await page.getByRole("button", { name: "Reconnect now" }).click();
  await driver.agentReady();
  expect(open).toHaveLength(2);
});

test("a gateway that is full says so, and lets the page in as soon as there is room", async ({
  gateway,
  driver,
  page,
  context,
}) => {
  const { url } = await gateway([...scripted(), "--max-sockets", "1"]);
  const first = new PageDriver(await context.newPage());
  for (const each of [first.page, page]) await withoutSandbox(each);
  await first.open(url);
  await first.agentReady();
  await driver.open(url);
  const problem = page.locator("#chat .problem");
  await expect(problem).toContainText("takes no further page now");
  await expect(problem).toContainText("As many pages are open as it allows (1).");
  await expect(problem).toContainText("--max-sockets");
  await first.page.close();
  await driver.agentReady();
  await expect(problem).toHaveCount(0);
});

test("an agent that ends is started again for the page", async ({ gateway, driver, page }) => {
  await withoutSandbox(page);
  await driver.open((await gateway(scripted())).url);
  await driver.agentReady();
  await driver.send("exit 3");
  await expect(page.getByText("lost before the agent had finished")).toBeVisible();
  await driver.agentReady();
  expect(await driver.ask("say again")).toBe("again");
});

test("P09: nothing is sent before initialize is answered, and the page says it waits", async ({
  gateway,
  driver,
  page,
}) => {
  await withoutSandbox(page);
  await driver.open((await gateway(scripted("--slow-start", "2000"))).url);
  await expect(page.locator(".status-line").first()).toContainText("initialising");
  await driver.agentReady();
  expect(await driver.ask("seen")).toContain("seen: initialize session/new session/prompt");
});

for (const acp of [null, undefined, false]) {
  test(`P05, P06: mcpCapabilities.acp ${acp} is off, and the page says so`, async ({
    gateway,
    driver,
    page,
  }) => {
    await withoutSandbox(page);
    // Our gateway lends the capability to agents that lack it; others do not.
    await page.routeWebSocket(/\/acp/, (socket) => {
      socket.connectToServer().onMessage((data) => {
        const message = JSON.parse(String(data));
        if (message.result?.agentCapabilities) message.result.agentCapabilities.mcpCapabilities = { acp };
        socket.send(JSON.stringify(message));
      });
    });
    await driver.open((await gateway(scripted())).url);
    await driver.agentReady();
    await expect(page.locator("#chat .notice.warning")).toContainText("does not take tools over ACP");
    await expect(page.getByTestId("agent-chip")).toContainText("no tools");
    expect(await driver.ask("tools workspace")).toContain("there are: none");
  });
}

test("P06: mcpCapabilities.acp as an object is on", async ({ gateway, driver }) => {
  await driver.open((await gateway(scripted("--acp", "object"))).url);
  await driver.ready();
  expect(await driver.ask("tools workspace")).toContain("run_python");
});

test("without a sandbox one can still talk to the agent, and is told what is missing", async ({
  gateway,
  driver,
  page,
}) => {
  await withoutSandbox(page);
  await driver.open((await gateway(scripted())).url);
  await driver.agentReady();
  await expect(page.locator("#chat .notice.warning")).toContainText("The agent gets no tools");
  await expect(page.locator("#panel-tools .problem")).toContainText("The sandbox cannot run");
  expect(await driver.ask("say hello")).toBe("hello");
});

test("stop ends a turn with session/cancel", async ({ gateway, driver, page }) => {
  await withoutSandbox(page);
  await driver.open((await gateway(scripted())).url);
  await driver.agentReady();
  await driver.send("wait");
  await page.getByRole("button", { name: "Stop the agent" }).click();
  await expect(page.locator("#chat .notice").last()).toHaveText("Stopped.");
  expect(await driver.ask("seen")).toContain("session/cancel");
});

test("a duplicated tab has a session of its own; a tab that is reloaded keeps its", async ({
  gateway,
  driver,
  page,
}) => {
  await withoutSandbox(page);
  await driver.open((await gateway(scripted("--load"))).url);
  await driver.agentReady();
  await driver.ask("say one");
  // A page that another opens gets a copy of its storage, as a duplicated tab does.
  const opened = page.waitForEvent("popup");
  await page.evaluate(() => void window.open(location.href));
  const other = new PageDriver(await opened);
  await withoutSandbox(other.page);
  await other.agentReady();
  await expect(other.messages("Agent")).toHaveCount(0);
  expect(await other.ask("say two")).toBe("two");
  for (const [each, said] of [
    [driver, "one"],
    [other, "two"],
  ] as const) {
    await each.page.reload();
    await each.agentReady();
    await expect(each.messages("Agent")).toHaveText([said]);
  }
});
