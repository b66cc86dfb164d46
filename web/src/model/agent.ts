/**
 * The page's side of ACP: the official SDK's client on the port's acp lane.
 *
 * Invariants: nothing but `initialize` is sent before it was answered (case P09); the sandbox's servers are declared
 * only to an agent that said it takes them (P05, P06); requests for files and terminals are refused by the SDK, for
 * this page offers none.
 */

import {
  type AnyMessage,
  type ClientConnection,
  client,
  type InitializeResponse,
  methods,
  type NewSessionResponse,
  PROTOCOL_VERSION,
  type RequestPermissionRequest,
  type RequestPermissionResponse,
  type SessionUpdate,
  type StopReason,
  type Stream,
} from "@agentclientprotocol/sdk";
import {
  advertisesAcp,
  advertisesLegacy,
  legacyDeclaration,
  memberText,
  type ServerDeclaration,
  type SessionHead,
  type TextChannel,
} from "sandport";

/** ACP wants a folder and a page has none: the gateway puts the agent's own in its place. */
const NO_FOLDER = "/";

/** What the page does when the agent speaks first. */
export interface AgentHooks {
  /** `inputText` is the raw JSON of the tool's arguments, exact to the digit. */
  update(update: SessionUpdate, inputText: string | undefined): void;
  /** Asks the person. Aborted when the agent or the page no longer waits for an answer. */
  permission(
    request: RequestPermissionRequest,
    inputText: string | undefined,
    signal: AbortSignal,
  ): Promise<RequestPermissionResponse>;
}

/** How a session came to be on a new connection. */
export type SessionOrigin = "new" | "loaded" | "resumed";

/** Walks down JSON text: every step is a member's raw text. */
function textAt(text: string, ...path: string[]): string | undefined {
  let here: string | undefined = text;
  for (const name of path) {
    if (here === undefined || !here.startsWith("{")) return undefined;
    here = memberText(here, name);
  }
  return here;
}

/**
 * The lane as a stream of messages for the SDK. Numbers that JavaScript cannot hold are the concern here: ids beyond
 * 2^53 get a stand-in for the SDK and leave as they came, and tool arguments are kept as text.
 */
function streamOf(lane: TextChannel, seen: (message: AnyMessage, text: string) => void): Stream {
  const longIds = new Map<string, string>();
  const readable = new ReadableStream<AnyMessage>({
    start(controller) {
      lane.listen({
        text(text) {
          // The port lets only JSON objects through.
          const message = JSON.parse(text) as AnyMessage & { id?: unknown };
          seen(message, text.trim());
          if ("method" in message && typeof message.id === "number" && !Number.isSafeInteger(message.id)) {
            const raw = memberText(text, "id") ?? "null";
            longIds.set(`number ${raw}`, raw);
            message.id = `number ${raw}`;
          }
          controller.enqueue(message);
        },
        close: () => controller.close(),
      });
    },
  });
  const writable = new WritableStream<AnyMessage>({
    write(message) {
      const raw = "id" in message && typeof message.id === "string" ? longIds.get(message.id) : undefined;
      if (raw === undefined) {
        lane.send(JSON.stringify(message));
        return;
      }
      longIds.delete(`number ${raw}`);
      lane.send(`{"id":${raw},${JSON.stringify({ ...message, id: undefined }).slice(1)}`);
    },
  });
  return { readable, writable };
}

/** A connection to an agent, from `initialize` on. */
export class Agent {
  /** What the agent calls itself. */
  readonly title: string;
  /** Whether it takes MCP servers over ACP. */
  readonly takesTools: boolean;
  readonly #connection: ClientConnection;
  /** Whether the agent reads only the oldest way of declaring a server. */
  readonly #legacy: boolean;
  readonly #canLoad: boolean;
  readonly #canResume: boolean;
  readonly #canList: boolean;
  #sessionId: string | undefined;

  private constructor(connection: ClientConnection, answer: InitializeResponse, said: unknown) {
    const { agentInfo, agentCapabilities } = answer;
    this.#connection = connection;
    this.#legacy = advertisesLegacy(said);
    this.title = agentInfo?.title || agentInfo?.name || "agent";
    this.takesTools = this.#legacy || advertisesAcp(said);
    this.#canLoad = agentCapabilities?.loadSession === true;
    this.#canResume = agentCapabilities?.sessionCapabilities?.resume != null;
    this.#canList = agentCapabilities?.sessionCapabilities?.list != null;
  }

