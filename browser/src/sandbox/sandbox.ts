/**
 * A sandbox in a page: Python with its MCP servers in a confined frame, and everything to start, watch and restart it.
 *
 * Invariants: at any time there is at most one frame. When it dies, whatever waits for it learns that at once: the lane
 * closes (or the port is told), open requests reject. A new life has the same folders, tool modules and declared
 * servers, but none of what tools kept in memory or wrote to files.
 */

import { BaseChannel, CLOSE_ABNORMAL, decodeUtf8, type TextChannel, type Utf8 } from "../channel.ts";
import type { Port } from "../port.ts";
import { declaration, type ServerDeclaration } from "../wire.ts";
import { AssetError, type Assets, parcelOf } from "./assets.ts";
import { Emitter, type SandboxEvents } from "./events.ts";
import { frameGround, type Ground } from "./ground.ts";
import type { Launched } from "./instance.ts";
import {
  type HandOver,
  readAnswer,
  readArchive,
  readCounts,
  readEvent,
  readNames,
  readTools,
  type SandboxTool,
  type WorkerEvent,
} from "./protocol.ts";
import { Unread } from "./unread.ts";

/** Seconds a tool may run, when `timeLimit` does not say otherwise. */
export const DEFAULT_TIME_LIMIT = 30;
/** Seconds after a tool's time limit until a worker that does not answer at all is ended. */
export const DEFAULT_GRACE = 5;
/** Bytes of a text that the page takes from the worker: more than the port lets out, little enough for one string. */
const MAX_UTF8 = 256 * 1024 * 1024;
/** Milliseconds between two looks at the worker. */
const PING_MS = 1000;
/** Milliseconds a start from the memory image may take before the cold way is tried. */
const IMAGE_TIMEOUT = 15_000;
/** Uses of Python that a start from the memory image must bear soon after it: each takes a few milliseconds. */
const PROOFS = 8;
/** Milliseconds after a start until that is asked of it: the page's own first questions come before. */
const PROVE_AFTER = 200;
/** Milliseconds after a start until the page's store is filled. */
const KEEP_AFTER = 3000;
/** Milliseconds after a start from the memory image within which a death is held against the image. */
const IMAGE_PROBATION = 30_000;
/** Milliseconds a cold start may take: ten times what a slow phone needs. */
const COLD_TIMEOUT = 180_000;
/** Crashes within {@link CRASH_WINDOW} after which the sandbox is not started again by itself. */
const MAX_CRASHES = 4;
const CRASH_WINDOW = 60_000;

/** Settings of {@link createSandbox}. */
export interface SandboxOptions {
  /** Address of the folder that holds `runtime/` and `sandbox.html`; by default the page's own. */
  readonly base?: string | URL;
  /** Where the frame is put; by default the end of the body. It is not visible. */
  readonly container?: HTMLElement;
  /** Put the frame's text into the page instead of loading its address: for static hosts that send no headers. */
  readonly inlineFrame?: boolean;
  /** Seconds for one tools/call; null for none. Default {@link DEFAULT_TIME_LIMIT}. */
  readonly timeLimit?: number | null;
  /**
   * Seconds without any sign of life after which the worker is ended and started again; null never does. By default
   * the time limit and {@link DEFAULT_GRACE} more; raise it where single tools have longer limits.
   */
  readonly hangLimit?: number | null;
  /** Environment variables of Python. */
  readonly environ?: Readonly<Record<string, string>>;
  /** Start from the memory image where the bundle has one. Default true. */
  readonly useImage?: boolean;
  /** Listeners that hear the very first events too. */
  readonly on?: { readonly [Name in keyof SandboxEvents]?: (event: SandboxEvents[Name]) => void };
}

export type SandboxState = "booting" | "ready" | "restarting" | "failed" | "terminated";

/** A request to a sandbox failed, or the sandbox is gone. */
export class SandboxError extends Error {
  override readonly name = "SandboxError";
}

