#!/usr/bin/env node
/**
 * A small ACP agent for the examples: it lists and calls the tools that its client lends it over ACP. No model; it
 * understands `tools` and `call TOOL {json}`. Built on the official TypeScript SDK, it speaks the stateless dialect.
 *
 *     node agent.mjs                 over stdin and stdout
 *     node agent.mjs --port 8400     over WebSocket, at ws://127.0.0.1:8400/acp (0 takes a free port)
 */

import { createServer } from "node:http";
import { Readable, Writable } from "node:stream";
import {
  agent,
  isMcpServerAcp,
  McpOverAcpCaller,
  methods,
  ndJsonStream,
} from "@agentclientprotocol/sdk/unstable";
import { WebSocketServer } from "ws";

/** Serves one client. */
function serve(stream) {
  const caller = new McpOverAcpCaller({ clientInfo: { name: "example-agent", version: "1" } });
  const sessions = new Map();
  let last = 0;

  /** All tools of a session: [{server, serverId, name, description}]. */
  const toolsOf = async (client, servers) => {
    const found = [];
    for (const { name: server, serverId } of servers) {
      const outcome = await caller.request(client, serverId, "tools/list", {});
      if ("error" in outcome) throw new Error(`${server}: ${outcome.error.message}`);
      for (const tool of outcome.result.tools) found.push({ server, serverId, ...tool });
    }
    return found;
  };

  const answer = async (client, sessionId, text, signal) => {
    const servers = sessions.get(sessionId) ?? [];
    if (servers.length === 0) return "Nobody lends me tools.";
    const tools = await toolsOf(client, servers);
    const [, name, json] = /^\s*call\s+(\S+)\s*(.*)$/s.exec(text) ?? [];
    if (!name) {
      const lines = tools.map(
        (tool) => `- ${tool.server}/${tool.name}: ${(tool.description ?? "").split("\n")[0]}`,
      );
      return [`I have ${tools.length} tools. Say: call TOOL {json}`, ...lines].join("\n");
    }
    const tool = tools.find((one) => one.name === name || `${one.server}/${one.name}` === name);
    if (!tool) return `There is no tool ${name}.`;
    const rawInput = JSON.parse(json || "{}");
    const toolCallId = `call-${++last}`;
    const update = (change) => client.notify(methods.client.session.update, { sessionId, update: change });
    await update({
      sessionUpdate: "tool_call",
      toolCallId,
      title: tool.name,
      rawInput,
      status: "in_progress",
    });
    const outcome = await caller.request(
      client,
      tool.serverId,
      "tools/call",
      { name: tool.name, arguments: rawInput },
      { signal },
    );
    const failed = "error" in outcome || outcome.result.isError === true;
    const said =
      "error" in outcome
        ? outcome.error.message
        : outcome.result.content.map((part) => part.text ?? `[${part.type}]`).join("\n");
    await update({ sessionUpdate: "tool_call_update", toolCallId, status: failed ? "failed" : "completed" });
    return `${tool.name} ${failed ? "failed" : "says"}: ${said}`;
  };

  return agent({ name: "example-agent" })
    .onRequest(methods.agent.initialize, () => ({
      protocolVersion: 1,
      agentInfo: { name: "example-agent", title: "Example agent", version: "1" },
      agentCapabilities: { mcpCapabilities: { acp: true } },
    }))
    .onRequest(methods.agent.session.new, ({ params }) => {
      const sessionId = `session-${++last}`;
      sessions.set(sessionId, params.mcpServers.filter(isMcpServerAcp));
      return { sessionId };
    })
    .onRequest(methods.agent.session.prompt, async ({ params, client, signal }) => {
      const { sessionId, prompt } = params;
      const text = prompt.map((part) => (part.type === "text" ? part.text : "")).join("");
      const said = await answer(client, sessionId, text, signal).catch(
        (error) => `That failed: ${error.message}`,
      );
      const content = { type: "text", text: said };
      await client.notify(methods.client.session.update, {
        sessionId,
        update: { sessionUpdate: "agent_message_chunk", content },
      });
      return { stopReason: signal.aborted ? "cancelled" : "end_turn" };
    })
    .onNotification(methods.agent.session.cancel, () => {})
    .onNotification(methods.agent.mcp.message, caller.handleNotification)
    .connect(stream);
}

const at = process.argv.indexOf("--port");
if (at < 0) {
  serve(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
} else {
  const server = createServer((_, response) => response.writeHead(426).end());
  new WebSocketServer({ server, path: "/acp" }).on("connection", (socket) => {
    serve({
      readable: new ReadableStream({
        start(controller) {
          socket.on("message", (data) => controller.enqueue(JSON.parse(data.toString())));
          socket.on("close", () => controller.close());
        },
      }),
      writable: new WritableStream({ write: (message) => socket.send(JSON.stringify(message)) }),
    });
  });
  server.listen(Number(process.argv[at + 1]), "127.0.0.1", () => {
    console.log(`ws://127.0.0.1:${server.address().port}/acp`);
  });
}
