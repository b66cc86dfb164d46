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

import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { agentBundle } from "./agent.mjs";
import { frameFiles } from "./frame.mjs";
import { makeImage, proveSession } from "./image.mjs";
import {
  cached,
  compilerKey,
  file,
  listed,
  MODULES,
  PYODIDE_FILES,
  putFiles,
  pyodideVersion,
  replace,
  report,
  siblings,
  sourceFiles,
  sourcesHash,
  tidy,
} from "./output.mjs";
import { bootModule, compiler } from "./python.mjs";
import {
  BuildError,
  bytes,
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
    return { out, force: false, image: !values["no-image"] };
  }

  // 1. Bytecode. The wheels' layer is kept in the cache: it changes with the lock, not with our sources.
  const python = lazy(async () => {
    say("starting Pyodide to compile");
    return compiler();
  });
  const layer = await cachedLayer(layerKey, [...locked, ...extra], python);
  const sources = sourceFiles(SOURCES);
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
    files.image = file("image.bin", await makeImage(boot, files, servers, preload, proof.modules));
  }

  // 4. Out.
  const frame = await frameFiles();
  ensureFolder(runtime);
  replace(path.join(runtime, MODULES), JSON.stringify(proof.modules));
  await write(out, runtime, files, frame, {
    format: 1,
    version: JSON.parse(readFileSync(path.join(ROOT, "browser/package.json"), "utf8")).version,
    pyodide: pyodideVersion(),
    inputs,
    servers,
    preload,
    also: [MODULES],
  });
  return { out, force: values.force, image: !values["no-image"] };
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

/** All that the output depends on beside wheels and options: our Python, the frame's and worker's code, the build. */
function sourcesKey() {
  const code = (name) => /\.(ts|mjs|py)$/.test(name);
  const folders = ["browser/src/sandbox", "browser/build"].map((folder) => path.join(ROOT, folder));
  return sha256(
    sourcesHash(sourceFiles(SOURCES)),
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

async function write(out, runtime, files, frame, head) {
  putFiles(runtime, files, await siblings(files));
  const manifest = { ...head, files: listed(files) };
  replace(path.join(out, "sandbox.html"), frame.html);
  replace(path.join(out, "headers.json"), `${JSON.stringify(frame.headers, null, 2)}\n`);
  replace(path.join(runtime, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  tidy(runtime, manifest);
  report(runtime, files);
}

function fail(error) {
  if (error instanceof BuildError) console.error(`bundle: ${error.message}`);
  // An uncaught PythonError would print a megabyte of Pyodide's source.
  else console.error(`bundle: ${String(error?.stack ?? error).slice(0, 4000)}`);
  process.exit(1);
}

process.on("uncaughtException", fail);
main()
  .then(agentBundle)
  .then(() => process.exit(0), fail);
