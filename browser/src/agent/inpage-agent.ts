/**
 * An ACP agent in the page: Python in a confined frame of its own, apart from the tools' sandbox.
 *
 * Invariants: the agent's worker has no network and no storage: it runs under the sandbox's policy, and what it needs of
 * either the page does for it, within rules that it cannot change. The key of an endpoint goes to the relay's worker
 * alone. Nothing is fetched before the agent is first opened. One channel is open at a time.
 */

import { BaseChannel, CLOSE_ABNORMAL, type TextChannel } from "../channel.ts";
import { AssetError, fetchFile, fetchJson, loadAssets, type ManifestFile } from "../sandbox/assets.ts";
import { Instance } from "../sandbox/instance.ts";
import {
  type BootConfig,
  type BootParcel,
  type BootStage,
  readAnswer,
  readEvent,
} from "../sandbox/protocol.ts";
import { type Endpoint, EndpointError, endpointBase, type RelayRequest } from "./endpoint.ts";
import { readRequest, type StoreAction } from "./protocol.ts";
import { Relay } from "./relay.ts";
import { browserStore, memoryStore, type SessionStore } from "./store.ts";

/** Milliseconds a start from the memory image may take before the cold way is tried. */
const IMAGE_TIMEOUT = 20_000;
/** Milliseconds a cold start may take: ten times what a slow phone needs. */
const COLD_TIMEOUT = 240_000;
/** 1011: the agent ended by its own fault; trying again may help. */
const CLOSE_AGENT_ENDED = 1011;

/** The model that the agent works with: its script, which needs nothing, or an endpoint. */
export type ModelSettings = { readonly kind: "demo" } | ({ readonly kind: "endpoint" } & Endpoint);

/** How far a start is. `fraction`: 0 to 1 within the stage. */
export interface AgentProgress {
  readonly stage: BootStage;
  readonly detail?: string;
  readonly fraction?: number;
}

/** Settings of {@link createInPageAgent}. */
export interface InPageAgentOptions {
  /** Address of the folder that holds `runtime/`, `agent/` and `sandbox.html`; by default the page's own. */
  readonly base?: string | URL;
  /** Where the frame is put; by default the end of the body. It is not visible. */
  readonly container?: HTMLElement;
  /** Put the frame's text into the page instead of loading its address: for static hosts that send no headers. */
  readonly inlineFrame?: boolean;
  /** Keeps the sessions; by default the browser does, or the page where the browser cannot. */
  readonly store?: SessionStore;
  /** Told how far a start is. */
  readonly onProgress?: (progress: AgentProgress) => void;
  /** Told what the agent's Python prints: warnings, as a rule. Show it as text only. */
  readonly onLog?: (text: string) => void;
}

/** The agent could not be started, or is gone. */
export class InPageAgentError extends Error {
  override readonly name = "InPageAgentError";
  readonly remedy: string;

  constructor(message: string, remedy: string) {
    super(message);
    this.remedy = remedy;
  }
}

/** Makes an agent. Nothing is fetched or started before {@link InPageAgent.open}. */
export function createInPageAgent(options: InPageAgentOptions = {}): InPageAgent {
  return new InPageAgent(options);
}

interface Pending {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

/** See {@link createInPageAgent}. */
export class InPageAgent {
  readonly #options: InPageAgentOptions;
  readonly #base: string;
  readonly #pending = new Map<number, Pending>();
  #store: Promise<SessionStore> | undefined;
  #parcel: Promise<{ parcel: BootParcel; config: BootConfig }> | undefined;
  #imageRefused = false;
  #model: ModelSettings = { kind: "demo" };
  #relay: Relay | undefined;
  #life: Promise<Instance> | undefined;
  #instance: Instance | undefined;
  #onBoot: { ready(): void; failed(error: InPageAgentError): void } | undefined;
  #abort = new AbortController();
  #channel: AgentChannel | undefined;
  #seq = 0;

