#!/usr/bin/env node
/**
 * An ACP agent for tests: it does exactly what the prompt says, over raw JSON-RPC lines, with no SDK in between.
 *
 * Prompts: `say TEXT`, `tools SERVER`, `call SERVER TOOL {json}`, `many N SERVER TOOL {json}` (so many calls at once),
 * `hasty SERVER TOOL {json}` (takes the call back soon), `ask {json}` (a permission question about these arguments),
 * `wait` (until cancelled), `exit CODE`, `fs` (asks for a file of the client), `seen` (the methods it got, in order).
 *
 * Options: `--acp true|object|null|absent` (what initialize advertises), `--load` (sessions can be loaded; the history
 * is kept in a file for the next process), `--slow-start MS` (delay of the answer to initialize), `--title NAME`.
 */

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({
  options: {
    acp: { type: "string", default: "true" },
    load: { type: "boolean", default: false },
    "slow-start": { type: "string", default: "0" },
    title: { type: "string", default: "Scripted agent" },
  },
});

const pending = new Map();
const servers = new Map();
const seen = [];
let nextId = 0;
let sessionId = "";
let history = [];
let turn;

/** `spell` may change the text, for what JavaScript cannot write: long integers. */
const write = (message, spell = (text) => text) =>
  process.stdout.write(`${spell(JSON.stringify({ jsonrpc: "2.0", ...message }))}\n`);
const notify = (method, params) => write({ method, params });
const request = (method, params, spell) =>
  new Promise((resolve, reject) => {
    const id = nextId++;
    pending.set(id, { resolve, reject });
    write({ id, method, params }, spell);
  });
const update = (value) => {
  if (value.sessionUpdate.endsWith("_chunk")) history.push(value);
  notify("session/update", { sessionId, update: value });
};
const say = (text) => update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text } });
const historyFile = (id) => path.join(tmpdir(), `sandport-scripted-${id}.json`);

/** An MCP connection to a declared server, opened at its first use. */
async function connect(name) {
  const server = servers.get(name);
  if (!server)
    throw new Error(`no server ${name} was declared; there are: ${[...servers.keys()].join(", ") || "none"}`);
  if (!server.connectionId) {
    ({ connectionId: server.connectionId } = await request("mcp/connect", {
      acpId: server.id,
      serverId: server.id,
    }));
    await mcp(server, "initialize", {
      protocolVersion: "2025-11-25",
      capabilities: {},
      clientInfo: { name: "scripted", version: "1" },
    });
    notify("mcp/message", { connectionId: server.connectionId, method: "notifications/initialized" });
  }
  return server;
}

const mcp = (server, method, params, spell) =>
  request("mcp/message", { connectionId: server.connectionId, method, params }, spell);

const commands = {
  say: async (rest) => say(rest),
  async tools(name) {
    const { tools } = await mcp(await connect(name), "tools/list", {});
    say(`tools: ${tools.map((tool) => tool.name).join(", ") || "none"}`);
  },
  async call(rest) {
    const [, server, tool, json] = /^(\S+) (\S+) ?(.*)$/s.exec(rest);
    const toolCallId = `t${nextId}`;
    const started = Date.now();
    // Arguments go out as they were written, so that tests can look at long integers.
    const args = json || "{}";
    const raw = (text) => text.replace('"RAW"', () => args);
    const call = {
      sessionUpdate: "tool_call",
      toolCallId,
      title: tool,
      status: "in_progress",
      rawInput: "RAW",
    };
    write({ method: "session/update", params: { sessionId, update: call } }, raw);
    try {
      const result = await mcp(await connect(server), "tools/call", { name: tool, arguments: "RAW" }, raw);
      const text = result.content.map((part) => part.text ?? `[${part.type}]`).join("\n");
      const status = result.isError ? "failed" : "completed";
      update({
        sessionUpdate: "tool_call_update",
        toolCallId,
        status,
        content: [{ type: "content", content: { type: "text", text } }],
      });
      say(`${result.isError ? "tool error" : "result"}: ${text}`);
    } catch (error) {
      update({ sessionUpdate: "tool_call_update", toolCallId, status: "failed", rawOutput: error.message });
      say(`call failed after ${Date.now() - started} ms: ${error.code} ${error.message}`);
    }
  },
  async many(rest) {
    const [, count, server, tool, json] = /^(\d+) (\S+) (\S+) ?(.*)$/s.exec(rest);
    const connected = await connect(server);
    const params = { name: tool, arguments: JSON.parse(json || "{}") };
    const results = await Promise.all(
      Array.from({ length: Number(count) }, () => mcp(connected, "tools/call", params)),
    );
    say(`many: ${results.map((result) => (result.isError ? "no" : "yes")).join(" ")}`);
  },
  async hasty(rest) {
    const [, server, tool, json] = /^(\S+) (\S+) ?(.*)$/s.exec(rest);
    const connected = await connect(server);
    const call = mcp(connected, "tools/call", { name: tool, arguments: JSON.parse(json || "{}") });
    const id = nextId - 1;
    setTimeout(() => notify("$/cancel_request", { requestId: id }), 1500);
    await call.then(
      () => say("hasty: it ran"),
      (error) => say(`hasty: ${error.code}`),
    );
  },
  async ask(json) {
    const { outcome } = await request(
      "session/request_permission",
      {
        sessionId,
        toolCall: { toolCallId: `t${nextId}`, title: "delete_everything", rawInput: "RAW" },
        options: [
          { optionId: "yes", name: "Allow once", kind: "allow_once" },
          { optionId: "no", name: "Reject", kind: "reject_once" },
        ],
      },
      (text) => text.replace('"RAW"', () => json),
    );
    say(`permission: ${outcome.outcome === "selected" ? outcome.optionId : outcome.outcome}`);
  },
  wait: () => new Promise((resolve) => turn.cancelled.then(resolve)),
  async exit(code) {
    process.exit(Number(code));
  },
  async fs() {
    try {
      await request("fs/read_text_file", { sessionId, path: "/etc/passwd" });
      say("the client gave a file away");
    } catch (error) {
      say(`refused: ${error.code}, data ${JSON.stringify(error.data)}`);
    }
  },
  seen: async () => say(`seen: ${seen.join(" ")}`),
};

