/**
 * In a worker: boots Python as the sandbox does, and takes its memory image instead of serving.
 *
 * Invariant: the port gets one message, the image or why there is none.
 */

import { bootPyodide, IMAGE_ENV, nativePackages, takeImage } from "../sandbox/boot.ts";
import type { WorkerStart } from "../sandbox/protocol.ts";
import { importPyodide, type LoadScript } from "../sandbox/serve.ts";

/** What the worker says. */
export type Taken = { readonly image: ArrayBuffer } | { readonly error: string };

const LOCAL = "https://sandport.invalid/";
const RUNTIME = "sandport_runtime.boot";

/**
 * Takes the image and puts it on the port.
 * @param modules are imported before; see `takeImage`.
 */
export async function sendImage(
  start: WorkerStart,
  port: MessagePort,
  modules: readonly string[],
  load: LoadScript,
): Promise<void> {
  try {
    const image = await imageOf(start, modules, load);
    const taken: Taken = { image };
    port.postMessage(taken, [image]);
  } catch (error) {
    const taken: Taken = { error: String(error instanceof Error ? error.message : error).slice(-2000) };
    port.postMessage(taken);
  }
}

async function imageOf(
  { parcel, config }: WorkerStart,
  modules: readonly string[],
  load: LoadScript,
): Promise<ArrayBuffer> {
  const bytes = (part: unknown): Uint8Array<ArrayBuffer> => new Uint8Array(part as ArrayBuffer);
  const compiled = WebAssembly.compile(bytes(parcel.wasm));
  const { loadPyodide, createModule } = await importPyodide(parcel.stdlib, compiled, load, parcel);
  const pyodide = await bootPyodide({
    files: {
      site: bytes(parcel.site),
      core: bytes(parcel.core),
      native: nativePackages(bytes(parcel.native), config.preload),
      lock: new TextDecoder().decode(bytes(parcel.lock)),
      ...(parcel.extra ? { extra: bytes(parcel.extra) } : {}),
    },
    loadPyodide,
    createModule,
    indexURL: LOCAL,
    stdLibURL: `${LOCAL}python_stdlib.zip`,
    env: { ...IMAGE_ENV },
    makeImage: true,
  });
  const runtime = pyodide.pyimport(config.module ?? RUNTIME) as unknown as Preparing;
  // The agent's Python has no servers.
  if (config.module === undefined) runtime.prepare(pyodide.toPy(config.servers));
  else runtime.prepare();
  return takeImage(pyodide, modules).buffer;
}

interface Preparing {
  prepare(servers?: unknown): void;
}
