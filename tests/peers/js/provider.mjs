// An ACP client on any release of the TypeScript SDK that lends an MCP server to its agent as that release can: by
// McpOverAcpProvider where there is one, by its schema's messages where there are only types. The MCP server is the
// MCP SDK's own. A test drives it with requests `_test/do {op, ...}`.
import { inputRequired, McpServer } from "@modelcontextprotocol/server";
import * as z from "zod/v4";
import { Log, options, plain, socket, stdio } from "./wire.mjs";

const { sdk: entry, dialect, acp, transport, url } = options();
const sdkName = entry.split("/")[0];
const sdk = await import(entry);
const v2 = acp === "2";
const any = (params) => params ?? {};
const legacy = dialect === "legacy";
const messageMethod = legacy ? "_mcp/message" : "mcp/message";
const log = new Log();

function tools() {
  const server = new McpServer(
    { name: "peer-tools", version: "1.0.0" },
    { capabilities: { tools: { listChanged: true } } },
  );
  const text = (value) => ({ content: [{ type: "text", text: value }] });
  server.registerTool(
    "add",
    { inputSchema: z.object({ a: z.number(), b: z.number() }), outputSchema: z.object({ sum: z.number() }) },
    ({ a, b }) => ({ ...text(String(a + b)), structuredContent: { sum: a + b } }),
  );
  server.registerTool("echo", { inputSchema: z.object({ text: z.string() }) }, ({ text: value }) =>
    text(value),
  );
  server.registerTool("fail", { inputSchema: z.object({}) }, () => {
    throw new Error("the tool failed");
  });
  server.registerTool("count", { inputSchema: z.object({ to: z.number() }) }, async ({ to }, { mcpReq }) => {
    const progressToken = mcpReq._meta?.progressToken;
    for (let progress = 1; progress <= to; progress++) {
      if (progressToken !== undefined)
        await mcpReq.notify({
          method: "notifications/progress",
          params: { progressToken, progress, total: to },
        });
    }
    return text(`counted to ${to}`);
  });
  server.registerTool("block", { inputSchema: z.object({}) }, async (_, { mcpReq }) => {
    log.push({ event: "blocked" });
    await new Promise((resolve) => mcpReq.signal.addEventListener("abort", resolve, { once: true }));
    log.push({ event: "aborted" });
    return text("stopped");
  });
  server.registerTool("ask", { inputSchema: z.object({}) }, (_, { mcpReq }) => {
    const answer = mcpReq.inputResponses?.confirm;
    if (answer !== undefined) return text(`${answer.action}: ${JSON.stringify(answer.content ?? null)}`);
    return inputRequired({
      inputRequests: {
        confirm: inputRequired.elicit({
          message: "Sure?",
          requestedSchema: { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"] },
        }),
      },
    });
  });
  return server;
}

/** The connect family: one MCP server a connection, behind a transport whose messages are outer ones. */
class Connection {
  static open = new Map();
  constructor(agent) {
    this.id = crypto.randomUUID();
    this.agent = agent;
    this.pending = new Map();
    this.next = 0;
    Connection.open.set(this.id, this);
  }
  // MCP's transport: what the server sends.
  async start() {}
  async close() {
    Connection.open.delete(this.id);
    this.onclose?.();
  }
  async send(message) {
    const waiting = "method" in message ? undefined : this.pending.get(message.id);
    if (waiting) {
      this.pending.delete(message.id);
      if ("error" in message)
        waiting.reject(
          new sdk.RequestError(message.error.code, message.error.message, message.error.data ?? null),
        );
      else waiting.resolve(message.result);
      return;
    }
    const flat = { connectionId: this.id, method: message.method, params: message.params };
    if (!("id" in message)) return this.agent.notify(messageMethod, flat);
    this.agent.request(messageMethod, flat).then(
      (result) => this.onmessage({ jsonrpc: "2.0", id: message.id, result }),
      (error) =>
        this.onmessage({
          jsonrpc: "2.0",
          id: message.id,
          error: { code: error.code ?? -32603, message: error.message },
        }),
    );
  }
  // ACP's side: what the agent sends.
  request({ method, params }, signal) {
    const id = ++this.next;
    return new Promise((resolve, reject) => {
      this.pending.set(id, { resolve, reject });
      signal?.addEventListener("abort", () => {
        this.pending.delete(id);
        this.onmessage({ jsonrpc: "2.0", method: "notifications/cancelled", params: { requestId: id } });
        reject(sdk.RequestError.requestCancelled());
      });
      this.onmessage({ jsonrpc: "2.0", id, method, ...(params ? { params } : {}) });
    });
  }
  notification({ method, params }) {
    this.onmessage({ jsonrpc: "2.0", method, ...(params ? { params } : {}) });
  }
}

const serverId = crypto.randomUUID();
const app = sdk.client({ name: "peer" });
const unknown = (what) => new sdk.RequestError(-32602, `Unknown ${what}`, null);
let declaration = { type: "acp", name: "peer-tools", serverId };
let adapter;
let provider;

if (dialect === "stateless") {
  const { fromMcpServer } = await import("sdk-2.4/experimental/mcp-server");
  adapter = fromMcpServer(tools);
  if (sdk.McpOverAcpProvider) {
    provider = new sdk.McpOverAcpProvider();
    app.onRequest("mcp/message", provider.handleRequest);
  } else {
    // Types only: the carrier of the schema, written by hand.
    app.onRequest("mcp/message", any, async ({ params, agent, signal }) => {
      const { serverId: id, requestId, method, params: inner } = params;
      if (typeof id !== "string" || typeof requestId !== "string") throw unknown("envelope");
      if (id !== serverId) throw new sdk.RequestError(-33001, "No such server", { serverId: id });
      const meta = inner?._meta ?? {};
      const outcome = await adapter.handler({
        serverId,
        requestId,
        method,
        params: inner,
        signal,
        protocolVersion: meta["io.modelcontextprotocol/protocolVersion"] ?? "",
        clientCapabilities: meta["io.modelcontextprotocol/clientCapabilities"] ?? {},
        clientInfo: meta["io.modelcontextprotocol/clientInfo"],
        notify: (noted, body) =>
          agent.notify("mcp/message", { serverId, requestId, method: noted, params: body }),
      });
      if (signal.aborted) throw sdk.RequestError.requestCancelled();
      return outcome;
    });
  }
} else {
  const key = { "connect-acpId": "acpId", "connect-serverId": "serverId", legacy: "acp_id" }[dialect];
  if (dialect === "connect-acpId") declaration = { type: "acp", name: "peer-tools", id: serverId };
  if (legacy) declaration = { type: "http", name: "peer-tools", url: `acp:${serverId}`, headers: [] };
  const disconnect = async (id) => {
    await Connection.open.get(id)?.close();
    log.push({ event: "disconnected" });
    return {};
  };
  app
    .onRequest(legacy ? "_mcp/connect" : "mcp/connect", any, async ({ params, agent }) => {
      if (params[key] !== serverId) throw unknown("server");
      const connection = new Connection(agent);
      await tools().connect(connection);
      return legacy ? { connection_id: connection.id } : { connectionId: connection.id };
    })
    .onRequest(messageMethod, any, ({ params, signal }) => {
      const connection = Connection.open.get(params.connectionId);
      if (!connection) throw unknown("connection");
      return connection.request(params, signal);
    })
    .onNotification(messageMethod, any, ({ params }) =>
      Connection.open.get(params.connectionId)?.notification(params),
    );
  // In `legacy` a notification with the id in snake case.
  if (legacy) app.onNotification("_mcp/disconnect", any, ({ params }) => disconnect(params.connection_id));
  else app.onRequest("mcp/disconnect", any, ({ params }) => disconnect(params.connectionId));
}

const ops = {
  event: ({ event }) => log.wait((item) => item.event === event),
  connections: () => Connection.open.size,
  changed: async () => {
    if (adapter) adapter.notify.toolsChanged();
    for (const connection of Connection.open.values())
      await connection.agent.notify(messageMethod, {
        connectionId: connection.id,
        method: "notifications/tools/list_changed",
      });
    return {};
  },
  leave: () => setTimeout(() => process.exit(0), 0) && {},
};
app.onRequest("_test/do", any, ({ params: { op, ...rest } }) => ops[op](rest));

const connection = app.connect(transport === "stdio" ? stdio(sdk) : await socket(sdkName, url));
if (provider)
  declaration = provider.registerServer(connection.agent, {
    name: "peer-tools",
    handler: adapter.handler,
  }).declaration;
const hello = v2
  ? { protocolVersion: 2, info: { name: "peer", version: "1" }, capabilities: {} }
  : { protocolVersion: 1, clientCapabilities: {} };
try {
  await connection.agent.request("initialize", hello);
  await connection.agent.request("session/new", { cwd: "/", mcpServers: [declaration] });
} catch (error) {
  process.stderr.write(`${JSON.stringify(plain(error))}\n`);
  process.exit(1);
}
await connection.closed;
process.exit(0);
