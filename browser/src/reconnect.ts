/**
 * When to connect again. The policy is a pure state machine; `keepConnected` is the thin shell with timers and
 * events around it.
 *
 * Invariants: there is never more than one channel or attempt at a time; close code 1008 is final; a connection
 * that opens and closes at once does not make the next wait shorter.
 */

import {
  type ChannelClose,
  ChannelClosedError,
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
   * Asked when an attempt failed before it opened: return true if the server is there and refuses, so that trying
   * again is useless. Browsers hide the difference between 403 and no server.
   */
  isRefusal?(): Promise<boolean>;
  readonly times?: ReconnectTimes;
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

/** Passes a channel on and tells its owner when it ended. */
function observed(channel: TextChannel, ended: (info: ChannelClose) => void): TextChannel {
  return {
    get open() {
      return channel.open;
    },
    send: (text) => channel.send(text),
    close: (code, reason) => channel.close(code, reason),
    listen: (listener) =>
      channel.listen({
        text: (text) => listener.text(text),
        close: (info) => {
          listener.close(info);
          ended(info);
        },
      }),
  };
}

/**
 * Connects, and connects again after each loss, until refused (1008), closed (1000) or stopped.
 *
 * A wait ends early when the page becomes visible, is shown again from the back-forward cache, or comes online:
 * phones cut the sockets of hidden tabs, and the person who comes back should not have to wait.
 */
export function keepConnected(options: KeepConnectedOptions): KeptConnection {
  const policy = new ReconnectPolicy(options.times);
  const { window: win = globalThis.window, document: doc = globalThis.document } = options;
  let state: ConnectionState["kind"] = "connecting";
  let timer: ReturnType<typeof setTimeout> | undefined;
  let attempt = 0;
  let abort = new AbortController();
  let current: TextChannel | undefined;
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
      const refused =
        last.code === CLOSE_ABNORMAL && (await options.isRefusal?.().catch(() => false)) === true;
      if (stopped) return;
      ended(refused ? { code: CLOSE_POLICY, reason: "" } : last);
      return;
    }
    if (stopped) {
      channel.close();
      return;
    }
    policy.opened(Date.now());
    attempt = 0;
    current = observed(channel, ended);
    enter({ kind: "open" });
    options.onChannel(current);
  };

  const hurry = () => {
    if (state === "waiting") void start();
  };
  const onVisible = () => {
    if (doc.visibilityState === "visible") hurry();
  };
  doc.addEventListener("visibilitychange", onVisible);
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
      win.removeEventListener("pageshow", hurry);
      win.removeEventListener("online", hurry);
      current?.close();
      enter({ kind: "stopped", why: "closed", last: { code: CLOSE_NORMAL, reason: "" } });
    },
  };
}
