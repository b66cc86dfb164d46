/** An ACP agent in the page, beside the sandbox. See docs/in-page-agent.md. */

export { type Endpoint, EndpointError, endpointBase } from "./endpoint.ts";
export {
  type AgentProgress,
  createInPageAgent,
  InPageAgent,
  InPageAgentError,
  type InPageAgentOptions,
  type ModelSettings,
} from "./inpage-agent.ts";
export { forgetOffline, keepOffline } from "./offline.ts";
export { browserStore, MAX_SESSIONS, memoryStore, type SessionHead, type SessionStore } from "./store.ts";
