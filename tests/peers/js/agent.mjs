// An ACP agent on any release of the TypeScript SDK. It uses tools of its client as that release can: by
// McpOverAcpCaller where there is one, by its schema's messages where there are only types. A test drives it with
// requests `_test/do {op, ...}`; `session/prompt` runs the op in its text and streams the outcome as an update.
import { Log, options, plain, serve, socket, stdio } from "./wire.mjs";

const { sdk: entry, dialect, acp, transport, url, silent } = options();
const sdkName = entry.split("/")[0];
const sdk = await import(entry);
const v2 = acp === "2";
const stateless = dialect === "stateless";
const any = (params) => params ?? {};
// How each dialect of the connect family is spelled. Of `legacy` no release is left to install: these are the forms of
// Rust 0.12 (acp_id), of November 2025 (acp_url, two methods for messages), and of the agent that mints the id.
const connect = {
  "connect-acpId": { prefix: "", params: ({ id }) => ({ acpId: id }) },
  "connect-serverId": { prefix: "", params: ({ serverId }) => ({ serverId }) },
  legacy: { prefix: "_", params: ({ url: address }) => ({ acp_id: address.slice("acp:".length) }) },
  "legacy (2025)": {
    prefix: "_",
    request: "request",
    notification: "notification",
    params: ({ url: acp_url }) => ({ acp_url }),
  },
  "legacy (minted id)": {
    prefix: "_",
    params: ({ url: address }) => ({ url: address, connectionId: crypto.randomUUID() }),
  },
}[dialect];
const request = connect && `${connect.prefix}mcp/${connect.request ?? "message"}`;
const notification = connect && `${connect.prefix}mcp/${connect.notification ?? "message"}`;

function createAgent() {
  const servers = new Map();
  const calls = new Map();
  const log = new Log();
  let answers = {};
  let link; // the context that sends to the client
  const caller =
    sdk.McpOverAcpCaller && new sdk.McpOverAcpCaller({ clientInfo: { name: "peer", version: "1" } });

  const started = (key, run) => {
    const call = { abort: new AbortController(), log: new Log() };
    calls.set(key, call);
    call.outcome = run(call).then(
      (outcome) => outcome,
      (error) => ({ outer: plain(error) }),
    );
    return call;
  };

  /** One MCP request, as this release sends it; resolves with {result} | {error} of MCP, or {outer} of ACP. */
  async function send(call, { server, connection, method, params, requestId, sessionId, toolCallId }) {
    const entry = servers.get(server);
    const id = entry ? (entry.serverId ?? entry.id) : server;
    const cancellable = { cancellationSignal: call.abort.signal };
    if (!stateless) {
      const result = await link.request(request, { connectionId: connection, method, params }, cancellable);
      return { result };
    }
    if (caller && !sessionId) {
      return caller.request(link, id, method, params, {
        requestId,
        signal: call.abort.signal,
        onNotification: (note) => call.log.push(note),
      });
    }
    // Types only: the envelope of the schema, written by hand.
    const envelope = {
      serverId: id,
      requestId: requestId ?? crypto.randomUUID(),
      method,
      params: withMeta(params),
    };
    if (sessionId) Object.assign(envelope, { sessionId, toolCallId });
    call.requestId = envelope.requestId;
    const carrier = await link.request("mcp/message", envelope, cancellable);
    return "result" in carrier ? { result: carrier.result } : { error: carrier.error };
  }

  function withMeta(params) {
    const { _meta: meta, ...rest } = params ?? {};
    const given = {
      "io.modelcontextprotocol/protocolVersion": "2026-07-28",
      "io.modelcontextprotocol/clientCapabilities": {},
      "io.modelcontextprotocol/clientInfo": { name: "peer", version: "1" },
    };
    return { ...rest, _meta: { ...given, ...meta } };
  }

  const ops = {
    servers: () => [...servers.values()],
    connect: async ({ server }) => {
      const answer = await link.request(`${connect.prefix}mcp/connect`, connect.params(servers.get(server)));
      return { connectionId: connect.prefix ? answer.connection_id : answer.connectionId };
    },
    call: (given) => started(Symbol("call"), (call) => send(call, given)).outcome,
    start: (given) => {
      started(given.key, (call) => send(call, given));
      return {};
    },
    outcome: ({ key }) => calls.get(key).outcome,
    cancel: ({ key }) => {
      calls.get(key).abort.abort();
      return {};
    },
    note: ({ key, method, progress }) =>
      (key === undefined ? log : calls.get(key).log).wait(
        (note) => note.method === method && (progress === undefined || note.params.progress === progress),
      ),
    notify: async ({ connection, method, params }) => {
      await link.notify(notification, { connectionId: connection, method, params });
      return {};
    },
    disconnect: async ({ connection }) => {
      if (!connect.prefix) return link.request("mcp/disconnect", { connectionId: connection });
      await link.notify("_mcp/disconnect", { connection_id: connection });
      return {};
    },
    answers: (given) => {
      answers = given.by;
      return {};
    },
    leave: () => process.exit(0),
    // Any outer request, for what a proper agent does not send.
    outer: async ({ method, params }) => {
      try {
        return { result: await link.request(method, params) };
      } catch (error) {
        return { outer: plain(error) };
      }
    },
  };
  const run = ({ op, ...rest }) => ops[op](rest);

  const capabilities = v2
    ? { info: { name: "peer", version: "1" }, capabilities: { session: { prompt: {}, mcp: { acp: {} } } } }
    : {
        agentCapabilities: { mcpCapabilities: silent ? {} : { acp: true } },
        agentInfo: { name: "peer", version: "1" },
      };

  const app = sdk
    .agent({ name: "peer" })
    .onRequest("initialize", () => ({ protocolVersion: v2 ? 2 : 1, ...capabilities }))
    .onRequest("session/new", ({ params, client }) => {
      link = client;
      for (const server of params.mcpServers ?? []) servers.set(server.name, server);
      return { sessionId: "s1" };
    })
    .onRequest("session/prompt", async ({ params, client }) => {
      const outcome = await run(JSON.parse(params.prompt[0].text));
      await client.notify("session/update", {
        sessionId: params.sessionId,
        update: {
          sessionUpdate: "agent_message_chunk",
          ...(v2 ? { messageId: "m2" } : {}),
          content: { type: "text", text: JSON.stringify(outcome) },
        },
      });
      return v2 ? { messageId: "m1" } : { stopReason: "end_turn" };
    })
    .onRequest("_test/do", any, ({ params }) => run(params));
  // A method of the schema keeps the SDK's own parser; the v1 entries before 2.0 have none for `mcp/message`.
  const register = (kind, handler) => {
    try {
      app[kind](`${connect?.prefix ?? ""}mcp/message`, any, handler);
    } catch {
      app[kind]("mcp/message", handler);
    }
  };
  if (!stateless) {
    // The client's MCP server asks; this MCP client answers as it was told to.
    register("onRequest", ({ params }) => {
      log.push(params);
      if (!(params.method in answers))
        throw new sdk.RequestError(-32601, `Method not found: ${params.method}`);
      return answers[params.method];
    });
    register("onNotification", ({ params }) => log.push(params));
  } else if (caller) {
    register("onNotification", caller.handleNotification);
  } else {
    register("onNotification", ({ params }) => {
      for (const call of calls.values()) if (call.requestId === params.requestId) call.log.push(params);
    });
  }
  return app;
}

if (transport === "ws") await serve(sdkName, createAgent);
else createAgent().connect(transport === "stdio" ? stdio(sdk) : await socket(sdkName, url));
