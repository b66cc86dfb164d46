/**
 * What a JavaScript tool is: a name, a description, a schema and a function.
 *
 * Invariant: a function gets only arguments that its schema accepted. Schemas come as JSON Schema, or as any Standard
 * Schema that can say its JSON Schema (zod 4.2 and newer, valibot through `@valibot/to-json-schema`, ArkType).
 */

import {
  type CallToolResult,
  fromJsonSchema,
  type StandardSchemaWithJSON,
} from "@modelcontextprotocol/server";
import { isObject } from "../json-text.ts";
import { LocalError } from "../wire.ts";

/** A JSON Schema, draft 2020-12, whose instances are objects. */
export type JsonSchema = { readonly type?: "object"; readonly [keyword: string]: unknown };

/** A schema of any library that implements Standard Schema and its JSON Schema part. */
export type AnySchema = StandardSchemaWithJSON;

/** Hints about a tool, as MCP defines them. Claims, no promises. */
export interface ToolHints {
  readonly readOnlyHint?: boolean;
  readonly destructiveHint?: boolean;
  readonly idempotentHint?: boolean;
  readonly openWorldHint?: boolean;
}

/** What a running tool can see and do beside its arguments. */
export interface ToolContext {
  /** Aborted when the agent cancels, the time limit is over or the channel ends. */
  readonly signal: AbortSignal;
  /** Reports progress; does nothing where the agent did not ask for it. */
  progress(done: number, total?: number, message?: string): void;
  /** The agent's session and tool call, where its dialect says them (`stateless+`). Hints: never decide by them. */
  readonly sessionId?: string;
  readonly toolCallId?: string;
}

/**
 * What a tool returns: a text, any JSON value (sent as JSON text, and as structured content when it is an object), or
 * a whole MCP result `{content: [...]}`. Nothing is sent as an empty text.
 */
export type ToolValue = unknown;

/** A tool. Make it with {@link defineTool}, which infers the type of `args`. */
export interface Tool {
  /** Unique within its server. */
  readonly name: string;
  readonly title?: string;
  /** What the agent reads to decide when to use it. */
  readonly description: string;
  /** Without one the tool takes no arguments. */
  readonly input?: AnySchema | JsonSchema;
  /** What it returns; checked before it is sent. */
  readonly output?: AnySchema | JsonSchema;
  readonly annotations?: ToolHints;
  /** Where it comes from, when that is not the page's own code. */
  readonly origin?: string;
  /** Seconds it may run, in place of the server's limit; null for none. */
  readonly timeLimit?: number | null;
  run(args: never, context: ToolContext): ToolValue | Promise<ToolValue>;
}

type Definition<Args> = Omit<Tool, "input" | "run"> & {
  run(args: Args, context: ToolContext): ToolValue | Promise<ToolValue>;
};

/**
 * Defines a tool whose arguments have the type that their schema says.
 *
 * ```ts
 * defineTool({
 *   name: "greet",
 *   description: "Greets somebody.",
 *   input: z.object({ name: z.string() }),
 *   run: ({ name }) => `Hello, ${name}!`,
 * });
 * ```
 */
export function defineTool<Schema extends AnySchema>(
  tool: Definition<StandardSchemaWithJSON.InferOutput<Schema>> & { readonly input: Schema },
): Tool;
export function defineTool(tool: Definition<Record<string, unknown>> & { readonly input?: JsonSchema }): Tool;
export function defineTool(tool: Tool): Tool {
  return tool;
}

const NO_ARGUMENTS: JsonSchema = { type: "object", properties: {} };

/**
 * A schema in the form that the MCP SDK takes.
 * @throws {LocalError} a Standard Schema that cannot say its JSON Schema (the text says what to wrap it in), or a schema
 *   whose instances are no objects.
 */
export function schemaOf(tool: string, schema: AnySchema | JsonSchema = NO_ARGUMENTS): AnySchema {
  if (!("~standard" in schema)) {
    if (schema.type !== undefined && schema.type !== "object") {
      throw new LocalError(
        `the input of the tool '${tool}' is of type ${schema.type}: MCP passes objects only`,
      );
    }
    return fromJsonSchema({ type: "object", ...schema });
  }
  const standard: unknown = schema["~standard"];
  if (isObject(standard) && isObject(standard["jsonSchema"])) return schema as AnySchema;
  const vendor = isObject(standard) ? String(standard["vendor"]) : "unknown";
  const remedy =
    vendor === "valibot"
      ? "wrap it: toStandardJsonSchema(schema) of @valibot/to-json-schema"
      : "use a release that implements Standard JSON Schema (zod 4.2 or newer), or give JSON Schema";
  throw new LocalError(`the schema of the tool '${tool}' (${vendor}) cannot say its JSON Schema: ${remedy}`);
}

/** The JSON Schema of a tool's arguments, for display and for telling definitions apart. */
export function jsonSchemaOf(schema: AnySchema): Record<string, unknown> {
  return schema["~standard"].jsonSchema.input({ target: "draft-2020-12" });
}

function isContent(value: unknown): value is CallToolResult {
  return (
    isObject(value) &&
    Array.isArray(value["content"]) &&
    value["content"].every((part) => isObject(part) && typeof part["type"] === "string")
  );
}

/** A tool's value as an MCP result; see {@link ToolValue}. */
export function resultOf(value: ToolValue): CallToolResult {
  if (isContent(value)) return value;
  if (typeof value === "string") return { content: [{ type: "text", text: value }] };
  // `undefined` and functions have no JSON.
  const text = JSON.stringify(value) ?? "";
  const result: CallToolResult = { content: [{ type: "text", text }] };
  if (isObject(value)) result.structuredContent = JSON.parse(text) as Record<string, unknown>;
  return result;
}
