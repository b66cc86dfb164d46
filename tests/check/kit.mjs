/** What both forms of the check share: the prompt, its expected answer, a browser, and how the page writes times. */

import { execFileSync } from "node:child_process";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "@playwright/test";

export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
export const BIN = path.join(ROOT, ".venv/bin");
export const DIST = path.join(ROOT, "dist");
/** Milliseconds for one step. The agent's cold start dominates: agentpool takes up to 15 s of it on a slow machine. */
export const LIMIT = 180_000;

const NAME = "ToolHost";
export const PROMPT = `Find where ${NAME} is defined, read that file and count its functions`;

export const say = (who, text) =>
  console.log(`${who.padEnd(9)}${String(text).replaceAll("\n", `\n${" ".repeat(9)}`)}`);

export const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** Milliseconds of the first span of time in a text: `12 ms`, `1.2 s`. */
export function milliseconds(text) {
  const [, value, unit] = /<?([\d.]+)\s*(ms|s)\b/.exec(text) ?? [];
  if (value === undefined) throw new Error(`"${text}" names no span of time`);
  return Number(value) * (unit === "s" ? 1000 : 1);
}

/** What the answer must contain, computed natively from the files in the bundle's workspace. */
export function expectedParts() {
  const script = path.join(ROOT, "tests/check/expected.py");
  const output = execFileSync(path.join(BIN, "python"), [script, path.join(DIST, "workspace.zip"), NAME], {
    encoding: "utf8",
  });
  const { path: file, line, lines, functions } = JSON.parse(output);
  return [file, `line ${line}`, `${lines} lines`, `${functions} functions`];
}

/** Fails unless the answer says what was computed natively. */
export function compare(answer, parts) {
  for (const part of parts) {
    if (!answer.includes(part))
      throw new Error(`the answer lacks "${part}", computed natively from the same files`);
  }
}

export function launch() {
  return chromium.launch({
    ...(process.env.CHROMIUM ? { executablePath: process.env.CHROMIUM } : {}),
    args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
  });
}

/** A new page of a browser or context, and the errors that it throws. */
export async function open(context) {
  const page = await context.newPage();
  page.setDefaultTimeout(LIMIT);
  const broken = [];
  page.on("pageerror", (error) => broken.push(error.message));
  return { page, broken };
}

/** Waits for sandbox and agent. @returns seconds until the sandbox was ready. */
export async function ready(page) {
  await page.locator("[data-testid=sandbox-chip].good").waitFor();
  const seconds = milliseconds(await page.getByTestId("sandbox-chip").getAttribute("title")) / 1000;
  await page.locator("[data-testid=agent-chip].good").waitFor();
  return seconds;
}

/** Sends a message and waits for the end of the turn. @returns the agent's last words. */
export async function ask(page, text) {
  say("person", text);
  const before = await page.locator("article.message.agent").count();
  await page.getByLabel("Message to the agent").fill(text);
  await page.keyboard.press("Enter");
  await page.locator("article.message.agent").nth(before).waitFor();
  await page.getByRole("button", { name: "Stop the agent" }).waitFor({ state: "detached" });
  const words = await page.locator("article.message.agent").last().innerText();
  say("agent", words);
  return words;
}

/** How long each tool call took between port and sandbox, from the page's log; failed calls fail the check. */
export async function callTimes(page) {
  await page.getByRole("button", { name: "Log", exact: true }).click();
  const failed = await page.locator(".log-entry.failed .log-name").allTextContents();
  if (failed.length > 0) throw new Error(`${failed.length} calls failed: ${failed.join(", ")}`);
  const names = new Set(await page.locator(".log-entry .log-name").allTextContents());
  if (names.size < 3)
    throw new Error(`the agent used ${names.size} tools, not three: ${[...names].join(", ")}`);
  return (await page.locator(".log-entry .log-time").allTextContents()).map(milliseconds);
}

/** Runs a check and prints its last line. @param {() => Promise<string>} check gives what follows `ok - `. */
export async function conclude(check) {
  try {
    console.log(`check: ok - ${await check()}`);
  } catch (error) {
    console.log(`check: failed - ${error.message.split("\n")[0]}`);
    process.exitCode = 1;
  }
}
