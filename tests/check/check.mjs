#!/usr/bin/env node
/**
 * `./build.sh check`: a real prompt through the whole path, without a screen.
 *
 * Starts the gateway with the demo agent, opens the page in headless Chromium, sends a prompt that takes three tools on the workspace, and
 * compares the agent's answer with the same values computed natively from the same files. Prints a transcript; the last line is
 * `check: ok - ...` (exit 0) or `check: failed - <why>` (exit 1).
 */

import { execFileSync, spawn } from "node:child_process";
import path from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { chromium } from "@playwright/test";

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
const BIN = path.join(ROOT, ".venv/bin");
const NAME = "ToolHost";
const PROMPT = `Find where ${NAME} is defined, read that file and count its functions`;
/** Milliseconds. The agent's cold start dominates; agentpool takes up to 15 s of it on a slow machine. */
const LIMIT = 180_000;

const say = (who, text) =>
  console.log(`${who.padEnd(9)}${String(text).replaceAll("\n", `\n${" ".repeat(9)}`)}`);
const short = (value, length = 160) => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > length ? `${text.slice(0, length)}… (${text.length} characters)` : text;
};
const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** Starts the gateway; resolves to its address and a function that ends it and waits for its end. */
function startGateway() {
  const child = spawn(path.join(BIN, "sandport"), ["serve", "--dist", path.join(ROOT, "dist")], {
    stdio: ["ignore", "pipe", "pipe"],
  });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const errors = [];
  createInterface({ input: child.stderr }).on("line", (line) => errors.push(line));
  const stop = async () => {
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), 15_000);
    await ended;
    clearTimeout(timer);
  };
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).on("line", (line) => {
      const address = /Sandport is ready: (\S+)/.exec(line)?.[1];
      if (address) resolve({ address, stop });
    });
    child.once("error", reject);
    ended.then((code) =>
      reject(new Error(`the gateway ended with ${code}: ${errors.slice(-5).join(" | ")}`)),
    );
  });
}

/** Reads the conversation off the page's WebSocket: who the agent is, and each tool call with its answer. */
function listen(page) {
  const seen = { agent: undefined, calls: [] };
  const open = new Map();
  const initialize = new Set();
  page.on("websocket", (socket) => {
    socket.on("framereceived", ({ payload }) => {
      const message = JSON.parse(payload);
      if (initialize.has(message.id) && message.result?.agentInfo) seen.agent = message.result.agentInfo;
      if (message.method === "mcp/message" && message.params?.method === "tools/call") {
        const { name, arguments: args } = message.params.params;
        open.set(message.id, name);
        say("agent", `calls ${name}(${short(args ?? {})})`);
      }
    });
    socket.on("framesent", ({ payload }) => {
      const message = JSON.parse(payload);
      if (message.method === "initialize") initialize.add(message.id);
      const name = message.method === undefined ? open.get(message.id) : undefined;
      if (name === undefined) return;
      open.delete(message.id);
      seen.calls.push({ name, failed: Boolean(message.error ?? message.result?.isError) });
      say(
        "page",
        `${name} answered ${short(message.result?.structuredContent ?? message.result ?? message.error)}`,
      );
    });
  });
  return seen;
}

/** Milliseconds of a span as the page writes it: `12 ms`, `1.2 s`. */
function milliseconds(text) {
  const [, value, unit] = /(<?[\d.]+)\s*(ms|s)\b/.exec(text) ?? [];
  if (value === undefined) throw new Error(`"${text}" is no span of time`);
  return Number(value.replace("<", "")) * (unit === "s" ? 1000 : 1);
}

/** How long each tool call took between port and sandbox, from the page's log. */
async function callTimes(page) {
  await page.getByRole("button", { name: "Log", exact: true }).click();
  return (await page.locator(".log-entry .log-time").allTextContents()).map(milliseconds);
}

async function check() {
  const expected = JSON.parse(
    execFileSync(
      path.join(BIN, "python"),
      [path.join(ROOT, "tests/check/expected.py"), path.join(ROOT, "dist/workspace.zip"), NAME],
      {
        encoding: "utf8",
      },
    ),
  );
  const gateway = await startGateway();
  let browser;
  try {
    browser = await chromium.launch({
      ...(process.env.CHROMIUM ? { executablePath: process.env.CHROMIUM } : {}),
      args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
    });
    const page = await browser.newPage();
    page.setDefaultTimeout(LIMIT);
    const broken = [];
    page.on("pageerror", (error) => broken.push(error.message));
    const seen = listen(page);
    await page.goto(gateway.address);
    await page.locator("[data-testid=sandbox-chip].good").waitFor();
    const seconds = milliseconds(await page.getByTestId("sandbox-chip").getAttribute("title")) / 1000;
    await page.locator("[data-testid=agent-chip].good").waitFor();
    say("page", `sandbox ready in ${seconds} s, agent ready`);
    say("person", PROMPT);
    await page.getByLabel("Message to the agent").fill(PROMPT);
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Stop the agent" }).waitFor();
    await page.getByRole("button", { name: "Stop the agent" }).waitFor({ state: "detached" });
    const text = (await page.locator("article.message.agent").allTextContents()).join("\n");
    say("agent", text);
    for (const part of [
      expected.path,
      `line ${expected.line}`,
      `${expected.lines} lines`,
      `${expected.functions} functions`,
    ]) {
      if (!text.includes(part))
        throw new Error(`the answer lacks "${part}", computed natively from the same files`);
    }
    const names = new Set(seen.calls.map((call) => call.name));
    if (names.size < 3)
      throw new Error(`the agent used ${names.size} tools, not three: ${[...names].join(", ")}`);
    const failed = seen.calls.filter((call) => call.failed);
    if (failed.length > 0)
      throw new Error(`${failed.length} calls failed: ${failed.map((call) => call.name).join(", ")}`);
    if (broken.length > 0) throw new Error(`the page threw: ${broken.join(" | ")}`);
    const { name = "agent", version = "" } = seen.agent ?? {};
    const took = median(await callTimes(page));
    return `${[name, version].join(" ").trim()} called ${seen.calls.length} tools in the page; sandbox ready in ${seconds} s, median call ${took} ms`;
  } finally {
    await browser?.close();
    await gateway.stop();
  }
}

try {
  console.log(`check: ok - ${await check()}`);
} catch (error) {
  console.log(`check: failed - ${error.message.split("\n")[0]}`);
  process.exitCode = 1;
}
