/**
 * `sandport lend`: between an editor and its agent, both on standard streams, with the person's Python tools for the agent.
 *
 * Invariants: what editor and agent say to each other passes as it is, but for the servers that are added to a session. A tool
 * that is not marked as read-only runs when the person at the editor allowed this call, or all were allowed beforehand.
 */

import process from "node:process";
import { BaseChannel, type TextChannel, type Utf8 } from "../channel.ts";
import { isObject, type JsonObject, member } from "../json-text.ts";
import { lend } from "../lend.ts";
import { ConsentError, type ToolAnswer, type ToolQuestion } from "../tools/consent.ts";
import { LANE_METHODS, readLane } from "../wire.ts";
import { openAgent } from "./address.ts";
import { type ChatOptions, loadTools } from "./chat.ts";
import { isolationNotice } from "./host.ts";
import { createHostSandbox } from "./sandbox.ts";
import { Ending, leaving, serveStreams } from "./streams.ts";
import { printable } from "./terminal.ts";

/** Wishes of who starts the program. */
export type LendStreamsOptions = Omit<ChatOptions, "prompt">;

/** Serves until the editor or the agent ends. Returns the exit status. */
export async function lendOnStreams(options: LendStreamsOptions): Promise<number> {
  const { address, bundle, imageCache, timeLimit, tools, trusted, verbose, workspace, yes } = options;
  const over = new Ending();
  const say = (text: string): void =>
    void process.stderr.write(`sandport lend: ${printable(text.trimEnd())}\n`);
  const crossing = new Crossing();
  const sandbox = createHostSandbox({
    trusted,
    ...(bundle === undefined ? {} : { bundle }),
    ...(imageCache === undefined ? {} : { imageCache }),
    ...(timeLimit === undefined ? {} : { timeLimit }),
    ...(yes ? {} : { ask: (question: ToolQuestion) => crossing.ask(question) }),
    onImage: say,
    on: {
      progress: ({ stage, detail }) => {
        if (stage === "runtime" && detail) say(detail);
      },
      log: ({ text }) => {
        if (verbose) say(text);
      },
      crashed: ({ reason }) => say(`the sandbox died: ${reason}`),
    },
  });
  say(isolationNotice(sandbox.isolation));
  let channel: TextChannel | undefined;
  try {
    channel = await openAgent(address, (text) => void process.stderr.write(text));
    const { lane, port } = lend(crossing.fromAgent(channel), [sandbox], { onProblem: say });
    void port.closed.then(({ code, reason }) => {
      if (!over.done && code !== 1000) say(reason);
      over.end(code === 1000 ? 0 : 1);
    });
    await sandbox.ready;
    if (workspace !== undefined) await sandbox.mountFolder(workspace);
    for (const file of tools) await loadTools(sandbox, file);
    serveStreams(crossing.toEditor(lane), over, say);
  } catch (error) {
    say(error instanceof Error ? error.message : String(error));
    over.end(1);
  }
  const status = await over.ended;
  sandbox.terminate();
  channel?.close();
  await leaving(Promise.resolve());
  return status;
}

const PREFIX = "sandport-ask-";
const OPTIONS = [
  { optionId: "once", name: "Allow", kind: "allow_once" },
  { optionId: "always", name: "Always allow this tool", kind: "allow_always" },
  { optionId: "deny", name: "Do not run it", kind: "reject_once" },
] as const;

const SESSION_METHODS = /^session\/(new|load|resume|fork)$/;

/**
 * Between the port and the editor. Puts questions of the sandbox to the editor, as the agent would, in the session whose turn
 * runs; and lets the agent reach servers that the editor itself lends, of which the port knows nothing.
 */
class Crossing {
  readonly #open = new Map<string, (answer: unknown) => void>();
  /** Sessions by the ids of their running prompts. */
  readonly #prompts = new Map<unknown, string>();
  /** Ids of the editor's own servers, and of the connections to them. */
  readonly #servers = new Set<unknown>();
  readonly #connections = new Set<unknown>();
  /** Ids of the agent's requests for such connections. */
  readonly #connecting = new Set<unknown>();
  #editor: Tap | undefined;
  #last = 0;

  /** The agent's channel, for the port: without what is the editor's own. */
  fromAgent(channel: TextChannel): TextChannel {
    return new Tap(channel, {
      out: (text) => {
        const message = parse(text);
        const foreign = message !== undefined && this.#isForeign(message);
        if (foreign) this.#editor?.put(text);
        return !foreign;
      },
      in: () => true,
    });
  }

