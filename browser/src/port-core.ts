/**
 * The port without I/O: one channel, two lanes.
 *
 * `mcp/*` and its aliases, cancellations of requests of that lane and answers to requests of that lane travel the
 * *mcp lane*, between the channel and the sandboxes; everything else travels the *acp lane*, between the channel and
 * an ACP client. The port is the trust boundary: what a sandbox sends goes out only if it is
 *
 * 1. the one answer to a request that was handed to this sandbox,
 * 2. an `mcp/message` for a connection id that this sandbox gave out in its answer to `mcp/connect`,
 * 3. a notification for a `stateless` request that is still active with it, or
 * 4. a `$/cancel_request` for a request of its own that is open: a question to a person may have become pointless.
 *
 * Everything else is dropped and counted by reason. Text is forwarded as it came; a parsed copy is only looked at.
 * `core/sandport/port.py` is the same machine; both are held to `tests/vectors/port`.
 */

import { addMember, hasTwins, isObject, type JsonObject, member, memberText } from "./json-text.ts";
import {
  CANCEL_METHODS,
  type Dialect,
  INTERNAL_ERROR,
  INVALID_PARAMS,
  INVALID_REQUEST,
  isNotification,
  LANE_METHODS,
  LocalError,
  PARSE_ERROR,
  PeerError,
  REQUEST_CANCELLED,
  readLane,
  type WireEvent,
} from "./wire.ts";

/** Where a text goes: the agent, the ACP client, or a sandbox. */
export type Destination = "channel" | "acp" | `sandbox:${string}`;

/** A text and where it goes. */
export interface Delivery {
  readonly to: Destination;
  readonly text: string;
}

/**
 * Why a text was dropped. From the channel: `malformed`; `unknown-connection` a notification for nobody; `not-open` an
 * answer to a request of a sandbox that is no more. From a sandbox: `malformed` no JSON-RPC message, or one with two
 * members of a name; `too-large`,
 * `too-fast` over a limit; `not-open` an answer nobody waits for; `not-allowed` a method that a sandbox may not send;
 * `unknown-connection` a connection or request that is not live with it; `bad-id` a request id without its prefix;
 * `duplicate-id` an id still open. `unknown-sandbox`: the sandbox is gone. `overflow`: a notification for a sandbox
 * that holds too much already; anything but an answer for an agent that does not read.
 */
export type DropReason =
  | "malformed"
  | "too-large"
  | "too-fast"
  | "not-open"
  | "not-allowed"
  | "unknown-connection"
  | "bad-id"
  | "duplicate-id"
  | "unknown-sandbox"
  | "overflow";

/** What the port accepts; each has a name that its error says. */
export interface PortLimits {
  /** Longest message in characters: twice what a host sends by default, so that the host's own, better error comes first. */
  readonly maxMessageChars: number;
  /** Messages kept for a sandbox that is restarting. */
  readonly maxHeld: number;
  /** Requests a sandbox may have open towards the agent, or the agent with one sandbox. */
  readonly maxOpenRequests: number;
  /** Sustained rate of requests and notifications from one sandbox; answers are never refused. */
  readonly messagesPerSecond: number;
  /** Messages a sandbox may send at once before the rate counts. */
  readonly burst: number;
  /** Messages that wait for a sandbox which does not read: twice what may be open with it. */
  readonly maxQueued: number;
  /** Characters that wait so, or for an agent that does not read: two messages of the greatest size. */
  readonly maxQueuedChars: number;
}

/** The limits in force when none are given. */
export const PORT_LIMITS: PortLimits = {
  maxMessageChars: 64 * 1024 * 1024,
  maxHeld: 256,
  maxOpenRequests: 1024,
  messagesPerSecond: 2000,
  burst: 4000,
  maxQueued: 2048,
  maxQueuedChars: 128 * 1024 * 1024,
};

/** A connection the agent believes is open: what a restarted sandbox needs to take it up again. */
export interface LiveConnection {
  readonly connectionId: string;
  readonly serverId: string;
  /** The `params` of the MCP `initialize` request that was answered with a result on it, if there was one. */
  readonly initialize: JsonObject | null;
}

