#!/usr/bin/env node
/**
 * The sandbox in real engines: node tests/engines/run.mjs [chromium] [firefox] [webkit] [--dist DIR] [--only TEXT]...
 *
 * Prints a line a check, and last `N passed, N failed`. Exits with 1 when something failed.
 */

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { ENGINES, metTornImage } from "./drivers.mjs";
import { serveStatic } from "./server.mjs";
import { tally, testPage } from "./test-page.mjs";

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

const { folder: pages, remove } = await testPage(path.join(HERE, "page.ts"));
const { report, conclude } = tally();

try {
  const tools = readFileSync(path.join(HERE, "tools.py"), "utf8");
  for (const engine of engines) {
    const server = await serveStatic(values.dist, { extra: { "/test/": pages } });
    const began = performance.now();
    let browser;
    try {
      browser = await ENGINES[engine]();
      const settings = { tools, skip: SKIP[engine] ?? {}, ...(values.only ? { only: values.only } : {}) };
      const run = () => browser.call(`${server.origin}/test/page.html`, "run", settings);
      let outcomes = await run();
      if (outcomes.some(({ detail }) => metTornImage(engine, detail))) {
        console.log(`again ${engine}: the engine tore the memory image`);
        outcomes = await run();
      }
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
      await circumstances(engine, browser, tools);
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
  remove();
}
conclude();

/** Starts under other circumstances: each must serve all the same, or say why not. */
async function circumstances(engine, browser, tools) {
  const manifest = JSON.parse(readFileSync(path.join(values.dist, "runtime", "manifest.json"), "utf8"));
  const { image } = manifest.files;
  const cases = [
    ["a host without headers: the frame inline", "start", { bare: true }, { inlineFrame: true }, () => ""],
    ["a second visit fetches the manifest alone", "visitTwice", {}, {}, kept],
    [
      "no bundle: it says what to do",
      "startInVain",
      { instead: { "/runtime/manifest.json": null } },
      {},
      inVain,
    ],
    [
      "a damaged file: it is not run",
      "startInVain",
      { instead: { [`/runtime/${manifest.files.core.name}`]: Buffer.from("not it") } },
      {},
      inVain,
    ],
  ];
  if (image) {
    const address = `/runtime/${image.name}`;
    const original = readFileSync(path.join(values.dist, "runtime", image.name));
    const changed = (change) => {
      const altered = Buffer.from(original);
      change(altered);
      const sha256 = createHash("sha256").update(altered).digest("hex");
      const files = { ...manifest.files, image: { ...image, sha256 } };
      return {
        instead: {
          [address]: altered,
          "/runtime/manifest.json": Buffer.from(JSON.stringify({ ...manifest, files })),
        },
      };
    };
    // As browser/src/sandbox/image.ts has it; the build id is in Pyodide's own head.
    const data = original.readUInt32LE(4);
    const head = 20 + original.readUInt32LE(16) * 8;
    cases.push(
      ["a missing image: the cold way, and it says so", "start", { instead: { [address]: null } }, {}, cold],
      [
        "a damaged image: the cold way, and it says so",
        "start",
        { instead: { [address]: original.subarray(1) } },
        {},
        cold,
      ],
      [
        "an image of another build: the cold way, and it says so",
        "start",
        changed((image) => image.fill(7, head + 16, head + 48)),
        {},
        cold,
      ],
      [
        "an image whose table of runs is not true: the cold way, and it says so",
        "start",
        changed((image) => image.writeUInt32LE(image.readUInt32LE(24) + 8, 24)),
        {},
        cold,
      ],
      [
        "an image with a broken heap: the cold way, and it says so",
        "start",
        changed((image) => image.fill(0, data + 0x600000, data + 0x1600000)),
        {},
        cold,
      ],
    );
  }
  for (const [name, call, options, settings, verdict] of cases) {
    if (values.only && !values.only.some((part) => name.includes(part))) continue;
    const server = await serveStatic(values.dist, { extra: { "/test/": pages }, ...options });
    const began = performance.now();
    const outcome = await browser
      .call(`${server.origin}/test/page.html`, call, { tools, skip: {}, ...settings })
      .then(
        (result) => ({
          ok: verdict(result) === "",
          detail:
            verdict(result) ||
            [result.mode, result.message, ...(result.details ?? [])].filter(Boolean).join(": "),
        }),
        (error) => ({ ok: false, detail: String(error.message) }),
      );
    server.close();
    report(engine, { name, ...outcome, ms: performance.now() - began });
  }
}

function cold({ mode, details }) {
  return mode === "cold" && details.length === 1
    ? ""
    : `${mode}, and said: ${details.join("; ") || "nothing"}`;
}

function kept({ details }) {
  return details.length === 0 ? "" : `fetched ${details.join(", ")}`;
}

function inVain({ stage, message, remedy, state }) {
  return stage === "fetch" && message && remedy && state === "failed"
    ? ""
    : `${state}, ${stage}: ${message}; ${remedy}`;
}
