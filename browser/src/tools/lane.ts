/**
 * Serves an MCP server on a lane, in every dialect: the JavaScript counterpart of `sandport.host`.
 *
 * Invariants: every request gets exactly one answer, and nothing follows it. The dialect is told apart by what is sent,
 * message by message. Ids on the lane and ids of MCP never meet. When the lane closes, all connections end.
 */

import type { JSONRPCMessage, RequestId } from "@modelcontextprotocol/server";
import { ChannelClosedError, CLOSE_NORMAL, type TextChannel } from "../channel.ts";
import { isObject, type JsonObject, member, memberText } from "../json-text.ts";
import {
  CANCEL_METHODS,
  type Dialect,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  INVALID_REQUEST,
  isNotification,
  LANE_METHODS,
  PARSE_ERROR,
  PeerError,
  readLane,
} from "../wire.ts";
import { Pipe } from "./pipe.ts";

/** The one MCP revision of the stateless family. */
const STATELESS_VERSION = "2026-07-28";
const VERSION_KEY = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities";
const SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId";
const UNSUPPORTED_VERSION = -32022;
const CANCELLED = -32800;

/** What a lane takes on; each limit has the name that its error says. */
export interface LaneLimits {
  /** Requests open at once for one server id: what the stateless binding allows (TypeScript SDK 2.4.0). */
  readonly maxActiveRequests: number;
  /** Connections open at once. A session needs one. */
  readonly maxConnections: number;
  /** Characters of one message that goes out: the ACP SDK's own limit for one message is 32 MiB. */
  readonly maxMessageChars: number;
}

/** The limits in force when none are given. */
export const LANE_LIMITS: LaneLimits = {
  maxActiveRequests: 64,
  maxConnections: 64,
  maxMessageChars: 32 * 1024 * 1024,
};

/** A request of the agent that waits for its answer. */
interface Open {
  /** The outer id as it is written. */
  readonly id: string;
  readonly connection: Connection;
  readonly inner: RequestId;
}

interface Connection {
  readonly pipe: Pipe;
  readonly serverId: string;
  /** Undefined for the stateless family. */
  readonly connectionId: string | undefined;
  readonly dialect: Dialect | undefined;
  readonly open: Map<RequestId, Open>;
}

/** See the module comment. */
export class ToolLane {
  readonly #channel: TextChannel;
  readonly #prefix: string;
  readonly #serve: (pipe: Pipe) => void;
  readonly #limits: LaneLimits;
  readonly #servers = new Set<string>();
  readonly #connections = new Map<string, Connection>();
  readonly #stateless = new Map<string, Connection>();
  /** By {@link keyOf} of the outer id. */
  readonly #open = new Map<string, Open>();
  /** Requests of the server to the agent, by outer id. */
  readonly #reverse = new Map<string, { readonly connection: Connection; readonly inner: RequestId }>();
  #lastInner = 0;
  #lastReverse = 0;
  #closed = false;