/** Starts a sandbox. It returns at once; `ready` tells when it serves. */
export function createSandbox(options: SandboxOptions = {}): Sandbox {
  return new Sandbox(options);
}

interface Pending {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

interface Life {
  readonly instance: Launched;
  readonly ready: SandboxEvents["ready"];
}

interface Mount {
  readonly path: string;
  readonly zip: Blob;
  readonly replace: boolean;
}

/** Code of a person: the text of a module, or an archive and where its server is. */
type Module = string | { readonly archive: Blob; readonly server: string | undefined };

interface Joined {
  readonly port: Port;
  readonly key: string;
}

/** See {@link createSandbox}. */
export class Sandbox {
  /** The first boot: settles when it serves, rejects when it cannot be started. */
  readonly ready: Promise<SandboxEvents["ready"]>;
  readonly #options: SandboxOptions;
  readonly #ground: Ground;
  readonly #emitter = new Emitter();
  readonly #abort = new AbortController();
  readonly #pending = new Map<number, Pending>();
  readonly #declared = new Map<string, string>();
  readonly #modules = new Map<string, Module>();
  /** Settles when the last load or unload of a module that was asked for is done. */
  #modulesDone: Promise<unknown> = Promise.resolve();
  #mounts: Mount[] = [];
  #state: SandboxState = "booting";
  #assets: Promise<Assets> | undefined;
  #life: Promise<Life>;
  #instance: Launched | undefined;
  #endLife: ((error: SandboxError) => void) | undefined;
  /** The module that is being put back in a new life. */
  #restoring: string | undefined;
  #onBootEvent: ((event: WorkerEvent) => void) | undefined;
  #imageRefused = false;
  /** Until then a death is held against the image. */
  #imageTrustedFrom = 0;
  #lane: SandboxLane | undefined;
  #unread = new Unread();
  #joined: Joined | undefined;
  #generation = 0;
  #boots = 0;
  #seq = 0;
  #crashes: number[] = [];
  #timer: ReturnType<typeof setInterval> | undefined;
  #silentTicks = 0;
  #pinging = false;

  /** @internal use {@link createSandbox} */
  constructor(options: SandboxOptions, ground: Ground = frameGround(options)) {
    this.#options = options;
    this.#ground = ground;
    for (const [name, listener] of Object.entries(options.on ?? {})) {
      this.on(name as keyof SandboxEvents, listener as (event: SandboxEvents[keyof SandboxEvents]) => void);
    }
    this.#life = this.#boot();
    this.ready = this.#life.then(({ ready }) => ready);
    // Whoever does not look at `ready` has the event `failed`.
    this.ready.catch(() => {});
  }

  get state(): SandboxState {
    return this.#state;
  }

  /** Listens to an event; see {@link SandboxEvents}. The function that it returns ends that. */
  on<Name extends keyof SandboxEvents>(
    name: Name,
    listener: (event: SandboxEvents[Name]) => void,
  ): () => void {
    return this.#emitter.on(name, listener);
  }

  // -- what the page asks for ---------------------------------------------------------------------------------

