// The shim for the stateless era: an ACP agent on the TypeScript SDK, whose own bridge serves the servers that its client
// lends as HTTP endpoints. In front of it stands a proxy for what the suite cannot do (send the bridge's bearer token) and
// for what the bridge leaves to its host (the check of the Host header).
import { createServer, request } from "node:http";
import { Readable, Writable } from "node:stream";
import { McpOverAcpHttpBridge } from "@agentclientprotocol/sdk/experimental/mcp-http";
import { agent, McpOverAcpCaller, methods, ndJsonStream } from "@agentclientprotocol/sdk/unstable";

const caller = new McpOverAcpCaller({ clientInfo: { name: "conformance-shim", version: "1" } });
const bridge = new McpOverAcpHttpBridge(caller);
let server;

const LOCAL = /^(localhost|127\.0\.0\.1)(:\d+)?$/;
const isLocal = ({ host, origin }) =>
  LOCAL.test(host ?? "") && (!origin || LOCAL.test(origin.replace(/^http:\/\//, "")));

const proxy = createServer((incoming, outgoing) => {
  if (!isLocal(incoming.headers)) {
    outgoing.writeHead(403).end();
    return;
  }
  const { origin: _, ...headers } = incoming.headers;
  for (const { name, value } of server.headers) headers[name.toLowerCase()] = value;
  headers.host = new URL(server.url).host;
  const onward = request(server.url, { method: incoming.method, headers }, (answer) => {
    outgoing.writeHead(answer.statusCode, answer.headers);
    answer.pipe(outgoing);
  });
  onward.on("error", () => outgoing.destroy());
  outgoing.on("close", () => onward.destroy());
  incoming.pipe(onward);
});

agent({ name: "conformance-shim" })
  .onRequest(methods.agent.initialize, () => ({
    protocolVersion: 1,
    agentCapabilities: { mcpCapabilities: { acp: true } },
  }))
  .onRequest(methods.agent.session.new, async ({ params, client }) => {
    [server] = await bridge.adaptServers(client, params.mcpServers);
    return { sessionId: "s1" };
  })
  .onRequest(
    "_shim/port",
    (params) => params,
    () => ({ port: proxy.address().port }),
  )
  .onNotification(methods.agent.mcp.message, caller.handleNotification)
  .connect(ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin)));

proxy.listen(0, "127.0.0.1");
process.stdin.on("end", () => process.exit(0));
setTimeout(() => process.exit(9), 600_000).unref();
