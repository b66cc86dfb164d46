/**
 * When to connect again. The policy is a pure state machine; `keepConnected` is the thin shell with timers and
 * events around it.
 *
 * Invariants: there is never more than one channel or attempt at a time; close code 1008 is final; a connection
 * that opens and closes at once does not make the next wait shorter; a silent connection is given up only after it
 * left a question unanswered for the whole time that it had.
 */

import {
  type ChannelClose,
  ChannelClosedError,
  type ChannelListener,
  CLOSE_ABNORMAL,
  CLOSE_NORMAL,
  CLOSE_POLICY,
  type TextChannel,
} from "./channel.ts";

/** Waits of {@link ReconnectPolicy}, in milliseconds. */
export interface ReconnectTimes {
  /** Wait after the first loss. */
  readonly first: number;
  /** Longest wait. */
  readonly cap: number;
  /** A connection must last this long before the waits start again from `first`. */
  readonly stable: number;
}

/** Half a second feels immediate, 15 s keeps a server that restarts from being flooded, 10 s outlives a crash at start. */
export const RECONNECT_TIMES: ReconnectTimes = { first: 500, cap: 15_000, stable: 10_000 };

/** When a silent connection is asked whether it lives, in milliseconds. */
export interface ProbeTimes {
  /** After so long without a text it is asked. */
  readonly silence: number;
  /** How long the answer may take. */
  readonly answer: number;
}

/**
 * The gateway pings each 20 s too, but a page cannot see that; so half a minute of silence is worth a question, which
 * costs some hundred bytes. 10 s are long even on a bad mobile network.
 */
export const PROBE_TIMES: ProbeTimes = { silence: 30_000, answer: 10_000 };

/** A request outside of ACP that Sandport's gateway answers itself; any other peer says that it does not know it. */
export const PROBE_METHOD = "_sandport/ping";

const PROBE_ID = "sandport-ping-";
/** No longer text is looked at for being the answer to a probe. */
const PROBE_ANSWER_LENGTH = 1000;

/** What to do after a connection ended. */
export type ReconnectDecision =
  | { readonly retry: true; readonly delay: number }
  | { readonly retry: false; readonly why: "refused" | "closed" };

/** Decides, from close codes and times alone, whether and when to try again. Clock-free: times are passed in. */
export class ReconnectPolicy {
  readonly #times: ReconnectTimes;
  #failures = 0;
  #openedAt: number | undefined;

  constructor(times: ReconnectTimes = RECONNECT_TIMES) {
    this.#times = times;
  }

  /** The connection opened at `now`. The waits are not reset yet: it has to last first. */
  opened(now: number): void {
    this.#openedAt = now;
  }

