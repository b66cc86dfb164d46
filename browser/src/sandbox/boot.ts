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
import type { Image } from "./image.ts";
import { storedEntries } from "./zip.ts";

export { openImage, packImage } from "./image.ts";
export { IMAGE_ENV, takeImage } from "./take.ts";

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

/** A file that is read when Python first looks into it: an image has most of what is in the zips already. */
export interface LazyFile {
  /** Bytes. */
  readonly size: number;
  read(): Uint8Array<ArrayBuffer>;
}

export type Contents = Uint8Array<ArrayBuffer> | LazyFile;

/** The bytes of a bundle. Their buffers may be taken over by the sandbox's file system. */
export interface BootFiles {
  /** Bytecode of the wheels, one zip on sys.path. */
  readonly site: Contents;
  /** Bytecode of Sandport's own Python, one zip on sys.path. */
  readonly core: Contents;
  /** Python's standard library, where `stdLibURL` gives an empty file in its place. */
  readonly stdlib?: Contents;
  /** Packages with native modules, unpacked into {@link NATIVE}. */
  readonly native: NativePackages;
  /** Packages that the bundle holds, in the form of Pyodide's lock file. */
  readonly lock: string;
  /** Bytecode of further wheels, one zip on sys.path. */
  readonly extra?: Contents;
  /** A memory image; without it Python starts from nothing. */
  readonly image?: Image;
}

/** Packages with native modules, and those of their modules that are loaded before Python starts. */
export interface NativePackages {
  /** Files by path. */
  readonly entries: ReadonlyMap<string, Uint8Array>;
  /** Modules by path, in the order in which they are loaded. */
  readonly preload: ReadonlyMap<string, Promise<WebAssembly.Module>>;
}

/**
 * Opens an archive of native packages and begins to compile.
 * @param archive a stored zip.
 * @param preload paths in it that are loaded before Python starts, in this order.
 */
export function nativePackages(archive: Uint8Array<ArrayBuffer>, preload: readonly string[]): NativePackages {
  const entries = storedEntries(archive);
  const compile = (path: string): Promise<WebAssembly.Module> => {
    const bytes = entries.get(path);
    if (!bytes) throw new Error(`the bundle lacks ${path}: rebuild it`);
    const module = WebAssembly.compile(bytes as Uint8Array<ArrayBuffer>);
    // Whoever loads it waits for it.
    module.catch(() => {});
    return module;
  };
  return { entries, preload: new Map(preload.map((path) => [path, compile(path)])) };
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
    lookupPath(path: string): { node: { contents: Uint8Array | null; usedBytes: number } };
    ErrnoError: new (errno: number) => Error;
  };
  HEAP32: Int32Array;
  HEAPU8: Uint8Array;
  memory: WebAssembly.Memory;
  wasmTable: WebAssembly.Table;
  API: {
    restoreSnapshot(image: Uint8Array): unknown;
    pyVersionTuple: readonly [number, number, number];
    on_fatal?: (error: unknown) => void;
  };
  __PyRuntime: number;
  __PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET: number;
  addRunDependency(name: string): void;
  removeRunDependency(name: string): void;
  newDSO(name: string, handle: unknown, state: "loading"): Dso;
  loadWebAssemblyModule(
    module: WebAssembly.Module,
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
    _loadSnapshot: files.image?.head,
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
      const { image } = files;
      let trampoline = 0;
      let trampolineAt = 0;
      settings.preRun.push((module) => {
        module.addRunDependency("sandport");
        const prepare = async (): Promise<void> => {
          checkInternals(module);
          // Before any of Python's code ran: no engine has to move a memory that compiled code already uses.
          const need = image?.memory ?? 0;
          if (need > module.memory.buffer.byteLength) module.growMemory(need);
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
      create(settings)
        .then(async (module) => {
          if (image) {
            const { stdlib } = files;
            const [major, minor] = module.API.pyVersionTuple;
            if (stdlib) placeFile(module, `/lib/python${major}${minor}.zip`, stdlib);
            await restoreFrom(module, image, () => (module.HEAP32[trampolineAt] = trampoline));
          }
          resolve(module);
        })
        .catch(reject);
    });
}

async function placeFiles(module: EmscriptenModule, files: BootFiles): Promise<void> {
  const { entries, preload } = files.native;
  module.FS.mkdirTree(NATIVE);
  placeFile(module, SITE, files.site);
  placeFile(module, CORE, files.core);
  if (files.extra) placeFile(module, EXTRA, files.extra);
  const made = new Set<string>();
  for (const [path, bytes] of entries) {
    const folder = `${NATIVE}/${path}`.replace(/\/[^/]*$/, "");
    if (!made.has(folder)) module.FS.mkdirTree(folder);
    made.add(folder);
    module.FS.writeFile(`${NATIVE}/${path}`, bytes, { canOwn: true });
  }
  for (const [path, compiled] of preload) {
    const name = `${NATIVE}/${path}`;
    const dso = module.newDSO(name, undefined, "loading");
    dso.global = false;
    dso.refcount = Number.POSITIVE_INFINITY;
    dso.exports = await module.loadWebAssemblyModule(
      await compiled,
      { loadAsync: true, global: false, nodelete: true, allowUndefined: false },
      name,
      {},
    );
  }
}

/** Input/output error, of the numbers that Emscripten uses. */
const EIO = 29;

function placeFile({ FS }: EmscriptenModule, path: string, file: Contents): void {
  if (file instanceof Uint8Array) {
    FS.writeFile(path, file, { canOwn: true });
    return;
  }
  FS.writeFile(path, new Uint8Array());
  const { node } = FS.lookupPath(path);
  node.usedBytes = file.size;
  const settle = (value: Uint8Array | null): void => {
    Object.defineProperty(node, "contents", { value, writable: true, enumerable: true, configurable: true });
  };
  Object.defineProperty(node, "contents", {
    enumerable: true,
    configurable: true,
    get() {
      let bytes: Uint8Array;
      try {
        bytes = file.read();
      } catch {
        // Python gets an OSError; any other exception would end it.
        throw new FS.ErrnoError(EIO);
      }
      settle(bytes);
      return bytes;
    },
    set: settle,
  });
}

async function restoreFrom(module: EmscriptenModule, image: Image, repair: () => void): Promise<void> {
  await image.restore(() => module.HEAPU8);
  const restore = module.API.restoreSnapshot;
  // Its snapshot is the image's head alone: it checks the build and reads the state, and there is no memory to copy.
  module.API.restoreSnapshot = function (this: unknown, head) {
    const state = restore.call(this as EmscriptenModule["API"], head);
    repair();
    return state;
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
      "HEAPU8",
    ] as const
  ).filter((name) => module[name] === undefined);
  if (missing.length > 0) {
    throw new Error(`this Pyodide lacks ${missing.join(", ")}: Sandport's boot was made for another version`);
  }
}
