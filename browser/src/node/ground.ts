/**
 * The ground outside a page: a worker thread of Node or Bun, or a worker of Deno that has no permissions.
 *
 * Invariant: whatever the host, the worker gets its start and one MessagePort in one message, and is ended from outside.
 * Only Deno keeps it from the machine.
 */

import { Worker as ThreadWorker } from "node:worker_threads";
import type { Assets } from "../sandbox/assets.ts";
import type { Ground } from "../sandbox/ground.ts";
import type { InstanceHandlers, Launched } from "../sandbox/instance.ts";
import type { HandOver, WorkerStart } from "../sandbox/protocol.ts";
import { readAssets } from "./assets.ts";
import { type HostName, hostName, type Isolation } from "./host.ts";
import type { KeptImage } from "./kept.ts";

/** What {@link hostGround} needs. */
export interface HostOptions {
  /** Folder of the bundle. */
  readonly bundle: string;
  /** In Deno: run tools with all permissions of the process. Default false. */
  readonly trusted?: boolean;
  /** Stands in for the image that the bundle lacks. */
  readonly kept?: KeptImage | undefined;
}

/** The first and only message to the worker beside its port. */
export interface HostStart {
  readonly start: WorkerStart;
  readonly port: MessagePort;
  /** Take the network and the console from the worker's code; see `worker.ts`. */
  readonly quiet: boolean;
  /** Take a memory image, with these modules imported, instead of serving. */
  readonly modules?: readonly string[];
}

/** How a worker is started, beside what is handed over to it. */
export interface ThreadOptions extends Partial<Pick<HostStart, "quiet" | "modules">> {
  /** In Deno: without permissions. */
  readonly isolated: boolean;
}

/** A worker, in whichever way the host has it. */
interface HostWorker {
  end(): void;
}

type Lifecycle = Pick<InstanceHandlers<Launched>, "error"> & { ended(reason: string): void };

/** The worker's module: beside this one, compiled or not. */
const WORKER: URL = new URL(import.meta.url.replace(/ground\.([jt]s)$/, "worker.$1"));

/** What isolates tools on this host. */
export function isolationOf(options: Pick<HostOptions, "trusted">): Isolation {
  return hostName() === "deno" && !options.trusted ? "permissions" : "nothing";
}

/** The ground of this host. */
export function hostGround(options: HostOptions): Ground {
  return {
    async load(onProgress, signal) {
      const assets = await readAssets(options.bundle, onProgress);
      signal.throwIfAborted();
      return options.kept && !assets.manifest.files.image ? withKept(assets, options.kept) : assets;
    },
    launch: (handOver, handlers, signal) =>
      launchThread(handOver, handlers, signal, { isolated: isolationOf(options) === "permissions" }),
  };
}

async function withKept(assets: Assets, kept: KeptImage): Promise<Assets> {
  const { image, problem } = await kept.read();
  return {
    ...assets,
    files: image ? new Map([...assets.files, ["image", image] as const]) : assets.files,
    ...(problem === undefined ? {} : { imageProblem: problem }),
    discard: () => kept.refuse("the sandbox did not start from it"),
  };
}

/** Starts a worker of this host and hands everything over to it. */
export async function launchThread(
  handOver: HandOver | Promise<HandOver>,
  handlers: InstanceHandlers<Launched>,
  signal: AbortSignal,
  { isolated, quiet = false, modules }: ThreadOptions,
): Promise<Launched> {
  const given = await handOver;
  signal.throwIfAborted();
  const host = hostName();
  const start = host === "deno" ? denoWorker(isolated) : threadWorker(host);
  return new Thread(given, { quiet, ...(modules ? { modules } : {}) }, handlers, start);
}

type StartWorker = (start: HostStart, transfer: ArrayBuffer[], life: Lifecycle) => HostWorker;

class Thread implements Launched {
  readonly #port: MessagePort;
  readonly #signal: Int32Array | null;
  readonly #worker: HostWorker;
  #destroyed = false;

  constructor(
    { parcel, config }: HandOver,
    work: Pick<HostStart, "quiet" | "modules">,
    handlers: InstanceHandlers<Launched>,
    startWorker: StartWorker,
  ) {
    const { port1, port2 } = new MessageChannel();
    this.#port = port1;
    this.#signal = new Int32Array(new SharedArrayBuffer(4));
    port1.onmessage = ({ data }: MessageEvent<unknown>) => {
      if (this.#destroyed) return;
      if (typeof data === "string") handlers.text(data);
      else handlers.other(data, this);
    };
    const start: WorkerStart = { parcel, config, signal: this.#signal };
    this.#worker = startWorker({ start, port: port2, ...work }, Object.values(parcel) as ArrayBuffer[], {
      error: (message) => {
        if (!this.#destroyed) handlers.error(message);
      },
      ended: (reason) => {
        if (!this.#destroyed) handlers.gone(reason, this);
      },
    });
  }

  send(data: unknown, transfer: Transferable[] = []): void {
    this.#port.postMessage(data, transfer);
  }

  interrupt(): void {
    if (this.#signal) Atomics.store(this.#signal, 0, 2);
  }

  destroy(): void {
    this.#destroyed = true;
    this.#port.close();
    this.#worker.end();
  }
}

function threadWorker(host: HostName): StartWorker {
  return (start, transfer, life) => {
    const port = start.port as unknown as import("node:worker_threads").MessagePort;
    // Standard streams of a thread go to the process; Python's own go over the port.
    const worker = new ThreadWorker(WORKER, {
      workerData: start,
      transferList: [port, ...transfer],
      ...(host === "node" ? { env: {} } : {}),
    });
    worker.on("error", (error) => life.error(String(error).slice(0, 500)));
    worker.on("exit", () => life.ended("the worker ended"));
    return { end: () => void worker.terminate() };
  };
}

/** Deno's own worker: the only one whose permissions can be taken away. */
function denoWorker(isolated: boolean): StartWorker {
  return (start, transfer, life) => {
    const options = {
      type: "module",
      name: "sandport",
      ...(isolated ? { deno: { permissions: "none" } } : {}),
    };
    const worker = new Worker(WORKER, options as WorkerOptions);
    worker.onerror = (event) => {
      event.preventDefault();
      life.error(String(event.message).slice(0, 500));
      // Deno ends a worker with an error that nothing caught.
      life.ended("an error that nothing caught ended the worker");
    };
    worker.postMessage(start, [start.port, ...transfer]);
    return { end: () => worker.terminate() };
  };
}