  /** @internal use {@link createInPageAgent} */
  constructor(options: InPageAgentOptions) {
    this.#options = options;
    const base = new URL(options.base ?? ".", document.baseURI).href;
    this.#base = base.endsWith("/") ? base : `${base}/`;
  }

  /**
   * Starts the agent if it does not run, and opens an ACP channel to it, in place of an earlier one.
   * @throws {InPageAgentError} it cannot be started; its `remedy` says what to do.
   */
  async open(): Promise<TextChannel> {
    this.#life ??= this.#start();
    const instance = await this.#life;
    this.#channel?.end(1000, "another channel was opened");
    const channel = new AgentChannel(instance);
    this.#channel = channel;
    // Texts that the old channel's requests still cause are not the new one's: it hears from the answer on.
    await this.#ask(instance, { op: "open" });
    channel.start();
    return channel;
  }

  /**
   * Chooses the model, from the agent's next turn on.
   * @throws {EndpointError} the address or the model's name cannot be used.
   */
  async use(model: ModelSettings): Promise<void> {
    if (model.kind === "endpoint") {
      endpointBase(model.address);
      if (!model.model.trim()) throw new EndpointError("the endpoint's model needs a name");
    }
    this.#model = model;
    this.#relay?.close();
    this.#relay = undefined;
    if (this.#instance) await this.#tellModel(this.#instance);
  }

  /** Ends the agent; what waits for it fails. `open` starts it anew. */
  terminate(reason = "the agent was ended"): void {
    this.#abort.abort();
    this.#abort = new AbortController();
    this.#ended(1000, reason);
  }

  // -- life ---------------------------------------------------------------------------------------------------

  async #start(): Promise<Instance> {
    const signal = this.#abort.signal;
    try {
      const { parcel, config } = await this.#files(signal);
      const { image, ...cold } = parcel;
      if (image && !this.#imageRefused) {
        try {
          return await this.#launch(parcel, config, IMAGE_TIMEOUT, signal);
        } catch (error) {
          if (signal.aborted) throw error;
          // Whatever was wrong with it: the cold way needs nothing of it.
          this.#imageRefused = true;
          this.#instance?.destroy();
          const detail = `the memory image cannot be used here (${messageOf(error)}); starting without it`;
          this.#options.onProgress?.({ stage: "runtime", detail });
        }
      }
      return await this.#launch(cold, config, COLD_TIMEOUT, signal);
    } catch (error) {
      this.#ended(CLOSE_ABNORMAL, messageOf(error));
      if (error instanceof InPageAgentError) throw error;
      const remedy =
        error instanceof AssetError ? error.remedy : "Try again; when it stays, reload the page.";
      throw new InPageAgentError(messageOf(error), remedy);
    }
  }

