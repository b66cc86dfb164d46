/**
 * Sandport in front of an ACP client that knows nothing of it: the client gets a channel, the agent gets the tools.
 *
 * Invariants: servers are declared only to an agent that advertised MCP over ACP, and otherwise somebody is told. What
 * the client sends leaves as it wrote it, but for the entries that are added to `mcpServers`. Messages keep their order. Ids
 * that were declared for a session are withdrawn when the session ends or never came to be.
 */

import { memoryChannelPair, type TextChannel } from "./channel.ts";
import { findMember, isObject, type JsonObject, member, memberText } from "./json-text.ts";
import { Port, type PortOptions } from "./port.ts";
import {
  advertisesAcp,
  advertisesLegacy,
  type LegacyDeclaration,
  legacyDeclaration,
  type ServerDeclaration,
} from "./wire.ts";

/** Something that has tools to lend: a `Sandbox`, a `ToolServer`. */
export interface ToolProvider {
  join(port: Port, key: string): Promise<void>;
  /** Fresh `mcpServers` entries for one session. */
  declare(): Promise<readonly ServerDeclaration[]>;
  withdraw(ids: readonly string[]): Promise<unknown>;
}

/** Settings of {@link lend}. */
export interface LendOptions extends PortOptions {
  /**
   * Told what stands in the way of the tools: an agent that does not take them, a provider that fails. The session goes
   * on without them.
   */
  readonly onProblem?: (message: string) => void;
}

/** See {@link lend}. */
export interface Lending {
  /** For the ACP client, in place of the channel. */
  readonly lane: TextChannel;
  readonly port: Port;
  /** Whether the agent takes tools over ACP; undefined until it answered `initialize`. */
  readonly offers: boolean | undefined;
}

const SESSION_METHODS: ReadonlySet<string> = new Set([
  "session/new",
  "session/load",
  "session/resume",
  "session/fork",
]);
const END_METHODS: ReadonlySet<string> = new Set(["session/close", "session/delete"]);

interface Declared {
  readonly provider: ToolProvider;
  readonly ids: readonly string[];
}

/** A request of the client whose answer matters here. */
type Watched =
  | { readonly kind: "initialize" }
  | { readonly kind: "session"; readonly sessionId: unknown; readonly declared: readonly Declared[] }
  | { readonly kind: "end"; readonly sessionId: unknown };

/**
 * Puts the port in front of a channel and lends tools over it.
 *
 * ```ts
 * const { lane } = lend(await webSocketChannel(url), [createSandbox(), pageTools]);
 * // give `lane` to the ACP client you have
 * ```
 *
 * A session starts when every provider is ready or has failed.
 */
export function lend(
  channel: TextChannel,
  providers: readonly ToolProvider[],
  options: LendOptions = {},
): Lending {
  return new Lender(channel, providers, options);
}

class Lender implements Lending {
  readonly lane: TextChannel;
  readonly port: Port;
  readonly #client: TextChannel;
  readonly #providers: readonly { readonly provider: ToolProvider; readonly joined: Promise<boolean> }[];
  readonly #problem: (message: string) => void;
  readonly #watched = new Map<string, Watched>();
  readonly #sessions = new Map<string, readonly Declared[]>();
  /** Texts of the client that wait for a session request before them. */
  #waiting: Promise<void> | undefined;
  #offers: boolean | undefined;
  /** Whether the agent reads only the oldest way of declaring a server. */
  #legacy = false;

