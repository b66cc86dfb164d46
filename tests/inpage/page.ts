/**
 * What the in-page agent must do in every engine, as one page with two global functions; the drivers only call them.
 *
 * Invariant: each check says what it saw when it fails. Nothing sleeps: each waits for an answer or an update.
 */

import { fromMcpServer } from "@agentclientprotocol/sdk/experimental/mcp-server";
import { type AnyMessage, client, McpOverAcpProvider, methods } from "@agentclientprotocol/sdk/unstable";
import { McpServer } from "@modelcontextprotocol/server";
import * as z from "zod";
import {
  type AgentProgress,
  createInPageAgent,
  type InPageAgent,
  keepOffline,
} from "../../browser/src/agent/index.ts";
import { createSandbox, Port, type Sandbox } from "../../browser/src/index.ts";
import { Client, RpcError } from "./client.ts";

interface Settings {
  /** Address of the bundle. */
  readonly base: string;
  readonly inlineFrame: boolean;
  readonly endpoint: { readonly address: string; readonly model: string; readonly key: string };
  /** An endpoint that lets no page read it. */
  readonly closedAddress: string;
}

interface Outcome {
  name: string;
  ok: boolean;
  detail: string;
  ms: number;
}

interface World {
  readonly sandbox: Sandbox;
  readonly agent: InPageAgent;
  readonly client: Client;
  readonly port: Port;
  readonly traffic: string[];
  readonly settings: Settings;
  readonly startMs: number;
}

/** Tools that a test needs beside the workspace's. */
const TOOLS = `
import asyncio
from fastmcp import FastMCP

mcp = FastMCP("probe")


@mcp.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    "Add two numbers"
    return a + b


@mcp.tool
def shout(text: str) -> str:
    "Louder"
    return text.upper()


@mcp.tool
async def wait() -> str:
    "Does not return"
    await asyncio.Event().wait()
    return "never"
`;

function check(condition: unknown, what: string): asserts condition {
  if (!condition) throw new Error(what);
}

async function connect(agent: InPageAgent, sandbox: Sandbox, traffic: string[]) {
  const port = new Port(await agent.open(), { onTraffic: ({ text }) => traffic.push(text) });
  const client = new Client(port.acp);
  await client.request("initialize", { protocolVersion: 1, clientCapabilities: {} });
  await sandbox.join(port);
  return { port, client };
}

async function makeWorld(
  settings: Settings,
  onProgress: (progress: AgentProgress) => void = () => {},
): Promise<World> {
  const { base, inlineFrame } = settings;
  const sandbox = createSandbox({ base, inlineFrame, timeLimit: null });
  const agent = createInPageAgent({ base, inlineFrame, onProgress });
  await sandbox.ready;
  await sandbox.loadTools("probe", TOOLS);
  const began = performance.now();
  const traffic: string[] = [];
  const { port, client } = await connect(agent, sandbox, traffic);
  return { sandbox, agent, client, port, traffic, settings, startMs: performance.now() - began };
}

async function session({ client, sandbox }: World): Promise<string> {
  const mcpServers = await sandbox.declare();
  const answer = await client.request<{ sessionId: string }>("session/new", { cwd: "/", mcpServers });
  client.clear();
  return answer.sessionId;
}

