/**
 * WebMCP: the tools that a page and its libraries register with the browser's model context, as one more server.
 *
 * Invariants: what the agent sees is what the model context lists, live. A tool runs through the browser's own
 * `executeTool`, and only while it is still the tool that the person was asked about. Its origin is part of the question.
 * Source: https://webmachinelearning.github.io/webmcp/ (draft of 2026), Chromium's `executeTool` extension.
 */

import { isObject } from "../json-text.ts";
import type { Ask } from "./consent.ts";
import type { JsonSchema, Tool, ToolContext } from "./define.ts";
import { createToolServer, type ToolServer, type ToolServerOptions } from "./server.ts";

/** A tool as a model context lists it. */
export interface ModelContextTool {
  readonly name: string;
  readonly title?: string;
  readonly description: string;
  /** An object; JSON text in Chromium before 154. */
  readonly inputSchema?: unknown;
  readonly origin?: string;
  readonly annotations?: { readonly readOnlyHint?: boolean; readonly untrustedContentHint?: boolean };
}

/** The part of a model context that is used: the native one and `@mcp-b/webmcp-polyfill` have it. */
export interface ModelContextLike extends Pick<EventTarget, "addEventListener" | "removeEventListener"> {
  getTools(options?: { fromOrigins?: string[] }): Promise<ModelContextTool[]>;
  /** `input` is an object in Chromium since 154, and JSON text before and in the polyfill. */
  executeTool(
    tool: never,
    input: string | object,
    options?: { signal?: AbortSignal },
  ): Promise<string | null>;
}

/** Settings of {@link lendWebMcp}. */
export interface WebMcpOptions extends Omit<ToolServerOptions, "name" | "tools" | "ask"> {
  /** Default `webmcp`. */
  readonly name?: string;
  /** Asks the person; the question names the tool's origin. */
  readonly ask: Ask;
  /** Default {@link findModelContext}. */
  readonly context?: ModelContextLike;
  /** Also lend tools of frames of these origins, where the browser can list them. */
  readonly fromOrigins?: readonly string[];
  /** Told of tools that cannot be lent (their names or schemas are not MCP's), and when listing fails. */
  readonly onProblem?: (message: string) => void;
}

/** A server of WebMCP tools: a {@link ToolServer} that follows a model context. */
export interface WebMcpServer {
  readonly server: ToolServer;
  /** Settles when the tools that are registered now are offered. */
  readonly ready: Promise<void>;
  /** Stops following and lending. */
  close(): void;
}

/** WebMCP cannot be used here; the text says why and what to do. */
export class WebMcpError extends Error {
  override readonly name = "WebMcpError";
}

/**
 * The page's model context: `document.modelContext`, or `navigator.modelContext` of earlier drafts.
 * @returns undefined where there is none that can list and execute tools.
 */
export function findModelContext(): ModelContextLike | undefined {
  const places: readonly unknown[] = [
    typeof document === "undefined" ? undefined : document,
    typeof navigator === "undefined" ? undefined : navigator,
  ];
  for (const place of places) {
    const found = (place as { modelContext?: unknown } | undefined)?.modelContext;
    if (isModelContext(found)) return found;
  }
  return undefined;
}

function isModelContext(value: unknown): value is ModelContextLike {
  return (
    typeof value === "object" &&
    value !== null &&
    ["getTools", "executeTool", "addEventListener"].every(
      (name) => typeof (value as Record<string, unknown>)[name] === "function",
    )
  );
}

/**
 * Lends the tools of the page's model context. Join the `server` to a port as any other.
 *
 * @throws {WebMcpError} there is no model context that can list and execute tools.
 */
