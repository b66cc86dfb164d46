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
import { ownBundle, readAgent } from "./assets.ts";
import { launchThread } from "./ground.ts";
import { folderStore } from "./store.ts";

/** Settings of {@link createHostAgent}. */
export interface HostAgentOptions extends AgentOptions {
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
  return new InPageAgent(options, hostGround(options));
}

function hostGround({ bundle = ownBundle(), data }: HostAgentOptions): AgentGround {
  return {
    place: "program",
    load: (withImage, onProgress) => readAgent(bundle, withImage, onProgress),
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
