/**
 * The MCP SDK's transport over one MCP connection of the lane.
 *
 * Invariant: messages are JSON-RPC as MCP has it; who they belong to on the outside is the lane's business. A pipe
 * carries one connection of the connect family, or all requests to one server id of the stateless family.
 */

import type {
  JSONRPCMessage,
  RequestId,
  Transport,
  TransportSendOptions,
} from "@modelcontextprotocol/server";

/** What the lane learns from a pipe. */
export interface PipeListener {
  /** The server wrote a message; `related` is the request it belongs to, where the SDK knows. */
  message(message: JSONRPCMessage, related: RequestId | undefined): void;
  /** The server ended the connection. */
  ended(): void;
}

/** Hints of the `stateless+` dialect about a request. */
export interface RequestHints {
  readonly sessionId?: string;
  readonly toolCallId?: string;
}

export class Pipe implements Transport {
  onclose?: () => void;
  onerror?: (error: Error) => void;
  onmessage?: (message: JSONRPCMessage) => void;
  /** Hints about requests that are open, by their MCP id. */
  readonly hints = new Map<RequestId, RequestHints>();
  readonly #listener: PipeListener;
  readonly #early: JSONRPCMessage[] = [];
  readonly #ends: (() => void)[] = [];
  #started = false;
  #closed = false;

  constructor(listener: PipeListener) {
    this.#listener = listener;
  }

  async start(): Promise<void> {
    this.#started = true;
    for (const message of this.#early.splice(0)) this.onmessage?.(message);
  }

  async send(message: JSONRPCMessage, options?: TransportSendOptions): Promise<void> {
    if (this.#closed) throw new Error("the connection is closed");
    this.#listener.message(message, options?.relatedRequestId);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    this.hints.clear();
    this.onclose?.();
    for (const end of this.#ends) end();
    this.#listener.ended();
  }

  /** Calls `end` when the connection is over. */
  onEnd(end: () => void): void {
    this.#ends.push(end);
  }

  /** Hands a message of the agent to the server. */
  feed(message: JSONRPCMessage): void {
    if (this.#closed) return;
    if (this.#started) this.onmessage?.(message);
    else this.#early.push(message);
  }
}
