/**
 * An ACP channel to an agent that this process starts: one message a line on its standard input and output.
 *
 * Invariant: the process ends with the channel, and the channel with the process; its last words on stderr are kept for
 * whoever has to explain why it ended.
 */

import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { BaseChannel, CLOSE_ABNORMAL, CLOSE_NORMAL, type TextChannel } from "../channel.ts";
import { asLine, Lines } from "./lines.ts";

/** Milliseconds that an agent has to end by itself after its input was closed. */
const END_TIMEOUT = 2_000;
const KEPT_STDERR = 2_000;

/** Settings of {@link stdioChannel}. */
export interface StdioOptions {
  readonly cwd?: string;
  readonly env?: NodeJS.ProcessEnv;
  /** Receives what the agent writes to stderr; without it, it is only kept for the error. */
  readonly onStderr?: (text: string) => void;
}

class StdioChannel extends BaseChannel {
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #lines = new Lines();
  #said = "";

  constructor(
    child: ChildProcessWithoutNullStreams,
    command: string,
    onStderr: ((text: string) => void) | undefined,
  ) {
    super();
    this.#child = child;
    child.stdout.setEncoding("utf8").on("data", (text: string) => this.#read(text));
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      this.#said = (this.#said + text).slice(-KEPT_STDERR);
      onStderr?.(text);
    });
    // A write to a process that is gone; "exit" says the rest.
    child.stdin.on("error", () => {});
    child.on("error", (error) =>
      this.ended({ code: CLOSE_ABNORMAL, reason: `${command}: ${error.message}` }),
    );
    child.on("close", (code, signal) => {
      const how = signal ? `was ended by ${signal}` : `ended with status ${code}`;
      const said = this.#said.trim().split("\n").slice(-3).join("\n");
      this.ended(
        code === 0
          ? { code: CLOSE_NORMAL, reason: "the agent ended" }
          : { code: CLOSE_ABNORMAL, reason: `${command} ${how}${said ? `:\n${said}` : ""}` },
      );
    });
  }

  #read(text: string): void {
    try {
      for (const line of this.#lines.feed(text)) this.deliver(line);
    } catch (error) {
      this.close(CLOSE_ABNORMAL, `the agent wrote no messages: ${String(error)}`);
    }
  }

  protected override transmit(text: string): void {
    this.#child.stdin.write(asLine(text));
  }

  protected override shut(): void {
    this.#child.stdin.end();
    const timer = setTimeout(() => this.#child.kill("SIGKILL"), END_TIMEOUT);
    this.#child.on("close", () => clearTimeout(timer));
  }
}

/**
 * Starts an agent and talks to it on its standard streams.
 * @param command a program; no shell is involved.
 */
export function stdioChannel(
  command: string,
  args: readonly string[] = [],
  options: StdioOptions = {},
): TextChannel {
  const { cwd, env, onStderr } = options;
  const child = spawn(command, args, {
    stdio: ["pipe", "pipe", "pipe"],
    ...(cwd === undefined ? {} : { cwd }),
    ...(env === undefined ? {} : { env }),
  });
  return new StdioChannel(child, command, onStderr);
}