  /**
   * Lends the sandbox to the agent behind a port, in place of an earlier port. A crash suspends it there, and a
   * restart resumes it with the connections that the agent believes open.
   * @param key the port's name for this sandbox.
   */
  async join(port: Port, key = "1"): Promise<void> {
    this.#leave("the sandbox serves another channel");
    const joined: Joined = { port, key };
    this.#joined = joined;
    void port.closed.then(() => {
      if (this.#joined === joined) this.#leave("the channel closed");
    });
    await this.#life;
    if (this.#joined !== joined) throw new SandboxError("another port was joined, or this one closed");
    const prefix = this.#prefix(key);
    const lane = await this.openLane(prefix);
    port.attach(key, lane, prefix);
    for (const id of this.#declared.keys()) port.declare(key, id);
  }

  /**
   * Opens a lane of texts to the servers, in place of an earlier one. For a client without a {@link Port}.
   * @param prefix what the ids of requests that start in the sandbox begin with.
   */
  async openLane(prefix: string): Promise<TextChannel> {
    const { instance } = await this.#life;
    this.#closeLane({ code: 1000, reason: "another lane was opened" });
    const lane = new SandboxLane(
      this.#unread,
      (text, utf8) => (utf8 ? instance.send(utf8.buffer, [utf8.buffer]) : instance.send(text)),
      () => {
        if (this.#lane === lane) this.#lane = undefined;
        if (this.#instance === instance) this.#ask(instance, { op: "lane", prefix: null }).catch(() => {});
      },
    );
    // Texts that the old lane's requests still cause are not the new lane's: it hears from the answer on.
    await this.#ask(instance, { op: "lane", prefix });
    this.#lane = lane;
    return lane;
  }

  /**
   * Gives servers fresh ids for a session.
   * @param names by default all that are available.
   * @returns their entries for `mcpServers` of `session/new`.
   */
  async declare(names?: readonly string[]): Promise<ServerDeclaration[]> {
    const { instance, ready } = await this.#life;
    const wanted = names ?? ready.servers.filter(({ error }) => error === undefined).map(({ name }) => name);
    const servers = wanted.map((name) => ({ name, id: crypto.randomUUID() }));
    await this.#ask(instance, { op: "declare", servers });
    for (const { name, id } of servers) {
      this.#declared.set(id, name);
      this.#joined?.port.declare(this.#joined.key, id);
    }
    return servers.map(({ name, id }) => declaration(name, id));
  }

  /** Takes ids back that `declare` gave, when their session ends. */
  async withdraw(ids: readonly string[]): Promise<void> {
    for (const id of ids) {
      this.#declared.delete(id);
      this.#joined?.port.withdraw(id);
    }
    await this.#request({ op: "withdraw", ids });
  }

  /**
   * Unpacks a zip archive into a folder.
   * @param options.replace the folder holds exactly the archive afterwards; otherwise files are added.
   */
  async mountZip(
    path: string,
    zip: ArrayBuffer | Uint8Array<ArrayBuffer> | Blob,
    options: { readonly replace?: boolean } = {},
  ): Promise<{ files: number; bytes: number }> {
    const mount: Mount = {
      path,
      zip: zip instanceof Blob ? zip : new Blob([zip]),
      replace: options.replace ?? false,
    };
    const { instance } = await this.#life;
    const value = await this.#mount(instance, mount);
    if (mount.replace) this.#mounts = this.#mounts.filter((other) => other.path !== path);
    this.#mounts.push(mount);
    return readCounts(value);
  }

  /**
   * Takes the files of a folder out of the sandbox, with what tools wrote there; links are left out.
   * @returns a zip archive. The sandbox made it: look at its paths and sizes before you unpack it.
   * @throws {SandboxError} the folder holds more than 200 MB or 50,000 files.
   */
  async zipFolder(path: string): Promise<Uint8Array<ArrayBuffer>> {
    const archive = readArchive(await this.#request({ op: "zipFolder", path }));
    if (!archive) throw new SandboxError("the sandbox gave no archive");
    return archive;
  }

  /**
   * Loads a module of tools into the server `user`, in place of what has that name.
   * @param name an identifier of Python.
   * @param source Python that defines a FastMCP server `mcp`.
   * @returns the names of its tools.
   */
  loadTools(name: string, source: string): Promise<string[]> {
    return this.#keep(name, async () => source);
  }

  /**
   * Loads a package of tools into the server `user`, in place of what has that name.
   * @param name an identifier of Python; where the archive is of a package's folder itself, the package's own name.
   * @param archive a wheel of pure Python (`py3-none-any`), or a zipped folder with a package or modules.
   * @param options.server `module` or `module:attribute` of the FastMCP server; by default it is looked for.
   * @returns the names of its tools.
   */
  loadPackage(
    name: string,
    archive: ArrayBuffer | Uint8Array<ArrayBuffer> | Blob,
    options: { readonly server?: string } = {},
  ): Promise<string[]> {
    // A copy: bytes are the caller's to change, and a file may change or go; it is needed again after a restart.
    const copy = archive instanceof Blob ? undefined : new Blob([archive]);
    return this.#keep(name, async () => ({
      archive: copy ?? new Blob([await (archive as Blob).arrayBuffer()]),
      server: options.server,
    }));
  }

  /** Takes a module or package of tools away again. */
  async unloadTools(name: string): Promise<void> {
    await this.#inTurn(async () => {
      // First: no later life gets it, however this one answers.
      this.#modules.delete(name);
      await this.#request({ op: "unloadTools", name });
    });
  }

  /** All tools of all servers, for the page's own display. They describe themselves: show it as text only. */
  async listTools(): Promise<SandboxTool[]> {
    return readTools(await this.#request({ op: "listTools" }));
  }

  /** Interrupts a tool that runs and does not give way, where the page is cross-origin isolated; the tool fails. */
  interrupt(): void {
    this.#instance?.interrupt();
  }

  /** Ends the frame and starts a new one. What is open is answered with an error. */
  async restart(reason = "the sandbox was restarted"): Promise<void> {
    if (this.#state === "terminated") throw new SandboxError("the sandbox was terminated");
    this.#imageRefused = false;
    this.#crashes = [];
    this.#end(reason, true);
    // A life that ends while it begins is followed by another.
    for (let life = this.#life; ; life = this.#life) {
      const settled = await life.catch((error: unknown) => error);
      if (life !== this.#life) continue;
      if (settled instanceof Error) throw settled;
      return;
    }
  }

  /** Ends the sandbox for good. */
  terminate(): void {
    if (this.#state === "terminated") return;
    this.#end("the sandbox was terminated", false);
    this.#state = "terminated";
    this.#abort.abort();
  }

  // -- lives --------------------------------------------------------------------------------------------------

  async #boot(): Promise<Life> {
    const began = performance.now();
    this.#boots += 1;
    const boot = this.#boots;
    let stage = "fetch";
    try {
      for (;;) {
        const loading = this.#load();
        const wanted = (this.#options.useImage ?? true) && !this.#imageRefused;
        try {
          return await this.#start(loading, wanted, began);
        } catch (error) {
          if (boot !== this.#boots || this.#abort.signal.aborted) throw error;
          this.#instance?.destroy();
          this.#instance = undefined;
          this.#rejectPending(error);
          // Neither the image nor a file is to blame for what a module does.
          if (this.#leaveOut(messageOf(error))) continue;
          // It is this error, when the files could not be had.
          const assets = await loading;
          stage = "runtime";
          const image = wanted && assets.files.has("image");
          const kept = [...assets.files.values()].some((part) => part instanceof File);
          if (image) {
            // Whatever was wrong with it: the cold way needs nothing of it.
            this.#imageRefused = true;
            this.#withoutImage(messageOf(error));
            await assets.discard?.("image");
          } else if (kept) {
            // A file of an earlier visit may be the fault; another tab may have taken it away.
            await assets.discard?.("all");
            this.#assets = undefined;
          } else {
            throw error;
          }
        }
      }
    } catch (error) {
      // A later boot, or none at all, is what counts now.
      if (boot !== this.#boots) throw new SandboxError("the sandbox was ended while it started");
      this.#instance?.destroy();
      this.#instance = undefined;
      this.#state = "failed";
      const remedy =
        error instanceof AssetError || error instanceof BootError ? error.remedy : "Reload the page.";
      stage = error instanceof BootError ? error.stage : stage;
      this.#emitter.emit("failed", { stage, message: messageOf(error), remedy });
      this.#joined?.port.detach(this.#joined.key, "The sandbox cannot be started");
      throw new SandboxError(messageOf(error));
    }
  }

  #withoutImage(why: string): void {
    this.#emitter.emit("progress", {
      stage: "runtime",
      detail: `the memory image cannot be used here (${why}); starting without it`,
    });
  }

  #load(): Promise<Assets> {
    this.#emitter.emit("progress", { stage: "fetch", fraction: this.#assets ? 1 : 0 });
    this.#assets ??= this.#ground.load(
      (fraction, detail) => this.#emitter.emit("progress", { stage: "fetch", fraction, detail }),
      this.#abort.signal,
    );
    // A failed fetch is tried again by the next start.
    this.#assets.catch(() => {
      this.#assets = undefined;
    });
    return this.#assets;
  }

  #handOver(assets: Assets, image: boolean): HandOver {
    const { servers, preload } = assets.manifest;
    const { timeLimit = DEFAULT_TIME_LIMIT, environ = {} } = this.#options;
    return { parcel: parcelOf(assets, image), config: { timeLimit, servers, preload, environ } };
  }

