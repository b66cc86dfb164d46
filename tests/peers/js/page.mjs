#!/usr/bin/env node
/**
 * A person at the page in headless Chromium, told what to do over stdin: one JSON object a line, one answer a line,
 * `{"result": ...}` or `{"error": "..."}`. The person allows whatever the agent asks, once.
 *
 * Ops: `open {url, tools}` (opens the page and loads a module of tools into its sandbox), `agent` (waits for the
 * agent), `ask {text}` (a whole turn), `start {text, tool}` (up to that tool running in the page), `stop {printed}`
 * (presses Stop; the sandbox must print that), `seen` (what stands in the conversation). Ends with its stdin.
 */

import { createInterface } from "node:readline";
import { launch, open } from "../../check/kit.mjs";

/** Milliseconds for one step of the page; agents are slow to start on a busy machine. */
const LIMIT = 150_000;

const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, reducedMotion: "reduce" });
const { page } = await open(context);
page.setDefaultTimeout(LIMIT);

/** Ids of tool calls that are open in the page, and of those that the gateway took back. */
const called = new Map();
const withdrawn = new Set();
page.on("websocket", (socket) => {
  socket.on("framereceived", ({ payload }) => {
    const { id, method, params } = JSON.parse(payload);
    if (method === "mcp/message" && params?.method === "tools/call") called.set(params.params.name, id);
    if (method === "$/cancel_request") withdrawn.add(params?.requestId);
  });
});

const questions = page.getByRole("alertdialog");
const stop = page.getByRole("button", { name: "Stop the agent" });
const panel = (name) =>
  page.getByRole("navigation", { name: "Panels" }).getByRole("button", { name, exact: true }).click();

/** Allows what is asked, once each, until `work` is done. @returns what it asked. */
async function allowing(work) {
  const asked = [];
  let over = false;
  const watch = async () => {
    while (!over) {
      // Withdrawn when the work is done first: then nobody waits for this any more.
      const question = await questions
        .first()
        .elementHandle({ timeout: 250 })
        .catch(() => undefined);
      if (!question) continue;
      const buttons = await question.$$("button.primary");
      const names = await Promise.all(buttons.map((button) => button.innerText()));
      // Never for good: that would be written down, and the next run would not be asked.
      const once = names.findIndex((name) => !/always|session|\ball\b|server|tool|don't ask/i.test(name));
      const title = await (await question.$(".question-title"))?.innerText();
      asked.push({ title, answers: names, chosen: names[once] });
      if (once < 0) throw new Error(`no answer allows it once: ${names.join(", ")}`);
      await buttons[once]?.click().catch(() => {});
      await question.waitForElementState("hidden").catch(() => {});
    }
  };
  const watching = watch();
  try {
    await work;
  } finally {
    over = true;
    await watching;
  }
  return asked;
}

async function send(text) {
  await page.getByLabel("Message to the agent").fill(text);
  await page.getByLabel("Message to the agent").press("Enter");
}

/** What was said and noted since the newest message of the person. */
async function turn() {
  return page.evaluate(() => {
    const all = [...document.querySelectorAll("#chat .column > *")];
    const last = all.findLastIndex((item) => item.matches("article.message.user"));
    const texts = (selector) =>
      all
        .slice(last + 1)
        .filter((item) => item.matches(selector))
        .map((item) => item.innerText);
    return {
      said: texts("article.message.agent").join("\n"),
      tools: texts(".tool-card"),
      notes: texts(".notice, .problem"),
    };
  });
}

const ops = {
  async open({ url, tools }) {
    await page.goto(url);
    await page.locator("[data-testid=sandbox-chip].good").waitFor();
    await panel("Add");
    await page.getByLabel("Source of the module").fill(tools);
    await page.getByRole("button", { name: /^Load/ }).click();
    const outcome = page.locator("#panel-add pre.notice");
    await outcome.waitFor();
    await panel("Log");
    return outcome.innerText();
  },

  async agent() {
    const chip = page.locator("[data-testid=agent-chip]");
    await page
      .locator("[data-testid=agent-chip].good, [data-testid=agent-chip].bad, #chat .problem")
      .first()
      .waitFor();
    return { text: (await chip.innerText()).trim(), ready: await chip.evaluate((it) => it.matches(".good")) };
  },

  async ask({ text }) {
    await send(text);
    const ended = stop.waitFor({ state: "detached" });
    const asked = await allowing(ended);
    return { ...(await turn()), asked };
  },

  async start({ text, tool }) {
    await send(text);
    const running = page.locator("#panel-log .log-entry.running .log-name", {
      hasText: new RegExp(`^${tool}$`),
    });
    const ended = stop.waitFor({ state: "detached" }).then(async () => {
      throw new Error(`the turn ended without it: ${JSON.stringify(await turn())}`);
    });
    ended.catch(() => {});
    return { asked: await allowing(Promise.race([running.waitFor(), ended])) };
  },

  async stop({ printed, tool }) {
    const began = performance.now();
    await stop.click();
    const gone = page.locator("#panel-log .log-print pre", { hasText: printed }).first();
    await gone.waitFor({ timeout: 10_000 });
    const stoppedIn = performance.now() - began;
    await stop.waitFor({ state: "detached" });
    return {
      stoppedIn,
      endedIn: performance.now() - began,
      withdrawn: withdrawn.has(called.get(tool)),
      ...(await turn()),
    };
  },

  async seen() {
    return page.locator("#chat").innerText();
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { op, ...options } = JSON.parse(line);
  let answer;
  try {
    answer = { result: (await ops[op](options)) ?? null };
  } catch (error) {
    answer = { error: error.message };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await browser.close();
