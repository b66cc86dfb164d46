/** A small ACP client for the tests: JSON-RPC over the port's acp lane, with what the agent said kept in order. */

import type { TextChannel } from "../../browser/src/index.ts";

export interface Update {
  readonly sessionUpdate: string;
  readonly content?: unknown;
  readonly toolCallId?: string;
  readonly title?: string;
  readonly status?: string;
  readonly rawInput?: unknown;
  readonly rawOutput?: unknown;
  readonly entries?: readonly { readonly content: string; readonly status: string }[];
}

interface Message {
  readonly id?: number;
  readonly method?: string;
  readonly params?: { readonly sessionId?: string; readonly update?: Update } & Record<string, unknown>;
  readonly result?: unknown;
  readonly error?: { readonly code: number; readonly message: string; readonly data?: unknown };
}

export class RpcError extends Error {
  readonly code: number;
  readonly data: unknown;

  constructor(error: NonNullable<Message["error"]>) {
    super(error.message);
    this.code = error.code;
    this.data = error.data;
  }
}

export class Client {
  readonly updates: Update[] = [];
  /** Every text that the client saw or sent, for what must not be in any. */
  readonly texts: string[] = [];
  readonly questions: Record<string, unknown>[] = [];
  /** The option to answer questions with; undefined leaves them open. */
  answer: string | undefined;
  readonly #lane: TextChannel;
  readonly #open = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>();
  #watchers: { wanted(update: Update): boolean; found(update: Update): void }[] = [];
  #id = 0;

  constructor(lane: TextChannel) {
    this.#lane = lane;
    lane.listen({
      text: (text) => this.#heard(text),
      close: ({ reason }) => {
        for (const { reject } of this.#open.values()) reject(new Error(`closed: ${reason}`));
        this.#open.clear();
      },
    });
  }

  request<Result = Record<string, unknown>>(method: string, params: unknown): Promise<Result> {
    this.#id += 1;
    const id = this.#id;
    return new Promise((resolve, reject) => {
      this.#open.set(id, { resolve: (value) => resolve(value as Result), reject });
      this.#send({ jsonrpc: "2.0", id, method, params });
    });
  }

  notify(method: string, params: unknown): void {
    this.#send({ jsonrpc: "2.0", method, params });
  }

  prompt(sessionId: string, text: string): Promise<{ readonly stopReason: string }> {
    return this.request("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
  }

  /** The next update that `wanted` accepts. */
  next(wanted: (update: Update) => boolean): Promise<Update> {
    return new Promise((found) => this.#watchers.push({ wanted, found }));
  }

  /** What the agent said since the updates were cleared. */
  get said(): string {
    return this.updates
      .filter(({ sessionUpdate }) => sessionUpdate === "agent_message_chunk")
      .map(({ content }) => (content as { text: string }).text)
      .join("");
  }

  clear(): void {
    this.updates.length = 0;
    this.questions.length = 0;
  }

  #send(message: object): void {
    const text = JSON.stringify(message);
    this.texts.push(text);
    this.#lane.send(text);
  }

  #heard(text: string): void {
    this.texts.push(text);
    const message = JSON.parse(text) as Message;
    if (message.method === "session/update") {
      const update = message.params?.update as Update;
      this.updates.push(update);
      const watchers = this.#watchers;
      this.#watchers = watchers.filter(({ wanted }) => !wanted(update));
      for (const { wanted, found } of watchers) if (wanted(update)) found(update);
    } else if (message.method === "session/request_permission") {
      this.questions.push(message.params ?? {});
      const { answer } = this;
      if (answer === undefined) return;
      this.#send({
        jsonrpc: "2.0",
        id: message.id,
        result: { outcome: { outcome: "selected", optionId: answer } },
      });
    } else if (message.id !== undefined) {
      const waiter = this.#open.get(message.id);
      this.#open.delete(message.id);
      if (message.error) waiter?.reject(new RpcError(message.error));
      else waiter?.resolve(message.result);
    }
  }
}