  async #start(loading: Promise<Assets>, wantsImage: boolean, began: number): Promise<Life> {
    const boot = this.#boots;
    let ended: ((error: Error) => void) | undefined;
    const died = new Promise<never>((_, reject) => {
      ended = reject;
      this.#endLife = reject;
    });
    died.catch(() => {});
    const booted = new Promise<SandboxEvents["ready"]>((resolve) => {
      this.#onBootEvent = (event) => {
        if (event.event === "ready") resolve({ servers: event.servers, mode: event.mode, ms: event.ms });
        else if (event.event === "failed") ended?.(new BootError(event.message, event.stage, event.remedy));
        else if (event.event === "fatal")
          ended?.(new BootError(event.message, "runtime", "Reload the page."));
      };
    });
    let timer: ReturnType<typeof setTimeout> | undefined;
    try {
      // The worker is started while the files are looked for.
      const launching = this.#ground.launch(
        loading.then((assets) => this.#handOver(assets, wantsImage)),
        {
          text: (text) => this.#lane?.arrived(text),
          other: (data, from) => {
            if (data instanceof ArrayBuffer) this.#lane?.arrivedUtf8(new Uint8Array(data));
            else this.#heard(from, data);
          },
          gone: (reason, from) => this.#gone(from, reason),
          error: (message) => {
            if (this.#onBootEvent) ended?.(new Error(`the worker failed: ${message || "no reason given"}`));
            else
              this.#emitter.emit("log", {
                stream: "stderr",
                text: `uncaught error in the worker: ${message}\n`,
              });
          },
        },
        this.#abort.signal,
      );
      // Who waits for both must not miss that the other failed first.
      launching.catch(() => {});
      const assets = await loading;
      const image = wantsImage && assets.files.has("image");
      if (wantsImage && assets.imageProblem !== undefined) this.#withoutImage(assets.imageProblem);
      const instance = await launching;
      if (boot !== this.#boots) {
        instance.destroy();
        throw new SandboxError("the sandbox was ended while it started");
      }
      this.#instance = instance;
      this.#unread = new Unread();
      const limit = image ? IMAGE_TIMEOUT : COLD_TIMEOUT;
      timer = setTimeout(() => ended?.(new Error(`no sign of readiness within ${limit / 1000} s`)), limit);
      const claimed = await Promise.race([booted, died]);
      const ready = { ...claimed, ms: { ...claimed.ms, total: performance.now() - began } };
      this.#onBootEvent = undefined;
      clearTimeout(timer);
      await Promise.race([this.#restore(instance, (error) => ended?.(error)), died]);
      this.#state = "ready";
      this.#imageTrustedFrom = image ? performance.now() + IMAGE_PROBATION : 0;
      this.#watch();
      this.#emitter.emit("ready", ready);
      if (image) whenIdle(PROVE_AFTER, () => this.#prove(instance));
      // When there is time: the next visit is quicker by it, this one is not. A program waits for a timer before it ends.
      if (assets.keep)
        whenIdle(KEEP_AFTER, () => {
          if (boot === this.#boots) void this.#keepFiles(assets);
        });
      return { instance, ready };
    } finally {
      clearTimeout(timer);
      this.#onBootEvent = undefined;
    }
  }

  async #keepFiles(assets: Assets): Promise<void> {
    if (await assets.keep?.()) this.#emitter.emit("kept", {});
  }

  /** A bad image can show only when Python is used. It is used here, before much depends on it. */
  #prove(instance: Launched): void {
    for (let round = 0; round < PROOFS; round += 1) {
      if (this.#instance === instance) this.#ask(instance, { op: "listTools" }).catch(() => {});
    }
  }

  /**
   * Puts back what an earlier life had. What no longer works is said in the log, and harms nothing else.
   * @param fail ends this life.
   */
  async #restore(instance: Launched, fail: (error: Error) => void): Promise<void> {
    const attempt = async (what: string, work: Promise<unknown>): Promise<void> => {
      await work.catch((error: unknown) => {
        if (this.#instance === instance)
          this.#emitter.emit("log", { stream: "stderr", text: `${what}: ${messageOf(error)}\n` });
      });
    };
    for (const mount of this.#mounts) await attempt(mount.path, this.#mount(instance, mount));
    const limit = this.#hangLimit();
    for (const [name, module] of this.#modules) {
      if (this.#instance !== instance) return;
      this.#restoring = name;
      // Two steps, unpacking and running, have a limit of their own inside.
      const late = (): void => fail(new Error("it did not end, nor could it be stopped"));
      const timer = limit === null ? undefined : setTimeout(late, 2 * limit * 1000);
      await attempt(name, this.#loadModule(instance, name, module));
      clearTimeout(timer);
      this.#restoring = undefined;
    }
    const servers = [...this.#declared].map(([id, name]) => ({ name, id }));
    if (servers.length > 0) await this.#ask(instance, { op: "declare", servers });
  }

  /** A module that ended the life in which it was put back gets no other; false when there is none. */
  #leaveOut(reason: string): boolean {
    const name = this.#restoring;
    this.#restoring = undefined;
    if (name === undefined) return false;
    this.#modules.delete(name);
    const text = `${name}: loading it again ended the sandbox (${reason}); it is left out from now on\n`;
    this.#emitter.emit("log", { stream: "stderr", text });
    return true;
  }

  #rejectPending(error: unknown): void {
    const reason = error instanceof Error ? error : new SandboxError(String(error));
    for (const { reject } of this.#pending.values()) reject(reason);
    this.#pending.clear();
  }

  /** Ends this life at once; `again` starts the next one. */
  #end(reason: string, again: boolean): void {
    this.#unwatch();
    const instance = this.#instance;
    this.#instance = undefined;
    instance?.destroy();
    const error = new SandboxError(reason);
    this.#restoring = undefined;
    this.#rejectPending(error);
    this.#endLife?.(error);
    this.#boots += 1;
    const joined = this.#joined;
    // The port first: it answers what is open, and holds what comes until the sandbox is back.
    if (joined && again) joined.port.suspend(joined.key, reason);
    else if (joined) joined.port.detach(joined.key, reason);
    this.#closeLane({ code: CLOSE_ABNORMAL, reason });
    if (!again) {
      this.#life = Promise.reject(error);
      this.#life.catch(() => {});
      return;
    }
    this.#state = "restarting";
    this.#life = this.#boot();
    this.#life.then(
      async ({ ready }) => {
        if (joined && this.#joined === joined) {
          await this.#resume(joined).catch((error: unknown) => {
            // Died again meanwhile: the next life resumes. Anything else leaves the agent without the sandbox.
            if (this.#state === "ready") joined.port.detach(joined.key, messageOf(error));
          });
        }
        this.#emitter.emit("restarted", { mode: ready.mode, ms: ready.ms });
      },
      () => {},
    );
  }

  async #resume({ port, key }: Joined): Promise<void> {
    const { instance } = await this.#life;
    const prefix = this.#prefix(key);
    const lane = await this.openLane(prefix);
    await this.#ask(instance, { op: "adopt", connections: port.connections(key) });
    port.resume(key, lane, prefix);
  }

