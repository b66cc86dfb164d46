/**
 * This process's own standard streams as the place of an ACP client.
 *
 * Invariants: nothing but messages is written to the standard output. The end of the input, a signal or a client that is gone
 * end the program, once. At the end of the input, what was asked before is still answered, but for prompts, which wait for a
 * person or a model.
 */

import process from "node:process";
import type { TextChannel } from "../channel.ts";
import { isObject, member, memberText } from "../json-text.ts";
import { asLine, Lines } from "./lines.ts";

/** Milliseconds in which a program must have ended what it does; a client that started it kills it soon after. */
export const LEAVE_TIMEOUT = 1_500;
const SIGNALS: Readonly<Partial<Record<NodeJS.Signals, number>>> = { SIGHUP: 1, SIGINT: 2, SIGTERM: 15 };

/** The one end of the program; who comes first says how. */
export class Ending {
  done = false;
  /** The exit status. */
  readonly ended: Promise<number>;
  #resolve: ((status: number) => void) | undefined;

  /** From now on a signal ends the program, and a client that does not read. What prints goes to stderr. */
  constructor() {
    this.ended = new Promise((resolve) => {
      this.#resolve = resolve;
    });
    console.log = console.info = console.debug = console.error;
    for (const [signal, number] of Object.entries(SIGNALS))
      process.once(signal, () => this.end(128 + number));
    // A client that is gone: there is nobody left to tell.
    process.stdout.on("error", () => this.end(0));
  }

  end(status: number): void {
    this.done = true;
    this.#resolve?.(status);
  }
}

/** Lets `work` end, for as long as whoever started this program waits. */
export async function leaving(work: Promise<unknown>): Promise<void> {
  process.stdin.destroy();
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise((resolve) => {
    timer = setTimeout(resolve, LEAVE_TIMEOUT);
  });
  await Promise.race([work, late]);
  clearTimeout(timer);
}

/**
 * Joins the standard streams to a channel.
 * @param say takes what goes wrong.
 */
export function serveStreams(channel: TextChannel, over: Ending, say: (text: string) => void): void {
  const open = new OpenRequests();
  channel.listen({
    text: (text) => {
      process.stdout.write(asLine(text));
      open.answered(text);
    },
    close: ({ reason }) => {
      if (!over.done) say(reason || "the agent ended");
      over.end(1);
    },
  });
  const lines = new Lines();
  process.stdin.setEncoding("utf8");
  process.stdin.on("data", (text: string) => {
    if (over.done) return;
    try {
      for (const line of lines.feed(text)) {
        open.asked(line);
        channel.send(line);
      }
    } catch (error) {
      say(`the client wrote no messages: ${String(error)}`);
      over.end(1);
    }
  });
  process.stdin.on("end", () => {
    const timer = setTimeout(() => over.end(0), LEAVE_TIMEOUT);
    void open.none().then(() => {
      clearTimeout(timer);
      over.end(0);
    });
  });
  process.stdin.on("error", () => over.end(0));
}

/** Requests of the client that wait for their answer; a prompt waits for a person or a model, and does not count. */
class OpenRequests {
  readonly #ids = new Set<string>();
  #empty: (() => void) | undefined;

  asked(text: string): void {
    const { id, method } = partsOf(text);
    if (id !== undefined && method !== undefined && method !== "session/prompt") this.#ids.add(id);
  }

  answered(text: string): void {
    const { id, method } = partsOf(text);
    if (id === undefined || method !== undefined) return;
    if (this.#ids.delete(id) && this.#ids.size === 0) this.#empty?.();
  }

  /** Settles when none is open. */
  async none(): Promise<void> {
    if (this.#ids.size > 0) {
      await new Promise<void>((resolve) => {
        this.#empty = resolve;
      });
    }
  }
}

function partsOf(text: string): { id?: string | undefined; method?: unknown } {
  try {
    const message: unknown = JSON.parse(text);
    return { id: isObject(message) ? memberText(text, "id") : undefined, method: member(message, "method") };
  } catch {
    // No message at all; the agent answers it as such.
    return {};
  }
}
