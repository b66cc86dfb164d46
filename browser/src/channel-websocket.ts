/**
 * An ACP channel over a WebSocket: one JSON-RPC object in each text frame, no newline needed. With a server that chose
 * {@link UTF8_PROTOCOL}, a large one may be a binary frame, either way: its UTF-8, which a browser need not make or check.
 *
 * Invariant: a channel that was handed out is open; one that could not be opened is a rejected promise, never a
 * channel that stays silent. Trying again is the business of `keepConnected`, not of the channel.
 */

import {
  BaseChannel,
  ChannelClosedError,
  CLOSE_ABNORMAL,
  CLOSE_NOT_UTF8,
  CLOSE_TOO_BIG,
  CLOSE_UNSUPPORTED,
  decodeUtf8,
  type TextChannel,
  type Utf8,
} from "./channel.ts";

/** The ACP SDK's own limit for one message (32 MiB), in UTF-16 units; a peer that sends more is closed with 1009. */
export const MAX_TEXT_LENGTH: number = 32 * 1024 * 1024;

/**
 * The subprotocol of Sandport's own gateway. Offer it last: a server that knows none of them may echo the first, and one
 * that does not choose it gets text frames alone.
 */
export const UTF8_PROTOCOL = "sandport.acp.utf8";

/** How long a connection attempt may take before it counts as lost, in milliseconds. */
export const OPEN_TIMEOUT_MS = 15_000;

/** Settings of {@link webSocketChannel}. */
export interface WebSocketChannelOptions {
  /**
   * Subprotocols to offer. Offer none unless the server is known to echo one: a browser fails the connection
   * when the server chooses none. A secret belongs in the second place, because some servers echo the first.
   */
  readonly protocols?: readonly string[];
  /** Longest text accepted from the peer. */
  readonly maxTextLength?: number;
  /** Milliseconds to wait for the connection. */
  readonly openTimeout?: number;
  /** Gives up the attempt when aborted. It has no effect once the channel is open. */
  readonly signal?: AbortSignal;
  /** Ends each frame with a newline, for peers that wait for one. */
  readonly newline?: boolean;
  /** The constructor to use, for runtimes without a global one. */
  readonly WebSocket?: typeof WebSocket;
}

class WebSocketChannel extends BaseChannel {
  readonly #socket: WebSocket;
  readonly #suffix: string;

  constructor(socket: WebSocket, maxTextLength: number, newline: boolean) {
    super();
    this.#socket = socket;
    this.#suffix = newline ? "\n" : "";
    socket.binaryType = "arraybuffer";
    const tooLong = `a message is longer than ${maxTextLength} characters`;
    socket.addEventListener("message", ({ data }: MessageEvent<unknown>) => {
      let text: unknown = data;
      let utf8: Utf8 | undefined;
      if (data instanceof ArrayBuffer && this.#takesUtf8) {
        // No text of that many characters has more bytes.
        const fits = data.byteLength <= maxTextLength * 3;
        utf8 = new Uint8Array(data);
        text = fits ? decodeUtf8(utf8) : "";
        if (!fits || text === undefined) {
          this.close(fits ? CLOSE_NOT_UTF8 : CLOSE_TOO_BIG, fits ? "a message is not UTF-8" : tooLong);
          return;
        }
      }
      if (typeof text !== "string") this.close(CLOSE_UNSUPPORTED, "only text frames are understood");
      else if (text.length > maxTextLength) this.close(CLOSE_TOO_BIG, tooLong);
      else this.deliver(text, utf8);
    });
    socket.addEventListener("close", ({ code, reason }) => this.ended({ code, reason }));
  }

  get #takesUtf8(): boolean {
    return this.#socket.protocol === UTF8_PROTOCOL;
  }

  protected override transmit(text: string, utf8?: Utf8): void {
    if (utf8 && this.#takesUtf8) this.#socket.send(utf8);
    else this.#socket.send(text + this.#suffix);
  }

  protected override shut(code: number, reason: string): void {
    // Browsers allow a page only 1000 and 3000-4999; the listener here still learns the true code.
    this.#socket.close(code === 1000 || code >= 3000 ? code : 4000 + (code % 1000), reason.slice(0, 120));
  }
}

/**
 * Opens a WebSocket and resolves when it carries messages.
 *
 * @param url `ws:` or `wss:` address.
 * @returns The open channel.
 * @throws {ChannelClosedError} (as rejection) when the attempt fails, is aborted or takes too long. A browser does
 *   not tell a page why: a refusal by HTTP 403 and a server that is not there are both 1006.
 */
export function webSocketChannel(
  url: string | URL,
  options: WebSocketChannelOptions = {},
): Promise<TextChannel> {
  const { maxTextLength = MAX_TEXT_LENGTH, openTimeout = OPEN_TIMEOUT_MS, signal, newline = false } = options;
  const Socket = options.WebSocket ?? WebSocket;
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(new ChannelClosedError({ code: CLOSE_ABNORMAL, reason: "given up" }));
      return;
    }
    const socket = new Socket(url, [...(options.protocols ?? [])]);
    // Made before the socket opens, so that no early frame is missed.
    const channel = new WebSocketChannel(socket, maxTextLength, newline);
    const settle = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
    };
    const fail = (code: number, reason: string) => {
      settle();
      reject(new ChannelClosedError({ code, reason }, `cannot connect to ${new URL(url).host}: ${reason}`));
    };
    const abort = () => {
      fail(CLOSE_ABNORMAL, "given up");
      socket.close();
    };
    const timer = setTimeout(() => {
      fail(CLOSE_ABNORMAL, `no answer within ${openTimeout} ms`);
      socket.close();
    }, openTimeout);
    signal?.addEventListener("abort", abort);
    socket.addEventListener("open", () => {
      settle();
      resolve(channel);
    });
    // "close" follows and says all there is to say; a runtime with event emitters wants this one heard too.
    socket.addEventListener("error", () => {});
    // After "open" the promise is settled and this reject does nothing.
    socket.addEventListener("close", ({ code, reason }) =>
      fail(code, reason || "refused, or nobody listens there"),
    );
  });
}
