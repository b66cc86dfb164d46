/**
 * The command `sandport` of the npm package: an ACP client in a terminal that lends Python tools to its agent.
 *
 * Invariant: it says what isolates the tools before any of them can run. Exit status: 0 done, 1 something failed, 2 wrong
 * usage.
 */

import { cp, readFile } from "node:fs/promises";
import path from "node:path";
import process from "node:process";
import { parseArgs } from "node:util";
import { type AgentAddress, agentAddress, UsageError } from "./address.ts";
import { hasImage, ownBundle } from "./assets.ts";
import { chat } from "./chat.ts";
import { CACHE_VARIABLE, keptImage } from "./kept.ts";
import { lendOnStreams } from "./lend-streams.ts";
import { makeImage } from "./make-image.ts";
import { KEY_VARIABLE, serveAgent } from "./serve-agent.ts";

const HELP = `usage: sandport --agent AGENT [options]
       sandport [options] -- COMMAND [ARGUMENT...]
       sandport lend [--tools PATH]... -- COMMAND [ARGUMENT...]
       sandport agent [--model ADDRESS#NAME] [--data DIR]
       sandport image [--image-cache DIR]
       sandport assets FOLDER [--no-agent]

Lends Python tools to an ACP agent and chats with it here.

  --agent AGENT     the agent: a command line, a ws:// address, or the address that \`sandport serve\` prints
  --tools PATH      Python file that defines a FastMCP server \`mcp\`, or a wheel, zip or folder with such a module;
                    PATH#MODULE or PATH#MODULE:NAME says which; repeatable
  --workspace DIR   folder that is copied into the sandbox, for the workspace tools
  --prompt TEXT     say this, print the answer, end
  --yes, -y         allow every call of a tool; without it you are asked, and what cannot be asked is refused
  --time-limit S    seconds that a tool may run (default 30)
  --bundle DIR      another bundle than the package's own
  --image-cache DIR folder that keeps memory images, which make the next start quick; "off" keeps none (default:
                    ${CACHE_VARIABLE}, or the user's folder for caches)
  --trusted         in Deno: let tools have the permissions of the process
  --verbose         show what the agent writes to stderr and what tools print
  --help, --version

lend does the same for an editor, which starts it in place of the agent: it starts the agent, lends it the tools, and
passes on all that the two say. What may run is asked in the editor.

agent is an agent of its own, which an editor or any other ACP client starts: it speaks ACP on its standard streams, and
its tools are those that the client lends it (MCP servers of type acp).

  --model ADDRESS#NAME   model behind an OpenAI-compatible endpoint, such as http://localhost:11434/v1#qwen3:8b;
                         without it a script answers, which needs no key and says that it is no language model
  --key-env NAME         variable of the environment that holds the endpoint's key (default ${KEY_VARIABLE})
  --data DIR             folder that keeps the sessions; without it they end with the program

image makes the memory images now; else the first start has them made aside.

assets copies the files of the sandbox and of the in-page agent, to be served beside a page; --no-agent leaves out the
agent's.

What isolates tools depends on the host: nothing in Node and Bun, the missing permissions of a worker in Deno
(run it with --unstable-worker-options there).
`;

/** Runs the command. Returns its exit status. */
export async function main(args: readonly string[]): Promise<number> {
  try {
    return await run(args);
  } catch (error) {
    const known =
      error instanceof UsageError || (error as { code?: string }).code?.startsWith("ERR_PARSE_ARGS");
    // Only the first line: a PythonError carries its whole traceback, and the log has shown it.
    process.stderr.write(`sandport: ${error instanceof Error ? error.message : String(error)}\n`);
    if (known) process.stderr.write("See sandport --help.\n");
    return known ? 2 : 1;
  }
}

