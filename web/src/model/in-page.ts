/**
 * The agent in this page, as the page uses it: its settings, what is kept of them, and the channel to it.
 *
 * Invariants: nothing of it is fetched before it is chosen. A key is kept beyond this page's life only when the person
 * said so, and then in this browser alone.
 */

import { signal } from "@preact/signals";
import {
  ChannelClosedError,
  createInPageAgent,
  type InPageAgent,
  InPageAgentError,
  type TextChannel,
} from "sandport";

/** What the person chose. */
export interface InPageSettings {
  readonly kind: "demo" | "endpoint";
  readonly address: string;
  readonly model: string;
  readonly key: string;
  /** Keep the key in this browser. */
  readonly remember: boolean;
  /** Have the agent ask before a tool runs that does not only read. */
  readonly ask: boolean;
}

/** The name of this agent among a gateway's. */
export const IN_PAGE = "in this page";

const SETTINGS = "sandport.in-page";
/** 1011: the agent ended by its own fault. */
const ENDED = 1011;
const NOTHING: InPageSettings = {
  kind: "demo",
  address: "",
  model: "",
  key: "",
  remember: false,
  ask: false,
};

export const settings = signal<InPageSettings>(load());
/** How far the start of the agent is; empty when it runs, or was not asked for. */
export const progress = signal("");

function load(): InPageSettings {
  try {
    const kept = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}") as Partial<InPageSettings>;
    const text = (value: unknown): string => (typeof value === "string" ? value : "");
    return {
      kind: kept.kind === "endpoint" ? "endpoint" : "demo",
      address: text(kept.address),
      model: text(kept.model),
      key: text(kept.key),
      remember: kept.remember === true,
      ask: kept.ask === true,
    };
  } catch {
    return NOTHING;
  }
}

function keep({ key, ...others }: InPageSettings): void {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(others.remember ? { ...others, key } : others));
  } catch {
    // A browser that keeps nothing: the settings last as long as the page.
  }
}

const STAGES: Record<string, string> = {
  fetch: "fetching files",
  runtime: "starting Python",
  modules: "loading modules",
  servers: "starting",
};

/** The page's one agent. */
export class InPage {
  readonly #agent: InPageAgent;

  /** @param onLog told what the agent's Python prints. */
  constructor(inlineFrame: boolean, onLog: (text: string) => void) {
    this.#agent = createInPageAgent({
      inlineFrame,
      onLog,
      onProgress: ({ stage, fraction, detail }) => {
        const share = stage === "fetch" && fraction !== undefined ? ` (${Math.round(fraction * 100)} %)` : "";
        progress.value = `${STAGES[stage] ?? stage}${share}${stage === "fetch" ? "" : detail ? `: ${detail}` : ""}`;
      },
    });
    // What was kept may be half of an endpoint: then the demo is what it works with.
    this.use(settings.value).catch(() => {
      settings.value = { ...settings.value, kind: "demo" };
    });
  }

  /** Opens a channel, starting the agent when it does not run. */
  async open(): Promise<TextChannel> {
    try {
      return await this.#agent.open();
    } catch (error) {
      const why = error instanceof InPageAgentError ? `${error.message}. ${error.remedy}` : String(error);
      throw new ChannelClosedError({ code: ENDED, reason: why });
    } finally {
      progress.value = "";
    }
  }

  /**
   * Takes other settings, from the next message on.
   * @throws {EndpointError} they cannot be used.
   */
  async use(chosen: InPageSettings): Promise<void> {
    const { kind, address, model, key } = chosen;
    await this.#agent.use(kind === "demo" ? { kind } : { kind, address, model, ...(key ? { key } : {}) });
    settings.value = chosen;
    keep(chosen);
  }
}
