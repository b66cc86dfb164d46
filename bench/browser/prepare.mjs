/**
 * Makes the folder that the benchmarks' gateway serves: the built bundle, the benchmarks' page, and bare Pyodide.
 *
 * usage: node prepare.mjs TARGET
 */

import { cp, link, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { build } from "esbuild";

const root = resolve(import.meta.dirname, "../..");
const target = resolve(process.argv[2] ?? join(root, ".cache/bench/dist"));
const PYODIDE = [
  "pyodide.mjs",
  "pyodide.asm.mjs",
  "pyodide.asm.wasm",
  "python_stdlib.zip",
  "pyodide-lock.json",
];
const IMMUTABLE = "public, max-age=31536000, immutable";

async function linkTree(from, to) {
  await mkdir(to, { recursive: true });
  for (const entry of await readdir(from, { withFileTypes: true })) {
    const [source, copy] = [join(from, entry.name), join(to, entry.name)];
    if (entry.isDirectory()) await linkTree(source, copy);
    // The gateway follows no link that leads out of its folder, so these are hard ones; across file systems, copies.
    else await link(source, copy).catch(() => cp(source, copy));
  }
}

const html = (script) =>
  `<!doctype html><meta charset="utf-8"><title>bench</title><link rel="icon" href="data:,"><body><script type="module" src="${script}"></script></body>\n`;

await rm(target, { recursive: true, force: true });
await linkTree(join(root, "dist"), target);
await build({
  entryPoints: [join(import.meta.dirname, "page.mjs")],
  outdir: target,
  entryNames: "bench",
  chunkNames: "bench-[hash]",
  outExtension: { ".js": ".mjs" },
  splitting: true,
  alias: { sandport: join(root, "browser/src/index.ts") },
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2022",
  logLevel: "warning",
});
await writeFile(join(target, "bench.html"), html("./bench.mjs"));

const bare = join(target, "bare");
await mkdir(bare);
const pyodide = dirname(createRequire(import.meta.url).resolve("pyodide/package.json"));
for (const name of PYODIDE) await cp(join(pyodide, name), join(bare, name));
for (const name of ["bare.mjs", "bare-worker.mjs"])
  await cp(join(import.meta.dirname, name), join(bare, name));
await writeFile(join(bare, "index.html"), html("./bare.mjs"));

const headers = JSON.parse(await readFile(join(target, "headers.json"), "utf8"));
const policy = {
  ...headers["*"],
  "Content-Security-Policy": "default-src 'self' 'wasm-unsafe-eval'; img-src data:",
};
// Bare Pyodide gets the best case: from the HTTP cache without a question, and nothing to decompress.
for (const name of [...PYODIDE, "bare.mjs", "bare-worker.mjs"]) {
  headers[`/bare/${name}`] = { ...policy, "Cache-Control": IMMUTABLE };
}
headers["/bare/index.html"] = policy;
headers["/bench.mjs"] = { ...headers["*"], "Cache-Control": IMMUTABLE };
await rm(join(target, "headers.json"));
await writeFile(join(target, "headers.json"), JSON.stringify(headers));
