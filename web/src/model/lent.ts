/**
 * Servers that run in this page, outside the sandbox: its own tools, and what is registered with the browser's model
 * context (WebMCP).
 *
 * Invariants: nothing is lent that the person did not switch on, and off is off at once, also in a session that runs. Each
 * call asks. Nothing of it is fetched before it is switched on.
 */

import { signal } from "@preact/signals";
import type { Port, ServerDeclaration } from "sandport";
import type { OfferedTool, ToolServer } from "sandport/tools";
import { askForTool } from "./questions.ts";

export type LentId = "page" | "webmcp";

/** A server as the tools panel shows it. */
export interface LentServer {
  readonly on: boolean;
  readonly phase: "off" | "starting" | "on" | "failed";
  readonly tools: readonly OfferedTool[];
  /** Why it cannot be lent, or what of it cannot. */
  readonly problem: string | undefined;
  /** The agent's session was opened before it was switched on. */
  readonly unknownToAgent: boolean;
}

const KEY = "sandport.lent";
export const LENT_IDS: readonly LentId[] = ["page", "webmcp"];
const OFF: LentServer = { on: false, phase: "off", tools: [], problem: undefined, unknownToAgent: false };

export const lentServers = signal<Readonly<Record<LentId, LentServer>>>({ page: OFF, webmcp: OFF });

function change(id: LentId, what: Partial<LentServer>): void {
  lentServers.value = { ...lentServers.value, [id]: { ...lentServers.value[id], ...what } };
}

function kept(): readonly LentId[] {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    return LENT_IDS.filter((id) => Array.isArray(value) && value.includes(id));
  } catch {
    return [];
  }
}

function keep(): void {
  try {
    localStorage.setItem(KEY, JSON.stringify(LENT_IDS.filter((id) => lentServers.value[id].on)));
  } catch {
    // A browser that keeps nothing: the switches last as long as the page.
  }
}

/** The page's own servers, switched one by one, and lent to one port at a time. */
export class LentServers {
  readonly #servers = new Map<LentId, Promise<ToolServer | undefined>>();
  /** Those that the session of the port was told of. */
  #declared = new Set<LentId>();

  /** Switches on what the person had switched on. */
  restore(): void {
    for (const id of kept()) void this.set(id, true);
  }

  /** Switches a server; settles when its tools are there. What came of it is in {@link lentServers}. */
  async set(id: LentId, on: boolean): Promise<void> {
    change(id, { on, phase: on ? "starting" : "off", problem: undefined, unknownToAgent: false });
    keep();
    const server = await (on ? this.#server(id) : this.#servers.get(id));
    // It may have been switched again meanwhile.
    if (!server || lentServers.value[id].on !== on) return;
    server.setLending(on);
    change(id, {
      phase: on ? "on" : "off",
      tools: server.tools(),
      unknownToAgent: on && !this.#declared.has(id),
    });
  }

  /** Whether the session of the port has all servers that are on. */
  get allDeclared(): boolean {
    return LENT_IDS.every((id) => !lentServers.value[id].on || this.#declared.has(id));
  }

  /** Lends what is on to the agent behind `port`, under fresh ids. */
  async join(port: Port): Promise<ServerDeclaration[]> {
    this.#declared = new Set();
    const declared: ServerDeclaration[] = [];
    for (const id of LENT_IDS) {
      if (!lentServers.value[id].on) continue;
      const server = await this.#server(id);
      if (!server) continue;
      await server.join(port, id);
      declared.push(...(await server.declare()));
      this.#declared.add(id);
    }
    for (const id of LENT_IDS) {
      change(id, { unknownToAgent: lentServers.value[id].on && !this.#declared.has(id) });
    }
    return declared;
  }

  /** The port's connection ended; the servers have left it themselves. */
  leave(): void {
    this.#declared = new Set();
  }

  #server(id: LentId): Promise<ToolServer | undefined> {
    const known = this.#servers.get(id);
    if (known) return known;
    const made = (id === "page" ? makePage() : makeWebMcp()).then(
      (server) => {
        server.onChange(() => change(id, { tools: server.tools() }));
        return server;
      },
      (error: unknown) => {
        this.#servers.delete(id);
        change(id, { phase: "failed", problem: error instanceof Error ? error.message : String(error) });
        return undefined;
      },
    );
    this.#servers.set(id, made);
    return made;
  }
}

async function makePage(): Promise<ToolServer> {
  const [{ createToolServer }, { PAGE_TOOLS }] = await Promise.all([
    import("sandport/tools"),
    import("./page-tools.ts"),
  ]);
  return createToolServer({
    name: "page",
    version: "1",
    instructions: "Tools of the person's page. Each call asks the person first, who may say no.",
    tools: PAGE_TOOLS,
    ask: (question) => askForTool(question, { mayKeep: true }),
  });
}

async function makeWebMcp(): Promise<ToolServer> {
  const { findModelContext, lendWebMcp } = await import("sandport/tools");
  if (!findModelContext()) {
    // Scripts and extensions find it where the browser's own would be.
    const { initializeWebMCPPolyfill } = await import("@mcp-b/webmcp-polyfill");
    initializeWebMCPPolyfill();
  }
  const problems = new Map<string, string>();
  const { server, ready } = lendWebMcp({
    instructions: "Tools that scripts in the person's page registered. Each call asks the person first.",
    // Their code cannot be seen and can change under the same words: nothing is allowed beyond a conversation.
    ask: (question) => askForTool(question, { mayKeep: false }),
    onProblem: (message) => {
      problems.set(message, message);
      change("webmcp", { problem: [...problems.values()].slice(-5).join("\n") });
    },
  });
  await ready;
  return server;
}