  /**
   * @param channel the server's end of the lane.
   * @param prefix what the ids of requests that start here begin with.
   * @param serve connects a fresh MCP server to a pipe.
   */
  constructor(
    channel: TextChannel,
    prefix: string,
    serve: (pipe: Pipe) => void,
    limits: Partial<LaneLimits> = {},
  ) {
    this.#channel = channel;
    this.#prefix = prefix;
    this.#serve = serve;
    this.#limits = { ...LANE_LIMITS, ...limits };
    channel.listen({ text: (text) => this.#arrived(text), close: () => this.#end() });
  }

  /** Offers the server under an id. */
  declare(serverId: string): void {
    this.#servers.add(serverId);
  }

  /** Ends an id and what is open on it, without answers: the port gives them. */
  withdraw(serverId: string): void {
    if (!this.#servers.delete(serverId)) return;
    for (const connection of [...this.#connections.values(), ...this.#stateless.values()]) {
      if (connection.serverId === serverId) this.#drop(connection, undefined);
    }
  }

  /** Ends the lane. */
  close(): void {
    this.#channel.close(CLOSE_NORMAL);
    this.#end();
  }

  #end(): void {
    this.#closed = true;
    this.#servers.clear();
    for (const connection of [...this.#connections.values(), ...this.#stateless.values()]) {
      this.#drop(connection, undefined);
    }
  }

  // -- from the agent -----------------------------------------------------------------------------------------

  #arrived(text: string): void {
    let message: unknown;
    try {
      message = JSON.parse(text);
    } catch (error) {
      this.#refuse("null", new PeerError(PARSE_ERROR, `Parse error: ${String(error)}`));
      return;
    }
    if (!isObject(message)) {
      this.#refuse("null", new PeerError(INVALID_REQUEST, "Invalid request: send one object a text"));
      return;
    }
    const method = member(message, "method");
    // The id as it is written: a number above 2^53 must come back unchanged.
    const id = Object.hasOwn(message, "id") ? (memberText(text, "id") ?? "null") : undefined;
    if (typeof method !== "string") this.#answered(message);
    else if (CANCEL_METHODS.has(method)) this.#cancel(memberText(text, "params") ?? "{}");
    else this.#lane(id, method, message);
  }

  #lane(id: string | undefined, method: string, message: JsonObject): void {
    try {
      if (!LANE_METHODS.has(method)) throw new PeerError(-32601, `Method not found: ${method}`);
      if (id !== undefined && this.#open.has(keyOf(id))) {
        throw new PeerError(INVALID_REQUEST, "Invalid request: the id is open already");
      }
      const params = Object.hasOwn(message, "params") ? message["params"] : {};
      const event = readLane(method, params, (connectionId) => this.#connections.has(connectionId));
      switch (event.kind) {
        case "open":
          this.#connect(id, event.serverId, event.dialect, member(params, "connectionId"));
          break;
        case "close":
          this.#disconnect(event.connectionId);
          if (id !== undefined) this.#send(id, "result", {});
          break;
        case "message":
          this.#message(id, event.connectionId, event.method, event.params);
          break;
        case "call":
          this.#call(id, event.serverId, event.requestId, event.dialect, params as JsonObject);
          break;
      }
    } catch (error) {
      if (!(error instanceof PeerError)) throw error;
      if (id !== undefined) this.#refuse(id, error);
    }
  }

  #connect(id: string | undefined, serverId: string, dialect: Dialect, wanted: unknown): void {
    if (!this.#servers.has(serverId)) {
      throw new PeerError(dialect.unknownServer, `Unknown server: ${serverId}`, { serverId });
    }
    if (this.#connections.size >= this.#limits.maxConnections) {
      throw this.#over(dialect, "maxConnections");
    }
    const connectionId =
      typeof wanted === "string" && !this.#connections.has(wanted)
        ? wanted
        : crypto.randomUUID().replaceAll("-", "");
    this.#connections.set(connectionId, this.#openPipe(serverId, connectionId, dialect));
    if (id === undefined) return;
    this.#send(id, "result", Object.fromEntries(dialect.connectionIds.map((name) => [name, connectionId])));
  }

  #disconnect(connectionId: string): void {
    const connection = this.#connections.get(connectionId);
    if (connection) this.#drop(connection, "The connection was closed");
  }

  #message(id: string | undefined, connectionId: string, method: string, params: unknown): void {
    const connection = this.#connections.get(connectionId);
    if (!connection) {
      throw new PeerError(INVALID_PARAMS, `Unknown connection: ${connectionId}`, { connectionId });
    }
    const inner = isObject(params) ? { params } : {};
    if (id === undefined || isNotification(method)) {
      connection.pipe.feed({ jsonrpc: "2.0", method, ...inner } as JSONRPCMessage);
      // Some agents send notifications as requests.
      if (id !== undefined) this.#send(id, "result", {});
      return;
    }
    const { dialect } = connection;
    if (dialect && connection.open.size >= this.#limits.maxActiveRequests) {
      throw this.#over(dialect, "maxActiveRequests");
    }
    this.#lastInner += 1;
    this.#begin(connection, id, this.#lastInner);
    connection.pipe.feed({ jsonrpc: "2.0", id: this.#lastInner, method, ...inner } as JSONRPCMessage);
  }

  #call(
    id: string | undefined,
    serverId: string,
    requestId: string,
    dialect: Dialect,
    envelope: JsonObject,
  ): void {
    if (!this.#servers.has(serverId)) {
      throw new PeerError(dialect.unknownServer, "MCP server registration unavailable", { serverId });
    }
    if (id === undefined) return;
    const connection = this.#stateless.get(serverId) ?? this.#openPipe(serverId, undefined, undefined);
    this.#stateless.set(serverId, connection);
    if (connection.open.has(requestId)) {
      throw new PeerError(INVALID_PARAMS, "duplicate active MCP request ID", { serverId, requestId });
    }
    if (connection.open.size >= this.#limits.maxActiveRequests)
      throw this.#over(dialect, "maxActiveRequests");
    const params = member(envelope, "params");
    const refusal = checkEnvelope(params);
    if (refusal) {
      this.#send(id, "result", { error: refusal });
      return;
    }
    this.#begin(connection, id, requestId);
    const hint = (name: string) => {
      const value = member(envelope, name);
      return typeof value === "string" ? { [name]: value } : {};
    };
    connection.pipe.hints.set(requestId, { ...hint("sessionId"), ...hint("toolCallId") });
    const method = member(envelope, "method");
    connection.pipe.feed({ jsonrpc: "2.0", id: requestId, method, params } as JSONRPCMessage);
  }

  #cancel(params: string): void {
    const id = params.startsWith("{") ? memberText(params, "requestId") : undefined;
    const request = id === undefined ? undefined : this.#open.get(keyOf(id));
    if (!request) return;
    const { connection, inner } = request;
    this.#finish(request);
    connection.pipe.feed({
      jsonrpc: "2.0",
      method: "notifications/cancelled",
      params: { requestId: inner },
    } as JSONRPCMessage);
    this.#refuse(request.id, new PeerError(CANCELLED, "Request cancelled"));
  }

  #answered(message: JsonObject): void {
    const id = member(message, "id");
    const waiting = typeof id === "string" ? this.#reverse.get(id) : undefined;
    if (!waiting) return;
    this.#reverse.delete(String(id));
    const { connection, inner } = waiting;
    const outcome = Object.hasOwn(message, "result")
      ? { result: message["result"] }
      : { error: message["error"] };
    connection.pipe.feed({ jsonrpc: "2.0", id: inner, ...outcome } as JSONRPCMessage);
  }

