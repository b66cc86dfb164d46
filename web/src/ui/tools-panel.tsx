/** The tools that the sandbox offers, with their schemas. */

import type { VNode } from "preact";
import type { SandboxTool } from "sandport";
import { formatJson } from "../lib/json-format.ts";
import { useApp } from "../model/context.ts";
import * as store from "../model/store.ts";
import { CodeBlock } from "./code-block.tsx";
import { Icon } from "./icons.tsx";
import { ProblemCard } from "./problem.tsx";
import { SandboxStatusLine } from "./status.tsx";

interface Parameter {
  readonly name: string;
  readonly type: string;
  readonly required: boolean;
  readonly description: string;
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function typeName(schema: Record<string, unknown>): string {
  const union = schema["anyOf"] ?? schema["oneOf"];
  if (Array.isArray(union)) return union.map((one) => typeName(record(one))).join(" or ");
  const type = schema["type"];
  if (type === "array") return `list of ${typeName(record(schema["items"]))}`;
  return Array.isArray(type) ? type.join(" or ") : typeof type === "string" ? type : "any";
}

function parameters(schema: unknown): Parameter[] {
  const required = record(schema)["required"];
  return Object.entries(record(record(schema)["properties"])).map(([name, value]) => {
    const one = record(value);
    const fallback = "default" in one ? `Default ${JSON.stringify(one["default"])}.` : "";
    const text = typeof one["description"] === "string" ? one["description"] : "";
    return {
      name,
      type: typeName(one),
      required: Array.isArray(required) && required.includes(name),
      description: [text, fallback].filter(Boolean).join(" "),
    };
  });
}

function firstLine(text: string): string {
  return text.split("\n", 1)[0] ?? "";
}

function Tool({ tool }: { tool: SandboxTool }): VNode {
  const description = tool.description ?? "";
  const rest = description.slice(firstLine(description).length).trim();
  const readOnly = record(tool.annotations)["readOnlyHint"] === true;
  const list = parameters(tool.inputSchema);
  return (
    <details class="tool-entry">
      <summary>
        <span class="tool-name">{tool.name}</span>
        {readOnly ? <span class="tag">reads only</span> : null}
        <Icon name="chevron" class="chevron" />
        <span class="tool-summary">{firstLine(description)}</span>
      </summary>
      <div class="tool-entry-body">
        {rest ? <p class="pre-line">{rest}</p> : null}
        {list.length > 0 ? (
          <dl class="parameters">
            {list.map((one) => (
              <div key={one.name}>
                <dt>
                  <code>{one.name}</code> <span class="muted">{one.type}</span>
                  {one.required ? <span class="tag">required</span> : null}
                </dt>
                <dd>{one.description}</dd>
              </div>
            ))}
          </dl>
        ) : (
          <p class="muted">Takes no arguments.</p>
        )}
        <details class="schema">
          <summary>
            <Icon name="chevron" class="chevron" /> Schemas as JSON
          </summary>
          <CodeBlock text={formatJson(JSON.stringify(tool.inputSchema ?? {}))} label="input schema" />
          {tool.outputSchema === undefined ? null : (
            <CodeBlock text={formatJson(JSON.stringify(tool.outputSchema))} label="output schema" />
          )}
        </details>
      </div>
    </details>
  );
}

export function ToolsPanel(): VNode {
  const app = useApp();
  const sandbox = store.sandbox.value;
  const byServer = new Map<string, SandboxTool[]>();
  for (const tool of store.tools.value)
    byServer.set(tool.server, [...(byServer.get(tool.server) ?? []), tool]);
  return (
    <>
      <header class="panel-head">
        <h2>Tools</h2>
        <p>What the agent may call. They run in the sandbox of this page.</p>
      </header>
      {sandbox.phase === "ready" ? null : <SandboxStatusLine />}
      {sandbox.phase === "failed" ? (
        <ProblemCard problem={sandbox.problem}>
          <button type="button" onClick={() => void app.restartSandbox()}>
            Restart the sandbox
          </button>
        </ProblemCard>
      ) : null}
      {sandbox.phase === "ready"
        ? sandbox.broken.map(({ name, error }) => (
            <ProblemCard
              key={name}
              problem={{
                title: `The server "${name}" could not start`,
                cause: error,
                remedy: "Its tools are missing; everything else works. Mend its module and reload the page.",
              }}
            />
          ))
        : null}
      {[...byServer].map(([server, list]) => (
        <section key={server} class="tool-group" aria-label={`Server ${server}`}>
          <h3>
            {server} <span class="muted">{list.length}</span>
          </h3>
          {list.map((tool) => (
            <Tool key={tool.name} tool={tool} />
          ))}
        </section>
      ))}
      {sandbox.phase === "ready" && store.tools.value.length > 0 && !byServer.has("user") ? (
        <p class="empty">
          Missing something?{" "}
          <button type="button" class="link" onClick={() => store.show("add")}>
            Add a tool of your own
          </button>
          .
        </p>
      ) : null}
    </>
  );
}
