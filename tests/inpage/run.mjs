#!/usr/bin/env node
/**
 * The in-page agent in real engines: node tests/inpage/run.mjs [chromium] [firefox] [webkit] [--dist DIR]
 *
 * Each engine twice: behind the gateway's headers, and on a plain file server in a sub-folder. Prints a line a check, and
 * last `N passed, N failed`. Exits with 1 when something failed.
 */

import { createHash } from "node:crypto";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { ENGINES, metTornImage } from "../engines/drivers.mjs";
import { serveStatic } from "../engines/server.mjs";
import { tally, testPage } from "../engines/test-page.mjs";
import { scriptedEndpoint } from "./endpoint.mjs";
import { plainServer } from "./static-server.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { dist: { type: "string", default: path.join(HERE, "../../dist") } },
});
const dist = path.resolve(values.dist);
const KEY = "sk-only-for-the-endpoint";

const { folder: pages, remove } = await testPage(path.join(HERE, "page.ts"));
const { report, conclude } = tally();

/** The hosts, by name: each gives a server, the bundle's address and the test page's. */
const HOSTS = {
  async headers() {
    const server = await serveStatic(dist, { extra: { "/test/": pages } });
    return { server, base: `${server.origin}/`, page: `${server.origin}/test/page.html`, inlineFrame: false };
  },
  async plain() {
    // The test's page lies in the site's folder: a service worker answers for what is below it.
    const extra = { "/some/folder/test/": pages };
    const server = await plainServer(dist, { below: "/some/folder/", extra });
    return { server, base: server.address, page: `${server.address}test/page.html`, inlineFrame: true };
  },
};

try {
  for (const engine of positionals.length > 0 ? positionals : Object.keys(ENGINES)) {
    for (const [host, start] of Object.entries(HOSTS)) await runOn(engine, host, await start());
    await runOnBadImage(engine);
  }
} finally {
  remove();
}
conclude();

/** A bundle whose agent has an image that is what the manifest says, and none. */
async function runOnBadImage(engine) {
  const copy = mkdtempSync(path.join(tmpdir(), "sandport-inpage-dist-"));
  const server = await plainServer(copy, { below: "/site/", extra: { "/test/": pages } });
  let browser;
  const began = performance.now();
  const result = { name: "an image that cannot be used costs time only", ok: false };
  try {
    cpSync(dist, copy, { recursive: true, filter: (file) => !file.endsWith(".br") });
    const file = path.join(copy, "agent", "manifest.json");
    const manifest = JSON.parse(readFileSync(file, "utf8"));
    const junk = Buffer.alloc(4096, 7);
    const sha256 = createHash("sha256").update(junk).digest("hex");
    manifest.files.image = { name: "image.0000000000.bin", size: junk.length, sha256 };
    writeFileSync(path.join(copy, "agent", manifest.files.image.name), junk);
    writeFileSync(file, JSON.stringify(manifest));
    browser = await ENGINES[engine]();
    const settings = { base: server.address, inlineFrame: true };
    const start = () => browser.call(`${server.origin}/test/page.html`, "withBadImage", settings);
    result.detail = await start().catch((error) => {
      if (metTornImage(engine, error.message)) return start();
      throw error;
    });
    result.ok = true;
  } catch (error) {
    result.detail = String(error.message).slice(0, 2000);
  } finally {
    await browser?.close();
    server.close();
    rmSync(copy, { recursive: true });
  }
  report(engine, { ...result, ms: performance.now() - began });
}

async function runOn(engine, host, { server, base, page, inlineFrame }) {
  const where = `${engine}, ${host}`;
  const endpoint = await scriptedEndpoint({ key: KEY });
  const closed = await scriptedEndpoint({ key: KEY, allow: () => false });
  const settings = {
    base,
    inlineFrame,
    endpoint: { address: endpoint.address, model: endpoint.model, key: KEY },
    closedAddress: closed.address,
  };
  const began = performance.now();
  let browser;
  try {
    browser = await ENGINES[engine]();
    let outcomes = await browser.call(page, "run", settings);
    if (outcomes.some(({ detail }) => metTornImage(engine, detail))) {
      console.log(`again ${where}: the engine tore the memory image`);
      outcomes = await browser.call(page, "run", settings);
    }
    for (const outcome of outcomes) report(where, outcome);
    if (inlineFrame) {
      const kept = await browser.call(page, "prepareOffline", settings);
      report(where, { name: "the site is kept for use without a network", ok: kept });
      if (kept) server.close();
    }
    if (inlineFrame) {
      const raw = server.requests.filter((request) => /^GET \S+\.(?:zip|bin|wasm) /.test(request));
      report(where, { name: "a host that does not compress sends compressed files", ok: raw.length === 0 });
    }
    const again = performance.now();
    const detail = await browser.call(page, "afterReload", settings);
    report(where, {
      name: `sessions survive a reload${inlineFrame ? ", without a network" : ""}`,
      ok: true,
      detail,
      ms: performance.now() - again,
    });
    report(where, {
      name: "the key reached its endpoint, and no other server",
      ok:
        endpoint.requests.some(({ headers }) => headers.authorization === `Bearer ${KEY}`) &&
        !JSON.stringify(server.requests).includes(KEY) &&
        endpoint.requests.every(({ url, body }) => !url.includes(KEY) && !body.includes(KEY)),
      detail: `${endpoint.requests.length} requests`,
    });
    report(where, {
      name: "a stopped answer ends its request",
      ok: endpoint.closed.includes(false),
      detail: `${endpoint.closed.length} responses`,
    });
  } catch (error) {
    report(where, {
      name: "the whole run",
      ok: false,
      detail: String(error.message).slice(0, 2000),
      ms: performance.now() - began,
    });
  } finally {
    await browser?.close();
    for (const each of [server, endpoint, closed]) each.close();
  }
}
