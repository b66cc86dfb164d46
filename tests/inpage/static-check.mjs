#!/usr/bin/env node
/**
 * `./build.sh check --static`: the same prompt as `check`, on a plain file server in a sub-folder, with the agent in the page.
 *
 * The server sends no special headers, and every request to another address is refused. After the answer the server is
 * closed and the page loaded anew: the conversation is still there and goes on. Prints a transcript; the last line is
 * `check: ok - ...` (exit 0) or `check: failed - <why>` (exit 1).
 */

import { execFileSync } from "node:child_process";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "@playwright/test";
import { plainServer } from "./static-server.mjs";

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
const NAME = "ToolHost";
const PROMPT = `Find where ${NAME} is defined, read that file and count its functions`;
/** Milliseconds: two starts of Python and the files of both, on a slow machine. */
const LIMIT = 180_000;

const say = (who, text) =>
  console.log(`${who.padEnd(9)}${String(text).replaceAll("\n", `\n${" ".repeat(9)}`)}`);
const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** Milliseconds that a text such as "12.3 ms" or "1.2 s" says. */
function milliseconds(text) {
  const [, number, unit] = /([\d.]+)\s*(ms|s)/.exec(text) ?? [];
  return unit === "s" ? Number(number) * 1000 : Number(number);
}

/** Runs the check. @param {{dist?: string}} options @returns {Promise<string>} what the last line says after `ok - `. */
export async function staticCheck({ dist = path.join(ROOT, "dist") } = {}) {
  const expected = JSON.parse(
    execFileSync(
      path.join(ROOT, ".venv/bin/python"),
      [path.join(ROOT, "tests/check/expected.py"), path.join(dist, "workspace.zip"), NAME],
      { encoding: "utf8" },
    ),
  );
  const server = await plainServer(dist, { below: "/some/folder/" });
  let browser;
  try {
    browser = await chromium.launch({
      ...(process.env.CHROMIUM ? { executablePath: process.env.CHROMIUM } : {}),
      args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
    });
    const context = await browser.newContext();
    const refused = [];
    await context.route(
      (url) => url.origin !== server.origin && /^https?:$/.test(url.protocol),
      (route) => {
        refused.push(route.request().url());
        return route.abort();
      },
    );
    const page = await context.newPage();
    page.setDefaultTimeout(LIMIT);
    const broken = [];
    page.on("pageerror", (error) => broken.push(error.message));
    await page.goto(server.address);
    await ready(page);
    const chip = await page.getByTestId("sandbox-chip").getAttribute("title");
    const seconds = milliseconds(chip.slice(chip.indexOf("ready after"))) / 1000;
    const agent = (await page.locator("[data-testid=agent-chip] .chip-text").innerText()).trim();
    say(
      "page",
      `served from ${server.address} without headers; sandbox ready in ${seconds} s, ${agent} ready`,
    );
    say("person", PROMPT);
    await ask(page, PROMPT);
    const answer = page.locator("article.message.agent").last();
    await answer.filter({ hasText: "functions" }).waitFor();
    const text = await answer.innerText();
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
    const cards = page.locator("details.tool-card");
    const names = new Set(await cards.locator(".tool-title").allInnerTexts());
    const done = await page.locator("details.tool-card.completed").count();
    const all = await cards.count();
    if (names.size < 3)
      throw new Error(`the agent used ${names.size} tools, not three: ${[...names].join(", ")}`);
    if (done < all) throw new Error(`${all - done} calls did not complete`);
    const took = median((await cards.locator(".tool-time").allInnerTexts()).map(milliseconds));

    await page.locator('html[data-offline="ready"]').waitFor({ state: "attached" });
    server.close();
    say("page", "the server is gone; the page is loaded anew");
    await page.reload();
    await ready(page);
    await page.locator("article.message.agent").filter({ hasText: "functions" }).waitFor();
    await ask(page, "List files in docs");
    await page.locator("article.message.agent").last().filter({ hasText: "files in" }).waitFor();
    say("agent", "answered without a network");
    if (refused.length > 0) throw new Error(`the page asked other addresses: ${refused.join(" ")}`);
    if (broken.length > 0) throw new Error(`the page threw: ${broken.join(" | ")}`);
    return `${agent} called ${all} tools in the page; sandbox ready in ${seconds} s, median call ${took.toFixed(1)} ms`;
  } finally {
    await browser?.close();
    server.close();
  }
}

async function ready(page) {
  await page.locator("[data-testid=sandbox-chip].good").waitFor();
  await page.locator("[data-testid=agent-chip].good").waitFor();
}

async function ask(page, text) {
  await page.getByLabel("Message to the agent").fill(text);
  await page.keyboard.press("Enter");
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    console.log(`check: ok - ${await staticCheck()}`);
  } catch (error) {
    console.log(`check: failed - ${error.message.split("\n")[0]}`);
    process.exitCode = 1;
  }
}
