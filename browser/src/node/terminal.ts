/**
 * What a person sees and types: a chat in a terminal.
 *
 * Invariant: what comes from the agent or from tools is shown as text; control characters that could move the cursor or
 * set the terminal are taken out. The agent's words go to stdout, all else to stderr, so that a pipe gets the answer alone.
 */

import process from "node:process";
import { createInterface, type Interface } from "node:readline";
import type {
  RequestPermissionRequest,
  RequestPermissionResponse,
  SessionUpdate,
} from "@agentclientprotocol/sdk";

/** Escape sequences, and control characters but for newline and tab. */
const CONTROL: RegExp = new RegExp(
  [
    String.raw`\x1b\[[0-?]*[ -/]*[@-~]`,
    String.raw`\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)`,
    String.raw`[\x00-\x08\x0b-\x1f\x7f-\x9f]`,
  ].join("|"),
  "g",
);
/** Characters of a tool's arguments that are shown. */
const MAX_SHOWN = 200;

/** Text of somebody else, safe to print. */
export function printable(text: string): string {
  return text.replaceAll(CONTROL, "");
}

type Style = "bold" | "dim" | "red" | "green" | "yellow" | "cyan";
const CODES: Record<Style, number> = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33, cyan: 36 };

export class Terminal {
  readonly #color = process.stderr.isTTY === true && !process.env["NO_COLOR"];
  readonly #interactive = process.stdin.isTTY === true && process.stderr.isTTY === true;
  #lines: Interface | undefined;
  readonly #queue: string[] = [];
  #ended = false;
  #wake: (() => void) | undefined;
  #midLine = false;
  readonly #titles = new Map<string, string>();
  readonly #started = new Map<string, number>();

  /** Puts words in a style, where the terminal has any. */
  style(style: Style, text: string): string {
    return this.#color ? `\u001b[${CODES[style]}m${text}\u001b[0m` : text;
  }

  /** A line beside the conversation. */
  note(text: string): void {
    this.#endLine();
    process.stderr.write(`${text}\n`);
  }

  /** Replaces the last status line; shown to people only. */
  status(text: string): void {
    if (this.#interactive) process.stderr.write(`\r\u001b[2K${text}`);
  }

  /**
   * The next line that is typed.
   * @returns undefined at the end of the input.
   */
  async ask(prompt: string, signal?: AbortSignal): Promise<string | undefined> {
    this.#endLine();
    this.#listen();
    if (this.#interactive) {
      // readline draws the line anew while it is edited, and has to know what stands before it.
      this.#lines?.setPrompt(prompt);
      this.#lines?.prompt();
    }
    while (this.#queue.length === 0 && !this.#ended && !signal?.aborted) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        signal?.addEventListener("abort", () => resolve(), { once: true });
      });
    }
    return signal?.aborted ? undefined : this.#queue.shift();
  }

  /** Calls `handler` for Ctrl-C. */
  onInterrupt(handler: () => void): void {
    this.#listen();
    // With a terminal readline hears Ctrl-C; otherwise it is a signal.
    this.#lines?.on("SIGINT", handler);
    process.on("SIGINT", handler);
  }

  close(): void {
    this.#endLine();
    this.#lines?.close();
  }

  /** Shows what the agent does. */
  update(update: SessionUpdate): void {
    switch (update.sessionUpdate) {
      case "agent_message_chunk":
        if (update.content.type === "text") this.#say(update.content.text);
        break;
      case "tool_call":
        this.#titles.set(update.toolCallId, update.title);
        this.#started.set(update.toolCallId, performance.now());
        this.note(
          `${this.style("cyan", "›")} ${printable(update.title)} ${this.style("dim", argumentsOf(update.rawInput))}`,
        );
        if (update.status === "completed" || update.status === "failed")
          this.#toolEnd(update.toolCallId, update.status);
        break;
      case "tool_call_update":
        if (update.status === "completed" || update.status === "failed") {
          this.#toolEnd(update.toolCallId, update.status);
        }
        break;
      default:
    }
  }

  /** Puts a question of the agent to the person; without a terminal nothing is allowed. */
  async permission(
    request: RequestPermissionRequest,
    signal: AbortSignal,
  ): Promise<RequestPermissionResponse> {
    const title = printable(request.toolCall.title ?? request.toolCall.toolCallId);
    this.note(
      `${this.style("yellow", "?")} May the agent run ${this.style("bold", title)}? ${this.style("dim", argumentsOf(request.toolCall.rawInput))}`,
    );
    const choices = request.options.map(({ name }, index) => `${index + 1} ${printable(name)}`).join("   ");
    if (!this.#interactive) {
      this.note("  There is no terminal to ask at: refused.");
      const refusal = request.options.find(({ kind }) => kind === "reject_once" || kind === "reject_always");
      return {
        outcome: refusal ? { outcome: "selected", optionId: refusal.optionId } : { outcome: "cancelled" },
      };
    }
    for (;;) {
      const answer = await this.ask(`  ${choices}  `, signal);
      if (answer === undefined) return { outcome: { outcome: "cancelled" } };
      const option = request.options[Number(answer.trim()) - 1];
      if (option) return { outcome: { outcome: "selected", optionId: option.optionId } };
    }
  }

  #toolEnd(id: string, status: "completed" | "failed"): void {
    const began = this.#started.get(id);
    this.#started.delete(id);
    const title = printable(this.#titles.get(id) ?? id);
    const time = began === undefined ? "" : ` ${((performance.now() - began) / 1000).toFixed(1)} s`;
    const mark = status === "completed" ? this.style("green", "✓") : this.style("red", "✗");
    this.note(`${mark} ${title}${this.style("dim", time)}`);
  }

  #say(text: string): void {
    const shown = printable(text);
    process.stdout.write(shown);
    if (shown !== "") this.#midLine = !shown.endsWith("\n");
  }

  #endLine(): void {
    if (this.#midLine) process.stdout.write("\n");
    this.#midLine = false;
  }

  #listen(): void {
    if (this.#lines) return;
    const wake = () => {
      this.#wake?.();
      this.#wake = undefined;
    };
    this.#lines = createInterface({
      input: process.stdin,
      output: process.stderr,
      terminal: this.#interactive,
    });
    this.#lines.on("line", (line) => {
      this.#queue.push(line);
      wake();
    });
    this.#lines.on("close", () => {
      this.#ended = true;
      wake();
    });
  }
}

function argumentsOf(rawInput: unknown): string {
  if (rawInput === undefined || rawInput === null) return "";
  const text = printable(JSON.stringify(rawInput));
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text;
}
