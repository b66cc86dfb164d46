#!/usr/bin/env node
/**
 * The sandbox in real engines: node tests/engines/run.mjs [chromium] [firefox] [webkit] [--dist DIR] [--only TEXT]...
 *
 * Prints a line a check, and last `N passed, N failed`. Exits with 1 when something failed.
 */

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { build } from "esbuild";
import { ENGINES } from "./drivers.mjs";
import { serveStatic } from "./server.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOT = path.join(HERE, "../..");

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    dist: { type: "string", default: path.join(ROOT, "dist") },
    only: { type: "string", multiple: true },
  },
});
const engines = positionals.length > 0 ? positionals : Object.keys(ENGINES);

/** What an engine cannot do, by check. */
const SKIP = {
  webkit: {
    // WebKitGTK never stops wasm: each life ended this way keeps a core busy until the session ends.
    "code that swallows interrupts costs a restart, nothing else":
      "endless code survives the end of its worker",
  },
};

const pages = mkdtempSync(path.join(tmpdir(), "sandport-engines-"));
let passed = 0;
let failed = 0;
const report = (engine, { name, ok, detail, ms }) => {
  if (ok) passed += 1;
  else failed += 1;
  console.log(
    `${ok ? "ok  " : "FAIL"} ${engine}: ${name}${detail ? ` - ${detail}` : ""} (${(ms / 1000).toFixed(1)} s)`,
  );
};

try {
  await build({
    entryPoints: [path.join(HERE, "page.ts")],
    bundle: true,
    format: "esm",
    target: "es2022",
    outfile: path.join(pages, "page.js"),
    logLevel: "warning",
  });
  writeFileSync(
    path.join(pages, "page.html"),
    '<!doctype html><meta charset="utf-8"><body><script type="module" src="page.js"></script>',
  );
  const tools = readFileSync(path.join(HERE, "tools.py"), "utf8");
  for (const engine of engines) {
    const server = await serveStatic(values.dist, { extra: { "/test/": pages } });
    const began = performance.now();
    let browser;
    try {
      browser = await ENGINES[engine]();
      const outcomes = await browser.call(`${server.origin}/test/page.html`, "run", {
        tools,
        skip: SKIP[engine] ?? {},
        ...(values.only ? { only: values.only } : {}),
      });
      for (const outcome of outcomes) report(engine, outcome);
      for (const [name, why] of Object.entries(SKIP[engine] ?? {}))
        console.log(`skip ${engine}: ${name} - ${why}`);
      const leaks = server.requests.filter((name) => name.includes("leak"));
      report(engine, {
        name: "the server saw no request from the sandbox",
        ok: leaks.length === 0,
        detail: leaks.join(" "),
        ms: 0,
      });
      if (!values.only) await fallbacks(engine, browser, tools);
    } catch (error) {
      report(engine, {
        name: "the whole run",
        ok: false,
        detail: String(error.message).slice(0, 2000),
        ms: performance.now() - began,
      });
    } finally {
      await browser?.close();
      server.close();
    }
  }
} finally {
  rmSync(pages, { recursive: true });
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);

/** Starts under other circumstances: a host without headers. */
async function fallbacks(engine, browser, tools) {
  const bare = await serveStatic(values.dist, { extra: { "/test/": pages }, bare: true });
  const began = performance.now();
  try {
    const { mode } = await browser.call(`${bare.origin}/test/page.html`, "fallback", {
      tools,
      skip: {},
      inlineFrame: true,
    });
    report(engine, {
      name: "a host without headers: the frame inline",
      ok: true,
      detail: mode,
      ms: performance.now() - began,
    });
  } catch (error) {
    report(engine, {
      name: "a host without headers: the frame inline",
      ok: false,
      detail: String(error.message),
      ms: performance.now() - began,
    });
  } finally {
    bare.close();
  }
}
