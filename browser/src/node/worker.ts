/**
 * The worker outside a page: the sandbox's own `serve`, or the making of an image, under conditions like those of a page's
 * worker.
 *
 * Invariant: Pyodide takes every host for a browser's worker, so that it behaves the same everywhere and offers Python
 * none of Node's doors by itself. That is for sameness, not for safety: in Node and Bun tool code finds the way to the
 * machine through `js`. In Deno the worker has no permissions.
 */

import { Buffer } from "node:buffer";
import { serve } from "../sandbox/serve.ts";
import type { HostStart } from "./ground.ts";
import { sendImage } from "./take-image.ts";

type Globals = Record<string, unknown>;

const globals = globalThis as unknown as Globals;

/** What Emscripten asks the globals for. */
function disguise(): void {
  const { process } = globals as { process?: object };
  // Emscripten takes a process of this type for a page of Electron.
  if (process) Object.defineProperty(process, "type", { value: "renderer", configurable: true });
  globals["self"] ??= globalThis;
  if (!("WorkerGlobalScope" in globals)) {
    const scope = () => {};
    Object.defineProperty(scope, Symbol.hasInstance, { value: (one: unknown) => one === globalThis });
    globals["WorkerGlobalScope"] = scope;
  }
  if (globals["location"] === undefined) {
    Object.defineProperty(globals, "location", {
      value: new URL("https://sandport.invalid/"),
      configurable: true,
    });
  }
}

/** What Pyodide asks for by name, hidden from its modules alone: Bun's global cannot be removed. */
const SHADOW = "const Bun = undefined, Deno = undefined, process = undefined;";

/** From a `data:` address, which all three hosts import; Node and Bun know no `blob:`. */
async function importData(bytes: ArrayBuffer): Promise<Globals> {
  const source = Buffer.concat([Buffer.from(SHADOW), Buffer.from(bytes)]).toString("base64");
  return import(`data:text/javascript;base64,${source}`);
}

/** Ways to the network that a worker's globals have. */
const NETWORK = ["fetch", "WebSocket", "EventSource", "XMLHttpRequest", "WebTransport"];

/**
 * For code of Sandport's own, which needs neither: what it prints must not come between the messages on the process's
 * standard output, and a mistake in it must not reach the network. It keeps nobody out who means to get out.
 */
function hush(): void {
  console.log = console.info = console.debug = console.error;
  for (const name of NETWORK) {
    Object.defineProperty(globals, name, { value: undefined, writable: true, configurable: true });
  }
}

function run({ start, port, quiet, modules }: HostStart): void {
  disguise();
  if (quiet) hush();
  if (modules) void sendImage(start, port, modules, importData);
  else void serve(start, port, importData);
}

if ("Deno" in globals) {
  globals["onmessage"] = ({ data }: MessageEvent<HostStart>) => {
    globals["onmessage"] = null;
    run(data);
  };
} else {
  const { workerData } = await import("node:worker_threads");
  run(workerData as HostStart);
}
