/**
 * `sandport agent`: the agent as a program, for an editor or any other ACP client to start.
 *
 * Invariants: nothing but ACP messages is written to the standard output. The key of an endpoint comes from the environment
 * alone, and is in no message, log or error. The end of the input, a signal or a client that is gone end the program, after
 * its turns were stopped and their sessions kept. At the end of the input, what was asked before is still answered, but for
 * prompts, which are stopped.
 */

import process from "node:process";
import { type Endpoint, endpointBase } from "../agent/endpoint.ts";
import { type InPageAgent, InPageAgentError, type ModelSettings } from "../agent/inpage-agent.ts";
import { isObject, member, memberText } from "../json-text.ts";
import { UsageError } from "./address.ts";
import { createHostAgent } from "./agent.ts";
import { asLine, Lines } from "./lines.ts";

/** Variable that holds the key of an endpoint, unless `--key-env` names another. */
export const KEY_VARIABLE = "SANDPORT_MODEL_KEY";
/** Milliseconds in which turns must have stopped; a client that started this kills it soon after. */
const LEAVE_TIMEOUT = 1_500;
const SIGNALS: Readonly<Partial<Record<NodeJS.Signals, number>>> = { SIGHUP: 1, SIGINT: 2, SIGTERM: 15 };

/** Wishes of who starts the program. */
export interface ServeAgentOptions {
  /** `ADDRESS#NAME` of a model behind an OpenAI-compatible endpoint; without it the demo script answers. */
  readonly model?: string | undefined;
  /** Name of the environment's variable that holds the endpoint's key. */
  readonly keyEnv?: string | undefined;
  /** Folder that keeps the sessions. */
  readonly data?: string | undefined;
  readonly bundle?: string | undefined;
  readonly verbose?: boolean;
}

/**
 * The model that is meant. Takes the key out of the environment, so that nothing started from here inherits it.
 * @throws {UsageError} it cannot be meant like this; the message says how to write it.
 */
export function modelFrom({ model, keyEnv }: ServeAgentOptions, env: NodeJS.ProcessEnv): ModelSettings {
  const variable = keyEnv ?? KEY_VARIABLE;
  const key = env[variable];
  delete env[variable];
  if (model === undefined) {
    if (keyEnv !== undefined) throw new UsageError("--key-env is for an endpoint: give --model ADDRESS#NAME");
    return { kind: "demo" };
  }
  const [, address = "", name = ""] = /^([^#]*)#(.+)$/.exec(model) ?? [];
  if (!name.trim())
    throw new UsageError("--model is ADDRESS#NAME, such as http://localhost:11434/v1#qwen3:8b");
  if (keyEnv !== undefined && !key) throw new UsageError(`the environment has no ${variable}`);
  try {
    endpointBase(address);
  } catch (error) {
    throw new UsageError(`--model: ${error instanceof Error ? error.message : String(error)}`);
  }
  const endpoint: Endpoint = { address, model: name.trim(), ...(key ? { key } : {}) };
  return { kind: "endpoint", ...endpoint };
}

/**
 * Serves an ACP client on this process's standard streams until one of them ends.
 * @returns the exit status: 0 at the end of the input, 128 + N for signal N, 1 when the agent failed.
 */
export async function serveAgent(options: ServeAgentOptions): Promise<number> {
  const model = modelFrom(options, process.env);
  // Whatever prints in this process must not come between the messages.
  console.log = console.info = console.debug = console.error;
  const say = (text: string): void => void process.stderr.write(`sandport agent: ${text.trimEnd()}\n`);
  const agent = createHostAgent({
    ...(options.bundle === undefined ? {} : { bundle: options.bundle }),
    ...(options.data === undefined ? {} : { data: options.data }),
    onLog: say,
    onProgress: ({ stage, detail }) => {
      if (options.verbose && stage !== "fetch") say(`starting: ${stage}${detail ? ` (${detail})` : ""}`);
    },
  });
  const over = new Ending();
  for (const [signal, number] of Object.entries(SIGNALS)) process.once(signal, () => over.end(128 + number));
  // A client that is gone: there is nobody left to tell.
  process.stdout.on("error", () => over.end(0));
  try {
    await agent.use(model);
    await Promise.race([serve(agent, over, say), over.ended]);
  } catch (error) {
    say(error instanceof InPageAgentError ? `${error.message}. ${error.remedy}` : String(error));
    over.end(1);
  }
  const status = await over.ended;
  process.stdin.destroy();
  let timer: NodeJS.Timeout | undefined;
  await Promise.race([
    agent.close(),
    new Promise((resolve) => {
      timer = setTimeout(resolve, LEAVE_TIMEOUT);
    }),
  ]);
  clearTimeout(timer);
  agent.terminate();
  return status;
}

async function serve(agent: InPageAgent, over: Ending, say: (text: string) => void): Promise<void> {
  // Not read before somebody listens: what the client writes meanwhile waits in the pipe.
  const channel = await agent.open();
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

/** The one end of the program; who comes first says how. */
class Ending {
  done = false;
  readonly ended: Promise<number>;
  #resolve: ((status: number) => void) | undefined;

  constructor() {
    this.ended = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  end(status: number): void {
    this.done = true;
    this.#resolve?.(status);
  }
}
