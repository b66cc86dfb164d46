/** The tool server on the wire: exact ids, one answer for each request, and illegal moves. */

import { memoryChannelPair, Port, type TextChannel } from "sandport";
import { allowAll, createToolServer, defineTool, type Tool } from "sandport/tools";
import { describe, expect, it } from "vitest";
import { deferred } from "./peers.ts";

/** An agent that writes texts. */
async function wire(tools: readonly Tool[], limits = {}) {
  const [ours, agent]: [TextChannel, TextChannel] = memoryChannelPair();
  const port = new Port(ours);
  const server = createToolServer({ name: "page", tools, ask: allowAll, limits });
  await server.join(port);
  const [entry] = await server.declare();
  const seen: string[] = [];
  let wake = () => {};
  agent.listen({
    text: (text) => {
      seen.push(text);
      wake();
    },
    close: () => {},
  });
  const next = async (): Promise<string> => {
    while (seen.length === 0)
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
    return seen.shift() as string;
  };
  const ask = async (id: string, method: string, params: object): Promise<string> => {
    agent.send(`{"jsonrpc":"2.0","id":${id},"method":"${method}","params":${JSON.stringify(params)}}`);
    return next();
  };
  const connect = async (): Promise<string> => {
    const answer = JSON.parse(await ask('"open"', "mcp/connect", { serverId: entry?.serverId }));
    const { connectionId } = answer.result;
    await ask('"hello"', "mcp/message", {
      connectionId,
      method: "initialize",
      params: { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "t", version: "1" } },
    });
    return connectionId as string;
  };
  return { server, agent, port, seen, next, ask, connect, serverId: entry?.serverId };
}

const echo = defineTool({ name: "echo", description: "Echoes.", run: () => "echo" });

/** A tool that waits until it is told, and counts how often it came to its end. */
function gate() {
  const started = deferred();
  const release = deferred();
  const tool = defineTool({
    name: "wait",
    description: "Waits.",
    run: async () => {
      started.resolve();
      await release.promise;
      return "late";
    },
  });
  return { tool, started: started.promise, release: () => release.resolve() };
}

describe("the tool server on the wire", () => {
  it("answers with the id as it was written", async () => {
    const { ask, connect } = await wire([echo]);
    const connectionId = await connect();
    const params = { connectionId, method: "tools/call", params: { name: "echo", arguments: {} } };
    for (const id of ["12345678901234567890", '"\\u00e9"', "-7"]) {
      const answer = await ask(id, "mcp/message", params);
      expect(answer.slice(0, 60)).toContain(`"id":${id},"result":`);
    }
  });

  it("answers a call and its disconnect once each, whatever the tool does later", async () => {
    const { tool, started, release } = gate();
    const { agent, next, ask, connect, port, seen } = await wire([tool, echo]);
    const connectionId = await connect();
    const params = { connectionId, method: "tools/call", params: { name: "wait", arguments: {} } };
    agent.send(JSON.stringify({ jsonrpc: "2.0", id: 1, method: "mcp/message", params }));
    await started;
    const first = JSON.parse(await ask("2", "mcp/disconnect", { connectionId }));
    const answers = [first, JSON.parse(await next())].sort((a, b) => a.id - b.id);
    expect(answers).toMatchObject([
      { id: 1, error: { code: -32603, data: null } },
      { id: 2, result: {} },
    ]);
    release();
    // Whatever would follow comes before the answer to this.
    expect(JSON.parse(await ask("3", "mcp/disconnect", { connectionId }))).toMatchObject({ id: 3 });
    expect(seen).toEqual([]);
    expect(port.stats).toEqual({ dropped: {}, open: 0 });
  });

  it.each(["$/cancel_request", "mcp/cancel"])("obeys %s, with an id beyond 2^53", async (method) => {
    const { tool, started } = gate();
    const { agent, next, connect } = await wire([tool]);
    const connectionId = await connect();
    const call = JSON.stringify({
      connectionId,
      method: "tools/call",
      params: { name: "wait", arguments: {} },
    });
    agent.send(`{"jsonrpc":"2.0","id":9007199254740993,"method":"mcp/message","params":${call}}`);
    await started;
    agent.send(`{"jsonrpc":"2.0","method":"${method}","params":{"requestId":9007199254740992}}`);
    agent.send(`{"jsonrpc":"2.0","method":"${method}","params":{"requestId":9007199254740993}}`);
    const answer = await next();
    expect(answer.startsWith('{"jsonrpc":"2.0","id":9007199254740993,"error":{"code":-32800')).toBe(true);
  });

  it("knows an id in another spelling", async () => {
    const { tool, started } = gate();
    const { agent, next, connect } = await wire([tool]);
    const params = {
      connectionId: await connect(),
      method: "tools/call",
      params: { name: "wait", arguments: {} },
    };
    agent.send(`{"jsonrpc":"2.0","id":"\\u00e9","method":"mcp/message","params":${JSON.stringify(params)}}`);
    await started;
    agent.send('{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":"é"}}');
    expect(JSON.parse(await next())).toMatchObject({ id: "é", error: { code: -32800 } });
  });

  it("answers MCP notifications that come as requests with {}", async () => {
    const { ask, connect } = await wire([echo]);
    const params = { connectionId: await connect(), method: "notifications/initialized" };
    expect(JSON.parse(await ask("4", "mcp/message", params))).toEqual({ jsonrpc: "2.0", id: 4, result: {} });
  });

  it("refuses what is unknown, with data, and over a limit, with its name", async () => {
    const { ask, connect, serverId } = await wire([echo], { maxConnections: 1, maxMessageChars: 500 });
    expect(JSON.parse(await ask("1", "mcp/connect", { serverId: "nobody" })).error).toMatchObject({
      code: -32602,
    });
    const connectionId = await connect();
    const over = JSON.parse(await ask("2", "mcp/connect", { serverId }));
    expect(over.error).toMatchObject({ code: -32603, data: { limit: "maxConnections" } });
    const unknown = await ask("3", "mcp/message", { connectionId, method: "no/such" });
    expect(JSON.parse(unknown).error).toMatchObject({ code: -32601, data: null });
  });

  it("answers with an error in place of a result that is too large", async () => {
    const big = defineTool({ name: "big", description: "Big.", run: () => "x".repeat(1000) });
    const { ask, connect } = await wire([big], { maxMessageChars: 900 });
    const params = {
      connectionId: await connect(),
      method: "tools/call",
      params: { name: "big", arguments: {} },
    };
    const { error } = JSON.parse(await ask("1", "mcp/message", params));
    expect(error.message).toContain("over the limit maxMessageChars = 900");
  });

  it("tells every connection of a new tool", async () => {
    const { agent, connect, server: own, next } = await wire([]);
    const connectionId = await connect();
    own.add(echo);
    expect(JSON.parse(await next())).toEqual({
      jsonrpc: "2.0",
      method: "mcp/message",
      params: { connectionId, method: "notifications/tools/list_changed" },
    });
    agent.close();
  });
});
