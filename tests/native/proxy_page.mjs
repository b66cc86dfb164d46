/**
 * The page as a person has it open, behind a proxy: asks, waits for its gateway to go, goes on with another, asks again;
 * then finds out that this one is frozen, although its socket is open, and goes on when it is thawed.
 *
 *     node tests/native/proxy_page.mjs ADDRESS HOST
 *
 * HOST is a name that the browser shall look for on loopback. Prints `asked` when the first gateway may go,
 * `resumed` when the second may freeze (and waits for a line on stdin), `lost` when it may thaw, and `alive` last.
 */

import { once } from "node:events";
import { existsSync } from "node:fs";
import { chromium } from "@playwright/test";
import { ask, compare, expectedParts, open, PROMPT, ready } from "../check/kit.mjs";

const [address, host] = process.argv.slice(2);
const executablePath = [process.env.CHROMIUM, "/usr/bin/chromium"].find((path) => path && existsSync(path));
const browser = await chromium.launch({
  ...(executablePath ? { executablePath } : {}),
  args: [
    `--host-resolver-rules=MAP ${host} 127.0.0.1`,
    ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []),
  ],
});
try {
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const { page, broken } = await open(context);
  const sockets = [];
  page.on("websocket", (socket) => sockets.push(socket.url()));
  await page.goto(address);
  await ready(page);
  compare(await ask(page, PROMPT), expectedParts());
  console.log("asked");
  await page.locator("#chat .notice", { hasText: "Reconnected. The conversation goes on." }).waitFor();
  await ready(page);
  // The tools were declared anew; the words from before are still there, once.
  compare(await ask(page, PROMPT), expectedParts());
  const questions = await page.locator("article.message.user").count();
  if (questions !== 2) throw new Error(`two questions are shown as ${questions}`);
  if (sockets.length !== 2 || !sockets.every((url) => url.startsWith("wss:")))
    throw new Error(`not two sockets over TLS: ${sockets.join(", ")}`);
  console.log("resumed");
  await once(process.stdin, "data");
  // As a browser does when a laptop wakes up. The page then asks, and has 10 s for an answer.
  await page.evaluate(() => window.dispatchEvent(new Event("online")));
  await page.locator("[data-testid=agent-chip].good").waitFor({ state: "detached" });
  console.log("lost");
  await ready(page);
  if (broken.length > 0) throw new Error(`the page threw: ${broken.join(" | ")}`);
  console.log("alive");
} finally {
  await browser.close();
  process.stdin.destroy();
}
