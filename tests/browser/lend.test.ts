/** A client that knows nothing of Sandport keeps its messages; the agent gets the tools, if it takes them. */

import { type ChildProcess, spawn } from "node:child_process";
import path from "node:path";
import { createInterface } from "node:readline";
import { client, methods, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";
import {
  type ChannelClose,
  lend,
  lendOverWebSocket,
  memoryChannelPair,
  type Port,
  type ServerDeclaration,
  type TextChannel,
  type ToolProvider,
  webSocketChannel,
} from "sandport";
import { allowAll, createToolServer, defineTool } from "sandport/tools";
import { afterEach, describe, expect, it } from "vitest";
import WebSocketClient from "ws";
import { deferred, streamOf } from "./tools/peers.ts";

/** The other end of a channel: what arrives can be awaited. */
function reader(channel: TextChannel) {
  const seen: string[] = [];
  let wake = () => {};
  const closed = deferred<ChannelClose>();
  channel.listen({
    text: (text) => {
      seen.push(text);
      wake();
    },
    close: closed.resolve,
  });
  return {
    seen,
    closed: closed.promise,
    async next(): Promise<string> {
      while (seen.length === 0)
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      return seen.shift() as string;
    },
  };
}

class Recorder implements ToolProvider {
  readonly withdrawn: string[] = [];
  readonly name: string;
  port: Port | undefined;
  key = "";
  sandbox: TextChannel | undefined;
  joined: Promise<void>;
  #last = 0;

  constructor(name: string, joined: Promise<void> = Promise.resolve()) {
    this.name = name;
    this.joined = joined;
  }

  async join(port: Port, key: string): Promise<void> {
    this.port = port;
    await this.joined;
    const [ours, theirs] = memoryChannelPair();
    this.key = key;
    this.sandbox = ours;
    port.attach(key, theirs, `${this.name}.`);
  }

  async declare(): Promise<ServerDeclaration[]> {
    const id = `${this.name}-${++this.#last}`;
    return [{ type: "acp", name: this.name, id, serverId: id }];
  }

  async withdraw(ids: readonly string[]): Promise<void> {
    this.withdrawn.push(...ids);
  }
}

/** A lending with a scripted agent behind it. */
async function lending(providers: readonly ToolProvider[], offers = true, said?: object) {
  const [ours, theirs] = memoryChannelPair();
  const problems: string[] = [];
  const lent = lend(ours, providers, { onProblem: (message) => problems.push(message) });
  const [app, agent] = [reader(lent.lane), reader(theirs)];
  lent.lane.send('{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}');
  await agent.next();
  const capabilities = said ?? (offers ? { mcpCapabilities: { acp: true } } : {});
  theirs.send(
    JSON.stringify({
      jsonrpc: "2.0",
      id: 0,
      result: { protocolVersion: 1, agentCapabilities: capabilities },
    }),
  );
  await app.next();
  return { lent, app, agent, theirs, problems };
}

const entry = (name: string, serial: number) =>
  `{"type":"acp","name":"${name}","id":"${name}-${serial}","serverId":"${name}-${serial}"}`;

describe("lend", () => {
  it("adds its servers and leaves the rest of the text alone", async () => {
    const { lent, agent } = await lending([new Recorder("a"), new Recorder("b")]);
    const both = `${entry("a", 1)},${entry("b", 1)}`;
    lent.lane.send(
      '{"id": 12345678901234567890, "method":"session/new","params":{"cwd":"/","mcpServers":[ ]}}',
    );
    expect(await agent.next()).toBe(
      `{"id": 12345678901234567890, "method":"session/new","params":{"cwd":"/","mcpServers":[ ${both}]}}`,
    );
    lent.lane.send(
      '{"id":"x","method":"session/load","params":{"mcpServers":[{"name":"own"}],"sessionId":"s"}}',
    );
    const again = `${entry("a", 2)},${entry("b", 2)}`;
    expect(await agent.next()).toBe(
      `{"id":"x","method":"session/load","params":{"mcpServers":[{"name":"own"},${again}],"sessionId":"s"}}`,
    );
    lent.lane.send('{"id":3,"method":"session/resume","params":{}}');
    expect(await agent.next()).toBe(
      `{"id":3,"method":"session/resume","params":{"mcpServers":[${entry("a", 3)},${entry("b", 3)}]}}`,
    );
  });

  it("keeps the order while a provider is still starting", async () => {
    const start = deferred();
    const { lent, agent } = await lending([new Recorder("a", start.promise)]);
    lent.lane.send('{"id":1,"method":"session/new","params":{"mcpServers":[]}}');
    lent.lane.send('{"method":"after"}');
    start.resolve();
    expect(JSON.parse(await agent.next()).id).toBe(1);
    expect(await agent.next()).toBe('{"method":"after"}');
  });

  it("declares nothing to an agent that does not take tools, and says so", async () => {
    const { lent, agent, problems } = await lending([new Recorder("a")], false);
    const text = '{"id":1,"method":"session/new","params":{"mcpServers":[]}}';
    lent.lane.send(text);
    expect(await agent.next()).toBe(text);
    expect(lent.offers).toBe(false);
    expect(problems).toEqual([
      "the agent does not take tools over ACP (it did not advertise mcpCapabilities.acp)",
    ]);
  });

  it("declares in the oldest way to an agent that offers only that", async () => {
    const symposium = { version: "1.0", mcp_acp_transport: true };
    const { lent, agent } = await lending([new Recorder("a")], true, { _meta: { symposium } });
    expect(lent.offers).toBe(true);
    lent.lane.send('{"id":1,"method":"session/new","params":{"mcpServers":[]}}');
    expect(JSON.parse(await agent.next()).params.mcpServers).toEqual([
      { type: "http", name: "a", url: "acp:a-1", headers: [] },
    ]);
    const both = { _meta: { symposium }, mcpCapabilities: { acp: true } };
    const modern = await lending([new Recorder("a")], true, both);
    modern.lent.lane.send('{"id":1,"method":"session/new","params":{"mcpServers":[]}}');
    expect(await modern.agent.next()).toContain(entry("a", 1));
  });

  it("stops the calls that a cancelled turn leaves open, and those of no other session", async () => {
    const recorder = new Recorder("a");
    const { lent, app, agent, theirs } = await lending([recorder]);
    const sandbox = reader(recorder.sandbox as TextChannel);
    for (const [id, session] of [
      [1, "one"],
      [2, "two"],
    ] as const) {
      lent.lane.send(`{"jsonrpc":"2.0","id":${id},"method":"session/new","params":{"mcpServers":[]}}`);
      await agent.next();
      theirs.send(JSON.stringify({ jsonrpc: "2.0", id, result: { sessionId: session } }));
      await app.next();
      recorder.port?.declare(recorder.key, `a-${id}`);
      const call = { serverId: `a-${id}`, requestId: "r", method: "tools/call" };
      theirs.send(JSON.stringify({ jsonrpc: "2.0", id: 10 + id, method: "mcp/message", params: call }));
      expect(JSON.parse(await sandbox.next()).id).toBe(10 + id);
    }
    lent.lane.send('{"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"two"}}');
    expect(JSON.parse(await agent.next()).method).toBe("session/cancel");
    expect(JSON.parse(await sandbox.next())).toEqual({
      jsonrpc: "2.0",
      method: "$/cancel_request",
      params: { requestId: 12 },
    });
    expect(sandbox.seen).toEqual([]);
  });

  it("goes on without a provider that fails", async () => {
    const broken = new Recorder("broken", Promise.reject(new Error("no sandbox here")));
    const { lent, agent, problems } = await lending([broken, new Recorder("b")]);
    lent.lane.send('{"id":1,"method":"session/new","params":{"mcpServers":[]}}');
    expect(await agent.next()).toContain(`"mcpServers":[${entry("b", 1)}]`);
    expect(problems).toEqual(["tools are missing: no sandbox here"]);
  });

  it("withdraws what a refused, closed or replaced session had, and all at the end", async () => {
    const a = new Recorder("a");
    const { lent, app, agent, theirs } = await lending([a]);
    const ask = async (id: number, method: string, params: object, answer: object) => {
      lent.lane.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
      await agent.next();
      theirs.send(JSON.stringify({ jsonrpc: "2.0", id, ...answer }));
      await app.next();
    };
    await ask(1, "session/new", {}, { error: { code: -32000, message: "not now" } });
    expect(a.withdrawn).toEqual(["a-1"]);
    await ask(2, "session/new", {}, { result: { sessionId: "s" } });
    await ask(3, "session/load", { sessionId: "s" }, { result: {} });
    expect(a.withdrawn).toEqual(["a-1", "a-2"]);
    await ask(4, "session/new", {}, { result: { sessionId: "t" } });
    await ask(5, "session/close", { sessionId: "s" }, { result: {} });
    expect(a.withdrawn).toEqual(["a-1", "a-2", "a-3"]);
    theirs.close(1011, "the agent crashed");
    expect(await app.closed).toEqual({ code: 1011, reason: "the agent crashed" });
    await lent.port.closed;
    expect(a.withdrawn).toEqual(["a-1", "a-2", "a-3", "a-4"]);
  });
});

describe("with the example agent over a real WebSocket", () => {
  let child: ChildProcess | undefined;
  let restore = () => {};
  afterEach(() => {
    restore();
    child?.kill();
  });

  async function exampleAgent(): Promise<string> {
    const script = path.resolve(import.meta.dirname, "../../examples/agent/agent.mjs");
    const process_ = spawn(process.execPath, [script, "--port", "0"], {
      stdio: ["ignore", "pipe", "inherit"],
    });
    child = process_;
    for await (const line of createInterface({ input: process_.stdout })) return line;
    throw new Error("the agent ended");
  }

  const page = () =>
    createToolServer({
      name: "page",
      tools: [defineTool({ name: "add", description: "Adds.", run: () => 4 })],
      ask: allowAll,
    });

  /** What the stable SDK's client, which knows nothing of Sandport, gets to hear. */
  async function converse(lane: TextChannel): Promise<string> {
    const heard: string[] = [];
    const connection = client({ name: "somebody" })
      .onNotification(methods.client.session.update, ({ params: { update } }) => {
        if (update.sessionUpdate === "agent_message_chunk" && update.content.type === "text") {
          heard.push(update.content.text);
        }
      })
      .connect(streamOf(lane));
    await connection.agent.request(methods.agent.initialize, { protocolVersion: PROTOCOL_VERSION });
    const { sessionId } = await connection.agent.request(methods.agent.session.new, {
      cwd: "/",
      mcpServers: [],
    });
    await connection.agent.request(methods.agent.session.prompt, {
      sessionId,
      prompt: [{ type: "text", text: "call add" }],
    });
    return heard.join("");
  }

  it("an SDK client on the lane", async () => {
    const url = await exampleAgent();
    const WebSocket = WebSocketClient as unknown as typeof globalThis.WebSocket;
    const { lane } = lend(await webSocketChannel(url, { WebSocket }), [page()]);
    expect(await converse(lane)).toBe("add says: 4");
    lane.close();
  });

  it("a client that opens its WebSocket itself", async () => {
    const url = await exampleAgent();
    const before = globalThis.WebSocket;
    globalThis.WebSocket = WebSocketClient as unknown as typeof globalThis.WebSocket;
    const unlend = lendOverWebSocket({ url, tools: [page()] });
    restore = () => {
      unlend();
      globalThis.WebSocket = before;
    };
    const socket = new WebSocket(url);
    const [opened, ended] = [deferred(), deferred<number>()];
    socket.onopen = () => opened.resolve();
    socket.onclose = ({ code }) => ended.resolve(code);
    expect(socket.readyState).toBe(0);
    await opened.promise;
    const [lane, wire] = memoryChannelPair();
    socket.addEventListener("message", ({ data }) => wire.send(String(data)));
    // As use-acp does: bytes, each message with its newline.
    wire.listen({
      text: (text) => socket.send(new TextEncoder().encode(`${text}\n`)),
      close: () => socket.close(),
    });
    expect(await converse(lane)).toBe("add says: 4");
    lane.close();
    expect(await ended.promise).toBe(1000);
    expect(socket.readyState).toBe(3);
    const other = new WebSocket(url.replace("/acp", "/other"));
    expect(other).toBeInstanceOf(WebSocketClient);
    other.addEventListener("error", () => {});
    other.close();
  });
});
