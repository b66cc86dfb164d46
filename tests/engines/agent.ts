/** A small agent in the page: JSON-RPC over a channel, MCP over ACP in the dialect `connect-acpId`. */

import type { TextChannel } from "../../browser/src/index.ts";

interface Answer {
  readonly id?: number;
  readonly method?: string;
  readonly params?: { readonly connectionId?: string; readonly method?: string };
  readonly result?: unknown;
  readonly error?: { readonly code: number; readonly message: string };
}

export interface CallResult {
  readonly content: readonly { readonly type: string; readonly text: string }[];
  readonly structuredContent?: { readonly result?: unknown };
  readonly isError?: boolean;
}

export class RpcError extends Error {
  readonly code: number;

  constructor(code: number, message: string) {
    super(message);
    this.code = code;
  }
}

export class Agent {
  /** Inner methods of the notifications that came. */
  readonly notified: string[] = [];
  readonly #channel: TextChannel;
  readonly #open = new Map<number, { resolve(value: unknown): void; reject(error: Error): void }>();
  readonly #watchers = new Set<() => void>();
  #id = 0;

  constructor(channel: TextChannel) {
    this.#channel = channel;
    channel.listen({
      text: (text) => {
        const message = JSON.parse(text) as Answer;
        if (message.method !== undefined) {
          if (message.params?.method !== undefined) this.notified.push(message.params.method);
          if (message.id !== undefined)
            channel.send(JSON.stringify({ jsonrpc: "2.0", id: message.id, result: {} }));
        } else if (message.id !== undefined) {
          const waiter = this.#open.get(message.id);
          this.#open.delete(message.id);
          if (message.error) waiter?.reject(new RpcError(message.error.code, message.error.message));
          else waiter?.resolve(message.result);
        }
        for (const watcher of this.#watchers) watcher();
      },
      close: ({ reason }) => {
        for (const { reject } of this.#open.values()) reject(new Error(`closed: ${reason}`));
        this.#open.clear();
      },
    });
  }

  request(method: string, params: unknown): Promise<unknown> {
    this.#id += 1;
    const id = this.#id;
    return new Promise((resolve, reject) => {
      this.#open.set(id, { resolve, reject });
      this.#channel.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
    });
  }

  /** Connects to a server and goes through the MCP handshake. */
  async connect(serverId: string): Promise<Connection> {
    const { connectionId } = (await this.request("mcp/connect", { acpId: serverId })) as {
      connectionId: string;
    };
    const connection = new Connection(this, connectionId);
    await connection.inner("initialize", {
      protocolVersion: "2025-11-25",
      capabilities: {},
      clientInfo: { name: "engines", version: "1" },
    });
    await connection.inner("notifications/initialized", {});
    return connection;
  }

  /** Settles when `found` is true; looks after each message. */
  until(found: () => boolean): Promise<void> {
    return new Promise((resolve) => {
      const look = (): void => {
        if (!found()) return;
        this.#watchers.delete(look);
        resolve();
      };
      this.#watchers.add(look);
      look();
    });
  }
}

export class Connection {
  readonly id: string;
  readonly #agent: Agent;

  constructor(agent: Agent, id: string) {
    this.#agent = agent;
    this.id = id;
  }

  inner(method: string, params: unknown): Promise<unknown> {
    return this.#agent.request("mcp/message", { connectionId: this.id, method, params });
  }

  async call(name: string, args: unknown = {}): Promise<CallResult> {
    return (await this.inner("tools/call", { name, arguments: args })) as CallResult;
  }

  async tools(): Promise<string[]> {
    const { tools } = (await this.inner("tools/list", {})) as { tools: { name: string }[] };
    return tools.map(({ name }) => name);
  }
}
