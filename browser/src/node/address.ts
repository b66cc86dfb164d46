/**
 * Where the agent is: a command line or an address.
 *
 * Invariant: a command line never reaches a shell.
 */

import type { TextChannel } from "../channel.ts";
import { UTF8_PROTOCOL, webSocketChannel } from "../channel-websocket.ts";
import { stdioChannel } from "./stdio.ts";

/** An agent to start, or one to connect to. */
export type AgentAddress =
  | { readonly kind: "command"; readonly command: string; readonly args: readonly string[] }
  | { readonly kind: "socket"; readonly url: string; readonly protocols: readonly string[] };

/** A mistake that a person can mend; the text says how. */
export class UsageError extends Error {
  override readonly name = "UsageError";
}

/**
 * Reads what a person writes for an agent: a command line with quotes, a `ws:` address, or the page's address that
 * `sandport serve` prints, with its token.
 * @throws {UsageError} it is none of them.
 */
export function agentAddress(text: string): AgentAddress {
  if (/^wss?:\/\//.test(text)) return { kind: "socket", url: text, protocols: [] };
  if (/^https?:\/\//.test(text)) {
    const url = new URL(text);
    const token = /^#token=(\S+)$/.exec(url.hash)?.[1];
    if (token === undefined)
      throw new UsageError(`${text} has no #token=…: give the address that sandport serve prints`);
    url.protocol = url.protocol.replace("http", "ws");
    url.hash = "";
    url.pathname = `${url.pathname.replace(/\/[^/]*$/, "")}/acp`;
    return { kind: "socket", url: url.href, protocols: ["acp.v1", `sandport.token.${token}`, UTF8_PROTOCOL] };
  }
  const [command, ...args] = splitCommand(text);
  if (command === undefined) throw new UsageError("--agent is empty: give a command line or an address");
  return { kind: "command", command, args };
}

/**
 * Splits a command line at white space, with quotes and backslashes as a POSIX shell has them; nothing is expanded.
 * @throws {UsageError} a quote is open at the end.
 */
export function splitCommand(line: string): string[] {
  const words: string[] = [];
  let word: string | undefined;
  let quote = "";
  for (let at = 0; at < line.length; at += 1) {
    const char = line.charAt(at);
    if (quote !== "'" && char === "\\" && at + 1 < line.length) {
      at += 1;
      word = (word ?? "") + line.charAt(at);
    } else if (quote) {
      if (char === quote) quote = "";
      else word += char;
    } else if (char === "'" || char === '"') {
      quote = char;
      word ??= "";
    } else if (/\s/.test(char)) {
      if (word !== undefined) words.push(word);
      word = undefined;
    } else word = (word ?? "") + char;
  }
  if (quote) throw new UsageError(`the command line ends inside ${quote}: ${line}`);
  if (word !== undefined) words.push(word);
  return words;
}

/** Starts the agent, or connects to it. */
export async function openAgent(
  address: AgentAddress,
  onStderr?: (text: string) => void,
): Promise<TextChannel> {
  if (address.kind === "command") {
    return stdioChannel(address.command, address.args, onStderr ? { onStderr } : {});
  }
  const { url, protocols } = address;
  // Node before 22 has no WebSocket of its own.
  const own = globalThis.WebSocket ?? ((await import("ws")).WebSocket as unknown as typeof WebSocket);
  return webSocketChannel(url, { protocols, WebSocket: own });
}
