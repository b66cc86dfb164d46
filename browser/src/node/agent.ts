/**
 * The page's agent outside a page: the same Python, in a thread of this process.
 *
 * Invariant: the agent's thread asks this one for the network and for its sessions, within the rules of
 * `agent/endpoint.ts`: requests go to the chosen endpoint's address or nowhere. It runs no code of a model or a tool.
 */

import path from "node:path";
import { Carrier } from "../agent/carrier.ts";
import type { AgentGround } from "../agent/ground.ts";
import { type AgentOptions, InPageAgent } from "../agent/inpage-agent.ts";
import { memoryStore } from "../agent/store.ts";
import type { TextChannel } from "../channel.ts";
import type { HandOver } from "../sandbox/protocol.ts";
import { ownBundle, readAgent } from "./assets.ts";
import { launchThread } from "./ground.ts";
import { type ImageCacheOptions, type KeptImage, keptImage } from "./kept.ts";
import { folderStore } from "./store.ts";

/** Settings of {@link createHostAgent}. */
export interface HostAgentOptions extends AgentOptions, ImageCacheOptions {
  /** Folder of the bundle; by default the one of this package. */
  readonly bundle?: string;
  /** Folder that keeps the sessions; without it they last as long as this process. */
  readonly data?: string;
}

/**
 * An ACP agent in a thread of this process. Nothing is started before `open`.
 *
 * ```ts
 * const agent = createHostAgent({ data: "sessions" });
 * await agent.use({ kind: "endpoint", address: "http://localhost:11434/v1", model: "qwen3:8b" });
 * const { lane } = lend(await agent.open(), [createHostSandbox()]);
 * ```
 */
export function createHostAgent(options: HostAgentOptions = {}): InPageAgent {
  const { bundle = ownBundle() } = options;
  return new HostAgent(options, bundle, keptImage(bundle, "agent", options.imageCache));
}

class HostAgent extends InPageAgent {
  readonly #kept: KeptImage | undefined;
  readonly #onImage: HostAgentOptions["onImage"];

  constructor(options: HostAgentOptions, bundle: string, kept: KeptImage | undefined) {
    super(options, hostGround(options, bundle, kept));
    this.#kept = kept;
    this.#onImage = options.onImage;
  }

  override async open(): Promise<TextChannel> {
    const channel = await super.open();
    // When it serves: the next start is quicker by it, this one is not.
    void this.#kept?.makeMissing(this.#onImage);
    return channel;
  }
}

function hostGround(options: HostAgentOptions, bundle: string, kept: KeptImage | undefined): AgentGround {
  const { data, onProgress: tell } = options;
  let isKept = false;
  const load = async (
    withImage: boolean,
    onProgress: (fraction: number, file: string) => void,
  ): Promise<HandOver> => {
    // It is asked for without one after it did not start from one.
    if (isKept && !withImage) await kept?.refuse("the agent did not start from it");
    const whole = await readAgent(bundle, withImage, onProgress);
    isKept = false;
    if (!kept || !withImage || whole.hasImage) return whole;
    const { image, problem } = await kept.read();
    if (problem !== undefined) {
      const detail = `the memory image cannot be used here (${problem}); starting without it`;
      tell?.({ stage: "runtime", detail });
    }
    isKept = image !== undefined;
    return image ? { ...whole, parcel: { ...whole.parcel, image } } : whole;
  };
  return {
    place: "program",
    load,
    launch: (handOver, handlers, signal) =>
      launchThread(handOver, handlers, signal, { isolated: true, quiet: true }),
    relay: (endpoint, onPart) => new Carrier(endpoint, onPart, unreachable),
    store: async () => (data === undefined ? memoryStore() : folderStore(path.resolve(data))),
  };
}

function unreachable(base: URL, error: unknown): string {
  const { cause, message } = error as { cause?: { message?: string; code?: string }; message?: string };
  return `${base.origin} gave no answer: ${cause?.message || cause?.code || message || String(error)}`;
}