/** An id as it is written in JSON, so that `1`, `"1"` and integers of any length stay apart and exact. */
type IdText = string;

/** A request from the channel that a sandbox has to answer. */
interface OpenRequest {
  readonly id: IdText;
  readonly sandbox: string;
  readonly dialect: Dialect;
  readonly serverId: string;
  readonly kind: WireEvent["kind"];
  /** The MCP method inside, if there is one. */
  readonly method?: string;
  /** The key of a stateless request among the active ones. */
  readonly call?: string;
  /** Of an MCP `initialize`: its connection, and its params. */
  readonly handshake?: readonly [Connection, JsonObject | null];
  /** Of one that opens: the agent cancelled it. */
  givenUp?: boolean;
}

interface Connection {
  readonly sandbox: string;
  readonly serverId: string;
  readonly dialect: Dialect;
  initialize: JsonObject | null;
}

interface Sandbox {
  prefix: string;
  suspended: boolean;
  held: Delivery[];
  tokens: number;
  filledAt: number;
  /** Requests of the agent that this sandbox has yet to answer. */
  open: number;
  /** Requests of this sandbox that the agent has yet to answer. */
  reverse: number;
}

/** Thrown by `address` for a message that asks for what is so already: answer `{}`. */
class Answered extends Error {}

const callKey = (serverId: string, requestId: string) => JSON.stringify([serverId, requestId]);

/** Strict JSON-RPC framing: one object a text, valid Unicode. */
function decode(text: string, limit: number): JsonObject {
  if (text.length > limit) {
    throw new PeerError(
      INVALID_REQUEST,
      `Message of ${text.length} characters is over the limit of ${limit} (max_message_chars)`,
    );
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new PeerError(PARSE_ERROR, `Parse error: ${error instanceof Error ? error.message : error}`);
  }
  if (!isObject(value)) {
    const what = Array.isArray(value) ? "a batch" : `a JSON ${value === null ? "null" : typeof value}`;
    throw new PeerError(INVALID_REQUEST, `Invalid request: ${what} is not a message; send one object a text`);
  }
  if (!text.isWellFormed()) throw new PeerError(PARSE_ERROR, "Parse error: lone surrogate in the text");
  return value;
}

const BAD_ID = "Invalid request: the id must be a string or an integer";

/**
 * The id of a request: a string in one spelling, an integer in the peer's own; null for what is neither. No two JSON
 * writers agree on how to spell another number, so it could not be found again in its answer.
 */
function idText(value: unknown, spelling: () => string | undefined): IdText | null {
  if (typeof value === "string") return JSON.stringify(value);
  const text = typeof value === "number" ? spelling() : undefined;
  return text !== undefined && /^(0|-?[1-9][0-9]*)$/.test(text) ? text : null;
}

function errorText(id: IdText | null, error: PeerError): string {
  const { code, message, data } = error;
  return `{"jsonrpc":"2.0","id":${id},"error":${JSON.stringify({ code, message, data: data ?? null })}}`;
}

function resultText(id: IdText): string {
  return `{"jsonrpc":"2.0","id":${id},"result":{}}`;
}

function isError(value: unknown): value is JsonObject {
  return isObject(value) && Number.isInteger(value["code"]) && typeof value["message"] === "string";
}

