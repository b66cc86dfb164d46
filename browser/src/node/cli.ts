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
import { lend } from "../lend.ts";
import { type AgentAddress, agentAddress, openAgent, UsageError } from "./address.ts";
import { ownBundle } from "./assets.ts";
import { Conversation } from "./conversation.ts";
import { hostName, isolationNotice } from "./host.ts";
import { createHostSandbox, type HostSandbox } from "./sandbox.ts";
import { printable, Terminal } from "./terminal.ts";

const HELP = `usage: sandport --agent AGENT [options]
       sandport [options] -- COMMAND [ARGUMENT...]
       sandport assets FOLDER

Lends Python tools to an ACP agent and chats with it here.

  --agent AGENT     the agent: a command line, a ws:// address, or the address that \`sandport serve\` prints
  --tools FILE      Python file that defines a FastMCP server \`mcp\`; repeatable
  --workspace DIR   folder that is copied into the sandbox, for the workspace tools
  --prompt TEXT     say this, print the answer, end
  --time-limit S    seconds that a tool may run (default 30)
  --bundle DIR      another bundle than the package's own
  --trusted         in Deno: let tools have the permissions of the process
  --verbose         show what the agent writes to stderr and what tools print
  --help, --version

assets copies the sandbox's files, to be served beside a page.

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
      "time-limit": { type: "string" },
      bundle: { type: "string" },
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
  if (positionals[0] === "assets" && !args.includes("--"))
    return copyAssets(positionals.slice(1), values.bundle);
  const address = addressFrom(values.agent, positionals);
  const timeLimit = values["time-limit"] === undefined ? undefined : Number(values["time-limit"]);
  if (timeLimit !== undefined && !(timeLimit > 0))
    throw new UsageError("--time-limit must be a number of seconds");

  const terminal = new Terminal();
  const sandbox = createHostSandbox({
    trusted: values.trusted,
    ...(values.bundle === undefined ? {} : { bundle: path.resolve(values.bundle) }),
    ...(timeLimit === undefined ? {} : { timeLimit }),
    on: {
      log: ({ text, tool }) => {
        if (values.verbose)
          terminal.note(terminal.style("dim", printable(`${tool ?? "python"}: ${text.trimEnd()}`)));
      },
      crashed: ({ reason }) => terminal.note(terminal.style("red", `The sandbox died: ${printable(reason)}`)),
    },
  });
  try {
    return await converse(sandbox, terminal, address, values);
  } finally {
    sandbox.terminate();
    terminal.close();
  }
}

function addressFrom(agent: string | undefined, positionals: readonly string[]): AgentAddress {
  const [command, ...rest] = positionals;
  if (agent !== undefined && command !== undefined) throw new UsageError("give either --agent or -- COMMAND");
  if (agent !== undefined) return agentAddress(agent);
  if (command !== undefined) return { kind: "command", command, args: rest };
  throw new UsageError("which agent? Give --agent or -- COMMAND");
}

/** Starts Python and loads the person's tools; returns how many tools there are. */
async function start(
  sandbox: HostSandbox,
  terminal: Terminal,
  files: readonly string[],
  workspace: string | undefined,
): Promise<number> {
  const notice = isolationNotice(sandbox.isolation);
  terminal.note(terminal.style(sandbox.isolation === "nothing" ? "yellow" : "dim", `! ${notice}`));
  const began = performance.now();
  const timer = setInterval(() => {
    terminal.status(
      terminal.style("dim", `starting Python … ${Math.round((performance.now() - began) / 1000)} s`),
    );
  }, 1000);
  try {
    await sandbox.ready;
    if (workspace !== undefined) await sandbox.mountFolder(workspace);
    for (const file of files) await sandbox.loadFile(file);
    return (await sandbox.listTools()).length;
  } finally {
    clearInterval(timer);
    terminal.status("");
  }
}

interface Wishes {
  readonly tools: readonly string[];
  readonly workspace?: string | undefined;
  readonly prompt?: string | undefined;
  readonly verbose: boolean;
}

async function converse(
  sandbox: HostSandbox,
  terminal: Terminal,
  address: AgentAddress,
  { tools: files, workspace, prompt, verbose }: Wishes,
): Promise<number> {
  const onStderr = (text: string) => {
    if (verbose) terminal.note(terminal.style("dim", printable(text.trimEnd())));
  };
  const channel = await openAgent(address, onStderr);
  let over: string | undefined;
  const lending = lend(channel, [sandbox], {
    onProblem: (message) => {
      if (over === undefined) terminal.note(terminal.style("red", `! ${printable(message)}`));
    },
  });
  const ended = lending.port.closed.then(({ reason }): never => {
    over = printable(reason) || "the connection to the agent ended";
    throw new Error(over);
  });
  ended.catch(() => {});
  try {
    // An agent that cannot be started says so at once, not when Python is ready.
    const tools = await Promise.race([start(sandbox, terminal, files, workspace), ended]);
    const conversation = await Promise.race([
      Conversation.start(lending.lane, process.cwd(), {
        update: (update) => terminal.update(update),
        permission: (request, signal) => terminal.permission(request, signal),
      }),
      ended,
    ]);
    if (prompt !== undefined) return await say(conversation, terminal, prompt, () => over);
    terminal.note(
      `${terminal.style("bold", "Sandport")} in ${hostName()}: ${printable(conversation.agent)} ${lending.offers ? `has ${tools} tools` : "takes no tools"}. Ctrl-C stops a turn, Ctrl-D ends.`,
    );
    let running = false;
    terminal.onInterrupt(() => {
      if (running) void conversation.cancel().catch(() => {});
      else terminal.close();
    });
    for (;;) {
      terminal.note("");
      const text = await terminal.ask(terminal.style("bold", "you › "));
      if (text === undefined) return 0;
      if (text.trim() === "") continue;
      running = true;
      const status = await say(conversation, terminal, text, () => over);
      running = false;
      if (status !== 0 && over !== undefined) return status;
    }
  } finally {
    lending.lane.close();
    await lending.port.closed;
  }
}

async function say(
  conversation: Conversation,
  terminal: Terminal,
  text: string,
  over: () => string | undefined,
): Promise<number> {
  try {
    const reason = await conversation.prompt(text);
    if (reason !== "end_turn") terminal.note(terminal.style("dim", `(${reason.replaceAll("_", " ")})`));
    return 0;
  } catch (error) {
    const message = over() ?? (error instanceof Error ? error.message : String(error));
    terminal.note(terminal.style("red", `! ${printable(message)}`));
    return 1;
  }
}

async function copyAssets(rest: readonly string[], bundle: string = ownBundle()): Promise<number> {
  const [target] = rest;
  if (target === undefined || rest.length > 1) throw new UsageError("assets needs one folder");
  for (const name of ["runtime", "sandbox.html", "headers.json"]) {
    await cp(path.join(bundle, name), path.join(target, name), { recursive: true });
  }
  process.stderr.write(`The sandbox's files are in ${target}: createSandbox({ base }) takes its address.\n`);
  return 0;
}

async function version(): Promise<string> {
  const text = await readFile(new URL("../../package.json", import.meta.url), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}
