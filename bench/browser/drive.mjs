/**
 * Drives one browser for the benchmarks: JSON lines in on stdin, one JSON line out for each.
 *
 * `{op: "open", url}` navigates; `{op: "run", code}` evaluates the body of an async function in the page and answers
 * with what it returns; `{op: "profile", code}` does so under Chromium's sampling profiler. Ends with stdin.
 *
 * usage: node drive.mjs chromium|firefox|webkit
 */

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { openChromium } from "./engines/chromium.mjs";
import { openFirefox } from "./engines/firefox.mjs";
import { openWebkit } from "./engines/webkit.mjs";

const engines = { chromium: openChromium, firefox: openFirefox, webkit: openWebkit };
const profile = await mkdtemp(join(tmpdir(), "sandport-bench-"));
const browser = await engines[process.argv[2]](profile);

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
say({ ok: true, value: browser.version });
try {
  for await (const line of createInterface({ input: process.stdin })) {
    const { op, ...order } = JSON.parse(line);
    try {
      say({ ok: true, value: (await browser[op](order)) ?? null });
    } catch (error) {
      say({ ok: false, error: String(error?.stack ?? error).slice(0, 4000) });
    }
  }
} finally {
  await browser.close();
  await rm(profile, { recursive: true, force: true, maxRetries: 5 });
}