  #gone(instance: Launched, reason: string): void {
    if (this.#instance !== instance) return;
    if (this.#onBootEvent) {
      this.#onBootEvent({ event: "fatal", message: reason });
      return;
    }
    if (this.#restoring !== undefined) {
      // This life ends; the boot goes on with another one, without the module.
      this.#endLife?.(new SandboxError(reason));
      return;
    }
    const now = performance.now();
    if (now < this.#imageTrustedFrom) {
      this.#imageRefused = true;
      this.#withoutImage(reason);
    }
    this.#crashes = [...this.#crashes.filter((at) => now - at < CRASH_WINDOW), now];
    const restarting = this.#crashes.length < MAX_CRASHES;
    this.#end(reason, restarting);
    this.#emitter.emit("crashed", { reason, restarting });
    if (restarting) return;
    this.#state = "failed";
    this.#emitter.emit("failed", {
      stage: "servers",
      message: `the sandbox died ${MAX_CRASHES} times within a minute, at last because ${reason}`,
      remedy: "Restart it by hand; look at the log for the tool that ends it.",
    });
  }

  #prefix(key: string): string {
    this.#generation += 1;
    return `sp${key}.${this.#generation}.`;
  }

  #leave(reason: string): void {
    const joined = this.#joined;
    this.#joined = undefined;
    if (joined) joined.port.detach(joined.key, reason);
    this.#closeLane({ code: 1000, reason });
  }

  #closeLane(info: { readonly code: number; readonly reason: string }): void {
    const lane = this.#lane;
    this.#lane = undefined;
    lane?.close(info.code, info.reason);
  }

  // -- messages -----------------------------------------------------------------------------------------------

  #heard(instance: Launched, data: unknown): void {
    if (this.#instance !== instance) return;
    this.#silentTicks = 0;
    const answer = readAnswer(data);
    if (answer) {
      const pending = this.#pending.get(answer.seq);
      this.#pending.delete(answer.seq);
      if (answer.ok) pending?.resolve(answer.value);
      else pending?.reject(new SandboxError(answer.message || "the sandbox refused without a reason"));
      return;
    }
    const event = readEvent(data);
    if (!event) return;
    this.#onBootEvent?.(event);
    switch (event.event) {
      case "progress": {
        const { event: _, ...progress } = event;
        this.#emitter.emit("progress", progress);
        break;
      }
      case "log": {
        const { event: _, ...log } = event;
        this.#emitter.emit("log", log);
        break;
      }
      case "tools":
        this.#emitter.emit("tools", {});
        break;
      case "taken":
        this.#unread.taken(event.texts);
        break;
      case "failed":
      case "fatal":
        if (this.#state === "ready" || this.#restoring !== undefined)
          this.#gone(instance, event.message || "Python can do nothing any more");
        break;
      case "ready":
        break;
    }
  }

  async #request(request: Record<string, unknown>): Promise<unknown> {
    const { instance } = await this.#life;
    return this.#ask(instance, request);
  }

  #ask(
    instance: Launched,
    request: Record<string, unknown>,
    transfer: Transferable[] = [],
  ): Promise<unknown> {
    if (this.#instance !== instance)
      return Promise.reject(new SandboxError("the sandbox was restarted meanwhile"));
    this.#seq += 1;
    const seq = this.#seq;
    return new Promise((resolve, reject) => {
      this.#pending.set(seq, { resolve, reject });
      instance.send({ ...request, seq }, transfer);
    });
  }

  async #mount(instance: Launched, { path, zip, replace }: Mount): Promise<unknown> {
    const bytes = await zip.arrayBuffer();
    return this.#ask(instance, { op: "mountZip", path, replace, zip: bytes }, [bytes]);
  }

  /** Loads a module, and again in each later life. */
  #keep(name: string, read: () => Promise<Module>): Promise<string[]> {
    return this.#inTurn(async () => {
      const module = await read();
      const { instance } = await this.#life;
      const names = readNames(await this.#loadModule(instance, name, module));
      this.#modules.set(name, module);
      return names;
    });
  }

  async #loadModule(instance: Launched, name: string, module: Module): Promise<unknown> {
    if (typeof module === "string") return this.#ask(instance, { op: "loadTools", name, source: module });
    const bytes = await module.archive.arrayBuffer();
    const { server } = module;
    return this.#ask(instance, { op: "loadPackage", name, zip: bytes, ...(server && { server }) }, [bytes]);
  }

  /** Loads and unloads happen in the order in which they were asked for: what a later life gets is what this one has. */
  #inTurn<Result>(work: () => Promise<Result>): Promise<Result> {
    const result = this.#modulesDone.then(work);
    this.#modulesDone = result.catch(() => {});
    return result;
  }

  // -- watching -----------------------------------------------------------------------------------------------

  #watch(): void {
    this.#unwatch();
    const limit = this.#hangLimit();
    if (limit === null) return;
    this.#timer = setInterval(() => {
      const instance = this.#instance;
      if (!instance) return;
      // Ticks are counted, not time: a page that slept has not waited.
      if (this.#pinging) this.#silentTicks += 1;
      if (this.#silentTicks * PING_MS > limit * 1000) {
        this.#gone(instance, `it gave no sign of life for ${limit} s, longer than any tool may run`);
      } else if (!this.#pinging) {
        this.#pinging = true;
        this.#ask(instance, { op: "ping" })
          .catch(() => {})
          .finally(() => {
            this.#pinging = false;
            this.#silentTicks = 0;
          });
      }
    }, PING_MS);
  }

  #hangLimit(): number | null {
    const { hangLimit, timeLimit = DEFAULT_TIME_LIMIT } = this.#options;
    if (hangLimit !== undefined) return hangLimit;
    return timeLimit === null ? null : timeLimit + DEFAULT_GRACE;
  }

  #unwatch(): void {
    clearInterval(this.#timer);
    this.#pinging = false;
    this.#silentTicks = 0;
  }
}

