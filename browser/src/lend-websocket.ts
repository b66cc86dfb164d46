/**
 * For ACP clients that open their WebSocket themselves and take nothing but an address: a constructor in place of the
 * global one, whose sockets have the port in front.
 *
 * Invariant: sockets to other addresses are the platform's own. A socket with the port in front behaves as the platform's
 * would, with the messages of the mcp lane left out.
 */

import { ChannelClosedError, CLOSE_ABNORMAL, CLOSE_NORMAL, type TextChannel } from "./channel.ts";
import { webSocketChannel } from "./channel-websocket.ts";
import { type LendOptions, lend, type ToolProvider } from "./lend.ts";

/** Settings of {@link lendOverWebSocket}. */
export interface LendOverWebSocketOptions extends LendOptions {
  /** The addresses that lead to an agent: one, or a test. */
  readonly url: string | URL | ((url: string) => boolean);
  /**
   * Who lends. A provider serves one socket at a time: a new socket, as after a reconnect, takes it over.
   */
  readonly tools: readonly ToolProvider[];
}

/**
 * Puts the port in front of every WebSocket that is opened to an agent's address from now on. One line, before the client
 * connects:
 *
 * ```ts
 * lendOverWebSocket({ url: "ws://localhost:3000/acp", tools: [createSandbox()] });
 * ```
 *
 * @returns a function that puts the platform's constructor back.
 */
export function lendOverWebSocket(options: LendOverWebSocketOptions): () => void {
  const { url, tools, ...lending } = options;
  const Platform = globalThis.WebSocket;
  const leads =
    typeof url === "function"
      ? url
      : (candidate: string) => candidate === new URL(url, globalThis.location?.href).href;
  const Lending = new Proxy(Platform, {
    construct(target, [address, protocols]: [string | URL, (string | string[])?], newTarget) {
      const href = new URL(address, globalThis.location?.href).href.replace(/^http/, "ws");
      if (!leads(href))
        return Reflect.construct(target, [address, protocols].slice(0, protocols ? 2 : 1), newTarget);
      const offered = protocols === undefined ? [] : [protocols].flat();
      return new LentWebSocket(
        href,
        webSocketChannel(href, { protocols: offered, WebSocket: Platform }),
        (channel) => lend(channel, tools, lending).lane,
      );
    },
  });
  globalThis.WebSocket = Lending;
  return () => {
    if (globalThis.WebSocket === Lending) globalThis.WebSocket = Platform;
  };
}

type Handler = ((event: Event) => void) | null;

/** The part of the WebSocket interface that clients use, over a lane. */
class LentWebSocket extends EventTarget {
  readonly CONNECTING = 0;
  readonly OPEN = 1;
  readonly CLOSING = 2;
  readonly CLOSED = 3;
  readonly url: string;
  readonly protocol = "";
  readonly extensions = "";
  readonly bufferedAmount = 0;
  binaryType: "blob" | "arraybuffer" = "blob";
  onopen: Handler = null;
  onmessage: Handler = null;
  onerror: Handler = null;
  onclose: Handler = null;
  #state: 0 | 1 | 2 | 3 = 0;
  #lane: TextChannel | undefined;
  /** Bytes of a message whose newline has not come yet. */
  #rest = "";
  readonly #decoder = new TextDecoder();

  constructor(url: string, opening: Promise<TextChannel>, wrap: (channel: TextChannel) => TextChannel) {
    super();
    this.url = url;
    opening.then(
      (channel) => {
        if (this.#state !== 0) {
          channel.close();
          return;
        }
        this.#lane = wrap(channel);
        this.#state = 1;
        this.#emit(new Event("open"));
        this.#lane.listen({
          text: (data) => this.#emit(new MessageEvent("message", { data })),
          close: ({ code, reason }) => this.#ended(code, reason),
        });
      },
      (error: unknown) => {
        this.#emit(new Event("error"));
        this.#ended(CLOSE_ABNORMAL, error instanceof ChannelClosedError ? error.reason : "");
      },
    );
  }

  get readyState(): 0 | 1 | 2 | 3 {
    return this.#state;
  }

  /** Clients send a text, or its bytes; some put several messages, each with its newline, into one frame. */
  send(data: string | ArrayBuffer | ArrayBufferView): void {
    if (this.#state === 0) throw new DOMException("the socket is not open yet", "InvalidStateError");
    if (this.#state !== 1) return;
    if (typeof data === "string") {
      if (data.trim() !== "") this.#lane?.send(data);
      return;
    }
    const lines = (this.#rest + this.#decoder.decode(data, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    // A frame that ends without a newline may all the same be a whole message.
    if (isJson(this.#rest)) {
      lines.push(this.#rest);
      this.#rest = "";
    }
    for (const line of lines) if (line.trim() !== "") this.#lane?.send(line);
  }

  close(code: number = CLOSE_NORMAL, reason = ""): void {
    if (this.#state >= 2) return;
    const wasOpen = this.#state === 1;
    this.#state = 2;
    if (wasOpen) this.#lane?.close(code, reason);
    else queueMicrotask(() => this.#ended(CLOSE_ABNORMAL, ""));
  }

  #ended(code: number, reason: string): void {
    if (this.#state === 3) return;
    this.#state = 3;
    // Node before 23 has no CloseEvent.
    const event =
      typeof CloseEvent === "undefined"
        ? Object.assign(new Event("close"), { code, reason, wasClean: code === CLOSE_NORMAL })
        : new CloseEvent("close", { code, reason, wasClean: code === CLOSE_NORMAL });
    this.#emit(event);
  }

  #emit(event: Event): void {
    const handler = { open: this.onopen, message: this.onmessage, error: this.onerror, close: this.onclose }[
      event.type as "open" | "message" | "error" | "close"
    ];
    handler?.call(this, event);
    this.dispatchEvent(event);
  }
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
