/** Real peers for the tool server: the official TypeScript SDK in memory, and Sandport's Python agent side. */

import { type ChildProcess, spawn } from "node:child_process";
import path from "node:path";
import { createInterface } from "node:readline";

import {
  type AnyMessage,
  agent,
  type McpNotification,
  type McpOutcome,
  McpOverAcpCaller,
  methods,
} from "@agentclientprotocol/sdk/unstable";
import { BaseChannel, memoryChannelPair, Port, type TextChannel } from "sandport";

/** A channel as the SDK's stream. */
export function streamOf(channel: TextChannel): {
  readable: ReadableStream<AnyMessage>;
  writable: WritableStream<AnyMessage>;
} {
  return {
    readable: new ReadableStream({
      start: (controller) =>
        channel.listen({
          text: (text) => controller.enqueue(JSON.parse(text) as AnyMessage),
          close: () => controller.close(),
        }),
    }),
    writable: new WritableStream({ write: (message) => channel.send(JSON.stringify(message)) }),
  };
}

/** `Promise.withResolvers`, which Node 20 lacks. */
export function deferred<Value = void>(): {
  promise: Promise<Value>;
  resolve(value: Value): void;
} {
  let resolve: (value: Value) => void = () => {};
  const promise = new Promise<Value>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}

/** A stateless caller of the SDK behind a port. */
export function statelessAgent(): {
  port: Port;
  end(): void;
  request(
    serverId: string,
    method: string,
    params?: Record<string, unknown>,
    options?: { signal?: AbortSignal; onNotification?: (note: McpNotification) => void; requestId?: string },
  ): Promise<McpOutcome>;
} {
  const [ours, theirs] = memoryChannelPair();
  const caller = new McpOverAcpCaller({ clientInfo: { name: "test", version: "1" } });
  const connection = agent({ name: "test-agent" })
    .onRequest(methods.agent.initialize, () => ({ protocolVersion: 1 }))
    .onNotification(methods.agent.mcp.message, caller.handleNotification)
    .connect(streamOf(theirs));
  return {
    port: new Port(ours),
    end: () => theirs.close(),
    request: (serverId, method, params = {}, options = {}) =>
      caller.request(connection.client, serverId, method, params, options),
  };
}

class LineChannel extends BaseChannel {
  readonly #child: ChildProcess;

  constructor(child: ChildProcess) {
    super();
    this.#child = child;
    const { stdout } = child;
    if (!stdout) throw new Error("no stdout");
    createInterface({ input: stdout }).on("line", (line) => this.deliver(line));
    child.on("exit", (code) => this.ended({ code: 1000, reason: `exit ${code}` }));
  }

  protected override transmit(text: string): void {
    this.#child.stdin?.write(`${text}\n`);
  }

  protected override shut(): void {
    this.#child.stdin?.end();
  }
}

const ROOT = path.resolve(import.meta.dirname, "../../..");

/** Runs caller.py behind a port; resolves to what it reports. */
export function pythonAgent(dialects: readonly string[], lend: (port: Port) => Promise<string>) {
  return new Promise<Record<string, unknown>>((resolve, reject) => {
    const [ours, theirs] = memoryChannelPair();
    const port = new Port(ours);
    lend(port).then((serverId) => {
      const child = spawn(
        path.join(ROOT, ".venv/bin/python"),
        [path.join(import.meta.dirname, "caller.py"), serverId, ...dialects],
        { stdio: ["pipe", "pipe", "pipe"] },
      );
      let errors = "";
      child.stderr.on("data", (data) => {
        errors += data;
      });
      const lines = new LineChannel(child);
      // What is not of the mcp lane is the report.
      port.acp.listen({
        text: (text) => {
          resolve((JSON.parse(text) as { params: Record<string, unknown> }).params);
          port.close();
        },
        close: () => reject(new Error(errors || "the agent ended without a report")),
      });
      lines.listen({ text: (text) => theirs.send(text), close: () => theirs.close() });
      theirs.listen({ text: (text) => lines.send(text), close: () => lines.close() });
    }, reject);
  });
}
