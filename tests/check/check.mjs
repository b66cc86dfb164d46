#!/usr/bin/env node
/**
 * `./build.sh check`: a real prompt through the whole path, without a screen.
 *
 * Starts the gateway with the demo agent, opens the page in headless Chromium, sends a prompt that takes three tools on
 * the workspace, and compares the agent's answer with the same values computed natively from the same files. Prints a
 * transcript; the last line is `check: ok - ...` (exit 0) or `check: failed - <why>` (exit 1).
 */

import { spawn } from "node:child_process";
import path from "node:path";
import { createInterface } from "node:readline";
import {
  ask,
  BIN,
  callTimes,
  compare,
  conclude,
  DIST,
  expectedParts,
  launch,
  median,
  open,
  PROMPT,
  ready,
  say,
} from "./kit.mjs";

const short = (value, length = 160) => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > length ? `${text.slice(0, length)}… (${text.length} characters)` : text;
};

/** Starts the gateway; resolves to its address and a function that ends it and waits for its end. */
function startGateway() {
  const child = spawn(path.join(BIN, "sandport"), ["serve", "--dist", DIST], {
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

/** Reads the conversation off the page's WebSocket: who the agent is, and, printed, each tool call with its answer. */
function listen(page) {
  const seen = { agent: undefined };
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
      say(
        "page",
        `${name} answered ${short(message.result?.structuredContent ?? message.result ?? message.error)}`,
      );
    });
  });
  return seen;
}

async function check() {
  const expected = expectedParts();
  const gateway = await startGateway();
  let browser;
  try {
    browser = await launch();
    const { page, broken } = await open(browser);
    const seen = listen(page);
    await page.goto(gateway.address);
    const seconds = await ready(page);
    say("page", `sandbox ready in ${seconds} s, agent ready`);
    compare(await ask(page, PROMPT), expected);
    const times = await callTimes(page);
    if (broken.length > 0) throw new Error(`the page threw: ${broken.join(" | ")}`);
    const { name = "agent", version = "" } = seen.agent ?? {};
    const who = [name, version].join(" ").trim();
    return `${who} called ${times.length} tools in the page; sandbox ready in ${seconds} s, median call ${median(times)} ms`;
  } finally {
    await browser?.close();
    await gateway.stop();
  }
}

await conclude(check);