export function lendWebMcp(options: WebMcpOptions): WebMcpServer {
  const {
    context = findModelContext(),
    fromOrigins,
    onProblem = () => {},
    name = "webmcp",
    ...rest
  } = options;
  if (!context) {
    throw new WebMcpError(
      "This browser has no model context that lists and executes tools: install @mcp-b/webmcp-polyfill before this call",
    );
  }
  const server = createToolServer({ ...rest, name, tools: [] });
  /** Name to definition, of the tools that are offered. */
  const offered = new Map<string, string>();
  let closed = false;
  const list = () => context.getTools(fromOrigins ? { fromOrigins: [...fromOrigins] } : {});

  const update = async (): Promise<void> => {
    const tools = await list();
    if (closed) return;
    const wanted = new Map(tools.map((tool) => [tool.name, tool]));
    for (const [known, definition] of offered) {
      const now = wanted.get(known);
      if (now && definitionOf(now) === definition) continue;
      offered.delete(known);
      server.remove(known);
    }
    for (const [toolName, tool] of wanted) {
      if (offered.has(toolName)) continue;
      try {
        server.add(toTool(tool, context, list));
        offered.set(toolName, definitionOf(tool));
      } catch (error) {
        onProblem(`the tool '${toolName}' cannot be lent: ${messageOf(error)}`);
      }
    }
  };

  // One update at a time, and one more for whatever changed meanwhile.
  let running: Promise<void> | undefined;
  let again = false;
  const sync = (): Promise<void> => {
    if (running) {
      again = true;
      return running;
    }
    running = (async () => {
      do {
        again = false;
        await update().catch((error) => onProblem(`the page's tools cannot be listed: ${messageOf(error)}`));
      } while (again && !closed);
      running = undefined;
    })();
    return running;
  };
  const onToolChange = () => void sync();
  context.addEventListener("toolchange", onToolChange);
  return {
    server,
    ready: sync(),
    close() {
      closed = true;
      context.removeEventListener("toolchange", onToolChange);
      server.leave();
    },
  };
}

function definitionOf({
  name,
  title,
  description,
  inputSchema,
  origin,
  annotations,
}: ModelContextTool): string {
  return JSON.stringify([name, title, description, inputSchema, origin, annotations]);
}

function toTool(
  tool: ModelContextTool,
  context: ModelContextLike,
  list: () => Promise<ModelContextTool[]>,
): Tool {
  const definition = definitionOf(tool);
  const { name, title, description, origin, annotations } = tool;
  return {
    name,
    ...(title ? { title } : {}),
    description,
    input: inputSchemaOf(tool),
    ...(origin ? { origin } : {}),
    ...(annotations?.readOnlyHint === undefined
      ? {}
      : { annotations: { readOnlyHint: annotations.readOnlyHint } }),
    async run(args: unknown, { signal }: ToolContext) {
      // The browser wants the entry of its own list; and what runs must be what was asked about.
      const now = (await list()).find((entry) => entry.name === name && entry.origin === origin);
      if (!now || definitionOf(now) !== definition)
        throw new Error(`The tool ${name} is gone, or was replaced.`);
      const text = await execute(context, now, args ?? {}, signal);
      if (text === null) return "";
      try {
        return JSON.parse(text) as unknown;
      } catch {
        return text;
      }
    },
  };
}

/** Contexts that take input as an object. */
const takesObjects = new WeakSet<ModelContextLike>();

/**
 * Runs a tool in the form that this context takes. The wrong form is refused with a `TypeError` before anything runs; what a
 * tool throws itself comes as a `DOMException`, so no tool runs twice.
 */
async function execute(
  context: ModelContextLike,
  tool: ModelContextTool,
  args: object,
  signal: AbortSignal,
): Promise<string | null> {
  if (!takesObjects.has(context)) {
    try {
      return await context.executeTool(tool as never, JSON.stringify(args), { signal });
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
    }
  }
  const result = await context.executeTool(tool as never, args, { signal });
  takesObjects.add(context);
  return result;
}

function inputSchemaOf({ inputSchema }: ModelContextTool): JsonSchema {
  if (inputSchema === undefined || inputSchema === "") return { type: "object", properties: {} };
  const schema: unknown = typeof inputSchema === "string" ? JSON.parse(inputSchema) : inputSchema;
  if (!isObject(schema)) throw new WebMcpError("its input schema is no object");
  return schema as JsonSchema;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
