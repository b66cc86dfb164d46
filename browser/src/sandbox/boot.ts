/**
 * Starts Pyodide with Sandport's bundle, from nothing or from a memory image; the same code in the sandbox's worker
 * and in Node, where the build makes the image and tests run.
 *
 * Invariant: an image is made and loaded through the same hook, with the same files at the same places, and a function
 * table of the same length; that, and nothing of the engine, decides where things lie in memory. The names with `_` are
 * internals of Pyodide: `checkInternals` says so by name when one is missing.
 */

import type { PyodideAPI } from "pyodide";
import { Deadline } from "./deadline.ts";
import { storedEntries } from "./zip.ts";

/** Where the bundle lies in the sandbox's file system. */
export const SITE = "/sandport/site.zip";
export const CORE = "/sandport/core.zip";
export const EXTRA = "/sandport/extra.zip";
export const NATIVE = "/sandport/native";

/**
 * Lengths to which the function table is grown before and after native modules are placed. Engines add different
 * numbers of functions of their own (14 174 to 15 147 seen), and every pointer into a native module moves with them.
 */
const TABLE_BEFORE = 16384;
const TABLE_AFTER = 24576;

/** The bytes of a bundle. Their buffers may be taken over by the sandbox's file system. */
export interface BootFiles {
  /** Bytecode of the wheels, one zip on sys.path. */
  readonly site: Uint8Array<ArrayBuffer>;
  /** Bytecode of Sandport's own Python, one zip on sys.path. */
  readonly core: Uint8Array<ArrayBuffer>;
  /** Packages with native modules, one stored zip, unpacked into {@link NATIVE}. */
  readonly native: Uint8Array<ArrayBuffer>;
  /** Paths in `native` that are loaded before Python starts, in this order. */
  readonly preload: readonly string[];
  /** Packages that the bundle holds, in the form of Pyodide's lock file. */
  readonly lock: string;
  /** Bytecode of further wheels, one zip on sys.path. */
  readonly extra?: Uint8Array<ArrayBuffer>;
  /** A memory image; without it Python starts from nothing. */
  readonly image?: Uint8Array<ArrayBuffer>;
}

export interface BootOptions {
  readonly files: BootFiles;
  readonly loadPyodide: (options: Record<string, unknown>) => Promise<PyodideAPI>;
  readonly createModule: (settings: Settings) => Promise<EmscriptenModule>;
  /** Address of Pyodide's own files, or a folder in Node. */
  readonly indexURL: string;
  readonly stdLibURL: string;
  readonly env?: Record<string, string>;
  /** Make `pyodide.makeMemorySnapshot()` possible. */
  readonly makeImage?: boolean;
  /** Receives what is written to the file descriptors 1 and 2, past Python's own streams. */
  readonly output?: (stream: "stdout" | "stderr", text: string) => void;
  /** Told when Pyodide can do nothing any more. */
  readonly onFatal?: (error: unknown) => void;
}

interface Dso {
  global: boolean;
  refcount: number;
  exports: unknown;
}

interface EmscriptenModule {
  FS: {
    mkdirTree(path: string): void;
    writeFile(path: string, data: Uint8Array, options?: { canOwn?: boolean }): void;
  };
  HEAP32: Int32Array;
  memory: WebAssembly.Memory;
  wasmTable: WebAssembly.Table;
  API: { restoreSnapshot(image: Uint8Array): unknown; on_fatal?: (error: unknown) => void };
  __PyRuntime: number;
  __PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET: number;
  addRunDependency(name: string): void;
  removeRunDependency(name: string): void;
  newDSO(name: string, handle: unknown, state: "loading"): Dso;
  loadWebAssemblyModule(
    bytes: Uint8Array,
    flags: Record<string, unknown>,
    name: string,
    scope: Record<string, unknown>,
  ): Promise<unknown>;
  growMemory(size: number): unknown;
}

interface Settings {
  preRun: ((module: EmscriptenModule) => void)[];
}

/** Boots Pyodide with the bundle in place and `sys.path` set; does not import anything of Sandport. */
export async function bootPyodide(options: BootOptions): Promise<PyodideAPI> {
  const { files } = options;
  const local = "https://sandport.invalid/";
  const pyodide = await options.loadPyodide({
    indexURL: options.indexURL,
    stdLibURL: options.stdLibURL,
    lockFileContents: files.lock,
    packageBaseUrl: local,
    // No stack switching: WebKit has none, and every call from JavaScript would pay for it.
    enableRunUntilComplete: false,
    env: { HOME: "/home/pyodide", ...options.env },
    createPyodideModule: hooked(options.createModule, files),
    _makeSnapshot: options.makeImage === true,
    _loadSnapshot: files.image,
    stdin: () => null,
  });
  const output = options.output ?? (() => {});
  pyodide.setStdout(rawWriter((text) => output("stdout", text)));
  pyodide.setStderr(rawWriter((text) => output("stderr", text)));
  // Not into an image: it can hold nothing that Python keeps of JavaScript, and this is said after each load.
  if (!options.makeImage) markLoaded(pyodide, files.lock);
  if (options.onFatal) internals(pyodide).on_fatal = options.onFatal;
  if (!files.image) pyodide.runPython(SET_PATH);
  return pyodide;
}

