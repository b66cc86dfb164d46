/**
 * An ACP agent on the TypeScript SDK. A prompt of `calls N` makes it call the tool `echo` of its client N times, one
 * after the other, through the SDK's own caller; it answers with the milliseconds of each in `_meta.times`.
 */

import { Readable, Writable } from "node:stream";
import { agent, McpOverAcpCaller, ndJsonStream } from "@agentclientprotocol/sdk/unstable";

const caller = new McpOverAcpCaller({ clientInfo: { name: "bench", version: "1" } });
let server;

agent({ name: "bench" })
  .onRequest("initialize", () => ({
    protocolVersion: 1,
    agentCapabilities: { mcpCapabilities: { acp: true } },
  }))
  .onRequest("session/new", ({ params }) => {
    const servers = params.mcpServers.filter(({ type }) => type === "acp");
    server = (servers.find(({ name }) => name === "user") ?? servers[0]).serverId;
    return { sessionId: "bench" };
  })
  .onNotification("mcp/message", caller.handleNotification)
  .onRequest("session/prompt", async ({ params, client }) => {
    const count = Number(params.prompt[0].text.split(" ")[1]);
    const times = [];
    for (let n = 0; n < count; n++) {
      const began = performance.now();
      const outcome = await caller.request(client, server, "tools/call", {
        name: "echo",
        arguments: { text: "hello" },
      });
      times.push(performance.now() - began);
      if (outcome.result?.content?.[0]?.text !== "hello") throw new Error(JSON.stringify(outcome));
    }
    return { stopReason: "end_turn", _meta: { times } };
  })
  .connect(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));
process.stdin.on("end", () => process.exit(0));