/** The page's end of a lane. */
class SandboxLane extends BaseChannel {
  readonly #unread: Unread;
  readonly #send: (text: string, utf8?: Utf8) => void;
  readonly #closed: () => void;

  constructor(unread: Unread, send: (text: string, utf8?: Utf8) => void, closed: () => void) {
    super();
    this.#unread = unread;
    this.#send = send;
    this.#closed = closed;
  }

  get pending(): number {
    return this.#unread.chars;
  }

  get pendingTexts(): number {
    return this.#unread.texts;
  }

  arrived(text: string): void {
    this.deliver(text);
  }

  /** A text that came as its UTF-8. What is none, or longer than any text, is a text that is no message. */
  arrivedUtf8(utf8: Utf8): void {
    this.deliver((utf8.length <= MAX_UTF8 ? decodeUtf8(utf8) : undefined) ?? "", utf8);
  }

  protected override transmit(text: string, utf8?: Utf8): void {
    this.#unread.sent(text.length);
    this.#send(text, utf8);
  }

  protected override shut(): void {
    this.#closed();
  }
}

class BootError extends Error {
  readonly stage: string;
  readonly remedy: string;

  constructor(message: string, stage: string, remedy: string) {
    super(message);
    this.stage = stage;
    this.remedy = remedy;
  }
}

/** Runs `task` after some milliseconds, when the page has nothing better to do or as many have passed again. */
function whenIdle(after: number, task: () => void): void {
  if (typeof requestIdleCallback === "function")
    setTimeout(() => requestIdleCallback(task, { timeout: after }), after);
  else setTimeout(task, after);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