  /**
   * Says hello and waits for the answer, however long it takes: agents may need many seconds to start.
   * @throws when the agent refuses, speaks another protocol version, or the connection ends.
   */
  static async connect(lane: TextChannel, hooks: AgentHooks): Promise<Agent> {
    let said: unknown;
    const inputs = new Map<string, string>();
    const seen = (message: AnyMessage, text: string) => {
      // Read before the SDK does: its stable schema knows no `mcpCapabilities.acp` and drops it.
      if ("result" in message && textAt(text, "result", "protocolVersion") !== undefined) {
        said = message.result;
      }
      if (!("method" in message) || !text.includes('"rawInput"')) return;
      const holder = textAt(text, "params", message.method === "session/update" ? "update" : "toolCall");
      const [id, input] = [holder && textAt(holder, "toolCallId"), holder && textAt(holder, "rawInput")];
      if (id && input && input !== "null") inputs.set(JSON.parse(id), input);
    };
    const connection = client({ name: "sandport-page" })
      .onNotification(methods.client.session.update, ({ params: { update } }) => {
        const id = "toolCallId" in update ? update.toolCallId : undefined;
        hooks.update(update, id === undefined ? undefined : inputs.get(id));
      })
      .onRequest(methods.client.session.requestPermission, ({ params, signal }) =>
        hooks.permission(params, inputs.get(params.toolCall.toolCallId), signal),
      )
      .connect(streamOf(lane, seen));
    const answer = await connection.agent.request(methods.agent.initialize, {
      protocolVersion: PROTOCOL_VERSION,
      clientCapabilities: { fs: { readTextFile: false, writeTextFile: false }, terminal: false },
      clientInfo: { name: "sandport", title: "Sandport", version: "0.1.0" },
    });
    if (answer.protocolVersion !== PROTOCOL_VERSION) {
      throw new Error(
        `the agent speaks ACP version ${answer.protocolVersion}, this page version ${PROTOCOL_VERSION}`,
      );
    }
    return new Agent(connection, answer, said);
  }

  /** Whether it can take an earlier session up. */
  get canTakeUp(): boolean {
    return this.#canLoad || this.#canResume;
  }

  get sessionId(): string | undefined {
    return this.#sessionId;
  }

  /** Starts a session. `servers` must be empty unless `takesTools`. */
  async newSession(servers: readonly ServerDeclaration[]): Promise<void> {
    const answer = await this.#request<NewSessionResponse>(methods.agent.session.new, {
      cwd: NO_FOLDER,
      mcpServers: this.#entries(servers),
    });
    this.#sessionId = answer.sessionId;
  }

  /**
   * Takes an earlier session up on this connection, by what the agent can do.
   * @returns how, or undefined when it can do neither or did not manage.
   */
  async takeUp(sessionId: string, servers: readonly ServerDeclaration[]): Promise<SessionOrigin | undefined> {
    const params = { sessionId, cwd: NO_FOLDER, mcpServers: this.#entries(servers) };
    const ways = [
      ...(this.#canLoad ? ([[methods.agent.session.load, "loaded"]] as const) : []),
      ...(this.#canResume ? ([[methods.agent.session.resume, "resumed"]] as const) : []),
    ];
    for (const [method, origin] of ways) {
      try {
        this.#sessionId = sessionId;
        await this.#request(method, params);
        return origin;
      } catch {
        this.#sessionId = undefined;
      }
    }
    return undefined;
  }

  #entries(servers: readonly ServerDeclaration[]) {
    return this.#legacy ? servers.map(legacyDeclaration) : servers;
  }

  /** Sends what the person wrote and waits for the end of the turn. */
  async prompt(text: string): Promise<StopReason> {
    if (this.#sessionId === undefined) throw new Error("there is no session yet");
    const answer = await this.#connection.agent.request(methods.agent.session.prompt, {
      sessionId: this.#sessionId,
      prompt: [{ type: "text", text }],
    });
    return answer.stopReason;
  }

  /** Switches the session to another of the agent's modes. */
  async setMode(modeId: string): Promise<void> {
    if (this.#sessionId === undefined) return;
    await this.#request("session/set_mode", { sessionId: this.#sessionId, modeId });
  }

  /** The conversations that the agent keeps, the newest first; none when it keeps none. */
  async conversations(): Promise<readonly SessionHead[]> {
    if (!this.#canList) return [];
    const { sessions } = await this.#request<{ sessions?: readonly SessionHead[] }>("session/list", {});
    return sessions ?? [];
  }

  /** Lets the agent forget a conversation. */
  async forget(sessionId: string): Promise<void> {
    await this.#request("session/delete", { sessionId });
  }

  /** Asks the agent to stop the turn; `prompt` then ends with "cancelled". */
  async cancel(): Promise<void> {
    if (this.#sessionId === undefined) return;
    await this.#connection.agent.notify(methods.agent.session.cancel, { sessionId: this.#sessionId });
  }

  /** The SDK's stable types know no server of type `acp`; its wire does not mind. */
  #request<Response = unknown>(method: string, params: unknown): Promise<Response> {
    return this.#connection.agent.request<Response>(method, params);
  }
}