/** The bundle before site-packages, the stand-ins after everything: a real package wins. */
const SET_PATH = `
import sys
sys.path[:] = [p for p in sys.path if p] + ["${CORE}/standins"]
sys.path[1:1] = ["${CORE}", "${EXTRA}", "${SITE}", "${NATIVE}"]
`;

/** The bundle is on sys.path: `loadPackage` has nothing to fetch for what is in it, and names what is missing. */
function markLoaded(pyodide: PyodideAPI, lock: string): void {
  const { packages } = JSON.parse(lock) as { packages: Record<string, unknown> };
  for (const name of Object.keys(packages)) pyodide.loadedPackages[name] = "bundle";
}

/** Puts the deadline where Pyodide looks for signals; after every load, as an image does not hold it. */
export function installDeadline(pyodide: PyodideAPI, signal: Int32Array | null): Deadline {
  const deadline = new Deadline(signal);
  // Typed as an array, read as one: element 0.
  pyodide.setInterruptBuffer(deadline as unknown as Int32Array);
  return deadline;
}

function internals(pyodide: PyodideAPI): EmscriptenModule["API"] {
  return (pyodide as unknown as { _api: EmscriptenModule["API"] })._api;
}

function rawWriter(write: (text: string) => void): { write(buffer: Uint8Array): number; isatty: boolean } {
  const decoder = new TextDecoder();
  return {
    isatty: false,
    write(buffer) {
      write(decoder.decode(buffer, { stream: true }));
      return buffer.length;
    },
  };
}

/** Wraps the constructor of the wasm module: puts files and native modules in place before Python runs. */
function hooked(
  create: BootOptions["createModule"],
  files: BootFiles,
): (settings: Settings) => Promise<EmscriptenModule> {
  return (settings) =>
    new Promise((resolve, reject) => {
      let trampoline = 0;
      let trampolineAt = 0;
      settings.preRun.push((module) => {
        module.addRunDependency("sandport");
        const prepare = async (): Promise<void> => {
          checkInternals(module);
          // This engine's own function; an image holds its maker's.
          trampolineAt =
            (module.__PyRuntime + (module.HEAP32[module.__PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET >> 2] ?? 0)) >> 2;
          trampoline = module.HEAP32[trampolineAt] ?? 0;
          padTable(module.wasmTable, TABLE_BEFORE);
          await placeFiles(module, files);
          padTable(module.wasmTable, TABLE_AFTER);
          module.removeRunDependency("sandport");
        };
        // The dependency is left open on failure: Python must not start, and the promise says why.
        prepare().catch(reject);
      });
      create(settings).then((module) => {
        const { image } = files;
        if (image) prepareRestore(module, image, () => (module.HEAP32[trampolineAt] = trampoline));
        resolve(module);
      }, reject);
    });
}

async function placeFiles(module: EmscriptenModule, files: BootFiles): Promise<void> {
  module.FS.mkdirTree(NATIVE);
  module.FS.writeFile(SITE, files.site, { canOwn: true });
  module.FS.writeFile(CORE, files.core, { canOwn: true });
  if (files.extra) module.FS.writeFile(EXTRA, files.extra, { canOwn: true });
  const entries = storedEntries(files.native);
  const made = new Set<string>();
  for (const [path, bytes] of entries) {
    const folder = `${NATIVE}/${path}`.replace(/\/[^/]*$/, "");
    if (!made.has(folder)) module.FS.mkdirTree(folder);
    made.add(folder);
    module.FS.writeFile(`${NATIVE}/${path}`, bytes, { canOwn: true });
  }
  for (const path of files.preload) {
    const bytes = entries.get(path);
    if (!bytes) throw new Error(`the bundle lacks ${path}: rebuild it`);
    const name = `${NATIVE}/${path}`;
    const dso = module.newDSO(name, undefined, "loading");
    dso.global = false;
    dso.refcount = Number.POSITIVE_INFINITY;
    dso.exports = await module.loadWebAssemblyModule(
      bytes,
      { loadAsync: true, global: false, nodelete: true, allowUndefined: false },
      name,
      {},
    );
  }
}

function prepareRestore(module: EmscriptenModule, image: Uint8Array, repair: () => void): void {
  // The second 32-bit word of an image is the offset of the heap's bytes in it.
  const start = new Uint32Array(image.buffer, image.byteOffset, 2)[1] ?? 0;
  const need = image.byteLength - start;
  if (need > module.memory.buffer.byteLength) module.growMemory(need);
  const restore = module.API.restoreSnapshot;
  module.API.restoreSnapshot = function (this: unknown, bytes) {
    const result = restore.call(this as EmscriptenModule["API"], bytes);
    repair();
    return result;
  };
}

function padTable(table: WebAssembly.Table, length: number): void {
  if (table.length > length) {
    throw new Error(
      `this engine's function table has ${table.length} entries, more than the ${length} foreseen`,
    );
  }
  table.grow(length - table.length);
}

function checkInternals(module: EmscriptenModule): void {
  const missing = (
    [
      "wasmTable",
      "newDSO",
      "loadWebAssemblyModule",
      "__PyRuntime",
      "__PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET",
      "addRunDependency",
      "removeRunDependency",
      "growMemory",
    ] as const
  ).filter((name) => module[name] === undefined);
  if (missing.length > 0) {
    throw new Error(`this Pyodide lacks ${missing.join(", ")}: Sandport's boot was made for another version`);
  }
}