  async #launch(
    parcel: BootParcel,
    config: BootConfig,
    limit: number,
    signal: AbortSignal,
  ): Promise<Instance> {
    let settle: (() => void) | undefined;
    let refuse: ((error: Error) => void) | undefined;
    const ready = new Promise<void>((resolve, reject) => {
      settle = resolve;
      refuse = reject;
    });
    ready.catch(() => {});
    this.#onBoot = { ready: () => settle?.(), failed: (error) => refuse?.(error) };
    const timer = setTimeout(
      () => refuse?.(new Error(`no sign of readiness within ${limit / 1000} s`)),
      limit,
    );
    const aborted = (): void => refuse?.(new Error("the agent was ended while it started"));
    signal.addEventListener("abort", aborted);
    try {
      this.#instance = await Instance.launch(
        {
          url: `${this.#base}sandbox.html`,
          inline: this.#options.inlineFrame ?? false,
          container: this.#options.container ?? document.body,
        },
        { parcel: copies(parcel), config },
        {
          text: (text) => this.#channel?.arrived(text),
          other: (data, from) => this.#heard(from, data),
          gone: (reason, from) => this.#gone(from, reason),
          error: (message) => refuse?.(new Error(message || "its worker failed")),
        },
        signal,
      );
      await ready;
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", aborted);
      this.#onBoot = undefined;
    }
    await this.#tellModel(this.#instance);
    return this.#instance;
  }

  /** The runtime's files and the agent's own, fetched once. */
  #files(signal: AbortSignal): Promise<{ parcel: BootParcel; config: BootConfig }> {
    this.#parcel ??= this.#load(signal);
    // A failed fetch is tried again by the next start.
    this.#parcel.catch(() => {
      this.#parcel = undefined;
    });
    return this.#parcel;
  }

  async #load(signal: AbortSignal): Promise<{ parcel: BootParcel; config: BootConfig }> {
    const tell = (part: number, detail: string): void =>
      this.#options.onProgress?.({ stage: "fetch", fraction: part, detail });
    tell(0, "");
    const folder = `${this.#base}agent/`;
    const packed = this.#options.inlineFrame ?? false;
    const manifest = readManifest(await fetchJson(`${folder}manifest.json`, signal));
    // The sandbox has most of it already: what is fetched twice comes from the browser's cache.
    const [runtime, core, extra, image] = await Promise.all([
      loadAssets(`${this.#base}runtime/`, (part, detail) => tell(part * 0.7, detail), signal, {
        withImage: false,
        packed,
      }),
      fetchFile(folder, manifest.core, signal, packed),
      fetchFile(folder, manifest.extra, signal, packed),
      // It only makes the start quicker.
      manifest.image ? fetchFile(folder, manifest.image, signal, packed).catch(() => undefined) : undefined,
    ]);
    tell(1, "");
    const files = Object.fromEntries(runtime.files) as unknown as BootParcel;
    return {
      parcel: { ...files, core, extra, ...(image ? { image } : {}) },
      config: {
        timeLimit: null,
        servers: {},
        preload: runtime.manifest.preload,
        environ: {},
        module: manifest.module,
      },
    };
  }

  #gone(instance: Instance, reason: string): void {
    if (this.#instance !== instance) return;
    if (this.#onBoot) this.#onBoot.failed(new InPageAgentError(reason, "Try again."));
    else this.#ended(CLOSE_AGENT_ENDED, reason);
  }

  #ended(code: number, reason: string): void {
    this.#instance?.destroy();
    this.#instance = undefined;
    this.#life = undefined;
    this.#relay?.close(reason);
    this.#relay = undefined;
    for (const { reject } of this.#pending.values()) reject(new InPageAgentError(reason, "Try again."));
    this.#pending.clear();
    const channel = this.#channel;
    this.#channel = undefined;
    channel?.end(code, reason);
  }

  // -- messages -----------------------------------------------------------------------------------------------

  #heard(instance: Instance, data: unknown): void {
    if (this.#onBoot === undefined && this.#instance !== instance) return;
    const answer = readAnswer(data);
    if (answer) {
      const pending = this.#pending.get(answer.seq);
      this.#pending.delete(answer.seq);
      if (answer.ok) pending?.resolve(answer.value);
      else pending?.reject(new InPageAgentError(answer.message || "the agent refused", "Try again."));
      return;
    }
    const request = readRequest(data);
    if (request?.kind === "http") this.#carry(instance, request.request);
    else if (request?.kind === "httpStop") this.#relay?.stop(request.http);
    else if (request?.kind === "store") void this.#keep(instance, request.ask, request.action);
    else this.#told(instance, data);
  }

  #told(instance: Instance, data: unknown): void {
    const event = readEvent(data);
    switch (event?.event) {
      case "progress": {
        const { event: _, ...progress } = event;
        this.#options.onProgress?.(progress);
        break;
      }
      case "log":
        this.#options.onLog?.(event.text);
        break;
      case "ready":
        this.#onBoot?.ready();
        break;
      case "failed":
        this.#onBoot?.failed(new InPageAgentError(event.message, event.remedy));
        break;
      case "fatal":
        this.#gone(instance, event.message || "Python can do nothing any more");
        break;
    }
  }

  #ask(instance: Instance, request: Record<string, unknown>): Promise<unknown> {
    this.#seq += 1;
    const seq = this.#seq;
    return new Promise((resolve, reject) => {
      this.#pending.set(seq, { resolve, reject });
      instance.send({ ...request, seq });
    });
  }

  /** The worker hears what kind of model it has and its name; never an address or a key. */
  async #tellModel(instance: Instance): Promise<void> {
    const model = this.#model;
    await this.#ask(instance, {
      op: "model",
      kind: model.kind,
      ...(model.kind === "endpoint" ? { name: model.model.trim() } : {}),
    });
  }

  #carry(instance: Instance, request: RelayRequest): void {
    const model = this.#model;
    const send = (part: object): void => instance.send({ op: "http", ...part });
    if (model.kind !== "endpoint") {
      send({ http: request.http, kind: "error", message: "no endpoint is chosen" });
      return;
    }
    this.#relay ??= new Relay(`${this.#base}agent/relay.js`, model, (part) => {
      if (this.#instance === instance) send(part);
    });
    this.#relay.send(request);
  }

  async #keep(instance: Instance, ask: number, action: StoreAction): Promise<void> {
    let answer: { ok: boolean; value?: unknown; message?: string };
    try {
      this.#store ??= this.#options.store
        ? Promise.resolve(this.#options.store)
        : browserStore().catch(() => memoryStore());
      answer = { ok: true, value: await perform(await this.#store, action) };
    } catch (error) {
      answer = { ok: false, message: messageOf(error) };
    }
    if (this.#instance === instance) instance.send({ op: "answer", ask, ...answer });
  }
}

async function perform(store: SessionStore, action: StoreAction): Promise<unknown> {
  switch (action.what) {
    case "store.list":
      return JSON.stringify(await store.list());
    case "store.read":
      return store.read(action.key);
    case "store.delete":
      await store.delete(action.key);
      return null;
    case "store.write":
      await store.write(action.head, action.text);
      return null;
    case "refused":
      throw new Error(action.why);
  }
}

/** The page's end of the ACP channel. */
class AgentChannel extends BaseChannel {
  readonly #instance: Instance;
  #started = false;

  constructor(instance: Instance) {
    super();
    this.#instance = instance;
  }

  start(): void {
    this.#started = true;
  }

  arrived(text: string): void {
    if (this.#started) this.deliver(text);
  }

  end(code: number, reason: string): void {
    this.ended({ code, reason });
  }

  protected override transmit(text: string): void {
    this.#instance.send(text);
  }

  protected override shut(): void {
    this.#instance.send({ op: "close" });
  }
}

interface AgentManifest {
  readonly module: string;
  readonly core: ManifestFile;
  readonly extra: ManifestFile;
  readonly image?: ManifestFile;
}

function readManifest(value: unknown): AgentManifest {
  const claim = value as {
    format?: unknown;
    module?: unknown;
    files?: Record<string, ManifestFile | undefined>;
  };
  const { core, extra, image } = claim?.files ?? {};
  const isFile = (file: ManifestFile | undefined): file is ManifestFile =>
    /^[\w.-]+$/.test(file?.name ?? "") && /^[0-9a-f]{64}$/.test(file?.sha256 ?? "");
  if (claim?.format !== 1 || typeof claim.module !== "string" || !isFile(core) || !isFile(extra)) {
    throw new AssetError(
      "the in-page agent's manifest is of another version",
      "Build the bundle (./build.sh build) and serve the whole dist folder.",
    );
  }
  return { module: claim.module, core, extra, ...(isFile(image) ? { image } : {}) };
}

/** They are handed away with each start. */
function copies(parcel: BootParcel): BootParcel {
  return Object.fromEntries(
    Object.entries(parcel).map(([role, bytes]: [string, ArrayBuffer]) => [role, bytes.slice(0)]),
  ) as unknown as BootParcel;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
