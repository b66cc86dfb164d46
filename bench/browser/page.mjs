/**
 * The page that the benchmarks drive: the library's own channel, port and sandbox, without a user interface.
 *
 * `?start=snapshot` or `?start=cold` boots at once and times it from the navigation on; `bench.*` is what a driver calls.
 */

import { createSandbox, Port, UTF8_PROTOCOL, webSocketChannel } from "sandport";

let sandbox;
let kept;
const state = {};

function boot(useImage) {
  kept = new Promise((resolve) => {
    sandbox = createSandbox({ useImage, timeLimit: 600, on: { kept: resolve } });
  });
  return sandbox.ready;
}

/** One MCP conversation over the sandbox's lane, as an agent of the connect family has it. */
class Lane {
  #waiting = new Map();
  #next = 0;

  static async open(server) {
    const lane = new Lane();
    lane.channel = await sandbox.openLane("bench.");
    lane.channel.listen({ text: (text) => lane.#arrived(text), close() {} });
    const [{ serverId }] = await sandbox.declare([server]);
    lane.connectionId = (await lane.ask("mcp/connect", { serverId, acpId: serverId })).connectionId;
    await lane.mcp("initialize", {
      protocolVersion: "2025-11-25",
      capabilities: {},
      clientInfo: { name: "bench", version: "1" },
    });
    const initialized = { connectionId: lane.connectionId, method: "notifications/initialized" };
    lane.channel.send(JSON.stringify({ jsonrpc: "2.0", method: "mcp/message", params: initialized }));
    return lane;
  }

  #arrived(text) {
    const message = JSON.parse(text);
    const done = this.#waiting.get(message.id);
    this.#waiting.delete(message.id);
    done?.(message);
  }

  async ask(method, params) {
    const id = this.#next++;
    const answer = new Promise((resolve) => this.#waiting.set(id, resolve));
    this.channel.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
    const message = await answer;
    if (message.error) throw new Error(`${method}: ${message.error.message}`);
    return message.result;
  }

  mcp(method, params) {
    return this.ask("mcp/message", { connectionId: this.connectionId, method, params });
  }
}

async function start(useImage) {
  const { mode, ms } = await boot(useImage);
  const ready = performance.now();
  state.lane = await Lane.open("workspace");
  const { tools } = await state.lane.mcp("tools/list", {});
  return { total: performance.now(), ready, tools: tools.length, mode, ms };
}

function openChannel(token) {
  const address = new URL("acp", document.baseURI);
  address.protocol = "ws:";
  address.hash = "";
  return webSocketChannel(address, { protocols: ["acp.v1", `sandport.token.${token}`, UTF8_PROTOCOL] });
}

/** A session with the SDK's own provider in this page; no sandbox takes part. */
async function sdkSession(token) {
  const { lendBySdk } = await import("./sdk-provider.mjs");
  const channel = await openChannel(token);
  const readable = new ReadableStream({
    start(controller) {
      channel.listen({
        text: (text) => controller.enqueue(JSON.parse(text)),
        close: () => controller.close(),
      });
    },
  });
  const writable = new WritableStream({ write: (message) => channel.send(JSON.stringify(message)) });
  state.sdkCalls = await lendBySdk({ readable, writable });
}

/** The page's half of an ACP connection, by hand: `initialize`, and one session with the sandbox's servers. */
async function session(token) {
  const channel = await openChannel(token);
  const port = new Port(channel);
  await sandbox.join(port);
  let id = 0;
  const waiting = new Map();
  port.acp.listen({
    text: (text) => {
      const message = JSON.parse(text);
      waiting.get(message.id)?.(message);
    },
    close() {},
  });
  const ask = (method, params) =>
    new Promise((resolve, reject) => {
      waiting.set(id, ({ result, error }) => (error ? reject(new Error(error.message)) : resolve(result)));
      port.acp.send(JSON.stringify({ jsonrpc: "2.0", id, method, params }));
      id += 1;
    });
  await ask("initialize", { protocolVersion: 1, clientCapabilities: {} });
  const mcpServers = await sandbox.declare();
  await ask("session/new", { cwd: "/", mcpServers });
  state.port = port;
  state.sandboxCalls = async (count) => {
    const prompt = [{ type: "text", text: `calls ${count}` }];
    const answer = await ask("session/prompt", { sessionId: "bench", prompt });
    return answer._meta.times;
  };
}

globalThis.bench = {
  state,
  boot,
  session,
  sdkSession,
  /** The visit was long enough for the page to keep the bundle's files, where the browser has a place for them. */
  kept: () => (navigator.storage?.getDirectory ? kept : null),
  async load(source) {
    return sandbox.loadTools("bench", source);
  },
  async open(server) {
    state.lane = await Lane.open(server);
  },
  /** Milliseconds of each of `count` sequential calls over the lane, no agent involved. */
  async calls(count, name, args) {
    const times = [];
    for (let n = 0; n < count; n++) {
      const began = performance.now();
      const result = await state.lane.mcp("tools/call", { name, arguments: args });
      times.push(performance.now() - began);
      if (result.isError) throw new Error(result.content[0].text);
    }
    return times;
  },
  /** Milliseconds for `count` sequential calls together: clocks of pages are coarse. */
  async batch(count, name, args) {
    const began = performance.now();
    for (let n = 0; n < count; n++) {
      const result = await state.lane.mcp("tools/call", { name, arguments: args });
      if (result.isError) throw new Error(result.content[0].text);
    }
    return performance.now() - began;
  },
  async call(name, args) {
    const result = await state.lane.mcp("tools/call", { name, arguments: args });
    if (result.isError) throw new Error(result.content[0].text);
    return result.content[0].text;
  },
};

const wanted = new URLSearchParams(location.search).get("start");
globalThis.started = wanted === null ? Promise.resolve(null) : start(wanted === "snapshot");
globalThis.started.catch(() => {});