  /** The connection, or the attempt, ended at `now`. */
  closed(now: number, { code }: ChannelClose): ReconnectDecision {
    if (this.#openedAt !== undefined && now - this.#openedAt >= this.#times.stable) this.#failures = 0;
    this.#openedAt = undefined;
    if (code === CLOSE_POLICY) return { retry: false, why: "refused" };
    if (code === CLOSE_NORMAL) return { retry: false, why: "closed" };
    const delay = Math.min(this.#times.cap, this.#times.first * 2 ** this.#failures);
    this.#failures += 1;
    return { retry: true, delay };
  }
}

/** Where a kept connection stands. */
export type ConnectionState =
  | { readonly kind: "connecting"; readonly attempt: number }
  | { readonly kind: "open" }
  /** Lost; the next attempt starts at `retryAt` (milliseconds of `Date.now()`) or earlier. */
  | { readonly kind: "waiting"; readonly retryAt: number; readonly last: ChannelClose }
  /** Over. Only `retry()` brings it back. */
  | { readonly kind: "stopped"; readonly why: "refused" | "closed"; readonly last: ChannelClose };

/** What {@link keepConnected} needs. */
export interface KeepConnectedOptions {
  /** Makes one attempt. */
  connect(signal: AbortSignal): Promise<TextChannel>;
  /** Called with each new channel; it must attach a reader through the wrapper it gets. */
  onChannel(channel: TextChannel): void;
  /** Called at each change. */
  onState(state: ConnectionState): void;
  /**
   * Asked when an attempt failed before it opened: return true, or the reason, if the server is there and refuses, so
   * that trying again is useless. Browsers hide the difference between 403 and no server.
   */
  isRefusal?(): Promise<boolean | string>;
  readonly times?: ReconnectTimes;
  /**
   * Asks a silent connection whether it lives, and again when the page becomes visible, is thawed or comes online:
   * a network that went away leaves a socket open that carries nothing. Only for peers that answer each request,
   * as JSON-RPC wants; without it a dead connection is noticed when the browser notices.
   */
  readonly probe?: ProbeTimes | undefined;
  /** Event sources, replaceable in tests: the window, and the document whose visibility counts. */
  readonly window?: Pick<EventTarget, "addEventListener" | "removeEventListener">;
  readonly document?: Pick<Document, "addEventListener" | "removeEventListener" | "visibilityState">;
}

/** A connection that is kept alive. */
export interface KeptConnection {
  /** Tries at once: cuts a wait short, or starts again after a stop. Does nothing while connecting or open. */
  retry(): void;
  /** Ends the channel and all attempts for good. */
  stop(): void;
}

/** Passes a channel on, tells its owner when it ended, and finds out whether a silent one still lives. */
class Watched implements TextChannel {
  readonly #channel: TextChannel;
  readonly #ended: (info: ChannelClose) => void;
  readonly #times: ProbeTimes | undefined;
  #heardAt = Date.now();
  #silence: ReturnType<typeof setTimeout> | undefined;
  #deadline: ReturnType<typeof setTimeout> | undefined;
  #asked = 0;
  readonly #unanswered = new Set<string>();

  constructor(channel: TextChannel, ended: (info: ChannelClose) => void, times: ProbeTimes | undefined) {
    this.#channel = channel;
    this.#ended = ended;
    this.#times = times;
  }

  get open(): boolean {
    return this.#channel.open;
  }

  get pending(): number | undefined {
    return this.#channel.pending;
  }

  send(text: string): void {
    this.#channel.send(text);
  }

  close(code?: number, reason?: string): void {
    this.#channel.close(code, reason);
  }

  listen(listener: ChannelListener): void {
    this.#listenForSilence();
    this.#channel.listen({
      text: (text) => {
        this.#heardAt = Date.now();
        clearTimeout(this.#deadline);
        this.#deadline = undefined;
        if (!this.#isAnswer(text)) listener.text(text);
      },
      close: (info) => {
        clearTimeout(this.#silence);
        clearTimeout(this.#deadline);
        listener.close(info);
        this.#ended(info);
      },
    });
  }

  /** Asks now. Whatever arrives within the time is an answer. */
  probe(): void {
    if (!this.#times || this.#deadline !== undefined || !this.open) return;
    this.#asked += 1;
    const id = `${PROBE_ID}${this.#asked}`;
    this.#unanswered.add(id);
    this.#await(this.#times.answer);
    this.send(JSON.stringify({ jsonrpc: "2.0", id, method: PROBE_METHOD }));
  }

  #await(limit: number): void {
    const { pending } = this;
    const askedAt = Date.now();
    this.#deadline = setTimeout(() => {
      this.#deadline = undefined;
      // A page that was frozen finds its timers due before the texts that came meanwhile.
      const frozen = Date.now() - askedAt > 1.5 * limit;
      // A large message still goes out in front of the question.
      const moving = pending !== undefined && (this.pending ?? 0) < pending;
      if (frozen || moving) this.#await(limit);
      else this.close(CLOSE_ABNORMAL, `no sign of life within ${limit} ms`);
    }, limit);
  }

  #listenForSilence(): void {
    if (!this.#times) return;
    const { silence } = this.#times;
    this.#silence = setTimeout(
      () => {
        if (Date.now() - this.#heardAt >= silence) this.probe();
        this.#listenForSilence();
      },
      // From the last text on, and a whole turn when that is long ago: then it has just been asked.
      Math.max(this.#heardAt + silence - Date.now(), 0) || silence,
    );
  }

  #isAnswer(text: string): boolean {
    if (this.#unanswered.size === 0 || text.length > PROBE_ANSWER_LENGTH || !text.includes(PROBE_ID))
      return false;
    try {
      const message: unknown = JSON.parse(text);
      if (typeof message !== "object" || message === null || "method" in message || !("id" in message))
        return false;
      return typeof message.id === "string" && this.#unanswered.delete(message.id);
    } catch {
      return false;
    }
  }
}

/**
 * Connects, and connects again after each loss, until refused (1008), closed (1000) or stopped.
 *
 * A wait ends early when the page becomes visible, is shown again from the back-forward cache, or comes online:
 * phones cut the sockets of hidden tabs, and the person who comes back should not have to wait. A connection that
 * seems to be open is asked at the same moments whether it lives, if `probe` says so.
 */
export function keepConnected(options: KeepConnectedOptions): KeptConnection {
  const policy = new ReconnectPolicy(options.times);
  const { window: win = globalThis.window, document: doc = globalThis.document } = options;
  let state: ConnectionState["kind"] = "connecting";
  let timer: ReturnType<typeof setTimeout> | undefined;
  let attempt = 0;
  let abort = new AbortController();
  let current: Watched | undefined;
  let stopped = false;

  const enter = (next: ConnectionState) => {
    state = next.kind;
    options.onState(next);
  };

  const ended = (last: ChannelClose) => {
    current = undefined;
    const decision = policy.closed(Date.now(), last);
    if (stopped) return;
    if (!decision.retry) {
      enter({ kind: "stopped", why: decision.why, last });
      return;
    }
    timer = setTimeout(start, decision.delay);
    enter({ kind: "waiting", retryAt: Date.now() + decision.delay, last });
  };

  const start = async () => {
    clearTimeout(timer);
    if (stopped) return;
    attempt += 1;
    abort = new AbortController();
    enter({ kind: "connecting", attempt });
    let channel: TextChannel;
    try {
      channel = await options.connect(abort.signal);
    } catch (error) {
      if (stopped) return;
      const last: ChannelClose =
        error instanceof ChannelClosedError ? error : { code: CLOSE_ABNORMAL, reason: String(error) };
      const refusal =
        last.code === CLOSE_ABNORMAL ? await options.isRefusal?.().catch(() => false) : undefined;
      if (stopped) return;
      const reason = typeof refusal === "string" ? refusal : refusal ? "" : undefined;
      ended(reason === undefined ? last : { code: CLOSE_POLICY, reason });
      return;
    }
    if (stopped) {
      channel.close();
      return;
    }
    policy.opened(Date.now());
    attempt = 0;
    current = new Watched(channel, ended, options.probe);
    enter({ kind: "open" });
    options.onChannel(current);
  };

  const hurry = () => {
    if (state === "waiting") void start();
    else if (state === "open") current?.probe();
  };
  const onVisible = () => {
    if (doc.visibilityState === "visible") hurry();
  };
  doc.addEventListener("visibilitychange", onVisible);
  doc.addEventListener("resume", hurry); // thawed
  win.addEventListener("pageshow", hurry);
  win.addEventListener("online", hurry);
  void start();

  return {
    retry() {
      if (state === "waiting" || state === "stopped") void start();
    },
    stop() {
      if (stopped) return;
      stopped = true;
      clearTimeout(timer);
      abort.abort();
      doc.removeEventListener("visibilitychange", onVisible);
      doc.removeEventListener("resume", hurry);
      win.removeEventListener("pageshow", hurry);
      win.removeEventListener("online", hurry);
      current?.close();
      enter({ kind: "stopped", why: "closed", last: { code: CLOSE_NORMAL, reason: "" } });
    },
  };
}
