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
import { InPageAgentError, type ModelSettings } from "../agent/inpage-agent.ts";
import { UsageError } from "./address.ts";
import { createHostAgent } from "./agent.ts";
import { Ending, leaving, serveStreams } from "./streams.ts";

/** Variable that holds the key of an endpoint, unless `--key-env` names another. */
export const KEY_VARIABLE = "SANDPORT_MODEL_KEY";

/** Wishes of who starts the program. */
export interface ServeAgentOptions {
  /** `ADDRESS#NAME` of a model behind an OpenAI-compatible endpoint; without it the demo script answers. */
  readonly model?: string | undefined;
  /** Name of the environment's variable that holds the endpoint's key. */
  readonly keyEnv?: string | undefined;
  /** Folder that keeps the sessions. */
  readonly data?: string | undefined;
  readonly bundle?: string | undefined;
  /** See `HostAgentOptions`. */
  readonly imageCache?: string | false | undefined;
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
  const over = new Ending();
  const say = (text: string): void => void process.stderr.write(`sandport agent: ${text.trimEnd()}\n`);
  const agent = createHostAgent({
    ...(options.bundle === undefined ? {} : { bundle: options.bundle }),
    ...(options.data === undefined ? {} : { data: options.data }),
    ...(options.imageCache === undefined ? {} : { imageCache: options.imageCache }),
    onLog: say,
    onImage: say,
    onProgress: ({ stage, detail }) => {
      // What is said of the runtime is why the start is slow.
      if (stage === "runtime" && detail) say(detail);
      else if (options.verbose && stage !== "fetch") say(`starting: ${stage}`);
    },
  });
  try {
    await agent.use(model);
    // Not read before somebody listens: what the client writes meanwhile waits in the pipe.
    await Promise.race([agent.open().then((channel) => serveStreams(channel, over, say)), over.ended]);
  } catch (error) {
    say(error instanceof InPageAgentError ? `${error.message}. ${error.remedy}` : String(error));
    over.end(1);
  }
  const status = await over.ended;
  await leaving(agent.close());
  agent.terminate();
  return status;
}
