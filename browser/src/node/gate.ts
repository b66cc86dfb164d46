/**
 * The lane of a sandbox with a question in front of its tools: a call waits here until somebody allowed it.
 *
 * Invariants: no `tools/call` reaches the sandbox before it was allowed, whatever its dialect; everything else passes as it is.
 * A call that is refused, cancelled or left gets exactly one answer, from here.
 */

import { BaseChannel, ChannelClosedError, type TextChannel, type Utf8 } from "../channel.ts";
import { isObject, type JsonObject, member, memberText } from "../json-text.ts";
import type { SandboxTool } from "../sandbox/protocol.ts";
import { ConsentError, type Gate } from "../tools/consent.ts";
import {
  CANCEL_METHODS,
  type Dialect,
  INTERNAL_ERROR,
  LANE_METHODS,
  PeerError,
  readLane,
  type WireEvent,
} from "../wire.ts";

/** ACP: the answer to a request that a cancellation ended. */
const CANCELLED = -32800;

/** What the gate has to know of a sandbox. */
export interface GatedSandbox {
  /** Name of the server that was declared under an id. */
  nameOf(serverId: string): string | undefined;
  listTools(): Promise<readonly SandboxTool[]>;
}

/** A call that waits for its answer. */
interface Held {
  /** The outer id as it is written. */
  readonly id: string;
  readonly connectionId: string | undefined;
  readonly abort: AbortController;
}

/** See the module comment. Its reader is the port; it reads the lane of the sandbox itself. */
export class GatedLane extends BaseChannel {
  readonly #lane: TextChannel;
  readonly #sandbox: GatedSandbox;
  readonly #gate: Gate;
  readonly #held = new Map<string, Held>();
  readonly #connections: Map<string, string>;
  /** Server ids of connections that the sandbox was asked for, by outer id. */
  readonly #connecting = new Map<string, string>();

  /** @param connections server ids of connections that the sandbox gave out; kept from one life of it to the next. */
  constructor(lane: TextChannel, sandbox: GatedSandbox, gate: Gate, connections: Map<string, string>) {
    super();
    this.#lane = lane;
    this.#sandbox = sandbox;
    this.#gate = gate;
    this.#connections = connections;
    lane.listen({
      text: (text, utf8) => {
        if (this.#connecting.size > 0) this.#learn(text);
        this.deliver(text, utf8);
      },
      close: (info) => {
        this.#leave(() => true);
        this.ended(info);
      },
    });
  }

  protected override transmit(text: string, utf8?: Utf8): void {
    const message: unknown = JSON.parse(text);
    const method = member(message, "method");
    if (typeof method === "string" && CANCEL_METHODS.has(method)) this.#cancel(text);
    else if (typeof method === "string" && LANE_METHODS.has(method))
      this.#route(text, utf8, method, message as JsonObject);
    else this.#lane.send(text, utf8);
  }

  protected override shut(code: number, reason: string): void {
    this.#leave(() => true);
    this.#lane.close(code, reason);
  }

  #route(text: string, utf8: Utf8 | undefined, method: string, message: JsonObject): void {
    const params = member(message, "params");
    let event: WireEvent | undefined;
    try {
      event = readLane(method, params, (connectionId) => this.#connections.has(connectionId));
    } catch (error) {
      // The sandbox says what is wrong with it.
      if (!(error instanceof PeerError)) throw error;
    }
    const id = Object.hasOwn(message, "id") ? memberText(text, "id") : undefined;
    if (event?.kind === "open" && id !== undefined) this.#connecting.set(id, event.serverId);
    if (event?.kind === "close") {
      const { connectionId } = event;
      this.#connections.delete(connectionId);
      this.#leave((held) => held.connectionId === connectionId);
    }
    if ((event?.kind !== "message" && event?.kind !== "call") || event.method !== "tools/call") {
      this.#lane.send(text, utf8);
    } else if (id !== undefined) {
      void this.#hold(text, utf8, id, event, member(params, "params"));
    }
    // A call without an id can be given no answer: it does not run.
  }

  async #hold(
    text: string,
    utf8: Utf8 | undefined,
    id: string,
    event: WireEvent & { readonly kind: "message" | "call" },
    params: unknown,
  ): Promise<void> {
    const connectionId = event.kind === "message" ? event.connectionId : undefined;
    const serverId = event.kind === "call" ? event.serverId : this.#connections.get(event.connectionId);
    const held: Held = { id, connectionId, abort: new AbortController() };
    this.#held.set(id, held);
    const stateless = event.kind === "call" ? event.dialect : undefined;
    try {
      await this.#ask(serverId, params, held.abort.signal);
      if (this.#held.get(id) === held && this.#lane.open) this.#lane.send(text, utf8);
    } catch (error) {
      if (this.#held.get(id) !== held || error instanceof ChannelClosedError) return;
      const cancelled = held.abort.signal.aborted && !(error instanceof ConsentError && error.unanswered);
      if (cancelled) this.#answer(id, "error", { code: CANCELLED, message: "Request cancelled", data: null });
      else if (error instanceof ConsentError) this.#refuse(id, stateless, error.message);
      else this.#answer(id, "error", { code: INTERNAL_ERROR, message: String(error), data: null });
    } finally {
      if (this.#held.get(id) === held) this.#held.delete(id);
    }
  }

  async #ask(serverId: string | undefined, params: unknown, signal: AbortSignal): Promise<void> {
    const server = serverId === undefined ? undefined : this.#sandbox.nameOf(serverId);
    const name = member(params, "name");
    const tools = await this.#sandbox.listTools();
    // Where the server is not known, any tool of that name asks. Where there is none, the sandbox says so.
    const tool = tools.find((one) => one.name === name && (server === undefined || one.server === server));
    if (!tool) return;
    await this.#gate.pass({
      server: tool.server,
      tool: tool.name,
      description: tool.description ?? "",
      arguments: member(params, "arguments") ?? {},
      readOnly: member(tool.annotations, "readOnlyHint") === true,
      definition: JSON.stringify(tool),
      signal,
    });
  }

  /** A tool that was not allowed is a result like any other failure of a tool: the model reads why. */
  #refuse(id: string, stateless: Dialect | undefined, message: string): void {
    const result = { content: [{ type: "text", text: message }], isError: true };
    this.#answer(id, "result", stateless ? { result: { resultType: "complete", ...result } } : result);
  }

  #answer(id: string, kind: "result" | "error", value: unknown): void {
    this.deliver(`{"jsonrpc":"2.0","id":${id},"${kind}":${JSON.stringify(value)}}`);
  }

  #cancel(text: string): void {
    const params = memberText(text, "params");
    const id = params?.startsWith("{") ? memberText(params, "requestId") : undefined;
    const held = id === undefined ? undefined : this.#held.get(id);
    if (held) held.abort.abort();
    else this.#lane.send(text);
  }

  /** Ends the wait of calls that nobody waits for any more. */
  #leave(which: (held: Held) => boolean): void {
    for (const held of [...this.#held.values()]) if (which(held)) held.abort.abort();
  }

  #learn(text: string): void {
    const id = memberText(text, "id");
    const serverId = id === undefined ? undefined : this.#connecting.get(id);
    if (id === undefined || serverId === undefined) return;
    this.#connecting.delete(id);
    const message: unknown = JSON.parse(text);
    const result = isObject(message) ? member(message, "result") : undefined;
    for (const name of ["connectionId", "connection_id"]) {
      const connectionId = member(result, name);
      if (typeof connectionId === "string") this.#connections.set(connectionId, serverId);
    }
  }
}