/** How the answers of our own hosts begin. */
const ANSWER = /^\{"jsonrpc":"2\.0","id":("[^"\\]*"|-?[0-9]+),"(?:result|error)":/;

/**
 * Whether an agent that takes the first of two members with one name would read the envelope otherwise than this port,
 * which takes the last. The start of an answer says it at once; other messages are small.
 */
function isAmbiguous(text: string, message: JsonObject): boolean {
  const first = Object.hasOwn(message, "method") ? undefined : ANSWER.exec(text)?.[1];
  const id: unknown = first === undefined ? undefined : JSON.parse(first);
  if (typeof id === "string" || Number.isSafeInteger(id)) return id !== message["id"];
  return hasTwins(text) || (isObject(message["params"]) && hasTwins(memberText(text, "params") ?? "{}"));
}

/** The connection id in an answer to connect. */
function openedId(dialect: Dialect, result: unknown): string | undefined {
  return dialect.connectionIds
    .map((name) => member(result, name))
    .find((value): value is string => typeof value === "string" && value !== "");
}

/** The port's state and rules. One for each channel; see the module comment for the rules. */
export class PortCore {
  readonly limits: PortLimits;
  /** What was dropped so far, by reason. */
  readonly dropped: { [Reason in DropReason]?: number } = {};
  readonly #sandboxes = new Map<string, Sandbox>();
  /** Server id to the sandbox that hosts it; null once withdrawn, for ids are never used twice. */
  readonly #servers = new Map<string, string | null>();
  readonly #requests = new Map<IdText, OpenRequest>();
  readonly #reverse = new Map<string, string>();
  readonly #prefixes: string[] = [];
  readonly #calls = new Map<string, string>();
  readonly #connections = new Map<string, Connection>();
  #closed = false;

  constructor(limits: Partial<PortLimits> = {}) {
    this.limits = { ...PORT_LIMITS, ...limits };
  }

  // -- sandboxes and servers --------------------------------------------------------------------------------

  /**
   * Lets a sandbox take part. Ids of its own requests must be strings that start with `prefix`.
   * @throws {LocalError} the key is taken, or the prefix would admit ids of another sandbox, past ones included.
   */
  attach(sandbox: string, prefix: string): void {
    if (this.#sandboxes.has(sandbox)) throw new LocalError(`sandbox '${sandbox}' is attached already`);
    this.#claimPrefix(prefix);
    this.#sandboxes.set(sandbox, {
      prefix,
      suspended: false,
      held: [],
      tokens: this.limits.burst,
      filledAt: 0,
      open: 0,
      reverse: 0,
    });
  }

  #claimPrefix(prefix: string): void {
    // Never given twice on a channel: a late answer to a request of a dead sandbox must not meet a new request.
    if (!prefix || this.#prefixes.some((other) => prefix.startsWith(other) || other.startsWith(prefix))) {
      throw new LocalError(`request id prefix '${prefix}' is empty or overlaps one that was in use`);
    }
    this.#prefixes.push(prefix);
  }

  /**
   * Says that a sandbox hosts a server id.
   * @throws {LocalError} the id was declared before on this channel, or the sandbox is not attached.
   */
  declare(sandbox: string, serverId: string): void {
    if (!this.#sandboxes.has(sandbox)) throw new LocalError(`sandbox '${sandbox}' is not attached`);
    if (this.#servers.has(serverId)) {
      throw new LocalError(`server id '${serverId}' was declared before on this channel`);
    }
    this.#servers.set(serverId, sandbox);
  }

  /** A server is no longer offered: its connections end and its open requests are answered with an error. */
  withdraw(serverId: string): Delivery[] {
    if ((this.#servers.get(serverId) ?? null) === null) return [];
    this.#servers.set(serverId, null);
    for (const [id, connection] of this.#connections) {
      if (connection.serverId === serverId) this.#connections.delete(id);
    }
    return this.#settle((request) => request.serverId === serverId, "The server was withdrawn");
  }

  /**
   * The person stopped the agent's turn: ask a server's sandbox to cancel each tool call that is open with it.
   *
   * For agents that stop a turn and leave its call open: some of them send no next call before that one is answered.
   */
  stop(serverId: string): Delivery[] {
    const out: Delivery[] = [];
    for (const request of [...this.#requests.values()]) {
      if (request.serverId !== serverId || request.method !== "tools/call") continue;
      const note = `{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":${request.id}}}`;
      out.push(...this.#toSandbox(request.sandbox, note));
    }
    return out;
  }

  /** The sandbox died and is being restarted: what is open with it is answered at once, what comes is held. */
  suspend(sandbox: string, reason: string): Delivery[] {
    const state = this.#sandboxes.get(sandbox);
    if (!state) return [];
    state.suspended = true;
    for (const [id, owner] of this.#reverse) {
      if (owner === sandbox) this.#reverse.delete(id);
    }
    state.reverse = 0;
    return this.#settle((request) => request.sandbox === sandbox, reason);
  }

  /**
   * The sandbox is back, with the connections of `connections(sandbox)` taken up: hand over what was held.
   * @throws {LocalError} `prefix` is not a new one.
   */
  resume(sandbox: string, prefix: string): Delivery[] {
    const state = this.#sandboxes.get(sandbox);
    if (!state) return [];
    this.#claimPrefix(prefix);
    state.prefix = prefix;
    state.suspended = false;
    const { held } = state;
    state.held = [];
    return held;
  }

  /** The sandbox is gone for good: everything open with it is answered, its servers are no longer offered. */
  detach(sandbox: string, reason: string): Delivery[] {
    if (!this.#sandboxes.has(sandbox)) return [];
    const out = this.suspend(sandbox, reason);
    this.#sandboxes.delete(sandbox);
    for (const [serverId, owner] of this.#servers) {
      if (owner === sandbox) this.#servers.set(serverId, null);
    }
    for (const [id, connection] of this.#connections) {
      if (connection.sandbox === sandbox) this.#connections.delete(id);
    }
    return out;
  }

  /** The connections the agent holds with a sandbox, in the order in which they were opened. */
  connections(sandbox: string): LiveConnection[] {
    return [...this.#connections]
      .filter(([, connection]) => connection.sandbox === sandbox)
      .map(([connectionId, { serverId, initialize }]) => ({ connectionId, serverId, initialize }));
  }

  /** Requests of the mcp lane that wait for an answer, both ways. */
  get openRequests(): number {
    return this.#requests.size + this.#reverse.size;
  }

  /** The channel ended: requests that sandboxes have open are answered with an error; nothing else goes out. */
  close(): Delivery[] {
    this.#closed = true;
    const out: Delivery[] = [];
    for (const [id, owner] of this.#reverse) {
      const state = this.#sandboxes.get(owner);
      if (!state || state.suspended) continue;
      const text = errorText(JSON.stringify(id), new PeerError(INTERNAL_ERROR, "The channel closed"));
      out.push({ to: `sandbox:${owner}`, text });
    }
    this.#requests.clear();
    this.#reverse.clear();
    this.#calls.clear();
    this.#connections.clear();
    for (const state of this.#sandboxes.values()) Object.assign(state, { held: [], open: 0, reverse: 0 });
    return out;
  }

  // -- from the channel -------------------------------------------------------------------------------------

  /** A text the agent sent. */
  fromChannel(text: string): Delivery[] {
    if (this.#closed) return [];
    let message: JsonObject;
    try {
      message = decode(text, this.limits.maxMessageChars);
    } catch (error) {
      if (!(error instanceof PeerError)) throw error;
      this.#drop("malformed");
      return [{ to: "channel", text: errorText(null, error) }];
    }
    const method = member(message, "method");
    if (typeof method === "string") {
      if (LANE_METHODS.has(method)) return this.#laneMessage(text, message, method);
      if (CANCEL_METHODS.has(method)) return this.#cancellation(text, message, method);
    } else if (method === undefined || method === null) {
      const id = member(message, "id");
      if (typeof id === "string") {
        const owner = this.#takeReverse(id);
        if (owner !== undefined) return this.#toSandbox(owner, text);
        if (this.#prefixes.some((prefix) => id.startsWith(prefix))) return this.#drop("not-open");
      }
    }
    return [{ to: "acp", text }];
  }

  #takeReverse(id: string): string | undefined {
    const owner = this.#reverse.get(id);
    if (owner === undefined) return undefined;
    this.#reverse.delete(id);
    const state = this.#sandboxes.get(owner);
    if (state) state.reverse -= 1;
    return owner;
  }

  #laneMessage(text: string, message: JsonObject, method: string): Delivery[] {
    const isRequest = Object.hasOwn(message, "id");
    const rawId = message["id"];
    const id = idText(rawId, () => memberText(text, "id"));
    let event: WireEvent;
    let request: OpenRequest;
    try {
      if (isRequest && id === null) {
        throw new PeerError(INVALID_REQUEST, BAD_ID);
      }
      if (id !== null && this.#requests.has(id)) {
        throw new PeerError(INVALID_REQUEST, "Invalid request: the id is open already");
      }
      const params = Object.hasOwn(message, "params") ? message["params"] : {};
      event = readLane(method, params, (connectionId) => this.#connections.has(connectionId));
      request = this.#address(event, id ?? "");
    } catch (error) {
      if (error instanceof Answered) return id === null ? [] : [{ to: "channel", text: resultText(id) }];
      if (!(error instanceof PeerError)) throw error;
      if (!isRequest) return this.#drop("unknown-connection");
      return [{ to: "channel", text: errorText(id, error) }];
    }
    const state = this.#sandboxes.get(request.sandbox);
    if (id !== null && state) {
      if (state.open >= this.limits.maxOpenRequests) {
        const error = limitError(request.dialect, "max_open_requests", this.limits.maxOpenRequests);
        return [{ to: "channel", text: errorText(id, error) }];
      }
      state.open += 1;
      this.#requests.set(id, request);
      if (request.call) this.#calls.set(request.call, request.sandbox);
    }
    if (event.kind === "close") this.#connections.delete(event.connectionId);
    return this.#toSandbox(request.sandbox, text, id);
  }

  /** Who has to get this; throws in the dialect's own code if nobody does. */
  #address(event: WireEvent, id: IdText): OpenRequest {
    const { kind } = event;
    if (event.kind === "open") {
      const { serverId, dialect } = event;
      return { id, kind, sandbox: this.#ownerOf(serverId, dialect), dialect, serverId };
    }
    if (event.kind === "call") {
      const { serverId, dialect } = event;
      const sandbox = this.#ownerOf(serverId, dialect);
      const key = callKey(serverId, event.requestId);
      if (this.#calls.has(key)) {
        throw new PeerError(INVALID_PARAMS, "Invalid params: the requestId is active already");
      }
      return { id, kind, sandbox, dialect, serverId, method: event.method, call: key };
    }
    const connection = this.#connections.get(event.connectionId);
    if (!connection) {
      if (event.kind === "close") throw new Answered();
      throw new PeerError(INVALID_PARAMS, `Unknown connection '${event.connectionId}'`);
    }
    const { sandbox, dialect, serverId } = connection;
    const request: OpenRequest = { id, kind, sandbox, dialect, serverId };
    if (event.kind !== "message") return request;
    const { method, params } = event;
    if (method !== "initialize") return { ...request, method };
    return { ...request, method, handshake: [connection, isObject(params) ? params : null] };
  }

  #ownerOf(serverId: string, dialect: Dialect): string {
    const sandbox = this.#servers.get(serverId);
    if (sandbox === undefined || sandbox === null) {
      throw new PeerError(dialect.unknownServer, `Unknown server '${serverId}'`, { serverId });
    }
    return sandbox;
  }

  #cancellation(text: string, message: JsonObject, method: string): Delivery[] {
    const params = member(message, "params");
    const target = member(params, "requestId");
    const targetId = idText(target, () => memberText(memberText(text, "params") ?? "{}", "requestId"));
    const request = targetId === null ? undefined : this.#requests.get(targetId);
    // A cancellation is a notification; one that comes as a request is answered here, whoever it concerns.
    if (Object.hasOwn(message, "id")) {
      const id = idText(message["id"], () => memberText(text, "id"));
      if (id === null)
        return [{ to: "channel", text: errorText(null, new PeerError(INVALID_REQUEST, BAD_ID)) }];
      const out: Delivery[] = [{ to: "channel", text: resultText(id) }];
      if (!request) return out;
      request.givenUp = request.kind === "open";
      const plain = `{"jsonrpc":"2.0","method":${JSON.stringify(method)},"params":{"requestId":${targetId}}}`;
      return [...out, ...this.#toSandbox(request.sandbox, plain)];
    }
    if (request) {
      request.givenUp = request.kind === "open";
      return this.#toSandbox(request.sandbox, text);
    }
    return method === "$/cancel_request" ? [{ to: "acp", text }] : [];
  }

  // -- from the ACP client ----------------------------------------------------------------------------------

  /** A text of the ACP client. An error without `data` gets one, the rest passes as it is. */
  fromAcp(text: string): Delivery[] {
    if (this.#closed) return [];
    // The member is only ever missing where the text has an error: look inside no other.
    if (text.includes('"error"')) {
      try {
        const message = decode(text, this.limits.maxMessageChars);
        const error = member(message, "error");
        if (!Object.hasOwn(message, "method") && isObject(error) && !Object.hasOwn(error, "data")) {
          return [{ to: "channel", text: addMember(text, "error", "data", "null") }];
        }
      } catch {
        // Not ours to judge: the client's own text.
      }
    }
    return [{ to: "channel", text }];
  }

  // -- from a sandbox ---------------------------------------------------------------------------------------

  /**
   * A text that came out of a sandbox.
   *
   * @param sandbox its key, as known from where the text came from, never from what it says.
   * @param text untrusted.
   * @param now a monotonic time in seconds, for the rate limit.
   */
  fromSandbox(sandbox: string, text: string, now = 0): Delivery[] {
    const state = this.#sandboxes.get(sandbox);
    if (this.#closed || !state || state.suspended) return this.#drop("unknown-sandbox");
    let message: JsonObject;
    try {
      message = decode(text, Number.POSITIVE_INFINITY);
    } catch {
      return this.#drop("malformed");
    }
    if (isAmbiguous(text, message)) return this.#drop("malformed");
    if (!Object.hasOwn(message, "method")) return this.#answerFrom(sandbox, text, message);
    const refused = this.#refuse(sandbox, state, text, message, now);
    if (refused === undefined) return [{ to: "channel", text }];
    this.#drop(refused);
    const id = idText(member(message, "id"), () => memberText(text, "id"));
    if (id === null || refused === "duplicate-id") return [];
    const error = new PeerError(INVALID_REQUEST, `The port refused the request: ${refused}`);
    return [{ to: `sandbox:${sandbox}`, text: errorText(id, error) }];
  }

  // -- ends that do not read --------------------------------------------------------------------------------

  /**
   * A text handed out for a sandbox has no place in its queue: its request is answered, by the limit's name.
   *
   * @param sandbox the key of the sandbox that does not read.
   * @param text as it was handed out.
   * @param limit the name of the limit that was met.
   * @param value what it is.
   */
  overflow(sandbox: string, text: string, limit: string, value: number): Delivery[] {
    const message = decode(text, Number.POSITIVE_INFINITY);
    const id = Object.hasOwn(message, "method")
      ? idText(member(message, "id"), () => memberText(text, "id"))
      : null;
    const request = id === null ? undefined : this.#requests.get(id);
    if (request?.sandbox !== sandbox) return this.#drop("overflow");
    this.#finish(request);
    return [{ to: "channel", text: errorText(request.id, limitError(request.dialect, limit, value)) }];
  }

  /**
   * A text came out of a sandbox while too much waits for an agent that does not read, and nobody can be made to wait:
   * in place of an answer a small error goes out, by the limit's name; anything else is dropped. Python's port has no
   * such case, for there the sandbox waits.
   */
  overflowFrom(sandbox: string, text: string, limit: string, value: number): Delivery[] {
    const state = this.#sandboxes.get(sandbox);
    if (this.#closed || !state || state.suspended) return this.#drop("unknown-sandbox");
    let message: JsonObject;
    try {
      message = decode(text, Number.POSITIVE_INFINITY);
    } catch {
      return this.#drop("malformed");
    }
    const id = idText(member(message, "id"), () => memberText(text, "id"));
    if (Object.hasOwn(message, "method")) {
      this.#drop("overflow");
      if (id === null || this.#reverse.has(String(message["id"]))) return [];
      const error = new PeerError(INVALID_REQUEST, "The port refused the request: overflow", { limit });
      return [{ to: `sandbox:${sandbox}`, text: errorText(id, error) }];
    }
    const request = id === null ? undefined : this.#requests.get(id);
    if (request?.sandbox !== sandbox) return this.#drop("not-open");
    this.#finish(request);
    return [{ to: "channel", text: errorText(request.id, limitError(request.dialect, limit, value)) }];
  }

  #answerFrom(sandbox: string, text: string, message: JsonObject): Delivery[] {
    const rawId = member(message, "id");
    const id = idText(rawId, () => memberText(text, "id"));
    const request = id === null ? undefined : this.#requests.get(id);
    if (!request || request.sandbox !== sandbox) return this.#drop("not-open");
    const error = member(message, "error");
    const hasResult = Object.hasOwn(message, "result");
    const hasError = Object.hasOwn(message, "error");
    let fault: DropReason | undefined;
    if (text.length > this.limits.maxMessageChars) fault = "too-large";
    else if (message["jsonrpc"] !== "2.0" || hasResult === hasError) fault = "malformed";
    else if (hasError && !isError(error)) fault = "malformed";
    else if (request.givenUp && hasResult) {
      this.#finish(request);
      return this.#openedLate(request, message["result"]);
    } else if (request.kind === "open" && hasResult) {
      fault = this.#opened(request, message["result"]);
    }
    this.#finish(request);
    if (fault !== undefined) {
      this.#drop(fault);
      const limit =
        fault === "too-large" ? ` (limit max_message_chars = ${this.limits.maxMessageChars})` : "";
      const reason = `The answer of the sandbox was refused: ${fault}${limit}`;
      const text = errorText(request.id, new PeerError(request.dialect.backendFailed, reason));
      return [{ to: "channel", text }];
    }
    if (request.handshake && hasResult) {
      // Only one that succeeded may be repeated for a restarted sandbox.
      const [connection, params] = request.handshake;
      connection.initialize = params;
    }
    if (isObject(error) && !Object.hasOwn(error, "data")) {
      return [{ to: "channel", text: addMember(text, "error", "data", "null") }];
    }
    return [{ to: "channel", text }];
  }

  /** The agent gave up and may never look at the answer: the connection ends before it began, or it would stay. */
  #openedLate({ id, sandbox, dialect }: OpenRequest, result: unknown): Delivery[] {
    const cancelled = errorText(id, new PeerError(REQUEST_CANCELLED, "Request cancelled"));
    const out: Delivery[] = [{ to: "channel", text: cancelled }];
    const connectionId = openedId(dialect, result);
    if (connectionId === undefined) return out;
    const legacy = dialect.name === "legacy";
    const method = legacy ? "_mcp/disconnect" : "mcp/disconnect";
    const params = legacy ? { connection_id: connectionId } : { connectionId };
    return [...out, ...this.#toSandbox(sandbox, JSON.stringify({ jsonrpc: "2.0", method, params }))];
  }

  #opened({ sandbox, serverId, dialect }: OpenRequest, result: unknown): DropReason | undefined {
    const connectionId = openedId(dialect, result);
    if (connectionId === undefined) return "malformed";
    // An id that is live already, this sandbox's own included, would let one connection speak for another.
    if (this.#connections.has(connectionId)) return "duplicate-id";
    if (this.#servers.get(serverId) !== sandbox) return "unknown-connection";
    this.#connections.set(connectionId, { sandbox, serverId, dialect, initialize: null });
    return undefined;
  }

  /** Why a request or notification of a sandbox does not go out; undefined if it does. */
  #refuse(
    sandbox: string,
    state: Sandbox,
    text: string,
    message: JsonObject,
    now: number,
  ): DropReason | undefined {
    if (text.length > this.limits.maxMessageChars) return "too-large";
    if (!this.#takeToken(state, now)) return "too-fast";
    const method = message["method"];
    const params = member(message, "params");
    if (method === "$/cancel_request" && !Object.hasOwn(message, "id") && message["jsonrpc"] === "2.0") {
      const target = member(params, "requestId");
      return typeof target === "string" && this.#reverse.get(target) === sandbox ? undefined : "not-allowed";
    }
    if ((method !== "mcp/message" && method !== "_mcp/message") || !isObject(params)) return "not-allowed";
    if (message["jsonrpc"] !== "2.0") return "malformed";
    const isRequest = Object.hasOwn(message, "id");
    const connectionId = member(params, "connectionId");
    if (typeof connectionId === "string") {
      if (this.#connections.get(connectionId)?.sandbox !== sandbox) return "unknown-connection";
    } else {
      const [serverId, requestId] = [member(params, "serverId"), member(params, "requestId")];
      if (isRequest || typeof serverId !== "string" || typeof requestId !== "string") return "not-allowed";
      if (this.#calls.get(callKey(serverId, requestId)) !== sandbox) return "unknown-connection";
      const inner = member(params, "method");
      if (typeof inner !== "string" || !isNotification(inner)) return "not-allowed";
    }
    if (!isRequest) return undefined;
    const id = message["id"];
    if (typeof id !== "string" || !id.startsWith(state.prefix)) return "bad-id";
    if (this.#reverse.has(id)) return "duplicate-id";
    if (state.reverse >= this.limits.maxOpenRequests) return "too-fast";
    this.#reverse.set(id, sandbox);
    state.reverse += 1;
    return undefined;
  }

  #takeToken(state: Sandbox, now: number): boolean {
    const gained = Math.max(0, now - state.filledAt) * this.limits.messagesPerSecond;
    state.tokens = Math.min(this.limits.burst, state.tokens + gained);
    state.filledAt = Math.max(now, state.filledAt);
    if (state.tokens < 1) return false;
    state.tokens -= 1;
    return true;
  }

  // -- shared -----------------------------------------------------------------------------------------------

  #toSandbox(sandbox: string, text: string, id: IdText | null = null): Delivery[] {
    const state = this.#sandboxes.get(sandbox);
    if (!state) return this.#drop("unknown-sandbox");
    const delivery: Delivery = { to: `sandbox:${sandbox}`, text };
    if (!state.suspended) return [delivery];
    if (state.held.length < this.limits.maxHeld) {
      state.held.push(delivery);
      return [];
    }
    const request = id === null ? undefined : this.#requests.get(id);
    if (!request) return this.#drop("overflow");
    this.#finish(request);
    return [
      {
        to: "channel",
        text: errorText(request.id, limitError(request.dialect, "max_held", this.limits.maxHeld)),
      },
    ];
  }

  #finish(request: OpenRequest): void {
    this.#requests.delete(request.id);
    if (request.call) this.#calls.delete(request.call);
    const state = this.#sandboxes.get(request.sandbox);
    if (state) state.open -= 1;
  }

  /** Answers requests in a sandbox's stead. A disconnect has come true by then, so it succeeds. */
  #settle(chosen: (request: OpenRequest) => boolean, reason: string): Delivery[] {
    return [...this.#requests.values()].filter(chosen).map((request) => {
      this.#finish(request);
      const { id, kind, dialect } = request;
      const text =
        kind === "close" ? resultText(id) : errorText(id, new PeerError(dialect.backendFailed, reason));
      return { to: "channel", text };
    });
  }

  #drop(reason: DropReason): Delivery[] {
    this.dropped[reason] = (this.dropped[reason] ?? 0) + 1;
    return [];
  }
}

function limitError(dialect: Dialect, limit: string, value: number): PeerError {
  return new PeerError(
    dialect.resourceLimit,
    `Too much is open with the sandbox (limit ${limit} = ${value})`,
    {
      limit,
    },
  );
}
