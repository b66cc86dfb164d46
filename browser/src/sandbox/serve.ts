/**
 * What the sandbox's worker does, in a page and elsewhere: boots Python and joins it to a port.
 *
 * Invariant: strings on the port are lane texts, which Python gets as they are, an ArrayBuffer is the UTF-8 of one, and
 * other objects are control. Nothing here is a boundary: tool code runs in this very realm and can change all of it.
 */

import type { PyodideAPI } from "pyodide";
import { type BootOptions, bootPyodide, installDeadline } from "./boot.ts";
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
    const [{ loadPyodide, createModule, restoreFetch }, site, core, native, lock, extra, image] =
      await Promise.all([
        importPyodide(parcel, load),
        bytesOf(parcel.site),
        bytesOf(parcel.core),
        bytesOf(parcel.native),
        bytesOf(parcel.lock),
        parcel.extra && bytesOf(parcel.extra),
        parcel.image && bytesOf(parcel.image),
      ]);
    const pyodide = await bootPyodide({
      files: {
        site,
        core,
        native,
        preload: config.preload,
        lock: new TextDecoder().decode(lock),
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
    restoreFetch();
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
    event: (text: string) => port.postMessage(JSON.parse(text)),
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

/** Imports Pyodide's two modules, and answers its two fetches from memory until told to stop. */
async function importPyodide(
  parcel: WorkerStart["parcel"],
  load: LoadScript,
): Promise<{
  loadPyodide: BootOptions["loadPyodide"];
  createModule: BootOptions["createModule"];
  restoreFetch: () => void;
}> {
  // Stack switching is off in the sandbox (see boot.ts); without it each call from JavaScript is cheaper.
  const wasm = WebAssembly as unknown as Record<string, unknown>;
  delete wasm["Suspending"];
  delete wasm["promising"];
  const original = globalThis.fetch;
  const answers: Record<string, [BodyInit, string]> = {
    "pyodide.asm.wasm": [parcel.wasm, "application/wasm"],
    "python_stdlib.zip": [parcel.stdlib, "application/zip"],
  };
  globalThis.fetch = async (input) => {
    const name = String(input).slice(LOCAL.length);
    const answer = answers[name];
    if (!answer) throw new TypeError(`no network in the sandbox: ${String(input)}`);
    return new Response(answer[0], { headers: { "content-type": answer[1] } });
  };
  const [pyodide, asm] = await Promise.all([
    bufferOf(parcel.pyodide).then((bytes) => load(bytes, "pyodide")),
    bufferOf(parcel.asm).then((bytes) => load(bytes, "asm")),
  ]);
  return {
    loadPyodide: pyodide["loadPyodide"] as BootOptions["loadPyodide"],
    createModule: asm["default"] as BootOptions["createModule"],
    restoreFetch: () => {
      globalThis.fetch = original;
    },
  };
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
