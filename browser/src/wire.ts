/**
 * What the port has to know of the dialects of MCP over ACP: which message is addressed to whom.
 *
 * Invariant: nothing here decides from error texts or keeps state. The dialects are told apart by what is sent, in
 * the same order as `core/sandport/wire`, which also knows what the messages mean. Source: docs/dialects.md.
 */

import { isObject, type JsonObject, member } from "./json-text.ts";

/** Outer methods that belong to MCP over ACP. */
export const LANE_METHODS: ReadonlySet<string> = new Set([
  "mcp/connect",
  "mcp/message",
  "mcp/disconnect",
  "_mcp/connect",
  "_mcp/message",
  "_mcp/request",
  "_mcp/notification",
  "_mcp/disconnect",
]);

/** Outer cancellations; `params.requestId` is the outer id. */
export const CANCEL_METHODS: ReadonlySet<string> = new Set(["$/cancel_request", "mcp/cancel"]);

export const PARSE_ERROR = -32700;
export const INVALID_REQUEST = -32600;
export const INVALID_PARAMS = -32602;
export const INTERNAL_ERROR = -32603;
/** ACP: the answer to a request that a cancellation ended. */
export const REQUEST_CANCELLED = -32800;

/** The peer's illegal move, as it is put on the wire. `data` is always written: some peers lose errors without it. */
export class PeerError extends Error {
  override readonly name = "PeerError";
  readonly code: number;
  readonly data: unknown;

  constructor(code: number, message: string, data: unknown = null) {
    super(message);
    this.code = code;
    this.data = data;
  }
}

/** This side's misuse of the library; nothing was sent. */
export class LocalError extends Error {
  override readonly name = "LocalError";
}

/** One way of writing MCP over ACP, as far as the port cares: its error codes and the answer to its connect. */
export interface Dialect {
  readonly name: "connect-serverId" | "connect-acpId" | "legacy" | "stateless" | "stateless+";
  readonly unknownServer: number;
  readonly resourceLimit: number;
  readonly backendFailed: number;
  /** Names of the connection id in the answer to connect; none where there is no connection. */
  readonly connectionIds: readonly string[];
}

const CONNECT_CODES = {
  unknownServer: INVALID_PARAMS,
  resourceLimit: INTERNAL_ERROR,
  backendFailed: INTERNAL_ERROR,
};
const STATELESS_CODES = { unknownServer: -33001, resourceLimit: -33000, backendFailed: -33002 };

const CONNECT_SERVER_ID: Dialect = {
  name: "connect-serverId",
  ...CONNECT_CODES,
  connectionIds: ["connectionId"],
};
const CONNECT_ACP_ID: Dialect = { name: "connect-acpId", ...CONNECT_CODES, connectionIds: ["connectionId"] };
const LEGACY: Dialect = {
  name: "legacy",
  ...CONNECT_CODES,
  connectionIds: ["connection_id", "connectionId"],
};
const STATELESS: Dialect = { name: "stateless", ...STATELESS_CODES, connectionIds: [] };
const STATELESS_PLUS: Dialect = { name: "stateless+", ...STATELESS_CODES, connectionIds: [] };

/** What a message of the lane means. */
export type WireEvent =
  | { readonly kind: "open"; readonly serverId: string; readonly dialect: Dialect }
  | {
      readonly kind: "message";
      readonly connectionId: string;
      readonly method: string;
      readonly params: unknown;
    }
  | {
      readonly kind: "call";
      readonly serverId: string;
      readonly requestId: string;
      readonly method: string;
      readonly dialect: Dialect;
    }
  | { readonly kind: "close"; readonly connectionId: string };

/** The first of `names` that is there, which must then be a non-empty string. */
function textMember(params: unknown, ...names: string[]): string | undefined {
  if (!isObject(params)) return undefined;
  for (const name of names) {
    if (!Object.hasOwn(params, name)) continue;
    const value = params[name];
    if (typeof value !== "string" || value === "") {
      throw new PeerError(INVALID_PARAMS, `Invalid params: ${name} must be a non-empty string`);
    }
    return value;
  }
  return undefined;
}

function checkInner(params: JsonObject): string {
  const method = member(params, "method");
  if (typeof method !== "string" || method === "") {
    throw new PeerError(INVALID_PARAMS, "Invalid params: method must be a non-empty string");
  }
  const inner = member(params, "params");
  if (inner !== undefined && inner !== null && !isObject(inner)) {
    throw new PeerError(INVALID_PARAMS, "Invalid params: the MCP params must be an object");
  }
  return method;
}

