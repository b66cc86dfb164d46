/**
 * What the sandbox's worker does, in a page and elsewhere: boots Python and joins it to a port.
 *
 * Invariant: strings on the port are lane texts, which Python gets as they are, an ArrayBuffer is the UTF-8 of one, and
 * other objects are control. Nothing here is a boundary: tool code runs in this very realm and can change all of it.
 */

import type { PyodideAPI } from "pyodide";
import {
  type BootOptions,
  bootPyodide,
  type Contents,
  installDeadline,
  nativePackages,
  openImage,
} from "./boot.ts";
import type { BootStage, Part, WorkerStart } from "./protocol.ts";
import { Taken } from "./unread.ts";

/** What `sandport_runtime.boot` offers; see browser/runtime. */
interface RuntimeModule {
  prepare(servers: unknown): void;
  start(host: unknown, config: string): RuntimeControl;
}

interface RuntimeControl {
  receive(text: string): void;
  receive_utf8(utf8: ArrayBuffer): void;
  control(text: string, data?: ArrayBuffer): void;
}

/** Characters a second that are passed on from the raw file descriptors. */
const RAW_PER_SECOND = 65_536;
const LOCAL = "https://sandport.invalid/";
const RUNTIME = "sandport_runtime.boot";
/** In workers of browsers only. */
declare const FileReaderSync: (new () => { readAsArrayBuffer(file: Blob): ArrayBuffer }) | undefined;

/** Imports a module of Pyodide, given its bytes and the part it plays. */
export type LoadScript = (bytes: ArrayBuffer, role: "pyodide" | "asm") => Promise<Record<string, unknown>>;

/**
 * Boots Python and joins it to the port, or says `failed` on it.
 *
 * @param load imports one of Pyodide's two modules; by default from a blob address, which is all that a page allows.
 */
export async function serve(
  { parcel, config, signal }: WorkerStart,
  port: MessagePort,
  load: LoadScript = importBlob,
): Promise<void> {
  let stage: BootStage = "runtime";
  const ms: Record<string, number> = {};
  let stageStart = performance.now();
  const enter = (next: BootStage): void => {
    ms[stage] = performance.now() - stageStart;
    stageStart = performance.now();
    stage = next;
    port.postMessage({ event: "progress", stage });
  };
  const waiting: MessageEvent[] = [];
  port.onmessage = (event) => waiting.push(event);
  port.postMessage({ event: "progress", stage });
  try {
    const wasm = bufferOf(parcel.wasm);
    const compiled = wasm.then((bytes) => WebAssembly.compile(bytes));
    // Whoever makes an instance of it waits for it.
    compiled.catch(() => {});
    const imported = importPyodide(parcel.image ? undefined : parcel.stdlib, compiled, load, parcel);
    const native = bytesOf(parcel.native);
    const packages = native.then((bytes) => nativePackages(bytes, config.preload));
    // The rest of it is read while the engine compiles.
    const first = Promise.all([wasm, native]);
    const image = parcel.image && (await openImage(imageOf(parcel.image), first));
    const contents = image ? contentsOf : bytesOf;
    const [{ loadPyodide, createModule, restoreGlobals }, packed, lock, site, core, stdlib, extra] =
      await Promise.all([
        imported,
        packages,
        bytesOf(parcel.lock),
        contents(parcel.site),
        contents(parcel.core),
        image && contents(parcel.stdlib),
        parcel.extra && contents(parcel.extra),
      ]);
    const pyodide = await bootPyodide({
      files: {
        site,
        core,
        native: packed,
        lock: new TextDecoder().decode(lock),
        ...(stdlib ? { stdlib } : {}),
        ...(extra ? { extra } : {}),
        ...(image ? { image } : {}),
      },
      loadPyodide,
      createModule,
      indexURL: LOCAL,
      stdLibURL: `${LOCAL}python_stdlib.zip`,
      env: config.environ,
      output: rawOutput(port),
      onFatal: (error) => port.postMessage({ event: "fatal", message: describe(error) }),
    });
    restoreGlobals();
    enter("modules");
    const runtime = pyodide.pyimport(config.module ?? RUNTIME) as unknown as RuntimeModule;
    if (!image) {
      const servers = pyodide.toPy(config.servers);
      runtime.prepare(servers);
      servers.destroy();
    }
    enter("servers");
    const control = startRuntime(pyodide, runtime, port, signal, {
      timeLimit: config.timeLimit,
      environ: config.environ,
      restored: image !== undefined,
      boot: { mode: image ? "snapshot" : "cold", ms },
    });
    const taken = new Taken((texts) => port.postMessage({ event: "taken", texts }));
    const deliver = (event: MessageEvent<unknown>): void => dispatch(event.data, control, port, taken);
    port.onmessage = deliver;
    for (const event of waiting) deliver(event);
  } catch (error) {
    port.postMessage({
      event: "failed",
      stage,
      message: describe(error),
      remedy: "Reload the page; when it fails again, rebuild the bundle (./build.sh build).",
    });
  }
}

