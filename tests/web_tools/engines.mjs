#!/usr/bin/env node
/**
 * Tools of the page, and WebMCP, in real engines: node tests/web_tools/engines.mjs [chromium] [firefox] [webkit] [--dist DIR]
 *
 * The real page behind a real gateway with a real agent, driven from within by drive.js. Without a sandbox: other tests
 * have that. Prints a line a step, and last `N passed, N failed`; exits with 1 when something failed.
 */

import { spawn } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { ENGINES } from "../engines/drivers.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const ROOT = path.join(HERE, "../..");

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { dist: { type: "string", default: path.join(ROOT, "dist") } },
});
const engines = positionals.length > 0 ? positionals : Object.keys(ENGINES);
const bundle = mkdtempSync(path.join(tmpdir(), "sandport-page-"));
let [passed, failed] = [0, 0];
const report = (engine, { name, ok, detail, ms }) => {
  if (ok) passed += 1;
  else failed += 1;
  console.log(
    `${ok ? "ok  " : "FAIL"} ${engine}: ${name}${detail ? ` - ${detail}` : ""} (${(ms / 1000).toFixed(1)} s)`,
  );
};

/** The bundle without a sandbox to start, and with the driver's script on the page. */
function prepare() {
  for (const name of ["assets", "headers.json", "icon.svg", "sandbox.html", "workspace.zip"])
    cpSync(path.join(values.dist, name), path.join(bundle, name), { recursive: true });
  cpSync(path.join(HERE, "drive.js"), path.join(bundle, "drive.js"));
  const page = readFileSync(path.join(values.dist, "index.html"), "utf8");
  writeFileSync(
    path.join(bundle, "index.html"),
    page.replace("<head>", '<head><script src="drive.js"></script>'),
  );
}

/** A gateway on the bundle; resolves to its address and the way to end it. */
function gateway() {
  const agent = `${process.execPath} ${path.join(ROOT, "tests/e2e/agents/scripted.mjs")}`;
  const child = spawn(path.join(ROOT, ".venv/bin/sandport"), ["serve", "--dist", bundle, "--agent", agent], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  return new Promise((resolve, reject) => {
    let out = "";
    child.stdout.on("data", (data) => {
      out += data;
      const url = /http:\/\/\S+#token=\S+/.exec(out)?.[0];
      if (url) resolve({ url, close: () => child.kill() });
    });
    child.once("exit", (code) => reject(new Error(`sandport serve ended with ${code}`)));
  });
}

try {
  prepare();
  for (const engine of engines) {
    const began = performance.now();
    let [browser, served] = [];
    try {
      served = await gateway();
      browser = await ENGINES[engine]();
      for (const outcome of await browser.call(served.url, "drive")) report(engine, outcome);
    } catch (error) {
      const detail = String(error.message).slice(0, 2000);
      report(engine, { name: "the whole run", ok: false, detail, ms: performance.now() - began });
    } finally {
      await browser?.close();
      served?.close();
    }
  }
} finally {
  rmSync(bundle, { recursive: true });
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
