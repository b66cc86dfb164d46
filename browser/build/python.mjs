/**
 * Pyodide in Node, for the build: one process, no network, stack switching off as in the sandbox.
 */

import { readFileSync } from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { build } from "esbuild";
import { bytes, CACHE, ensureFolder, PYODIDE, ROOT } from "./shared.mjs";

/** Compiles browser/src/sandbox/boot.ts and imports it: the build boots with the sandbox's own code. */
export async function bootModule() {
  const outfile = path.join(ensureFolder(CACHE), "boot.mjs");
  await build({
    entryPoints: [path.join(ROOT, "browser", "src", "sandbox", "boot.ts")],
    bundle: true,
    format: "esm",
    platform: "neutral",
    outfile,
    logLevel: "silent",
  });
  return import(`${pathToFileURL(outfile).href}?${performance.now()}`);
}

/** Options for `bootPyodide` that are the same for every start in Node. */
export async function nodeOptions() {
  delete WebAssembly.Suspending;
  delete WebAssembly.promising;
  const { loadPyodide } = await import(pathToFileURL(path.join(PYODIDE, "pyodide.mjs")).href);
  const { default: createModule } = await import(pathToFileURL(path.join(PYODIDE, "pyodide.asm.mjs")).href);
  return { loadPyodide, createModule, indexURL: PYODIDE };
}

/** A plain Pyodide with `compile.py` loaded, for making bytecode. Returns its namespace and file system. */
export async function compiler() {
  const { loadPyodide, indexURL } = await nodeOptions();
  const { info } = JSON.parse(readFileSync(path.join(PYODIDE, "pyodide-lock.json"), "utf8"));
  const pyodide = await loadPyodide({
    indexURL,
    lockFileContents: JSON.stringify({ info, packages: {} }),
    packageBaseUrl: "https://sandport.invalid/",
    stdout: (line) => console.error(line),
    stderr: (line) => console.error(line),
  });
  const namespace = pyodide.globals.get("dict")();
  pyodide.runPython(readFileSync(path.join(ROOT, "browser", "build", "compile.py"), "utf8"), {
    globals: namespace,
    filename: "compile.py",
  });
  return {
    /** Puts a file of this machine into Python's file system. */
    put(file, target) {
      pyodide.FS.mkdirTree(path.posix.dirname(target));
      pyodide.FS.writeFile(target, bytes(file));
    },
    /** Calls a function of compile.py; bytes come back as Uint8Array, dicts as objects. */
    call(name, ...args) {
      const result = namespace.get(name)(
        ...args.map((arg) => (arg instanceof Uint8Array ? pyodide.toPy(arg) : arg)),
      );
      if (typeof result?.toJs !== "function") return result;
      const value = result.toJs({ dict_converter: Object.fromEntries });
      result.destroy();
      return value;
    },
  };
}
