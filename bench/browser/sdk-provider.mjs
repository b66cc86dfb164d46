/** The peer of the stateless rows: an ACP client that lends a JavaScript MCP server by the SDK's own provider. */

import { fromMcpServer } from "@agentclientprotocol/sdk/experimental/mcp-server";
import { client, McpOverAcpProvider } from "@agentclientprotocol/sdk/unstable";
import { McpServer } from "@modelcontextprotocol/server";
import * as z from "zod/v4";

function tools() {
  const server = new McpServer({ name: "bench", version: "1.0.0" });
  server.registerTool(
    "echo",
    {
      description: "Give the text back.",
      inputSchema: z.object({ text: z.string() }),
      outputSchema: z.object({ result: z.string() }),
    },
    ({ text }) => ({ content: [{ type: "text", text }], structuredContent: { result: text } }),
  );
  return server;
}

/** Opens a session with the agent behind a stream of messages; `calls(n)` lets it call and gives its times. */
export async function lendBySdk(stream) {
  const provider = new McpOverAcpProvider();
  const { agent } = client({ name: "bench" })
    .onRequest("mcp/message", provider.handleRequest)
    .connect(stream);
  const { handler } = fromMcpServer(tools);
  const { declaration } = provider.registerServer(agent, { name: "bench", handler });
  await agent.request("initialize", { protocolVersion: 1, clientCapabilities: {} });
  await agent.request("session/new", { cwd: "/", mcpServers: [declaration] });
  return async (count) => {
    const prompt = [{ type: "text", text: `calls ${count}` }];
    const answer = await agent.request("session/prompt", { sessionId: "bench", prompt });
    return answer._meta.times;
  };
}
