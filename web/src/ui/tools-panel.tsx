/** The tools that the agent may call: those of the sandbox, and what the person lends of this page beside them. */

import type { VNode } from "preact";
import type { SandboxTool } from "sandport";
import { formatJson } from "../lib/json-format.ts";
import { plain, plainLine } from "../lib/plain.ts";
import { useApp } from "../model/context.ts";
import { grants } from "../model/grants.ts";
import { LENT_IDS, type LentId, lentServers } from "../model/lent.ts";
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

/** What a tool's entry shows, wherever the tool runs. */
interface ShownTool extends Pick<SandboxTool, "name" | "description" | "inputSchema" | "outputSchema"> {
  readonly readOnly: boolean;
  readonly origin?: string;
}

function Tool({ tool }: { tool: ShownTool }): VNode {
  const description = plain(tool.description ?? "");
  const rest = description.slice(firstLine(description).length).trim();
  const { readOnly, origin } = tool;
  const list = parameters(tool.inputSchema);
  return (
    <details class="tool-entry">
      <summary>
        <span class="tool-name">{plainLine(tool.name)}</span>
        {readOnly ? <span class="tag">reads only</span> : null}
        <Icon name="chevron" class="chevron" />
        <span class="tool-summary">{firstLine(description)}</span>
      </summary>
      <div class="tool-entry-body">
        {origin ? (
          <p class="muted">
            Registered by <bdi>{plainLine(origin)}</bdi>
          </p>
        ) : null}
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

const LENT: Record<LentId, { readonly title: string; readonly about: string; readonly none: string }> = {
  page: {
    title: "This page's own tools",
    about: "Your time zone, your clipboard, a download, a notification. They run outside the sandbox.",
    none: "",
  },
  webmcp: {
    title: "Tools of scripts in this page (WebMCP)",
    about:
      "What browser extensions and scripts register with this page. They run outside the sandbox and can do what this page can do.",
    none: "Nothing is registered yet. Tools appear here as they come.",
  },
};

function Lent({ id }: { id: LentId }): VNode {
  const app = useApp();
  const { on, phase, tools, problem, unknownToAgent } = lentServers.value[id];
  const { title, about, none } = LENT[id];
  const allowed = grants.value.filter(({ server }) => server === id);
  const ready = store.agent.value.phase === "ready" && store.agent.value.takesTools;
  return (
    <section class="tool-group lent" aria-labelledby={`lent-${id}`} aria-busy={phase === "starting"}>
      <div class="lent-head">
        <h3 id={`lent-${id}`}>
          {title} {on ? <span class="muted">{tools.length}</span> : null}
        </h3>
        <input
          type="checkbox"
          role="switch"
          class="switch"
          checked={on}
          aria-checked={on}
          aria-labelledby={`lent-${id}`}
          aria-describedby={`about-${id}`}
          data-testid={`lend-${id}`}
          onChange={(event) => void app.setLent(id, event.currentTarget.checked)}
        />
      </div>
      <p class="muted small-text" id={`about-${id}`}>
        {about} Each call asks you first.
      </p>
      {phase === "starting" ? (
        <p class="waiting">
          <span class="spinner" aria-hidden="true" /> Loading
        </p>
      ) : null}
      {problem ? (
        <p class="notice warning pre-line" role="alert">
          {plain(problem)}
        </p>
      ) : null}
      {on && unknownToAgent && ready ? (
        <p class="notice">
          {store.working.value
            ? "The agent is told of these tools when it has finished."
            : "This agent learns of these tools in its next conversation."}{" "}
          {store.working.value ? null : (
            <button type="button" class="link" onClick={() => app.newConversation()}>
              Start a new conversation
            </button>
          )}
        </p>
      ) : null}
      {phase === "on" && tools.length === 0 ? <p class="muted small-text">{none}</p> : null}
      {phase === "on"
        ? tools.map((tool) => <Tool key={`${tool.name} ${tool.origin ?? ""}`} tool={tool} />)
        : null}
      {allowed.length > 0 ? (
        <ul class="grants" aria-label="Allowed without a question">
          {allowed.map(({ tool, scope }) => (
            <li key={tool}>
              <span>
                <code>{plainLine(tool)}</code>{" "}
                {scope === "always" ? "is always allowed" : "is allowed in this conversation"}
              </span>
              <button
                type="button"
                class="small"
                aria-label={`Ask again before ${plainLine(tool)}`}
                onClick={() => app.revoke(id, tool)}
              >
                Ask again
              </button>
            </li>
          ))}
        </ul>
      ) : null}
    </section>
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
        <p>
          What the agent may call. Those of the sandbox see nothing of this page, your files or the network.
        </p>
      </header>
      {sandbox.phase === "booting" ? <SandboxStatusLine /> : null}
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
            <Tool
              key={tool.name}
              tool={{ ...tool, readOnly: record(tool.annotations)["readOnlyHint"] === true }}
            />
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
      {LENT_IDS.map((id) => (
        <Lent key={id} id={id} />
      ))}
    </>
  );
}
