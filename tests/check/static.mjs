#!/usr/bin/env node
/**
 * `./build.sh check --static`: the same prompt as `check`, on a plain file server in a sub-folder, with the agent in the page.
 *
 * The server sends no special headers, and every request to another address is refused. After the answer the server is
 * closed and the page loaded anew: the conversation is still there and goes on. Prints a transcript; the last line is
 * `check: ok - ...` (exit 0) or `check: failed - <why>` (exit 1).
 */

import { plainServer } from "../inpage/static-server.mjs";
import {
  ask,
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

async function check() {
  const expected = expectedParts();
  const server = await plainServer(DIST, { below: "/some/folder/" });
  let browser;
  try {
    browser = await launch();
    const context = await browser.newContext();
    const refused = [];
    await context.route(
      (url) => url.origin !== server.origin && /^https?:$/.test(url.protocol),
      (route) => {
        refused.push(route.request().url());
        return route.abort();
      },
    );
    const { page, broken } = await open(context);
    await page.goto(server.address);
    const seconds = await ready(page);
    const who = (await page.locator("[data-testid=agent-chip] .chip-text").innerText()).trim();
    say("page", `served from ${server.address} without headers; sandbox ready in ${seconds} s, ${who} ready`);
    compare(await ask(page, PROMPT), expected);
    const times = await callTimes(page);

    await page.locator('html[data-offline="ready"]').waitFor({ state: "attached" });
    server.close();
    say("page", "the server is gone; the page is loaded anew");
    await page.reload();
    await ready(page);
    compare(await page.locator("#chat").innerText(), expected);
    compare(await ask(page, "List files in docs"), ["docs/architecture.md"]);
    if (refused.length > 0) throw new Error(`the page asked other addresses: ${refused.join(" ")}`);
    if (broken.length > 0) throw new Error(`the page threw: ${broken.join(" | ")}`);
    return `${who} called ${times.length} tools in the page; sandbox ready in ${seconds} s, median call ${median(times)} ms`;
  } finally {
    await browser?.close();
    server.close();
  }
}

await conclude(check);
