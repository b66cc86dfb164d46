/**
 * A channel carries texts, one JSON-RPC message each, in order, between two ends.
 *
 * Invariant: every text that arrives before `listen` is kept for it, `close` is reported exactly once, and no
 * text is delivered after it.
 */

/** How a channel ended. `code` follows RFC 6455 section 7.4 also where no WebSocket is involved. */
export interface ChannelClose {
  readonly code: number;
  readonly reason: string;
}

/**
 * A text's UTF-8, beside the text, where it is at hand: browsers take milliseconds a megabyte to make it. It is given
 * away with the text; who gets it may transfer its buffer, of which it is the whole.
 */
export type Utf8 = Uint8Array<ArrayBuffer>;

/** The text of some UTF-8, undefined for what is none. A byte order mark stays, as in a text frame. */
export function decodeUtf8(utf8: Utf8): string | undefined {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(utf8);
  } catch {
    return undefined;
  }
}

/** What a reader of a channel provides. Both are called at most once at a time, never re-entrantly from `send`. */
export interface ChannelListener {
  /** One JSON-RPC message, as the peer wrote it. */
  text(text: string, utf8?: Utf8): void;
  /** The channel has ended; nothing follows. */
  close(info: ChannelClose): void;
}

/** Text in, text out: the only thing the port needs to know about a WebSocket, a MessagePort or a test. */
export interface TextChannel {
  /** True until `close` was called here or the other end is known to be gone. */
  readonly open: boolean;
  /** Bytes, or characters, that were sent and have not left yet, where that is known. */
  readonly pending?: number | undefined;
  /** Texts likewise. */
  readonly pendingTexts?: number | undefined;
  /**
   * Sends one message. It is not awaited: the channel keeps the order.
   * @throws {ChannelClosedError} when the channel has ended, so that no caller waits for an answer in vain.
   */
  send(text: string, utf8?: Utf8): void;
  /**
   * Starts delivery. A channel has one reader for its whole life.
   * @throws {Error} when it has one already.
   */
  listen(listener: ChannelListener): void;
  /** Ends the channel from this side; does nothing when it has ended already. */
  close(code?: number, reason?: string): void;
}

/** A send on a channel that has ended, or an attempt to open one that failed. */
export class ChannelClosedError extends Error {
  override readonly name = "ChannelClosedError";
  readonly code: number;
  readonly reason: string;

  constructor(
    info: ChannelClose,
    message = `the channel is closed (${info.code}${info.reason ? `: ${info.reason}` : ""})`,
  ) {
    super(message);
    this.code = info.code;
    this.reason = info.reason;
  }
}

/** 1000: the end was asked for. */
export const CLOSE_NORMAL = 1000;
/** 1003: a frame that is not text; ACP has only text frames. */
export const CLOSE_UNSUPPORTED = 1003;
/** 1006: the connection was lost or never came to be. */
export const CLOSE_ABNORMAL = 1006;
/** 1007: a message that is not UTF-8. */
export const CLOSE_NOT_UTF8 = 1007;
/** 1008: refused by a rule of the other side; trying again changes nothing. */
export const CLOSE_POLICY = 1008;
/** 1009: a message over the size limit. */
export const CLOSE_TOO_BIG = 1009;

/**
 * The part all channels share: one reader, a queue until it comes, and one close.
 * Transports call `deliver` and `ended`; they implement how to send and how to close.
 */
export abstract class BaseChannel implements TextChannel {
  #listener: ChannelListener | undefined;
  #queue: [string, Utf8 | undefined][] = [];
  #end: ChannelClose | undefined;

  get open(): boolean {
    return this.#end === undefined;
  }

  send(text: string, utf8?: Utf8): void {
    if (this.#end) throw new ChannelClosedError(this.#end);
    this.transmit(text, utf8);
  }

  listen(listener: ChannelListener): void {
    if (this.#listener) throw new Error("the channel already has a reader");
    this.#listener = listener;
    const queued = this.#queue;
    this.#queue = [];
    for (const [text, utf8] of queued) listener.text(text, utf8);
    if (this.#end) listener.close(this.#end);
  }

  close(code: number = CLOSE_NORMAL, reason = ""): void {
    if (this.#end) return;
    this.shut(code, reason);
    this.ended({ code, reason });
  }

  protected deliver(text: string, utf8?: Utf8): void {
    if (this.#end) return;
    if (this.#listener) this.#listener.text(text, utf8);
    else this.#queue.push([text, utf8]);
  }

  protected ended(info: ChannelClose): void {
    if (this.#end) return;
    this.#end = info;
    this.#listener?.close(info);
  }

  protected abstract transmit(text: string, utf8?: Utf8): void;
  protected abstract shut(code: number, reason: string): void;
}

class MemoryChannel extends BaseChannel {
  peer: MemoryChannel | undefined;

  protected override transmit(text: string, utf8?: Utf8): void {
    const { peer } = this;
    queueMicrotask(() => peer?.deliver(text, utf8));
  }

  protected override shut(code: number, reason: string): void {
    const { peer } = this;
    queueMicrotask(() => peer?.ended({ code, reason }));
  }
}

/** Two ends joined in memory, for tests and for agents that run in the same page. */
export function memoryChannelPair(): [TextChannel, TextChannel] {
  const left = new MemoryChannel();
  const right = new MemoryChannel();
  left.peer = right;
  right.peer = left;
  return [left, right];
}
