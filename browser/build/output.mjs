/**
 * The files of a bundle: named by their contents, kept beside their compressed siblings, put in place whole.
 *
 * Invariant: a folder's manifest names only files that are there. Files are written before the manifest that names them,
 * each by a rename, and what no manifest names goes last.
 */

import {
  existsSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { promisify } from "node:util";
import zlib from "node:zlib";
import { bytes, CACHE, ensureFolder, fileSize, filesBelow, PYODIDE, ROOT, say, sha256 } from "./shared.mjs";

/** Files of Pyodide that are copied as they are. */
export const PYODIDE_FILES = { pyodide: "pyodide.mjs", asm: "pyodide.asm.mjs", wasm: "pyodide.asm.wasm" };
/** Below this many bytes a pre-compressed sibling saves less than it costs. */
const MIN_COMPRESSED = 2048;

export const pyodideVersion = () =>
  JSON.parse(readFileSync(path.join(PYODIDE, "package.json"), "utf8")).version;

function pyodideKey() {
  // Sizes stand for contents: the version pins them, and hashing 14 MB would cost half the time of a check.
  const names = [...Object.values(PYODIDE_FILES), "python_stdlib.zip"];
  return JSON.stringify([pyodideVersion(), names.map((name) => fileSize(path.join(PYODIDE, name)))]);
}

/** What decides about bytecode beside its source. */
export function compilerKey() {
  return sha256(pyodideKey(), readFileSync(path.join(ROOT, "browser/build/compile.py")));
}

/** Source files of ours, [{file, name}], from a list of [folder, place in the zip, what to take]. */
export function sourceFiles(sources) {
  return sources.flatMap(([folder, place, wanted]) =>
    filesBelow(path.join(ROOT, folder), wanted).map((name) => ({
      file: path.join(ROOT, folder, name),
      name: path.posix.join(place, name),
    })),
  );
}

export const sourcesHash = (sources) =>
  sha256(...sources.flatMap(({ file, name }) => [name, "\0", readFileSync(file), "\0"]));

/** The bytes of a file in the cache, made once. */
export async function cached(name, make) {
  const target = path.join(ensureFolder(CACHE), name);
  if (!existsSync(target)) replace(target, await make());
  return bytes(target);
}

/** A file of a bundle: its name holds a hash of its contents. */
export function file(name, data) {
  const hash = sha256(data);
  const [stem, ...rest] = name.split(".");
  const kind = rest.pop();
  return {
    name: `${[stem, ...rest].join(".")}.${hash.slice(0, 10)}.${kind}`,
    size: data.length,
    sha256: hash,
    data,
  };
}

/** What a manifest says of files. */
export function listed(files) {
  return Object.fromEntries(
    Object.entries(files).map(([role, { name, size, sha256: hash }]) => [role, { name, size, sha256: hash }]),
  );
}

/** Writes files and their compressed siblings (paths) into a folder. */
export function putFiles(folder, files, compressed) {
  ensureFolder(folder);
  for (const { name, data } of Object.values(files)) {
    if (fileSize(path.join(folder, name)) !== data.length) replace(path.join(folder, name), data);
  }
  for (const sibling of compressed) {
    const copy = path.join(folder, path.basename(sibling));
    if (fileSize(copy) !== fileSize(sibling)) replace(copy, readFileSync(sibling));
  }
}

/** Names of the modules that a served session loads, for whoever makes a memory image later. */
export const MODULES = "modules.json";

/** Removes from a folder what its manifest does not name. */
export function tidy(folder, manifest) {
  const names = Object.values(manifest.files).map(({ name }) => name);
  const keep = new Set([
    "manifest.json",
    ...(manifest.also ?? []),
    ...names.flatMap((name) => [name, `${name}.br`, `${name}.gz`]),
  ]);
  for (const name of readdirSync(folder)) {
    if (!keep.has(name)) rmSync(path.join(folder, name), { recursive: true });
  }
}

/** Says how large a folder's files are. */
export function report(folder, files) {
  const all = Object.values(files);
  const raw = all.reduce((sum, { size }) => sum + size, 0);
  const small = all.reduce(
    (sum, { name, size }) => sum + Math.max(fileSize(path.join(folder, `${name}.br`)), 0) || size,
    0,
  );
  say(`${path.relative(ROOT, folder)}: ${all.length} files, ${mega(raw)}, ${mega(small)} compressed`);
}

const mega = (size) => `${(size / 1e6).toFixed(1)} MB`;

export function replace(target, data) {
  writeFileSync(`${target}.new`, data);
  renameSync(`${target}.new`, target);
}

const brotli = promisify(zlib.brotliCompress);
const gzip = promisify(zlib.gzip);

/** Paths of the .br and .gz siblings of files, made once per contents and kept in the cache. */
export async function siblings(files) {
  const paths = [];
  const folder = ensureFolder(path.join(CACHE, "compressed"));
  for (const [role, { name, data }] of Object.entries(files)) {
    if (data.length >= MIN_COMPRESSED) paths.push(...(await compressed(folder, role, name, data)));
  }
  const now = new Date();
  for (const used of paths) utimesSync(used, now, now);
  forget(folder);
  return paths;
}

/** Versions of a file whose siblings the cache keeps: going back to an earlier state compresses nothing anew. */
const KEPT_VERSIONS = 6;

/** Removes siblings that were used the longest time ago. */
function forget(folder) {
  const versions = new Map();
  for (const name of readdirSync(folder)) {
    const stem = name.replace(/\.[0-9a-f]{10}(?=\.)/, "");
    const used = statSync(path.join(folder, name), { throwIfNoEntry: false })?.mtimeMs ?? 0;
    versions.set(stem, [...(versions.get(stem) ?? []), { name, used }]);
  }
  for (const group of versions.values()) {
    const old = group.sort((a, b) => b.used - a.used).slice(KEPT_VERSIONS);
    for (const { name } of old) rmSync(path.join(folder, name), { force: true });
  }
}

async function compressed(folder, role, name, data) {
  const targets = [path.join(folder, `${name}.br`), path.join(folder, `${name}.gz`)];
  if (targets.some((target) => !existsSync(target))) {
    say(`compressing ${name} (${mega(data.length)})`);
    // Quality 9 gives nearly all that 11 gives, in a tenth of the time; an image of 70 MB would take a minute at 9.
    const quality = role === "image" ? 6 : 9;
    const params = {
      [zlib.constants.BROTLI_PARAM_QUALITY]: quality,
      [zlib.constants.BROTLI_PARAM_LGWIN]: 24,
      [zlib.constants.BROTLI_PARAM_SIZE_HINT]: data.length,
    };
    const results = await Promise.all([
      brotli(data, { params }),
      gzip(data, { level: role === "image" ? 6 : 9 }),
    ]);
    for (const [index, result] of results.entries()) replace(targets[index], result);
  }
  return targets;
}
