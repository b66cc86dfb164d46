/**
 * What a person types: lines with editing and history where there is a terminal, the lines of a file or pipe elsewhere.
 *
 * Invariants: an answer to a question is typed after the question was shown; what was typed before it waits for the next
 * prompt. Nothing that is typed appears between the agent's words.
 */

import process from "node:process";
import { createInterface, type Interface } from "node:readline";
import { Writable } from "node:stream";

/** See the module comment. */
export class Input {
  /** Whether a person sits here. */
  readonly interactive: boolean = process.stdin.isTTY === true && process.stderr.isTTY === true;
  readonly #onInterrupt: () => void;
  readonly #queue: string[] = [];
  #lines: Interface | undefined;
  #muted = true;
  #ended = false;
  #question: ((line: string | undefined) => void) | undefined;
  #wake: (() => void) | undefined;

  /** @param onInterrupt called for Ctrl-C, unless {@link discard} had something to take back. */
  constructor(onInterrupt: () => void) {
    this.#onInterrupt = onInterrupt;
  }

  /**
   * The next line, which may have been typed already.
   * @returns undefined at the end of the input.
   */
  async line(prompt: string): Promise<string | undefined> {
    const lines = this.#open();
    if (this.interactive && this.#queue.length === 0 && !this.#ended) this.#show(lines, prompt);
    while (this.#queue.length === 0 && !this.#ended) {
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
    this.#muted = true;
    return this.#queue.shift();
  }

  /**
   * The answer to a question: the next line that is typed from now on. It is kept out of the history.
   * @returns undefined when the input ended or `signal` took the question back.
   */
  async answer(prompt: string, signal?: AbortSignal): Promise<string | undefined> {
    const lines = this.#open();
    if (this.#ended || signal?.aborted) return undefined;
    const draft = lines.line;
    // Node types it as missing; Deno and Bun may well lack it.
    const { history } = lines as unknown as { readonly history?: string[] };
    const typed = [...(history ?? [])];
    clearLine(lines);
    this.#show(lines, prompt);
    const answer = await new Promise<string | undefined>((resolve) => {
      this.#question = resolve;
      signal?.addEventListener("abort", () => resolve(undefined), { once: true });
    });
    this.#question = undefined;
    if (answer === undefined) process.stderr.write("\n");
    history?.splice(0, history.length, ...typed);
    this.#muted = true;
    clearLine(lines);
    // What was being typed when the question came.
    lines.write(draft);
    return answer;
  }

  /** Takes back what is being typed at the prompt. Returns whether there was anything. */
  discard(): boolean {
    const lines = this.#lines;
    if (this.#muted || !lines || lines.line === "") return false;
    clearLine(lines);
    return true;
  }

  /** Makes room for something else, when a prompt stands there. */
  aside(): void {
    if (this.interactive && !this.#muted) process.stderr.write("\r\u001b[2K");
  }

  /** Shows the prompt again, after something else was written. */
  again(): void {
    if (this.interactive && !this.#muted) this.#lines?.prompt(true);
  }

  close(): void {
    if (this.#ended) return;
    this.#ended = true;
    // Whatever comes next begins on a line of its own.
    if (this.interactive && !this.#muted) process.stderr.write("\n");
    this.#muted = true;
    this.#lines?.close();
    this.#question?.(undefined);
    this.#wake?.();
  }

  #show(lines: Interface, prompt: string): void {
    this.#muted = false;
    // readline draws the line anew while it is edited, and has to know what stands before it.
    lines.setPrompt(prompt);
    lines.prompt(true);
  }

  #open(): Interface {
    if (this.#lines) return this.#lines;
    // Keys that are pressed while the agent speaks are taken, and shown with the next prompt.
    const output = new Writable({
      write: (chunk: Uint8Array, _, done) => {
        if (!this.#muted) process.stderr.write(chunk);
        done();
      },
    });
    const { columns } = process.stderr;
    const lines = createInterface({
      input: process.stdin,
      output: this.interactive ? Object.assign(output, { columns }) : output,
      terminal: this.interactive,
    });
    this.#lines = lines;
    lines.on("line", (line) => {
      if (this.#question) this.#question(line);
      else {
        this.#queue.push(line);
        this.#wake?.();
      }
    });
    // With a terminal readline hears Ctrl-C; otherwise it is a signal.
    lines.on("SIGINT", this.#onInterrupt);
    lines.on("close", () => this.close());
    return lines;
  }
}

function clearLine(lines: Interface): void {
  // Ctrl-E, Ctrl-U: to the end, and all before it away.
  if (lines.line !== "") {
    lines.write(null, { ctrl: true, name: "e" });
    lines.write(null, { ctrl: true, name: "u" });
  }
}