const CHECKS: Record<string, (world: World) => Promise<string | undefined>> = {
  async "advertises MCP over ACP and its sessions"({ client, startMs }) {
    const answer = JSON.stringify(await client.request("initialize", { protocolVersion: 1 }));
    for (const part of [
      '"acp":true',
      '"loadSession":true',
      '"fork":{}',
      '"resume":{}',
      '"title":"in-page agent"',
    ])
      check(answer.includes(part), `${part} is not in ${answer}`);
    return `first start ${(startMs / 1000).toFixed(1)} s`;
  },

  async "speaks the dialect that a declaration names"(world) {
    const { client, sandbox } = world;
    const called: string[] = [];
    for (const declare of [
      (name: string, id: string) => ({ type: "acp", name, id }),
      (name: string, id: string) => ({ type: "acp", name, serverId: id }),
      (name: string, id: string) => ({ type: "http", name, url: `acp:${id}`, headers: [] }),
    ]) {
      const mcpServers = (await sandbox.declare()).map(({ name, id }) => declare(name, id));
      const { sessionId } = await client.request<{ sessionId: string }>("session/new", {
        cwd: "/",
        mcpServers,
      });
      client.clear();
      const seen = world.traffic.length;
      await client.prompt(sessionId, 'Call add with {"a": 3, "b": 4}');
      check(client.said.includes("7"), `${JSON.stringify(mcpServers[0])}: ${client.said}`);
      const call = world.traffic.slice(seen).find((text) => text.includes('"tools/call"'));
      called.push((JSON.parse(call ?? "{}") as { method: string }).method);
    }
    check(`${called}` === "mcp/message,mcp/message,_mcp/message", `${called}`);
    return undefined;
  },

  async "both frames are confined, and no other is there"() {
    const frames = [...document.querySelectorAll("iframe")].map((frame) => frame.getAttribute("sandbox"));
    check(frames.length === 2 && frames.every((value) => value === "allow-scripts"), `${frames}`);
    return undefined;
  },

  async "the demo calls tools of the sandbox, and streams"(world) {
    const { client } = world;
    const id = await session(world);
    const { stopReason } = await client.prompt(
      id,
      'Call add with {"a": 40, "b": 2} and shout with {"text": "hé"}',
    );
    check(stopReason === "end_turn", stopReason);
    check(client.said.includes("42") && client.said.includes("HÉ"), client.said);
    const kinds = client.updates.map(({ sessionUpdate, status }) => status ?? sessionUpdate);
    check(kinds.filter((kind) => kind === "agent_message_chunk").length > 5, `not streamed: ${kinds}`);
    for (const kind of ["pending", "in_progress", "completed"])
      check(kinds.filter((seen) => seen === kind).length === 2, `${kind} not twice: ${kinds}`);
    return undefined;
  },

  async "asks first where the mode says so, and runs nothing that is refused"(world) {
    const { client } = world;
    const id = await session(world);
    const asked = (): number => client.questions.length;
    await client.request("session/set_mode", { sessionId: id, modeId: "ask" });
    client.answer = "reject";
    await client.prompt(id, 'Call shout with {"text": "a"}');
    check(asked() === 1, `${asked()} questions`);
    check(client.said.includes("did not allow"), client.said);
    client.clear();
    await client.prompt(id, 'Call add with {"a": 1, "b": 2}');
    check(asked() === 0, "a read-only tool was asked for");
    client.answer = "always";
    await client.prompt(id, 'Call shout with {"text": "b"}');
    await client.prompt(id, 'Call shout with {"text": "c"}');
    check(asked() === 1, `always was asked ${asked()} times`);
    client.answer = undefined;
    return undefined;
  },

  async "cancel ends the turn and its call, and the next message works"(world) {
    const { client } = world;
    const id = await session(world);
    const running = client.next(({ status }) => status === "in_progress");
    const turn = client.prompt(id, "Call wait with {}");
    await running;
    client.notify("session/cancel", { sessionId: id });
    check((await turn).stopReason === "cancelled", "not cancelled");
    check(client.updates.at(-1)?.status === "failed", JSON.stringify(client.updates.at(-1)));
    check(
      world.traffic.some((text) => text.includes("$/cancel_request")),
      "the tool was not told",
    );
    client.clear();
    await client.prompt(id, 'Call add with {"a": 1, "b": 1}');
    check(client.said.includes("2"), client.said);
    return undefined;
  },

  async "a question that nobody answers is given up with the turn"(world) {
    const { client } = world;
    const id = await session(world);
    await client.request("session/set_mode", { sessionId: id, modeId: "ask" });
    const asked = client.next(({ sessionUpdate }) => sessionUpdate === "tool_call");
    const turn = client.prompt(id, 'Call shout with {"text": "a"}');
    await asked;
    client.notify("session/cancel", { sessionId: id });
    check((await turn).stopReason === "cancelled", "not cancelled");
    return undefined;
  },

  async "two sessions work at once, one message at a time each"(world) {
    const { client } = world;
    const [one, two] = [await session(world), await session(world)];
    const running = client.next(({ status }) => status === "in_progress");
    const first = client.prompt(one, "Call wait with {}");
    await running;
    const refused = await client.prompt(one, "Call add with {}").catch((error: RpcError) => error);
    check(refused instanceof RpcError && refused.code === -32600, "a second message was taken");
    check((await client.prompt(two, "Which tools are there?")).stopReason === "end_turn", "the other waited");
    client.notify("session/cancel", { sessionId: one });
    check((await first).stopReason === "cancelled", "not cancelled");
    return undefined;
  },

  async "an endpoint: plan, a tool call in pieces, a streamed answer"(world) {
    const { agent, client, settings } = world;
    await agent.use({ kind: "endpoint", ...settings.endpoint });
    const id = await session(world);
    const { stopReason } = await client.prompt(id, 'call add {"a": 20, "b": 22}');
    check(stopReason === "end_turn", stopReason);
    check(client.said.includes("said: ") && client.said.includes("42"), client.said);
    const plan = client.updates.find(({ sessionUpdate }) => sessionUpdate === "plan");
    check(plan?.entries?.[0]?.content === "Call add", JSON.stringify(plan));
    check(
      client.updates.every(({ title }) => title !== "update_plan"),
      "the plan is shown as a tool",
    );
    return undefined;
  },

  async "cancel stops a stream that does not end"(world) {
    const { client } = world;
    const id = await session(world);
    const began = client.next(({ sessionUpdate }) => sessionUpdate === "agent_message_chunk");
    const turn = client.prompt(id, "hang");
    await began;
    client.notify("session/cancel", { sessionId: id });
    check((await turn).stopReason === "cancelled", "not cancelled");
    return undefined;
  },

  async "a wrong key, a wrong model and a closed endpoint are told with a remedy"(world) {
    const { agent, client, settings } = world;
    const { endpoint } = settings;
    const id = await session(world);
    const failure = async (change: Partial<typeof endpoint>): Promise<string> => {
      await agent.use({ kind: "endpoint", ...endpoint, ...change });
      const error = await client.prompt(id, "hello").catch((reason: RpcError) => reason);
      check(error instanceof RpcError, "it answered");
      return `${error.message} ${JSON.stringify(error.data)}`;
    };
    const key = await failure({ key: "sk-wrong" });
    check(key.includes("401") && key.includes("Check the key") && !key.includes("sk-wrong"), key);
    const model = await failure({ model: "other" });
    check(model.includes("404") && model.includes("other"), model);
    const closed = await failure({ address: settings.closedAddress });
    check(closed.includes("CORS") && closed.includes("OLLAMA_ORIGINS"), closed);
    await agent.use({ kind: "endpoint", ...endpoint });
    client.clear();
    await client.prompt(id, "hello again");
    check(client.said.includes("hello again"), client.said);
    return undefined;
  },

  async "the key is in no text of the channel, and in nothing that is kept"(world) {
    const { traffic, client, settings } = world;
    const { key } = settings.endpoint;
    check(traffic.length > 20, `only ${traffic.length} texts seen`);
    check(![...traffic, ...client.texts].some((text) => text.includes(key)), "the key is in the channel");
    const kept = await everythingKept();
    check(kept.includes("hello again"), "the sessions are not kept");
    check(!kept.includes(key), "the key is kept");
    return `${traffic.length} texts`;
  },

  async "sessions: list, fork, close, load, resume, delete"(world) {
    const { agent, client, sandbox } = world;
    await agent.use({ kind: "demo" });
    const id = await session(world);
    await client.prompt(id, 'Call add with {"a": 30, "b": 3}');
    const list = async () =>
      (await client.request<{ sessions: { sessionId: string; title: string }[] }>("session/list", {}))
        .sessions;
    check((await list())[0]?.sessionId === id, "the newest session is not the first of the list");
    const fork = await client.request<{ sessionId: string }>("session/fork", {
      sessionId: id,
      cwd: "/",
      mcpServers: await sandbox.declare(),
    });
    client.clear();
    await client.prompt(fork.sessionId, 'Call add with {"a": 1, "b": 5}');
    check(client.said.includes("6"), client.said);
    await client.request("session/close", { sessionId: id });
    const closed = await client.prompt(id, "hello").catch((error: RpcError) => error);
    check(closed instanceof RpcError, "a closed session answered");
    client.clear();
    await client.request("session/load", { sessionId: id, cwd: "/", mcpServers: await sandbox.declare() });
    const replayed = client.updates.map(({ sessionUpdate }) => sessionUpdate);
    check(`${replayed}` === "user_message_chunk,tool_call,agent_message_chunk", `${replayed}`);
    check(client.said.includes("33"), client.said);
    client.clear();
    await client.request("session/resume", { sessionId: id, cwd: "/", mcpServers: await sandbox.declare() });
    check(client.updates.length === 0, "resume replayed");
    await client.prompt(id, 'Call add with {"a": 2, "b": 2}');
    check(client.said.includes("4"), client.said);
    await client.request("session/delete", { sessionId: id });
    check(!(await list()).some(({ sessionId }) => sessionId === id), "the deleted session is listed");
    return undefined;
  },

  async "a server that is not there is told, and the others work"(world) {
    const { client, sandbox } = world;
    const mcpServers = [
      ...(await sandbox.declare()),
      { type: "acp", name: "ghost", id: "none", serverId: "none" },
      { name: "native", command: "x", args: [], env: [] },
    ];
    const { sessionId } = await client.request<{ sessionId: string }>("session/new", {
      cwd: "/",
      mcpServers,
    });
    client.clear();
    await client.prompt(sessionId, 'Call add with {"a": 1, "b": 1}');
    check(client.said.includes("**ghost**") && client.said.includes("**native**"), client.said);
    check(client.said.includes("2"), client.said);
    return undefined;
  },

  async "a new channel takes the old one's place, and the agent goes on"(world) {
    const { agent, sandbox } = world;
    const id = await session(world);
    await world.client.prompt(id, 'Call add with {"a": 5, "b": 6}');
    const { client } = await connect(agent, sandbox, world.traffic);
    check(!world.port.acp.open, "the old channel is open");
    await client.request("session/load", { sessionId: id, cwd: "/", mcpServers: await sandbox.declare() });
    check(client.said.includes("11"), client.said);
    localStorage.setItem("inpage-test", id);
    return undefined;
  },

  async "a client that lends statelessly, by the official SDK's own provider"({ agent }) {
    giveRequestsBodies();
    const channel = await agent.open();
    const provider = new McpOverAcpProvider();
    const methodsSeen: string[] = [];
    let said = "";
    const connection = client({ name: "stateless" })
      .onRequest(methods.client.mcp.message, (request) => {
        methodsSeen.push(request.params.method);
        return provider.handleRequest(request);
      })
      .onNotification(methods.client.session.update, ({ params: { update } }) => {
        if (update.sessionUpdate === "agent_message_chunk" && update.content.type === "text")
          said += update.content.text;
      })
      .connect({
        readable: new ReadableStream<AnyMessage>({
          start: (controller) =>
            channel.listen({
              text: (text) => controller.enqueue(JSON.parse(text) as AnyMessage),
              close: () => controller.close(),
            }),
        }),
        writable: new WritableStream<AnyMessage>({
          write: (message) => channel.send(JSON.stringify(message)),
        }),
      });
    const { handler } = fromMcpServer(() => {
      const server = new McpServer({ name: "stateless", version: "1" });
      server.registerTool("add", { inputSchema: z.object({ a: z.number(), b: z.number() }) }, ({ a, b }) => ({
        content: [{ type: "text", text: String(a + b) }],
      }));
      return server;
    });
    const { declaration } = provider.registerServer(connection.agent, { name: "stateless", handler });
    await connection.agent.request(methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} });
    // The SDK's types of the session know one release's declarations.
    const { sessionId } = (await connection.agent.request(methods.agent.session.new, {
      cwd: "/",
      mcpServers: [declaration],
    })) as { sessionId: string };
    await connection.agent.request(methods.agent.session.prompt, {
      sessionId,
      prompt: [{ type: "text", text: 'Call add with {"a": 17, "b": 4}' }],
    });
    check(said.includes("21"), said);
    check(methodsSeen.includes("tools/call") && !methodsSeen.includes("initialize"), `${methodsSeen}`);
    return `${methodsSeen.length} requests`;
  },
};

