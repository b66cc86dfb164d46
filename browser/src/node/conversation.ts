/**
 * One conversation with an agent: the official ACP SDK's client on a lane.
 *
 * Invariant: nothing is asked of the agent before it answered `initialize`, and one prompt runs at a time.
 */

import {
  type AnyMessage,
  type ClientConnection,
  type CreateElicitationRequest,
  type CreateElicitationResponse,
  client,
  methods,
  PROTOCOL_VERSION,
  type RequestPermissionRequest,
  type RequestPermissionResponse,
  type SessionUpdate,
  type StopReason,
} from "@agentclientprotocol/sdk";
import type { TextChannel } from "../channel.ts";

/** What happens when the agent speaks. */
export interface ConversationHooks {
  update(update: SessionUpdate): void;
  /** Aborted when the agent no longer waits. */
  permission(request: RequestPermissionRequest, signal: AbortSignal): Promise<RequestPermissionResponse>;
  /** A form to be filled in; aborted like a permission. */
  elicitation(request: CreateElicitationRequest, signal: AbortSignal): Promise<CreateElicitationResponse>;
}

export class Conversation {
  /** What the agent calls itself. */
  readonly agent: string;
  readonly #connection: ClientConnection;
  readonly #sessionId: string;

  private constructor(connection: ClientConnection, agent: string, sessionId: string) {
    this.#connection = connection;
    this.agent = agent;
    this.#sessionId = sessionId;
  }

  /**
   * Says hello and starts a session.
   * @param cwd absolute path.
   * @throws what the agent refuses with, or an error when the connection ends.
   */
  static async start(lane: TextChannel, cwd: string, hooks: ConversationHooks): Promise<Conversation> {
    const connection = client({ name: "sandport" })
      .onNotification(methods.client.session.update, ({ params }) => hooks.update(params.update))
      .onRequest(methods.client.session.requestPermission, ({ params, signal }) =>
        hooks.permission(params, signal),
      )
      .onRequest(methods.client.elicitation.create, ({ params, signal }) => hooks.elicitation(params, signal))
      .connect(streamOf(lane));
    const hello = await connection.agent.request(methods.agent.initialize, {
      protocolVersion: PROTOCOL_VERSION,
      clientCapabilities: {
        fs: { readTextFile: false, writeTextFile: false },
        terminal: false,
        elicitation: { form: {}, url: {} },
      },
      clientInfo: { name: "sandport", title: "Sandport", version: "0.1.0" },
    });
    const { sessionId } = await connection.agent.request(methods.agent.session.new, { cwd, mcpServers: [] });
    return new Conversation(
      connection,
      hello.agentInfo?.title || hello.agentInfo?.name || "agent",
      sessionId,
    );
  }

  /** Sends what the person wrote and waits for the end of the turn. */
  async prompt(text: string): Promise<StopReason> {
    const { stopReason } = await this.#connection.agent.request(methods.agent.session.prompt, {
      sessionId: this.#sessionId,
      prompt: [{ type: "text", text }],
    });
    return stopReason;
  }

  /** Asks the agent to stop the turn; `prompt` then ends with "cancelled". */
  async cancel(): Promise<void> {
    await this.#connection.agent.notify(methods.agent.session.cancel, { sessionId: this.#sessionId });
  }
}

function streamOf(lane: TextChannel) {
  const readable = new ReadableStream<AnyMessage>({
    start: (controller) =>
      lane.listen({
        text: (text) => controller.enqueue(JSON.parse(text) as AnyMessage),
        close: () => controller.close(),
      }),
  });
  const writable = new WritableStream<AnyMessage>({ write: (message) => lane.send(JSON.stringify(message)) });
  return { readable, writable };
}
