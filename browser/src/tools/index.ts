/**
 * Tools written in JavaScript, and tools that a page registers with the browser (WebMCP), lent to the agent beside the
 * Python ones. Needs the peer `@modelcontextprotocol/server`.
 *
 * @packageDocumentation
 */

export {
  type Ask,
  allowAll,
  ConsentError,
  QUESTION_LIMIT,
  type ToolAnswer,
  type ToolQuestion,
} from "./consent.ts";
export {
  type AnySchema,
  defineTool,
  type JsonSchema,
  type Tool,
  type ToolContext,
  type ToolHints,
  type ToolValue,
} from "./define.ts";
export { LANE_LIMITS, type LaneLimits } from "./lane.ts";
export {
  createToolServer,
  type OfferedTool,
  TOOL_TIME_LIMIT,
  ToolServer,
  type ToolServerOptions,
} from "./server.ts";
export {
  findModelContext,
  lendWebMcp,
  type ModelContextLike,
  type ModelContextTool,
  WebMcpError,
  type WebMcpOptions,
  type WebMcpServer,
} from "./webmcp.ts";