/** The SDK's server reads `Request.body`, which Firefox does not have; a page that uses it there brings this, too. */
function giveRequestsBodies(): void {
  if ("body" in Request.prototype) return;
  Object.defineProperty(Request.prototype, "body", {
    get(this: Request) {
      const value = new ReadableStream({
        start: async (controller) => {
          controller.enqueue(new Uint8Array(await this.arrayBuffer()));
          controller.close();
        },
      });
      Object.defineProperty(this, "body", { value });
      return value;
    },
  });
}

/** All that this origin keeps of the agent, as one text. */
async function everythingKept(): Promise<string> {
  const opening = indexedDB.open("sandport-agent");
  await new Promise((resolve) => opening.addEventListener("success", resolve));
  const parts: string[] = [JSON.stringify({ ...localStorage }), JSON.stringify({ ...sessionStorage })];
  for (const name of opening.result.objectStoreNames) {
    const reading = opening.result.transaction(name).objectStore(name).getAll();
    await new Promise((resolve) => reading.addEventListener("success", resolve));
    parts.push(JSON.stringify(reading.result));
  }
  return parts.join("\n");
}

async function run(settings: Settings): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  const world = await makeWorld(settings);
  for (const [name, work] of Object.entries(CHECKS)) {
    const began = performance.now();
    const outcome = (ok: boolean, detail: string): void =>
      void outcomes.push({ name, ok, detail, ms: performance.now() - began });
    try {
      outcome(true, (await work(world)) ?? "");
    } catch (error) {
      outcome(false, error instanceof Error ? error.message : String(error));
    }
  }
  return outcomes;
}

