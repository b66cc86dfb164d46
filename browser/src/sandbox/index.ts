/** The sandbox: a confined frame with Python in it. See docs/sandbox.md. */

export type { SandboxEvents } from "./events.ts";
export type { BootMode, BootStage, SandboxTool, ServerStatus } from "./protocol.ts";
export {
  createSandbox,
  DEFAULT_GRACE,
  DEFAULT_TIME_LIMIT,
  Sandbox,
  SandboxError,
  type SandboxOptions,
  type SandboxState,
} from "./sandbox.ts";