/** Joins Python to the port: the host object that `sandport_runtime.boot.Host` describes. */
function startRuntime(
  pyodide: PyodideAPI,
  runtime: RuntimeModule,
  port: MessagePort,
  signal: Int32Array | null,
  config: unknown,
): RuntimeControl {
  const deadline = installDeadline(pyodide, signal);
  const ticks = new MessageChannel();
  const soon: (() => void)[] = [];
  ticks.port1.onmessage = () => soon.shift()?.();
  const host = {
    post: (text: string) => port.postMessage(text),
    // Python's copy of its bytes: nobody else has it.
    post_utf8: (utf8: Uint8Array<ArrayBuffer>) => port.postMessage(utf8.buffer, [utf8.buffer]),
    event: (text: string, data?: Uint8Array<ArrayBuffer>) => {
      if (data) port.postMessage({ ...JSON.parse(text), data: data.buffer }, [data.buffer]);
      else port.postMessage(JSON.parse(text));
    },
    schedule(callback: () => void, delay: number) {
      if (delay > 0) setTimeout(callback, delay);
      else {
        soon.push(callback);
        ticks.port2.postMessage(null);
      }
    },
    arm: (seconds: number) => deadline.arm(seconds),
    disarm: () => deadline.disarm(),
  };
  const started = runtime.start(host, JSON.stringify(config));
  // Taken once: each look at a Python object's method makes a new proxy.
  const { receive, receive_utf8, control } = started;
  return { receive, receive_utf8, control };
}

function dispatch(data: unknown, control: RuntimeControl, port: MessagePort, taken: Taken): void {
  if (typeof data === "string") {
    taken.add(data.length);
    control.receive(data);
    return;
  }
  if (data instanceof ArrayBuffer) {
    taken.add(data.byteLength);
    control.receive_utf8(data);
    return;
  }
  if (typeof data !== "object" || data === null) return;
  const { zip, ...request } = data as { op?: unknown; seq?: unknown; zip?: unknown };
  if (request.op === "ping") port.postMessage({ seq: request.seq, ok: true, value: null });
  else if (zip instanceof ArrayBuffer) control.control(JSON.stringify(request), zip);
  else control.control(JSON.stringify(request));
}

/**
 * Imports Pyodide's two modules. Until told to stop, answers what they ask the network for: the module is compiled
 * already, the standard library is in memory, or put in place later (then an empty file stands for it).
 */
export async function importPyodide(
  stdlib: Part | undefined,
  compiled: Promise<WebAssembly.Module>,
  load: LoadScript,
  { pyodide: pyodidePart, asm: asmPart }: WorkerStart["parcel"],
): Promise<{
  loadPyodide: BootOptions["loadPyodide"];
  createModule: BootOptions["createModule"];
  restoreGlobals: () => void;
}> {
  // Stack switching is off in the sandbox (see boot.ts); without it each call from JavaScript is cheaper.
  const wasm = WebAssembly as unknown as Record<string, unknown>;
  delete wasm["Suspending"];
  delete wasm["promising"];
  const { fetch } = globalThis;
  const { instantiateStreaming } = WebAssembly;
  const answers: Record<string, BodyInit> = { "pyodide.asm.wasm": "", "python_stdlib.zip": stdlib ?? "" };
  globalThis.fetch = async (input) => {
    const body = answers[String(input).slice(LOCAL.length)];
    if (body === undefined) throw new TypeError(`no network in the sandbox: ${String(input)}`);
    return new Response(body);
  };
  WebAssembly.instantiateStreaming = async (_, imports) => {
    const module = await compiled;
    return { module, instance: await WebAssembly.instantiate(module, imports) };
  };
  const [pyodide, asm] = await Promise.all([
    bufferOf(pyodidePart).then((bytes) => load(bytes, "pyodide")),
    bufferOf(asmPart).then((bytes) => load(bytes, "asm")),
  ]);
  return {
    loadPyodide: pyodide["loadPyodide"] as BootOptions["loadPyodide"],
    createModule: asm["default"] as BootOptions["createModule"],
    restoreGlobals: () => {
      globalThis.fetch = fetch;
      WebAssembly.instantiateStreaming = instantiateStreaming;
    },
  };
}

function imageOf(part: Part): Uint8Array<ArrayBuffer> | Blob {
  return part instanceof ArrayBuffer ? new Uint8Array(part) : part;
}

/** A file of the page's stays unread until Python asks for it, where a worker can read it at that moment. */
async function contentsOf(part: Part): Promise<Contents> {
  const Reader = typeof FileReaderSync === "undefined" ? undefined : FileReaderSync;
  if (part instanceof ArrayBuffer || !Reader) return bytesOf(part);
  return { size: part.size, read: () => new Uint8Array(new Reader().readAsArrayBuffer(part)) };
}

async function bufferOf(part: Part): Promise<ArrayBuffer> {
  return part instanceof ArrayBuffer ? part : part.arrayBuffer();
}

async function bytesOf(part: Part): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await bufferOf(part));
}

async function importBlob(bytes: ArrayBuffer): Promise<Record<string, unknown>> {
  const address = URL.createObjectURL(new Blob([bytes], { type: "text/javascript" }));
  try {
    return await import(address);
  } finally {
    URL.revokeObjectURL(address);
  }
}

function rawOutput(port: MessagePort): (stream: "stdout" | "stderr", text: string) => void {
  let windowEnd = 0;
  let left = 0;
  return (stream, text) => {
    const now = performance.now();
    if (now >= windowEnd) {
      windowEnd = now + 1000;
      left = RAW_PER_SECOND;
    }
    if (left <= 0 || text === "") return;
    const shown =
      text.length > left ? `${text.slice(0, left)}\n[the rest of this second is left out]\n` : text;
    left -= text.length;
    port.postMessage({ event: "log", stream, text: shown });
  };
}

function describe(error: unknown): string {
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return text.slice(0, 4000);
}
