/**
 * JavaScript tools as one more server on the lane, beside the Python ones.
 *
 * Invariants: the official MCP TypeScript SDK serves them; here are only its tools and the person's consent. Tools run in
 * the page, with all that the page can do, so none runs without permission ({@link Gate}). All connections see the same
 * tools at any time, and learn of changes.
 */

import {
  type CallToolResult,
  McpServer,
  type RegisteredTool,
  type ServerContext,
} from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { memoryChannelPair } from "../channel.ts";
import type { Port } from "../port.ts";
import { declaration, LocalError, type ServerDeclaration } from "../wire.ts";
import { type Ask, ConsentError, Gate } from "./consent.ts";
import { type AnySchema, jsonSchemaOf, resultOf, schemaOf, type Tool, type ToolContext } from "./define.ts";
import { type LaneLimits, ToolLane } from "./lane.ts";
import type { Pipe } from "./pipe.ts";

/** Seconds a tool may run, when neither it nor its server says otherwise. The time of the question does not count. */
export const TOOL_TIME_LIMIT = 30;

/** Settings of {@link createToolServer}. */
export interface ToolServerOptions {
  /** What the agent knows the server by; unique among the servers of a session. */
  readonly name: string;
  readonly version?: string;
  /** What the agent should know about the tools as a whole. */
  readonly instructions?: string;
  readonly tools?: readonly Tool[];
  /** Asks the person before each call; `allowAll` where no question is needed. */
  readonly ask: Ask;
  /** Seconds for one call; null for none. Default {@link TOOL_TIME_LIMIT}. */
  readonly timeLimit?: number | null;
  /** Seconds that a question waits for its answer; null for ever. Default {@link QUESTION_LIMIT}. */
  readonly questionLimit?: number | null;
  /** Whether tools are lent from the start; see {@link ToolServer.setLending}. Default true. */
  readonly lending?: boolean;
  readonly limits?: Partial<LaneLimits>;
}

/** A tool as it is offered, for the page's own display. */
export interface OfferedTool {
  readonly server: string;
  readonly name: string;
  readonly title?: string;
  readonly description: string;
  readonly inputSchema: Record<string, unknown>;
  readonly origin?: string;
  readonly readOnly: boolean;
}

interface Entry {
  readonly tool: Tool;
  readonly input: AnySchema;
  readonly output: AnySchema | undefined;
  /** All that identifies the tool. */
  readonly definition: string;
  readonly offered: OfferedTool;
}

/**
 * Makes a server of JavaScript tools.
 *
 * ```ts
 * const server = createToolServer({ name: "page", tools: [defineTool({ … })], ask: askThePerson });
 * await server.join(port);
 * const mcpServers = await server.declare();   // for session/new
 * ```
 *
 * @throws {LocalError} a tool cannot be offered; the text names it and the reason.
 */
export function createToolServer(options: ToolServerOptions): ToolServer {
  return new ToolServer(options);
}

/** See {@link createToolServer}. It joins a port as a sandbox does. */
export class ToolServer {
  readonly name: string;
  readonly #options: ToolServerOptions;
  readonly #gate: Gate;
  readonly #entries = new Map<string, Entry>();
  readonly #live = new Map<McpServer, Map<string, RegisteredTool>>();
  readonly #listeners = new Set<() => void>();
  readonly #ids = new Set<string>();
  #joined: { readonly port: Port; readonly key: string; readonly lane: ToolLane } | undefined;
  #generation = 0;
  /** Aborted when lending is switched off. */
  #lent: AbortController | undefined;

  /** @internal use {@link createToolServer} */
  constructor(options: ToolServerOptions) {
    if (typeof options.ask !== "function") {
      throw new LocalError(
        "createToolServer needs `ask`: tools in the page ask for permission; pass `allowAll` for none",
      );
    }
    this.name = options.name;
    this.#options = options;
    this.#gate = new Gate(options.ask, options.questionLimit);
    if (options.lending !== false) this.#lent = new AbortController();
    for (const tool of options.tools ?? []) this.#admit(tool);
  }

  // -- tools --------------------------------------------------------------------------------------------------

