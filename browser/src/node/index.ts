/**
 * Sandport in Node (20 and newer), Deno and Bun: Python tools in a thread, lent to any agent, by process or by address; and
 * the agent itself, in a thread.
 *
 * In Node and Bun **nothing isolates the tools**: their code can do what you can. In Deno they run in a worker without
 * permissions. docs/hosts.md has what was measured.
 *
 * @packageDocumentation
 */

export { type InPageAgent, InPageAgentError, type ModelSettings } from "../agent/inpage-agent.ts";
export type { SessionHead, SessionStore } from "../agent/store.ts";
export { type Ask, allowAll, ConsentError, type ToolAnswer, type ToolQuestion } from "../tools/consent.ts";
export { createHostAgent, type HostAgentOptions } from "./agent.ts";
export { ownBundle } from "./assets.ts";
export { type HostName, hostName, type Isolation, isolationNotice } from "./host.ts";
export { createHostSandbox, HostSandbox, type HostSandboxOptions } from "./sandbox.ts";
export { type StdioOptions, stdioChannel } from "./stdio.ts";
export { folderStore } from "./store.ts";