  /** The client's lane, for the editor. */
  toEditor(lane: TextChannel): TextChannel {
    this.#editor = new Tap(lane, {
      out: (text) => {
        const message = parse(text);
        if (message && !Object.hasOwn(message, "method")) this.#prompts.delete(member(message, "id"));
        return true;
      },
      in: (text) => {
        const message = parse(text);
        return !message || !this.#took(message);
      },
    });
    return this.#editor;
  }

  async ask({ tool, server, arguments: args, readOnly, signal }: ToolQuestion): Promise<ToolAnswer> {
    if (readOnly) return "once";
    const sessionId = [...this.#prompts.values()].at(-1);
    const editor = this.#editor;
    if (!editor || sessionId === undefined) {
      throw new ConsentError(
        `The tool ${tool} did not run: there is no turn in which to ask whether it may.`,
      );
    }
    this.#last += 1;
    const id = `${PREFIX}${this.#last}`;
    const send = (message: object): void => editor.put(JSON.stringify({ jsonrpc: "2.0", ...message }));
    const toolCall = { toolCallId: id, title: `${server}/${tool}`, status: "pending", rawInput: args };
    return new Promise((resolve) => {
      this.#open.set(id, (answer) => {
        const chosen = member(member(member(answer, "result"), "outcome"), "optionId");
        resolve(OPTIONS.find(({ optionId }) => optionId === chosen)?.optionId ?? "deny");
      });
      signal.addEventListener("abort", () => {
        if (this.#open.delete(id)) send({ method: "$/cancel_request", params: { requestId: id } });
        resolve("deny");
      });
      send({
        id,
        method: "session/request_permission",
        params: { sessionId, toolCall, options: OPTIONS },
      });
    });
  }

  /** Looks at a message of the editor. Returns whether it was an answer to a question of ours. */
  #took(message: JsonObject): boolean {
    const [id, method, params] = ["id", "method", "params"].map((name) => member(message, name));
    if (typeof method === "string") {
      const sessionId = member(params, "sessionId");
      if (method === "session/prompt" && typeof sessionId === "string") this.#prompts.set(id, sessionId);
      if (SESSION_METHODS.test(method)) this.#learn(member(params, "mcpServers"));
      return false;
    }
    if (this.#connecting.delete(id)) {
      const result = member(message, "result");
      for (const name of ["connectionId", "connection_id"]) this.#connections.add(member(result, name));
    }
    const answer = typeof id === "string" ? this.#open.get(id) : undefined;
    answer?.(message);
    return typeof id === "string" && (this.#open.delete(id) || id.startsWith(PREFIX));
  }

  #learn(servers: unknown): void {
    for (const server of Array.isArray(servers) ? servers : []) {
      for (const name of ["serverId", "id", "acpId"]) {
        const id = member(server, name);
        if (typeof id === "string") this.#servers.add(id);
      }
      const url = member(server, "url");
      if (typeof url === "string" && url.startsWith("acp:")) this.#servers.add(url.slice("acp:".length));
    }
  }

  #isForeign(message: JsonObject): boolean {
    const method = member(message, "method");
    if (typeof method !== "string" || !LANE_METHODS.has(method)) return false;
    try {
      const event = readLane(method, member(message, "params"), (id) => this.#connections.has(id));
      if (event.kind === "message") return this.#connections.has(event.connectionId);
      if (event.kind === "close") return this.#connections.delete(event.connectionId);
      const foreign = this.#servers.has(event.serverId);
      if (foreign && event.kind === "open") this.#connecting.add(member(message, "id"));
      return foreign;
    } catch {
      // The port says what is wrong with it.
      return false;
    }
  }
}

interface Watcher {
  /** A text that leaves the channel for its reader; whether it goes on. */
  out(text: string): boolean;
  /** A text of the reader for the channel; whether it goes on. */
  in(text: string): boolean;
}

/** A channel with somebody in between. */
class Tap extends BaseChannel {
  readonly #channel: TextChannel;
  readonly #watcher: Watcher;

  constructor(channel: TextChannel, watcher: Watcher) {
    super();
    this.#channel = channel;
    this.#watcher = watcher;
    channel.listen({
      text: (text, utf8) => {
        if (watcher.out(text)) this.deliver(text, utf8);
      },
      close: (info) => this.ended(info),
    });
  }

  /** A text of somebody else for the reader. */
  put(text: string): void {
    this.deliver(text);
  }

  protected override transmit(text: string, utf8?: Utf8): void {
    if (this.#watcher.in(text)) this.#channel.send(text, utf8);
  }

  protected override shut(code: number, reason: string): void {
    this.#channel.close(code, reason);
  }
}

function parse(text: string): JsonObject | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : undefined;
  } catch {
    // Whoever it is for says what is wrong with it.
    return undefined;
  }
}