function readOpen(method: string, params: JsonObject): WireEvent | undefined {
  if (method === "mcp/connect") {
    const serverId = textMember(params, "serverId");
    if (serverId !== undefined) {
      textMember(params, "connectionId");
      return { kind: "open", serverId, dialect: CONNECT_SERVER_ID };
    }
    const acpId = textMember(params, "acpId") ?? textMember(member(params, "server"), "id", "serverId");
    if (acpId === undefined) return undefined;
    textMember(params, "connectionId");
    return { kind: "open", serverId: acpId, dialect: CONNECT_ACP_ID };
  }
  const found = textMember(params, "acp_id", "acp_url", "url");
  if (found === undefined) return undefined;
  textMember(params, "connectionId");
  return { kind: "open", serverId: found.startsWith("acp:") ? found.slice(4) : found, dialect: LEGACY };
}

function readMessage(
  method: string,
  params: JsonObject,
  owns: (connectionId: string) => boolean,
): WireEvent | undefined {
  const connectionId = Object.hasOwn(params, "connectionId")
    ? params["connectionId"]
    : member(params, "connection_id");
  // A message with both addresses is of the connect family if this side gave the connection out.
  if (typeof connectionId === "string" && (owns(connectionId) || !Object.hasOwn(params, "serverId"))) {
    const inner = checkInner(params);
    return { kind: "message", connectionId, method: inner, params: member(params, "params") ?? null };
  }
  const [serverId, requestId] = [member(params, "serverId"), member(params, "requestId")];
  if (
    method !== "mcp/message" ||
    typeof serverId !== "string" ||
    typeof requestId !== "string" ||
    !requestId
  ) {
    return undefined;
  }
  const inner = checkInner(params);
  const hints = Object.hasOwn(params, "sessionId") || Object.hasOwn(params, "toolCallId");
  return { kind: "call", serverId, requestId, method: inner, dialect: hints ? STATELESS_PLUS : STATELESS };
}

/**
 * Reads an outer message of {@link LANE_METHODS}.
 *
 * @param owns whether this side gave out a connection id.
 * @throws {PeerError} -32602 when no dialect reads it.
 */
export function readLane(
  method: string,
  params: unknown,
  owns: (connectionId: string) => boolean,
): WireEvent {
  if (!isObject(params)) throw new PeerError(INVALID_PARAMS, `Invalid params: ${method} needs an object`);
  let event: WireEvent | undefined;
  if (method.endsWith("/connect")) event = readOpen(method, params);
  else if (method.endsWith("/disconnect")) {
    const connectionId = textMember(params, "connectionId", "connection_id");
    event = connectionId === undefined ? undefined : { kind: "close", connectionId };
  } else event = readMessage(method, params, owns);
  if (!event) {
    throw new PeerError(INVALID_PARAMS, `Invalid params: ${method} names neither a server nor a connection`);
  }
  return event;
}

/** Whether an MCP method is a notification; some agents send these as outer requests. */
export function isNotification(method: string): boolean {
  return method.startsWith("notifications/");
}

/** An `mcpServers` entry of type `acp`. */
export interface ServerDeclaration {
  readonly type: "acp";
  readonly name: string;
  readonly id: string;
  readonly serverId: string;
}

/**
 * The `mcpServers` entry that every reader of `type: "acp"` understands: both id members with one value. Send it only
 * to an agent that {@link advertisesAcp}; others reject the whole session.
 */
export function declaration(name: string, serverId: string): ServerDeclaration {
  return { type: "acp", name, id: serverId, serverId };
}

/** An `mcpServers` entry as the first agents with MCP over ACP read it: an address of its own inside HTTP's. */
export interface LegacyDeclaration {
  readonly type: "http";
  readonly name: string;
  readonly url: `acp:${string}`;
  readonly headers: readonly [];
}

/** The entry for an agent that {@link advertisesLegacy}. */
export function legacyDeclaration({ name, serverId }: ServerDeclaration): LegacyDeclaration {
  return { type: "http", name, url: `acp:${serverId}`, headers: [] };
}

const at = (value: unknown, ...path: string[]) => path.reduce(member, value);

/**
 * Whether an agent's answer to `initialize` offers MCP over ACP: v1 says `agentCapabilities.mcpCapabilities.acp: true`,
 * the v2 draft `capabilities.session.mcp.acp: {}`. `false`, `null` and absence are off.
 */
export function advertisesAcp(initializeResult: unknown): boolean {
  return [
    at(initializeResult, "agentCapabilities", "mcpCapabilities", "acp"),
    at(initializeResult, "capabilities", "session", "mcp", "acp"),
  ].some((value) => value === true || isObject(value));
}

/**
 * Whether an agent offers MCP over ACP in the first way alone (Rust SDK 0.11 and before, sacp): its capabilities have
 * a `_meta.symposium.mcp_acp_transport`. Declare servers to it with {@link legacyDeclaration}.
 */
export function advertisesLegacy(initializeResult: unknown): boolean {
  if (advertisesAcp(initializeResult)) return false;
  return [["agentCapabilities"], []].some((place) => {
    const value = at(initializeResult, ...place, "_meta", "symposium", "mcp_acp_transport");
    return value !== undefined && value !== null && value !== false;
  });
}