async function prompt(text) {
  let cancel;
  turn = { cancelled: new Promise((resolve) => (cancel = () => resolve("cancelled"))) };
  turn.cancel = cancel;
  history.push({ sessionUpdate: "user_message_chunk", content: { type: "text", text } });
  const [, name, rest] = /^(\S+)\s*(.*)$/s.exec(text) ?? [];
  const command = commands[name] ?? (async () => say(`I do not know ${name}`));
  const ended = await Promise.race([
    command(rest ?? "").then(
      () => "end_turn",
      (error) => {
        say(`error: ${error.message}`);
        return "end_turn";
      },
    ),
    turn.cancelled,
  ]);
  if (options.load) writeFileSync(historyFile(sessionId), JSON.stringify(history));
  return { stopReason: ended };
}

function declare(list = []) {
  servers.clear();
  for (const server of list) servers.set(server.name, { id: server.serverId ?? server.id });
}

const ACP = { true: { acp: true }, object: { acp: {} }, null: { acp: null }, absent: {} };

const handlers = {
  async initialize() {
    await new Promise((resolve) => setTimeout(resolve, Number(options["slow-start"])));
    return {
      protocolVersion: 1,
      agentInfo: { name: "scripted", title: options.title, version: "1" },
      agentCapabilities: { loadSession: options.load, mcpCapabilities: ACP[options.acp] },
    };
  },
  async "session/new"(params) {
    declare(params.mcpServers);
    sessionId = `s${process.pid}`;
    history = [];
    return { sessionId };
  },
  async "session/load"(params) {
    if (!existsSync(historyFile(params.sessionId)))
      throw Object.assign(new Error("unknown session"), { code: -32002 });
    declare(params.mcpServers);
    sessionId = params.sessionId;
    const kept = JSON.parse(readFileSync(historyFile(sessionId), "utf8"));
    history = [];
    for (const value of kept) {
      history.push(value);
      notify("session/update", { sessionId, update: value });
    }
    return {};
  },
  "session/prompt": (params) => prompt(params.prompt.map((block) => block.text).join("")),
};

createInterface({ input: process.stdin })
  .on("line", async (line) => {
    const message = JSON.parse(line);
    if (message.method === undefined) {
      const waiting = pending.get(message.id);
      pending.delete(message.id);
      if (message.error) waiting?.reject(Object.assign(new Error(message.error.message), message.error));
      else waiting?.resolve(message.result);
      return;
    }
    seen.push(message.method);
    if (message.method === "session/cancel") turn?.cancel();
    if (message.id === undefined) return;
    try {
      const handler = handlers[message.method];
      if (!handler) throw Object.assign(new Error(`no ${message.method}`), { code: -32601 });
      write({ id: message.id, result: await handler(message.params) });
    } catch (error) {
      write({ id: message.id, error: { code: error.code ?? -32603, message: error.message, data: null } });
    }
  })
  .on("close", () => process.exit(0));
