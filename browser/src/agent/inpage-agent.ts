/**
 * An ACP agent in the page: Python in a confined frame of its own, apart from the tools' sandbox.
 *
 * Invariants: the agent's worker has no network and no storage: it runs under the sandbox's policy, and what it needs of
 * either the page does for it, within rules that it cannot change. The key of an endpoint goes to whoever carries the
 * requests, and to nobody else. Nothing is fetched before the agent is first opened. One channel is open at a time.
 */

import { BaseChannel, CLOSE_ABNORMAL, type TextChannel, type Utf8 } from "../channel.ts";
import { AssetError } from "../sandbox/assets.ts";
import type { FrameOptions } from "../sandbox/ground.ts";
import type { Launched } from "../sandbox/instance.ts";
import { type BootStage, type HandOver, readAnswer, readEvent } from "../sandbox/protocol.ts";
import type { EndpointRelay } from "./carrier.ts";
import { type Endpoint, EndpointError, endpointBase, type RelayRequest } from "./endpoint.ts";
import { type AgentGround, pageGround } from "./ground.ts";
import { readRequest, type StoreAction } from "./protocol.ts";
import type { SessionStore } from "./store.ts";

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

/** What an agent on any ground may be given. */
export interface AgentOptions {
  /** Keeps the sessions, in place of where the ground keeps them. */
  readonly store?: SessionStore;
  /** Told how far a start is. */
  readonly onProgress?: (progress: AgentProgress) => void;
  /** Told what the agent's Python prints: warnings, as a rule. Show it as text only. */
  readonly onLog?: (text: string) => void;
}

/**
 * Settings of {@link createInPageAgent}. `base` is the address of the folder that holds `runtime/`, `agent/` and
 * `sandbox.html`. Sessions are kept by the browser, or the page where the browser cannot.
 */
export interface InPageAgentOptions extends AgentOptions, FrameOptions {}

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
  readonly #options: AgentOptions;
  readonly #ground: AgentGround;
  readonly #pending = new Map<number, Pending>();
  #store: Promise<SessionStore> | undefined;
  #imageRefused = false;
  #model: ModelSettings = { kind: "demo" };
  #relay: EndpointRelay | undefined;
  #life: Promise<Launched> | undefined;
  #instance: Launched | undefined;
  #onBoot: { ready(): void; failed(error: InPageAgentError): void } | undefined;
  #abort = new AbortController();
  #channel: AgentChannel | undefined;
  #seq = 0;

  /** @internal use {@link createInPageAgent} */
  constructor(options: InPageAgentOptions, ground: AgentGround = pageGround(options)) {
    this.#options = options;
    this.#ground = ground;
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
    await this.#ask(instance, { op: "open", place: this.#ground.place });
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

  /** Ends the channel, waits until the agent has stopped what it did and kept its sessions, then ends the agent. */
  async close(): Promise<void> {
    const instance = this.#instance;
    this.#channel?.end(1000, "the agent was ended");
    if (instance) await this.#ask(instance, { op: "leave" }).catch(() => {});
    this.terminate();
  }

  /** Ends the agent at once; what waits for it fails. `open` starts it anew. */
  terminate(reason = "the agent was ended"): void {
    this.#abort.abort();
    this.#abort = new AbortController();
    this.#ended(1000, reason);
  }

  // -- life ---------------------------------------------------------------------------------------------------

  async #start(): Promise<Launched> {
    const signal = this.#abort.signal;
    try {
      if (!this.#imageRefused) {
        const whole = await this.#load(true, signal);
        if (!whole.parcel.image) return await this.#launch(whole, COLD_TIMEOUT, signal);
        try {
          return await this.#launch(whole, IMAGE_TIMEOUT, signal);
        } catch (error) {
          if (signal.aborted) throw error;
          // Whatever was wrong with it: the cold way needs nothing of it.
          this.#imageRefused = true;
          this.#instance?.destroy();
          const detail = `the memory image cannot be used here (${messageOf(error)}); starting without it`;
          this.#options.onProgress?.({ stage: "runtime", detail });
        }
      }
      return await this.#launch(await this.#load(false, signal), COLD_TIMEOUT, signal);
    } catch (error) {
      this.#ended(CLOSE_ABNORMAL, messageOf(error));
      if (error instanceof InPageAgentError) throw error;
      const remedy =
        error instanceof AssetError ? error.remedy : "Try again; when it stays, reload the page.";
      throw new InPageAgentError(messageOf(error), remedy);
    }
  }

  async #launch(handOver: HandOver, limit: number, signal: AbortSignal): Promise<Launched> {
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
      this.#instance = await this.#ground.launch(
        handOver,
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

  #load(withImage: boolean, signal: AbortSignal): Promise<HandOver> {
    const tell = (fraction: number, detail: string): void =>
      this.#options.onProgress?.({ stage: "fetch", fraction, detail });
    return this.#ground.load(withImage, tell, signal);
  }

  #gone(instance: Launched, reason: string): void {
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

  #heard(instance: Launched, data: unknown): void {
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

  #told(instance: Launched, data: unknown): void {
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

  #ask(instance: Launched, request: Record<string, unknown>): Promise<unknown> {
    this.#seq += 1;
    const seq = this.#seq;
    return new Promise((resolve, reject) => {
      this.#pending.set(seq, { resolve, reject });
      instance.send({ ...request, seq });
    });
  }

  /** The worker hears what kind of model it has and its name; never an address or a key. */
  async #tellModel(instance: Launched): Promise<void> {
    const model = this.#model;
    await this.#ask(instance, {
      op: "model",
      kind: model.kind,
      ...(model.kind === "endpoint" ? { name: model.model.trim() } : {}),
    });
  }

  #carry(instance: Launched, request: RelayRequest): void {
    const model = this.#model;
    const send = (part: object): void => instance.send({ op: "http", ...part });
    if (model.kind !== "endpoint") {
      send({ http: request.http, kind: "error", message: "no endpoint is chosen" });
      return;
    }
    this.#relay ??= this.#ground.relay(model, (part) => {
      if (this.#instance === instance) send(part);
    });
    this.#relay.send(request);
  }

  async #keep(instance: Launched, ask: number, action: StoreAction): Promise<void> {
    let answer: { ok: boolean; value?: unknown; message?: string };
    try {
      this.#store ??= this.#options.store ? Promise.resolve(this.#options.store) : this.#ground.store();
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
  readonly #instance: Launched;
  #started = false;

  constructor(instance: Launched) {
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

  protected override transmit(text: string, utf8?: Utf8): void {
    if (utf8) this.#instance.send(utf8.buffer, [utf8.buffer]);
    else this.#instance.send(text);
  }

  protected override shut(): void {
    this.#instance.send({ op: "close" });
  }
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