  /**
   * Offers one more tool, at once and to everybody connected.
   * @throws {LocalError} the name is taken, or the schema cannot be used.
   */
  add(tool: Tool): void {
    const entry = this.#admit(tool);
    if (this.#lent) this.#offer(entry);
    this.#changed();
  }

  /** Stops offering a tool; a call that runs goes on. Returns whether there was one. */
  remove(name: string): boolean {
    if (!this.#entries.delete(name)) return false;
    this.#takeBack(name);
    this.#changed();
    return true;
  }

  /**
   * Switches all tools on or off, at once and for everybody connected. While it is off agents see a server without
   * tools: no call starts, and open questions are taken back. A call that runs already goes on.
   */
  setLending(on: boolean): void {
    if (on === this.lending) return;
    if (on) {
      this.#lent = new AbortController();
      for (const entry of this.#entries.values()) this.#offer(entry);
    } else {
      const over = new ConsentError(`The person at the page switched the tools of ${this.name} off.`);
      this.#lent?.abort(over);
      this.#lent = undefined;
      for (const name of this.#entries.keys()) this.#takeBack(name);
    }
    this.#changed();
  }

  /** Whether agents see the tools. */
  get lending(): boolean {
    return this.#lent !== undefined;
  }

  /** The tools, whether they are lent at the moment or not. */
  tools(): OfferedTool[] {
    return [...this.#entries.values()].map(({ offered }) => offered);
  }

  /** Calls `listener` after each change of the tools. The function that it returns ends that. */
  onChange(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Takes back permissions that were given for good: of one tool, or of all. */
  revoke(tool?: string): void {
    this.#gate.revoke(tool);
  }

  // -- the lane -----------------------------------------------------------------------------------------------

  /**
   * Lends the server to the agent behind a port, in place of an earlier port.
   * @param key the port's name for it; unique on the port.
   * @throws {LocalError} the key is taken.
   */
  async join(port: Port, key: string = this.name): Promise<void> {
    this.leave();
    const [ours, theirs] = memoryChannelPair();
    this.#generation += 1;
    const prefix = `js:${key}.${this.#generation}.`;
    port.attach(key, theirs, prefix);
    const lane = new ToolLane(ours, prefix, (pipe) => this.#serve(pipe), this.#options.limits);
    const joined = { port, key, lane };
    this.#joined = joined;
    void port.closed.then(() => {
      if (this.#joined === joined) this.leave();
    });
  }

  /** Stops lending: what is open is answered with an error, and the declared ids are gone. */
  leave(): void {
    const joined = this.#joined;
    this.#joined = undefined;
    this.#ids.clear();
    if (!joined) return;
    joined.port.detach(joined.key, `The server ${this.name} is gone`);
    joined.lane.close();
  }

  /**
   * Gives the server a fresh id for a session.
   * @returns its entries for `mcpServers` of `session/new`: one.
   * @throws {LocalError} no port was joined.
   */
  async declare(): Promise<ServerDeclaration[]> {
    const joined = this.#joined;
    if (!joined) throw new LocalError(`the server '${this.name}' has joined no port: call join first`);
    const id = crypto.randomUUID();
    joined.lane.declare(id);
    joined.port.declare(joined.key, id);
    this.#ids.add(id);
    return [declaration(this.name, id)];
  }

  /** Takes ids back that `declare` gave, when their session ends. Ids of others are left alone. */
  async withdraw(ids: readonly string[]): Promise<void> {
    for (const id of ids) {
      if (!this.#ids.delete(id)) continue;
      this.#joined?.port.withdraw(id);
      this.#joined?.lane.withdraw(id);
    }
  }

  // -- serving ------------------------------------------------------------------------------------------------

  #serve(pipe: Pipe): void {
    const { name, version = "0", instructions } = this.#options;
    let made: McpServer | undefined;
    serveStdio(
      () => {
        const server = new McpServer(
          { name, version },
          { capabilities: { tools: { listChanged: true } }, ...(instructions ? { instructions } : {}) },
        );
        made = server;
        hints.set(server, pipe);
        // The SDK answers tools/list only once there was a tool, and takes no handlers after it is connected.
        server.registerTool("none", { description: "" }, () => ({ content: [] })).remove();
        const tools = new Map<string, RegisteredTool>();
        if (this.#lent) {
          for (const entry of this.#entries.values())
            tools.set(entry.tool.name, this.#register(server, entry));
        }
        this.#live.set(server, tools);
        return server;
      },
      { transport: pipe },
    );
    pipe.onEnd(() => {
      if (made) this.#live.delete(made);
    });
  }

  #offer(entry: Entry): void {
    for (const [server, tools] of this.#live) tools.set(entry.tool.name, this.#register(server, entry));
  }

  #takeBack(name: string): void {
    for (const tools of this.#live.values()) {
      tools.get(name)?.remove();
      tools.delete(name);
    }
  }

  #admit(tool: Tool): Entry {
    if (!/^[\w.\-/]{1,128}$/.test(tool.name)) {
      throw new LocalError(`'${tool.name}' is no tool name: 1 to 128 letters, digits and _ - . /`);
    }
    if (this.#entries.has(tool.name)) throw new LocalError(`there is a tool '${tool.name}' already`);
    const input = schemaOf(tool.name, tool.input);
    const output = tool.output === undefined ? undefined : schemaOf(tool.name, tool.output);
    const { name, title, description, origin, annotations } = tool;
    const inputSchema = jsonSchemaOf(input);
    const offered: OfferedTool = {
      server: this.name,
      name,
      ...(title === undefined ? {} : { title }),
      description,
      inputSchema,
      ...(origin === undefined ? {} : { origin }),
      readOnly: annotations?.readOnlyHint === true,
    };
    const definition = JSON.stringify([name, title, description, origin, annotations, inputSchema]);
    const entry: Entry = { tool, input, output, definition, offered };
    this.#entries.set(name, entry);
    return entry;
  }

  #register(server: McpServer, entry: Entry): RegisteredTool {
    const { title, description, annotations, origin, name } = entry.tool;
    return server.registerTool(
      name,
      {
        ...(title === undefined ? {} : { title }),
        description,
        inputSchema: entry.input,
        ...(entry.output === undefined ? {} : { outputSchema: entry.output }),
        ...(annotations === undefined ? {} : { annotations }),
        ...(origin === undefined ? {} : { _meta: { "sandport/origin": origin } }),
      },
      (args, context) => this.#call(entry, args, context, hints.get(server)),
    );
  }

  async #call(
    entry: Entry,
    args: unknown,
    context: ServerContext,
    pipe: Pipe | undefined,
  ): Promise<CallToolResult> {
    const { tool, definition } = entry;
    const { mcpReq } = context;
    try {
      const lent = this.#lent?.signal;
      if (!lent) throw new ConsentError(`The tools of ${this.name} are switched off.`);
      await this.#gate.pass({
        server: this.name,
        tool: tool.name,
        ...(tool.title === undefined ? {} : { title: tool.title }),
        description: tool.description,
        arguments: args,
        ...(tool.origin === undefined ? {} : { origin: tool.origin }),
        readOnly: tool.annotations?.readOnlyHint === true,
        definition,
        signal: AbortSignal.any([mcpReq.signal, lent]),
      });
      // A question may stay open for long: the tool can be gone, or another one under its name.
      if (this.#entries.get(tool.name) !== entry) throw new ConsentError(`The tool ${tool.name} is gone.`);
      return resultOf(await this.#run(tool, args, context, pipe));
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      return { content: [{ type: "text", text }], isError: true };
    }
  }

  async #run(tool: Tool, args: unknown, { mcpReq }: ServerContext, pipe: Pipe | undefined): Promise<unknown> {
    const seconds = tool.timeLimit === undefined ? this.#limit : tool.timeLimit;
    const over = new AbortController();
    const signal = AbortSignal.any([mcpReq.signal, over.signal]);
    const token = mcpReq._meta?.progressToken;
    const toolContext: ToolContext = {
      signal,
      progress: (progress, total, message) => {
        if (token === undefined || signal.aborted) return;
        const params = {
          progressToken: token,
          progress,
          ...(total === undefined ? {} : { total }),
          ...(message === undefined ? {} : { message }),
        };
        void mcpReq.notify({ method: "notifications/progress", params }).catch(() => {});
      },
      ...pipe?.hints.get(mcpReq.id),
    };
    const running = (async () => tool.run(args as never, toolContext))();
    if (seconds === null) return running;
    // What overruns cannot be stopped from here: it gets the signal, and the agent an answer.
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        const error = new Error(`The tool ${tool.name} ran longer than its time limit of ${seconds} s.`);
        reject(error);
        over.abort(error);
      }, seconds * 1000);
    });
    try {
      return await Promise.race([running, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  get #limit(): number | null {
    return this.#options.timeLimit === undefined ? TOOL_TIME_LIMIT : this.#options.timeLimit;
  }

  #changed(): void {
    for (const listener of this.#listeners) listener();
  }
}

/** Which pipe a server instance answers on. */
const hints = new WeakMap<McpServer, Pipe>();
