/**
 * Sandport for the browser: channels, the port, and the sandbox.
 *
 * ```ts
 * const channel = await webSocketChannel("ws://127.0.0.1:8765/acp", { protocols: ["acp.v1", `sandport.token.${token}`] });
 * ```
 *
 * @packageDocumentation
 */

export {
  type AgentProgress,
  createInPageAgent,
  type Endpoint,
  EndpointError,
  endpointBase,
  forgetOffline,
  InPageAgent,
  InPageAgentError,
  type InPageAgentOptions,
  keepOffline,
  type ModelSettings,
  type SessionHead,
  type SessionStore,
} from "./agent/index.ts";
export type { ChannelClose, ChannelListener, TextChannel, Utf8 } from "./channel.ts";
export {
  BaseChannel,
  ChannelClosedError,
  CLOSE_ABNORMAL,
  CLOSE_NORMAL,
  CLOSE_NOT_UTF8,
  CLOSE_POLICY,
  CLOSE_TOO_BIG,
  CLOSE_UNSUPPORTED,
  memoryChannelPair,
} from "./channel.ts";
export type { MessagePortChannelOptions } from "./channel-messageport.ts";
export { messagePortChannel } from "./channel-messageport.ts";
export type { WebSocketChannelOptions } from "./channel-websocket.ts";
export { MAX_TEXT_LENGTH, OPEN_TIMEOUT_MS, UTF8_PROTOCOL, webSocketChannel } from "./channel-websocket.ts";
export { memberText } from "./json-text.ts";
export { type Lending, type LendOptions, lend, type ToolProvider } from "./lend.ts";
export { type LendOverWebSocketOptions, lendOverWebSocket } from "./lend-websocket.ts";
export { Port, type PortOptions, type Traffic } from "./port.ts";
export type { Delivery, Destination, DropReason, LiveConnection, PortLimits } from "./port-core.ts";
export { PORT_LIMITS, PortCore } from "./port-core.ts";
export type {
  ConnectionState,
  KeepConnectedOptions,
  KeptConnection,
  ProbeTimes,
  ReconnectDecision,
  ReconnectTimes,
} from "./reconnect.ts";
export { keepConnected, PROBE_METHOD, PROBE_TIMES, RECONNECT_TIMES, ReconnectPolicy } from "./reconnect.ts";
export {
  type BootMode,
  type BootStage,
  createSandbox,
  DEFAULT_GRACE,
  DEFAULT_TIME_LIMIT,
  Sandbox,
  SandboxError,
  type SandboxEvents,
  type SandboxOptions,
  type SandboxState,
  type SandboxTool,
  type ServerStatus,
} from "./sandbox/index.ts";
export {
  advertisesAcp,
  advertisesLegacy,
  declaration,
  type LegacyDeclaration,
  LocalError,
  legacyDeclaration,
  type ServerDeclaration,
} from "./wire.ts";