  constructor(channel: TextChannel, providers: readonly ToolProvider[], options: LendOptions) {
    const { onProblem = () => {}, ...portOptions } = options;
    this.#problem = onProblem;
    this.port = new Port(channel, portOptions);
    [this.lane, this.#client] = memoryChannelPair();
    this.#providers = providers.map((provider, index) => ({
      provider,
      joined: provider.join(this.port, String(index + 1)).then(
        () => true,
        (error: unknown) => {
          onProblem(`tools are missing: ${messageOf(error)}`);
          return false;
        },
      ),
    }));
    this.#client.listen({
      text: (text) => this.#fromClient(text),
      close: ({ code, reason }) => this.port.close(code, reason),
    });
    this.port.acp.listen({
      text: (text) => this.#fromAgent(text),
      close: ({ code, reason }) => this.#client.close(code, reason),
    });
    void this.port.closed.then(() => this.#end());
  }

  get offers(): boolean | undefined {
    return this.#offers;
  }

  // -- the client ---------------------------------------------------------------------------------------------

  #fromClient(text: string): void {
    const message = parse(text);
    const method = member(message, "method");
    const isSession = typeof method === "string" && SESSION_METHODS.has(method);
    if (!isSession && !this.#waiting) {
      this.#forward(text, message);
      return;
    }
    const before = this.#waiting ?? Promise.resolve();
    const mine = before
      .then(() => (isSession ? this.#startSession(text, message) : this.#forward(text, message)))
      .finally(() => {
        if (this.#waiting === mine) this.#waiting = undefined;
      });
    this.#waiting = mine;
  }

  #forward(text: string, message: JsonObject | undefined): void {
    const method = member(message, "method");
    const id = message && Object.hasOwn(message, "id") ? memberText(text, "id") : undefined;
    if (id !== undefined && method === "initialize") this.#watched.set(id, { kind: "initialize" });
    if (id !== undefined && typeof method === "string" && END_METHODS.has(method)) {
      this.#watched.set(id, { kind: "end", sessionId: member(member(message, "params"), "sessionId") });
    }
    if (this.port.acp.open) this.port.acp.send(text);
    if (method === "session/cancel") this.#stopCalls(member(member(message, "params"), "sessionId"));
  }

  /** Not every agent takes back the call that a cancelled turn leaves, and some send no other before its answer. */
  #stopCalls(sessionId: unknown): void {
    if (typeof sessionId !== "string") return;
    for (const { ids } of this.#sessions.get(sessionId) ?? []) {
      for (const id of ids) this.port.stop(id);
    }
  }

  async #startSession(text: string, message: JsonObject | undefined): Promise<void> {
    const id = memberText(text, "id");
    if (id === undefined || !this.#offers) {
      if (this.#offers === false) {
        this.#problem("the agent does not take tools over ACP (it did not advertise mcpCapabilities.acp)");
      }
      this.#forward(text, message);
      return;
    }
    const declared: Declared[] = [];
    const entries: ServerDeclaration[] = [];
    for (const { provider, joined } of this.#providers) {
      if (!(await joined)) continue;
      try {
        const own = await provider.declare();
        entries.push(...own);
        declared.push({ provider, ids: own.map(({ serverId }) => serverId) });
      } catch (error) {
        this.#problem(`tools are missing: ${messageOf(error)}`);
      }
    }
    this.#watched.set(id, {
      kind: "session",
      sessionId: member(member(message, "params"), "sessionId"),
      declared,
    });
    this.#forward(addServers(text, this.#legacy ? entries.map(legacyDeclaration) : entries), message);
  }

  // -- the agent ----------------------------------------------------------------------------------------------

  #fromAgent(text: string): void {
    const message = parse(text);
    if (message && !Object.hasOwn(message, "method")) {
      const id = memberText(text, "id") ?? "";
      const watched = this.#watched.get(id);
      if (watched) {
        this.#watched.delete(id);
        this.#learn(watched, message);
      }
    }
    if (this.#client.open) this.#client.send(text);
  }

  #learn(watched: Watched, answer: JsonObject): void {
    const result = member(answer, "result");
    const failed = !Object.hasOwn(answer, "result");
    switch (watched.kind) {
      case "initialize":
        if (failed) break;
        this.#legacy = advertisesLegacy(result);
        this.#offers = this.#legacy || advertisesAcp(result);
        break;
      case "end":
        this.#forget(watched.sessionId);
        break;
      case "session": {
        // A fork or a new session says its own id, a loaded one has the id it was asked for.
        const sessionId = member(result, "sessionId") ?? watched.sessionId;
        if (failed || typeof sessionId !== "string") {
          this.#withdraw(watched.declared);
          break;
        }
        this.#forget(sessionId);
        this.#sessions.set(sessionId, watched.declared);
      }
    }
  }

  #forget(sessionId: unknown): void {
    if (typeof sessionId !== "string") return;
    this.#withdraw(this.#sessions.get(sessionId) ?? []);
    this.#sessions.delete(sessionId);
  }

  #withdraw(declared: readonly Declared[]): void {
    for (const { provider, ids } of declared) void provider.withdraw(ids).catch(() => {});
  }

  #end(): void {
    for (const sessionId of [...this.#sessions.keys()]) this.#forget(sessionId);
    for (const watched of this.#watched.values()) {
      if (watched.kind === "session") this.#withdraw(watched.declared);
    }
    this.#watched.clear();
  }
}

function parse(text: string): JsonObject | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Adds entries to `params.mcpServers`; nothing else of the text changes. */
function addServers(text: string, entries: readonly (ServerDeclaration | LegacyDeclaration)[]): string {
  const params = findMember(text, "params");
  if (!params || text[params.start] !== "{" || entries.length === 0) return text;
  const inner = text.slice(params.start, params.end);
  const list = entries.map((entry) => JSON.stringify(entry)).join(",");
  const servers = findMember(inner, "mcpServers");
  let changed: string;
  if (servers && inner[servers.start] === "[") {
    const empty = inner.slice(servers.start + 1, servers.end - 1).trim() === "";
    changed = `${inner.slice(0, servers.end - 1)}${empty ? "" : ","}${list}${inner.slice(servers.end - 1)}`;
  } else if (servers) {
    changed = `${inner.slice(0, servers.start)}[${list}]${inner.slice(servers.end)}`;
  } else {
    const empty = inner.slice(1, -1).trim() === "";
    changed = `{"mcpServers":[${list}]${empty ? "" : ","}${inner.slice(1)}`;
  }
  return text.slice(0, params.start) + changed + text.slice(params.end);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