  // -- from the server ----------------------------------------------------------------------------------------

  #openPipe(serverId: string, connectionId: string | undefined, dialect: Dialect | undefined): Connection {
    const pipe = new Pipe({
      message: (message, related) => this.#fromServer(connection, message, related),
      ended: () => this.#drop(connection, "The server ended the connection"),
    });
    const connection: Connection = { pipe, serverId, connectionId, dialect, open: new Map() };
    this.#serve(pipe);
    return connection;
  }

  #fromServer(connection: Connection, message: JSONRPCMessage, related: RequestId | undefined): void {
    if ("method" in message) {
      const { method, params } = message;
      const inner = { method, ...(params === undefined ? {} : { params }) };
      if (connection.connectionId !== undefined) {
        const outer = { connectionId: connection.connectionId, ...inner };
        if ("id" in message) {
          this.#lastReverse += 1;
          const id = `${this.#prefix}${this.#lastReverse}`;
          this.#reverse.set(id, { connection, inner: message.id });
          this.#text(JSON.stringify({ jsonrpc: "2.0", id, method: "mcp/message", params: outer }));
        } else {
          this.#text(JSON.stringify({ jsonrpc: "2.0", method: "mcp/message", params: outer }));
        }
        return;
      }
      // The stateless family has notifications of active requests, and nothing else.
      const requestId = related ?? member(member(params, "_meta"), SUBSCRIPTION_KEY);
      if ("id" in message || typeof requestId !== "string" || !connection.open.has(requestId)) return;
      const { serverId } = connection;
      this.#text(
        JSON.stringify({ jsonrpc: "2.0", method: "mcp/message", params: { serverId, requestId, ...inner } }),
      );
      return;
    }
    const request = message.id === undefined ? undefined : connection.open.get(message.id);
    // Cancelled meanwhile: it has its answer.
    if (!request) return;
    this.#finish(request);
    if (connection.connectionId === undefined) {
      this.#send(
        request.id,
        "result",
        "error" in message ? { error: message.error } : { result: message.result },
      );
    } else if ("error" in message) {
      this.#send(request.id, "error", { data: null, ...message.error });
    } else this.#send(request.id, "result", message.result);
  }

  // -- shared -------------------------------------------------------------------------------------------------

  #begin(connection: Connection, id: string, inner: RequestId): void {
    const request: Open = { id, connection, inner };
    this.#open.set(keyOf(id), request);
    connection.open.set(inner, request);
  }

  #finish({ id, connection, inner }: Open): void {
    this.#open.delete(keyOf(id));
    connection.open.delete(inner);
    connection.pipe.hints.delete(inner);
  }

  /** Ends a connection; its open requests are answered with `reason`, if there is one. */
  #drop(connection: Connection, reason: string | undefined): void {
    const { connectionId, serverId } = connection;
    if (connectionId !== undefined) this.#connections.delete(connectionId);
    else if (this.#stateless.get(serverId) === connection) this.#stateless.delete(serverId);
    for (const request of [...connection.open.values()]) {
      this.#finish(request);
      const code = connection.dialect?.backendFailed ?? -33002;
      if (reason !== undefined) this.#refuse(request.id, new PeerError(code, reason));
    }
    for (const [id, waiting] of this.#reverse) {
      if (waiting.connection === connection) this.#reverse.delete(id);
    }
    void connection.pipe.close();
  }

  #over(dialect: Dialect, limit: keyof LaneLimits): PeerError {
    const value = this.#limits[limit];
    return new PeerError(dialect.resourceLimit, `Too much is open (limit ${limit} = ${value})`, { limit });
  }

  #refuse(id: string, { code, message, data }: PeerError): void {
    this.#send(id, "error", { code, message, data });
  }

  #send(id: string, member: "result" | "error", value: unknown): void {
    const text = `{"jsonrpc":"2.0","id":${id},"${member}":${JSON.stringify(value)}}`;
    if (text.length > this.#limits.maxMessageChars) {
      const message = `The answer has ${text.length} characters, over the limit maxMessageChars = ${this.#limits.maxMessageChars}`;
      this.#refuse(id, new PeerError(INTERNAL_ERROR, message));
    } else this.#text(text);
  }

  #text(text: string): void {
    if (this.#closed) return;
    try {
      this.#channel.send(text);
    } catch (error) {
      // A lane that closed under us reports it itself.
      if (!(error instanceof ChannelClosedError)) throw error;
    }
  }
}

/** One key for all spellings of a string id; numbers keep theirs, for JavaScript would round the long ones. */
function keyOf(id: string): string {
  return id.startsWith('"') ? JSON.stringify(JSON.parse(id)) : id;
}

/** The binding's own check of a stateless request (`@agentclientprotocol/sdk` 2.4.0 `dist/mcp/core.js`). */
function checkEnvelope(params: unknown): { code: number; message: string; data?: unknown } | undefined {
  const meta = member(params, "_meta");
  const version = member(meta, VERSION_KEY);
  const missing = (key: string) => ({
    code: INVALID_PARAMS,
    message: `Invalid params: missing ${key} in params._meta`,
  });
  if (typeof version !== "string") return missing(VERSION_KEY);
  if (version !== STATELESS_VERSION) {
    const data = { supported: [STATELESS_VERSION], requested: version };
    return { code: UNSUPPORTED_VERSION, message: "Unsupported protocol version", data };
  }
  if (!isObject(member(meta, CAPABILITIES_KEY))) return missing(CAPABILITIES_KEY);
  return undefined;
}