/** After the page was loaded anew: the session is still there, and goes on with fresh servers. */
async function afterReload(settings: Settings): Promise<string> {
  const world = await makeWorld(settings);
  const { client, sandbox } = world;
  const id = localStorage.getItem("inpage-test");
  check(id, "no session was noted before");
  const { sessions } = await client.request<{ sessions: { sessionId: string }[] }>("session/list", {});
  check(
    sessions.some(({ sessionId }) => sessionId === id),
    "the session is not listed",
  );
  await client.request("session/load", { sessionId: id, cwd: "/", mcpServers: await sandbox.declare() });
  check(client.said.includes("11"), `replayed: ${client.said}`);
  client.clear();
  await client.prompt(id, 'Call add with {"a": 7, "b": 8}');
  check(client.said.includes("15"), client.said);
  return `${sessions.length} sessions`;
}

/** Starts all once more, lets the browser keep it, and says whether it did. */
async function prepareOffline(settings: Settings): Promise<boolean> {
  await makeWorld(settings);
  return keepOffline(new URL(settings.base, location.href));
}

/** With an image that cannot be used: the agent starts without it and answers. Returns what was said about it. */
async function withBadImage(settings: Settings): Promise<string> {
  const said: string[] = [];
  const world = await makeWorld(settings, ({ detail }) => said.push(detail ?? ""));
  const id = await session(world);
  await world.client.prompt(id, 'Call add with {"a": 20, "b": 22}');
  check(world.client.said.includes("42"), world.client.said);
  const why = said.find((detail) => detail.includes("cannot be used"));
  check(why, "the image was used");
  return why;
}

Object.assign(globalThis, { run, afterReload, prepareOffline, withBadImage });
