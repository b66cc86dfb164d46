/**
 * The port over real channels: it moves texts between the agent's channel, the ACP client's lane and the sandboxes.
 *
 * Invariant: every rule is `PortCore`'s; here is only the moving. When the channel ends, the lanes of all sandboxes
 * learn it and the acp lane closes, so that nothing waits for an answer that cannot come. An end that does not read makes
 * no memory grow without bound: what a sandbox is asked beyond its queue is refused in its stead, and while too much
 * waits for the agent, so is what a sandbox answers.
 */

import {
  type ChannelClose,
  ChannelClosedError,
  memoryChannelPair,
  type TextChannel,
  type Utf8,
} from "./channel.ts";
import {
  type Delivery,
  type DropReason,
  type LiveConnection,
  PortCore,
  type PortLimits,
} from "./port-core.ts";

/** A text of the mcp lane that passed the port, or was made by it. */
export interface Traffic {
  readonly from: "channel" | `sandbox:${string}` | "port";
  readonly to: "channel" | `sandbox:${string}`;
  readonly text: string;
}

/** Settings of {@link Port}. */
export interface PortOptions {
  readonly limits?: Partial<PortLimits>;
  /** Sees a copy of each text of the mcp lane, for logs. It must not throw. */
  readonly onTraffic?: (traffic: Traffic) => void;
  /** Called when something was dropped; `stats` has the counters. */
  readonly onDropped?: () => void;
}

/** The port in front of one channel. It starts with the constructor and ends with the channel. */
export class Port {
  /** The lane for an ACP client: it behaves as the channel would without the mcp lane. */
  readonly acp: TextChannel;
  /** Settles with the channel's end. */
  readonly closed: Promise<ChannelClose>;
  readonly #core: PortCore;
  readonly #channel: TextChannel;
  readonly #acpLane: TextChannel;
  readonly #lanes = new Map<string, TextChannel>();
  readonly #options: PortOptions;

  constructor(channel: TextChannel, options: PortOptions = {}) {
    this.#core = new PortCore(options.limits);
    this.#channel = channel;
    this.#options = options;
    const [client, lane] = memoryChannelPair();
    this.acp = client;
    this.#acpLane = lane;
    lane.listen({
      text: (text) => this.#deliver("acp", this.#core.fromAcp(text)),
      close: () => channel.close(),
    });
    this.closed = new Promise((resolve) => {
      channel.listen({
        text: (text, utf8) => this.#feed("channel", text, utf8, () => this.#core.fromChannel(text)),
        close: (info) => {
          this.#deliver("port", this.#core.close());
          lane.close(info.code, info.reason);
          resolve(info);
        },
      });
    });
  }

