#!/usr/bin/env node
/**
 * Makes the sandbox's part of dist/: runtime/*, sandbox.html and headers.json.
 *
 *     node browser/build/bundle.mjs [--with NAME-OR-WHEEL]... [--server NAME=MODULE[:ATTRIBUTE]]... [--out DIR]
 *                                   [--no-image] [--force]
 *
 * Invariant: whoever reads the output folder at any moment finds a whole bundle. Files carry a hash of their contents in
 * their names and are written first; the manifest, which names them, is put in place last by a rename; only then go the
 * files that nothing names any more.
 */

import { existsSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { parseArgs, promisify } from "node:util";
import zlib from "node:zlib";
import { frameFiles } from "./frame.mjs";
import { makeImage, proveSession } from "./image.mjs";
import { bootModule, compiler } from "./python.mjs";
import {
  BuildError,
  bytes,
  CACHE,
  ensureFolder,
  fileSize,
  filesBelow,
  hashFiles,
  PYODIDE,
  ROOT,
  say,
  sha256,
} from "./shared.mjs";
import { extraWheels, lockedWheels } from "./wheels.mjs";

/** Source trees of ours that go into the bundle: [folder, place in the zip, what to take]. */
const SOURCES = [
  ["core/sandport", "sandport", (name) => name.endsWith(".py")],
  ["browser/runtime/sandport_runtime", "sandport_runtime", (name) => name.endsWith(".py")],
  ["browser/runtime/standins", "standins", (name) => name.endsWith(".py")],
  // Packages only: a lone module there is an example for the page's editor.
  ["web/tools", "", (name) => name.includes("/") && /\.(py|json|txt)$/.test(name)],
];
const DEFAULT_SERVERS = { workspace: "sandport_workspace:mcp" };
/** Files of Pyodide that are copied as they are. */
const PYODIDE_FILES = { pyodide: "pyodide.mjs", asm: "pyodide.asm.mjs", wasm: "pyodide.asm.wasm" };
/** Below this many bytes a pre-compressed sibling saves less than it costs. */
const MIN_COMPRESSED = 2048;

async function main() {
  const { values } = parseArgs({
    options: {
      with: { type: "string", multiple: true, default: [] },
      server: { type: "string", multiple: true, default: [] },
      out: { type: "string", default: path.join(ROOT, "dist") },
      "no-image": { type: "boolean", default: false },
      force: { type: "boolean", default: false },
    },
  });
  const out = path.resolve(values.out);
  const runtime = path.join(out, "runtime");
  const servers = { ...DEFAULT_SERVERS, ...Object.fromEntries(values.server.map(parseServer)) };
  const locked = lockedWheels("pyodide");
  const extra = extraWheels(values.with, locked);

  const layerKey = sha256(
    compilerKey(),
    ...[...locked, ...extra].sort().map((file) => `${path.basename(file)}:${sha256(readFileSync(file))}`),
  );
  const inputs = sha256(layerKey, JSON.stringify([servers, values["no-image"]]), sourcesKey());
  if (!values.force && isCurrent(runtime, out, inputs)) {
    say("up to date");
    return;
  }

  // 1. Bytecode. The wheels' layer is kept in the cache: it changes with the lock, not with our sources.
  const python = lazy(async () => {
    say("starting Pyodide to compile");
    return compiler();
  });
  const layer = await cachedLayer(layerKey, [...locked, ...extra], python);
  const sources = sourceFiles();
  const core = await cached(
    `core-${sha256(compilerKey(), sourcesHash(sources)).slice(0, 24)}.zip`,
    async () => {
      const compile = await python();
      say(`compiling ${sources.length} files of our own`);
      for (const { file, name } of sources) compile.put(file, `/src/${name}`);
      return compile.call("sources", "/src");
    },
  );

  // 2. Files by role.
  const files = {
    ...Object.fromEntries(
      Object.entries(PYODIDE_FILES).map(([role, name]) => [
        role,
        file(name, bytes(path.join(PYODIDE, name))),
      ]),
    ),
    stdlib: file("python_stdlib.zip", layer.stdlib),
    site: file("site.zip", layer.site),
    core: file("core.zip", core),
    native: file("native.zip", layer.native),
    lock: file("lock.json", Buffer.from(JSON.stringify(packageLock(layer.packages)))),
  };

  // 3. A session served from exactly these bytes, and the memory image.
  const boot = await bootModule();
  say("serving a session from the bundle in Node");
  const proof = await proveSession(boot, files, servers);
  const preload = proof.preload;
  if (!values["no-image"]) {
    say("making the memory image");
    const image = await makeImage(boot, files, servers, preload, proof.modules);
    if (image) files.image = file("image.bin", image);
  }

  // 4. Out.
  const frame = await frameFiles();
  await write(out, runtime, files, frame, {
    format: 1,
    version: JSON.parse(readFileSync(path.join(ROOT, "browser/package.json"), "utf8")).version,
    pyodide: pyodideVersion(),
    inputs,
    servers,
    preload,
  });
}

function parseServer(text) {
  const match = /^([A-Za-z_][\w-]*)=([A-Za-z_][\w.]*(?::[A-Za-z_]\w*)?)$/.exec(text);
  if (!match) throw new BuildError(`--server ${text}: use NAME=MODULE or NAME=MODULE:ATTRIBUTE`);
  return [match[1], match[2]];
}

function lazy(make) {
  let made;
  return () => (made ??= make());
}

const pyodideVersion = () => JSON.parse(readFileSync(path.join(PYODIDE, "package.json"), "utf8")).version;

function pyodideKey() {
  // Sizes stand for contents: the version pins them, and hashing 14 MB would cost half the time of a check.
  const names = [...Object.values(PYODIDE_FILES), "python_stdlib.zip"];
  return JSON.stringify([pyodideVersion(), names.map((name) => fileSize(path.join(PYODIDE, name)))]);
}

/** What decides about bytecode beside its source. */
function compilerKey() {
  return sha256(pyodideKey(), readFileSync(path.join(ROOT, "browser/build/compile.py")));
}

function sourceFiles() {
  return SOURCES.flatMap(([folder, place, wanted]) =>
    filesBelow(path.join(ROOT, folder), wanted).map((name) => ({
      file: path.join(ROOT, folder, name),
      name: path.posix.join(place, name),
    })),
  );
}

const sourcesHash = (sources) =>
  sha256(...sources.flatMap(({ file, name }) => [name, "\0", readFileSync(file), "\0"]));

/** All that the output depends on beside wheels and options: our Python, the frame's and worker's code, the build. */
function sourcesKey() {
  const code = (name) => /\.(ts|mjs|py)$/.test(name);
  const folders = ["browser/src/sandbox", "browser/build"].map((folder) => path.join(ROOT, folder));
  return sha256(
    sourcesHash(sourceFiles()),
    ...folders.map((folder) => hashFiles(folder, filesBelow(folder, code))),
  );
}

function isCurrent(runtime, out, inputs) {
  try {
    const manifest = JSON.parse(readFileSync(path.join(runtime, "manifest.json"), "utf8"));
    return (
      manifest.inputs === inputs &&
      Object.values(manifest.files).every(({ name, size }) => fileSize(path.join(runtime, name)) === size) &&
      existsSync(path.join(out, "sandbox.html")) &&
      existsSync(path.join(out, "headers.json"))
    );
  } catch {
    return false;
  }
}

async function cached(name, make) {
  const target = path.join(ensureFolder(CACHE), name);
  if (!existsSync(target)) {
    const made = await make();
    writeFileSync(`${target}.new`, made);
    renameSync(`${target}.new`, target);
  }
  return bytes(target);
}

async function cachedLayer(key, wheels, python) {
  const name = (part) => `layer-${key.slice(0, 24)}-${part}`;
  const made = lazy(async () => {
    const compile = await python();
    say(`compiling ${wheels.length} wheels`);
    for (const wheel of wheels) compile.put(wheel, `/wheels/${path.basename(wheel)}`);
    return compile.call("wheels", "/wheels");
  });
  return {
    site: await cached(name("site.zip"), async () => (await made()).site),
    native: await cached(name("native.zip"), async () => (await made()).native),
    packages: JSON.parse(
      Buffer.from(
        await cached(name("packages.json"), async () => JSON.stringify((await made()).packages)),
      ).toString(),
    ),
    stdlib: await cached(name("stdlib.zip"), async () => {
      const compile = await python();
      say("compiling the standard library");
      compile.put(path.join(PYODIDE, "python_stdlib.zip"), "/stdlib.zip");
      return compile.call("stdlib", "/stdlib.zip");
    }),
  };
}

/** Pyodide's lock file, with what the bundle holds: so `loadPackage` and micropip find it, and name what is missing. */
function packageLock(packages) {
  const { info } = JSON.parse(readFileSync(path.join(PYODIDE, "pyodide-lock.json"), "utf8"));
  return { info, packages };
}

function file(name, data) {
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

async function write(out, runtime, files, frame, head) {
  ensureFolder(runtime);
  const keep = new Set(["manifest.json"]);
  for (const [role, { name, data }] of Object.entries(files)) {
    const target = path.join(runtime, name);
    if (fileSize(target) !== data.length) {
      writeFileSync(`${target}.new`, data);
      renameSync(`${target}.new`, target);
    }
    keep.add(name);
    if (data.length < MIN_COMPRESSED) continue;
    for (const sibling of await compressed(role, name, data)) {
      const copy = path.join(runtime, path.basename(sibling));
      if (fileSize(copy) !== fileSize(sibling)) {
        writeFileSync(`${copy}.new`, readFileSync(sibling));
        renameSync(`${copy}.new`, copy);
      }
      keep.add(path.basename(copy));
    }
  }
  const manifest = {
    ...head,
    files: Object.fromEntries(
      Object.entries(files).map(([role, { name, size, sha256: hash }]) => [
        role,
        { name, size, sha256: hash },
      ]),
    ),
  };
  replace(path.join(out, "sandbox.html"), frame.html);
  replace(path.join(out, "headers.json"), `${JSON.stringify(frame.headers, null, 2)}\n`);
  replace(path.join(runtime, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  for (const name of readdirSync(runtime)) {
    if (!keep.has(name)) rmSync(path.join(runtime, name), { recursive: true });
  }
  const size = (name) => fileSize(path.join(runtime, name));
  const raw = Object.values(files).reduce((sum, { size: one }) => sum + one, 0);
  const small = Object.values(files).reduce(
    (sum, { name, size: one }) => sum + Math.max(size(`${name}.br`), 0) || one,
    0,
  );
  say(
    `${path.relative(ROOT, runtime)}: ${Object.keys(files).length} files, ${mega(raw)}, ${mega(small)} compressed`,
  );
}

const mega = (size) => `${(size / 1e6).toFixed(1)} MB`;

function replace(target, text) {
  writeFileSync(`${target}.new`, text);
  renameSync(`${target}.new`, target);
}

const brotli = promisify(zlib.brotliCompress);
const gzip = promisify(zlib.gzip);

/** Paths of the .br and .gz siblings of a file, made once per contents and kept in the cache. */
async function compressed(role, name, data) {
  const folder = ensureFolder(path.join(CACHE, "compressed"));
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
    for (const [index, result] of results.entries()) {
      writeFileSync(`${targets[index]}.new`, result);
      renameSync(`${targets[index]}.new`, targets[index]);
    }
  }
  return targets;
}

function fail(error) {
  if (error instanceof BuildError) console.error(`bundle: ${error.message}`);
  // An uncaught PythonError would print a megabyte of Pyodide's source.
  else console.error(`bundle: ${String(error?.stack ?? error).slice(0, 4000)}`);
  process.exit(1);
}

process.on("uncaughtException", fail);
main().then(() => process.exit(0), fail);