async function run(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      agent: { type: "string" },
      tools: { type: "string", multiple: true, default: [] },
      workspace: { type: "string" },
      prompt: { type: "string" },
      yes: { type: "boolean", short: "y", default: false },
      model: { type: "string" },
      "key-env": { type: "string" },
      data: { type: "string" },
      "time-limit": { type: "string" },
      bundle: { type: "string" },
      "image-cache": { type: "string" },
      "no-agent": { type: "boolean", default: false },
      trusted: { type: "boolean", default: false },
      verbose: { type: "boolean", default: false },
      help: { type: "boolean", short: "h", default: false },
      version: { type: "boolean", default: false },
    },
  });
  if (values.help) {
    process.stdout.write(HELP);
    return 0;
  }
  if (values.version) {
    process.stdout.write(`sandport ${await version()}\n`);
    return 0;
  }
  const imageCache: string | false | undefined =
    values["image-cache"] === "off" ? false : values["image-cache"];
  if (positionals[0] === "image" && !args.includes("--")) {
    if (positionals.length > 1) throw new UsageError("image takes options only");
    return makeImages(values.bundle, imageCache);
  }
  if (positionals[0] === "assets" && !args.includes("--"))
    return copyAssets(positionals.slice(1), values.bundle, !values["no-agent"]);
  if (positionals[0] === "agent" && !args.includes("--")) {
    if (positionals.length > 1)
      throw new UsageError("agent takes options only; the client is on its standard streams");
    return serveAgent({
      model: values.model,
      keyEnv: values["key-env"],
      data: values.data,
      bundle: values.bundle,
      imageCache,
      verbose: values.verbose,
    });
  }
  const isLend = positionals[0] === "lend" && args[0] === "lend";
  const address = addressFrom(values.agent, isLend ? positionals.slice(1) : positionals);
  const timeLimit = values["time-limit"] === undefined ? undefined : Number(values["time-limit"]);
  if (timeLimit !== undefined && !(timeLimit > 0))
    throw new UsageError("--time-limit must be a number of seconds");

  const wishes = {
    address,
    tools: values.tools,
    workspace: values.workspace,
    yes: values.yes,
    verbose: values.verbose,
    trusted: values.trusted,
    bundle: values.bundle && path.resolve(values.bundle),
    imageCache,
    timeLimit,
  };
  return isLend ? lendOnStreams(wishes) : chat({ ...wishes, prompt: values.prompt });
}

function addressFrom(agent: string | undefined, positionals: readonly string[]): AgentAddress {
  const [command, ...rest] = positionals;
  if (agent !== undefined && command !== undefined) throw new UsageError("give either --agent or -- COMMAND");
  if (agent !== undefined) return agentAddress(agent);
  if (command !== undefined) return { kind: "command", command, args: rest };
  throw new UsageError("which agent? Give --agent or -- COMMAND");
}

async function copyAssets(
  rest: readonly string[],
  bundle: string = ownBundle(),
  withAgent = true,
): Promise<number> {
  const [target] = rest;
  if (target === undefined || rest.length > 1) throw new UsageError("assets needs one folder");
  const names = ["runtime", "sandbox.html", "headers.json", ...(withAgent ? ["agent", "sw.js"] : [])];
  for (const name of names) {
    await cp(path.join(bundle, name), path.join(target, name), { recursive: true });
  }
  const agent = withAgent ? " and createInPageAgent({ base })" : "";
  process.stderr.write(`The files are in ${target}: createSandbox({ base })${agent} take its address.\n`);
  return 0;
}

async function makeImages(
  bundle: string = ownBundle(),
  imageCache: string | false | undefined,
): Promise<number> {
  for (const part of ["runtime", "agent"] as const) {
    if (await hasImage(bundle, part)) {
      process.stderr.write(`The bundle has a memory image of its own (${part}).\n`);
      continue;
    }
    const kept = keptImage(bundle, part, imageCache);
    if (!kept) throw new UsageError("no folder for memory images: give --image-cache DIR");
    const began = performance.now();
    const claim = await kept.claim(true);
    if (claim) await makeImage(kept, claim);
    const done = claim
      ? `made in ${((performance.now() - began) / 1000).toFixed(1)} s`
      : "is there, or is being made";
    process.stderr.write(`${await kept.file()}: ${done}\n`);
  }
  return 0;
}

async function version(): Promise<string> {
  const text = await readFile(new URL("../../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}
