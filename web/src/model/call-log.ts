/**
 * What passed the mcp lane, as a list of calls: seen at the port, so it is what really went in and out of the sandbox.
 *
 * Invariant: the log only looks. It holds at most {@link MAX_ENTRIES} entries and {@link MAX_KEPT} characters of each
 * text, whatever tools do.
 */

import { memberText, type Traffic } from "sandport";

export const MAX_ENTRIES = 500;
export const MAX_KEPT = 100_000;

export type CallState = "running" | "ok" | "failed" | "cancelled";

export interface CallEntry {
  readonly kind: "call";
  readonly key: string;
  /** The outer JSON-RPC id as written. */
  readonly id: string;
  readonly at: number;
  readonly server: string;
  /** The MCP method, and for `tools/call` the tool. */
  readonly method: string;
  readonly tool: string | undefined;
  readonly arguments: string;
  readonly state: CallState;
  readonly duration: number | undefined;
  readonly result: string | undefined;
}

export interface PrintEntry {
  readonly kind: "print";
  readonly key: string;
  readonly at: number;
  readonly stream: "stdout" | "stderr";
  readonly source: string;
  readonly text: string;
}

export type LogEntry = CallEntry | PrintEntry;

const cut = (text: string) =>
  text.length > MAX_KEPT ? `${text.slice(0, MAX_KEPT)}\n… ${text.length - MAX_KEPT} more characters` : text;

function parse(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined;
  } catch {
    return undefined;
  }
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

const string = (value: unknown) => (typeof value === "string" ? value : undefined);

/** Builds the list from the port's traffic. */
export class CallLog {
  entries: readonly LogEntry[] = [];
  readonly #names = new Map<string, string>();
  readonly #connections = new Map<string, string>();
  readonly #running = new Map<
    string,
    { key: string; connectServer?: string; carrier: boolean; started: number }
  >();
  #serial = 0;

  /** A declared server id and the name it stands for. */
  name(serverId: string, name: string): void {
    this.#names.set(serverId, name);
  }

  clear(): void {
    this.entries = this.entries.filter((entry) => entry.kind === "call" && entry.state === "running");
  }

  /** The channel ended: whatever runs is never answered. */
  end(now: number): void {
    for (const id of [...this.#running.keys()])
      this.#finish(id, "failed", "The connection to the agent was lost.", now);
    this.#connections.clear();
  }

  /** Something that a tool printed. */
  print(stream: "stdout" | "stderr", source: string, text: string, at: number): void {
    const last = this.entries.at(-1);
    if (last?.kind === "print" && last.stream === stream && last.source === source) {
      this.entries = [...this.entries.slice(0, -1), { ...last, text: cut(last.text + text) }];
    } else {
      this.#add({ kind: "print", key: this.#key(), at, stream, source, text: cut(text) });
    }
  }

  /** One text of the mcp lane. `monotonic` is for durations, `at` for the time of day; both in milliseconds. */
  see({ from, to, text }: Traffic, monotonic: number, at: number): void {
    const message = parse(text);
    if (!message) return;
    if (to === "channel" && "id" in message && !("method" in message))
      this.#answered(message, text, monotonic);
    else if (from === "channel" && to.startsWith("sandbox:")) this.#asked(message, text, monotonic, at);
  }

  #asked(message: Record<string, unknown>, text: string, started: number, at: number): void {
    const method = string(message["method"]);
    if (!method || !("id" in message)) return;
    const id = memberText(text, "id") ?? "null";
    const params = record(message["params"]);
    const paramsText = memberText(text, "params") ?? "{}";
    if (method.endsWith("/connect")) {
      const server = record(params["server"]);
      const connectServer = [params["serverId"], params["acpId"], server["id"], params["acp_id"]].find(
        (value): value is string => typeof value === "string",
      );
      this.#start(
        id,
        { connectServer: connectServer ?? "", carrier: false, started },
        "connect",
        undefined,
        "",
        at,
      );
      return;
    }
    if (method.endsWith("/disconnect")) {
      this.#start(id, { carrier: false, started }, "disconnect", undefined, "", at, this.#serverOf(params));
      return;
    }
    const inner = string(params["method"]) ?? method;
    const innerText = memberText(paramsText, "params") ?? "{}";
    const tool = inner === "tools/call" ? string(record(params["params"])["name"]) : undefined;
    const args = tool === undefined ? innerText : (memberText(innerText, "arguments") ?? "{}");
    const carrier = typeof params["connectionId"] !== "string" && typeof params["connection_id"] !== "string";
    this.#start(id, { carrier, started }, inner, tool, args, at, this.#serverOf(params));
  }

  #serverOf(params: Record<string, unknown>): string {
    const connection = string(params["connectionId"] ?? params["connection_id"]) ?? "";
    const serverId = this.#connections.get(connection) ?? string(params["serverId"]) ?? "";
    return this.#names.get(serverId) ?? "";
  }

  #start(
    id: string,
    running: { connectServer?: string; carrier: boolean; started: number },
    method: string,
    tool: string | undefined,
    args: string,
    at: number,
    server = this.#names.get(running.connectServer ?? "") ?? "",
  ): void {
    const key = this.#key();
    this.#running.set(id, { ...running, key });
    this.#add({
      kind: "call",
      key,
      id,
      at,
      server,
      method,
      tool,
      arguments: cut(args),
      state: "running",
      duration: undefined,
      result: undefined,
    });
  }

  #answered(message: Record<string, unknown>, text: string, now: number): void {
    const id = memberText(text, "id") ?? "null";
    const running = this.#running.get(id);
    if (!running) return;
    if ("error" in message) {
      const code = record(message["error"])["code"];
      this.#finish(id, code === -32800 ? "cancelled" : "failed", memberText(text, "error") ?? "", now);
      return;
    }
    let result = record(message["result"]);
    let resultText = memberText(text, "result") ?? "{}";
    if (running.connectServer !== undefined) {
      const connection = string(result["connectionId"] ?? result["connection_id"]);
      if (connection) this.#connections.set(connection, running.connectServer);
    }
    if (running.carrier && "error" in result && !("result" in result)) {
      this.#finish(id, "failed", memberText(resultText, "error") ?? "", now);
      return;
    }
    if (running.carrier && "result" in result) {
      result = record(result["result"]);
      resultText = memberText(resultText, "result") ?? "{}";
    }
    this.#finish(id, result["isError"] === true ? "failed" : "ok", resultText, now);
  }

  #finish(id: string, state: CallState, result: string, now: number): void {
    const running = this.#running.get(id);
    if (!running) return;
    this.#running.delete(id);
    const at = this.entries.findLastIndex((entry) => entry.key === running.key);
    const entry = this.entries[at];
    if (entry?.kind !== "call") return;
    this.entries = this.entries.with(at, {
      ...entry,
      state,
      duration: now - running.started,
      result: cut(result),
    });
  }

  #key(): string {
    return `l${++this.#serial}`;
  }

  #add(entry: LogEntry): void {
    this.entries = [...this.entries.slice(-(MAX_ENTRIES - 1)), entry];
  }
}

/** The texts of a tool result, for reading: its content if that is text, else the JSON. */
export function resultTexts(result: string): { readonly text: string; readonly json: boolean } {
  const content = record(parse(result))["content"];
  if (Array.isArray(content)) {
    const texts = content.map((part: unknown) => string(record(part)["text"]));
    if (texts.length > 0 && texts.every((text) => text !== undefined)) {
      return { text: texts.join("\n"), json: false };
    }
  }
  return { text: result, json: true };
}