  /** What was dropped so far, by reason, and how many requests of the mcp lane are open. */
  get stats(): { readonly dropped: Readonly<Partial<Record<DropReason, number>>>; readonly open: number } {
    return { dropped: { ...this.#core.dropped }, open: this.#core.openRequests };
  }

  /**
   * Lets the sandbox behind `lane` take part. Its requests must have ids that start with `prefix`.
   * @throws {LocalError} see {@link PortCore.attach}.
   */
  attach(sandbox: string, lane: TextChannel, prefix: string): void {
    this.#core.attach(sandbox, prefix);
    this.#join(sandbox, lane);
  }

  /**
   * Says that a sandbox hosts a server id; do it before the id is declared to the agent.
   * @throws {LocalError} see {@link PortCore.declare}.
   */
  declare(sandbox: string, serverId: string): void {
    this.#core.declare(sandbox, serverId);
  }

  /** A server is no longer offered. */
  withdraw(serverId: string): void {
    this.#deliver("port", this.#core.withdraw(serverId));
  }

  /** The person stopped the agent's turn: cancels the tool calls that are open with a server. */
  stop(serverId: string): void {
    this.#deliver("port", this.#core.stop(serverId));
  }

  /** The sandbox died and is being restarted: its open requests are answered with an error now, new ones are held. */
  suspend(sandbox: string, reason: string): void {
    this.#lanes.delete(sandbox);
    this.#deliver("port", this.#core.suspend(sandbox, reason));
  }

  /**
   * The sandbox is back behind a new lane and has adopted `connections(sandbox)`; what was held is handed over.
   * @throws {LocalError} see {@link PortCore.resume}.
   */
  resume(sandbox: string, lane: TextChannel, prefix: string): void {
    const held = this.#core.resume(sandbox, prefix);
    this.#join(sandbox, lane);
    this.#deliver("channel", held);
  }

  /** The sandbox is gone for good: what is open with it is answered with an error, its servers are withdrawn. */
  detach(sandbox: string, reason: string): void {
    this.#lanes.delete(sandbox);
    this.#deliver("port", this.#core.detach(sandbox, reason));
  }

  /** The connections the agent holds with a sandbox. */
  connections(sandbox: string): LiveConnection[] {
    return this.#core.connections(sandbox);
  }

  /** Ends the channel, and with it the port. */
  close(code?: number, reason?: string): void {
    this.#channel.close(code, reason);
  }

  #join(sandbox: string, lane: TextChannel): void {
    this.#lanes.set(sandbox, lane);
    lane.listen({
      text: (text, utf8) => {
        // A lane that was replaced may still hold texts of the dead sandbox.
        if (this.#lanes.get(sandbox) !== lane) return;
        const limit = this.#limitMet(this.#channel, text);
        this.#feed(`sandbox:${sandbox}`, text, utf8, () =>
          limit
            ? this.#core.overflowFrom(sandbox, text, ...limit)
            : this.#core.fromSandbox(sandbox, text, performance.now() / 1000),
        );
      },
      close: () => {
        if (this.#lanes.get(sandbox) === lane) this.detach(sandbox, "The sandbox is gone");
      },
    });
  }

  #feed(from: Traffic["from"], text: string, utf8: Utf8 | undefined, step: () => Delivery[]): void {
    const before = this.#droppedTotal();
    this.#deliver(from, step(), utf8 && { text, utf8 });
    if (this.#droppedTotal() !== before) this.#options.onDropped?.();
  }

  /** The limit that a text would go beyond, by its name and value, with what waits on a lane or channel already. */
  #limitMet({ pending = 0, pendingTexts = 0 }: TextChannel, text: string): [string, number] | undefined {
    const { maxQueued, maxQueuedChars } = this.#core.limits;
    if (pendingTexts >= maxQueued) return ["max_queued", maxQueued];
    const over = pending > 0 && pending + text.length > maxQueuedChars;
    return over ? ["max_queued_chars", maxQueuedChars] : undefined;
  }

  #droppedTotal(): number {
    let total = 0;
    for (const count of Object.values(this.#core.dropped)) total += count;
    return total;
  }

  /** @param known the UTF-8 of a text that may be among them as it came. */
  #deliver(
    from: Traffic["from"] | "acp",
    out: readonly Delivery[],
    known?: { readonly text: string; readonly utf8: Utf8 },
  ): void {
    for (const { to, text } of out) {
      const sandbox = to === "channel" || to === "acp" ? undefined : to.slice("sandbox:".length);
      const lane =
        to === "channel" ? this.#channel : to === "acp" ? this.#acpLane : this.#lanes.get(sandbox ?? "");
      const limit = sandbox !== undefined && lane ? this.#limitMet(lane, text) : undefined;
      if (sandbox !== undefined && limit) {
        this.#deliver("port", this.#core.overflow(sandbox, text, ...limit));
        continue;
      }
      if (from !== "acp" && to !== "acp") this.#options.onTraffic?.({ from, to, text });
      try {
        if (known?.text === text) lane?.send(text, known.utf8);
        else lane?.send(text);
      } catch (error) {
        // A lane that closed under us reports it itself.
        if (!(error instanceof ChannelClosedError)) throw error;
      }
    }
  }
}
