/**
 * A conversation in a terminal with an agent that gets the person's tools.
 *
 * Invariants: what isolates the tools is said before any of them can run. A tool that is not marked as read-only runs when the
 * person allowed this call: to the agent, or here. Ctrl-C stops a turn, and ends the program when nothing runs or it comes
 * again.
 */

import { existsSync } from "node:fs";
import process from "node:process";
import type { RequestPermissionRequest, RequestPermissionResponse } from "@agentclientprotocol/sdk";
import { type Lending, lend } from "../lend.ts";
import type { ToolAnswer, ToolQuestion } from "../tools/consent.ts";
import { type AgentAddress, openAgent } from "./address.ts";
import { Consents } from "./consents.ts";
import { Conversation } from "./conversation.ts";
import { hostName, isolationNotice } from "./host.ts";
import { createHostSandbox, type HostSandbox } from "./sandbox.ts";
import { printable, Terminal } from "./terminal.ts";

/** Wishes of the person. */
export interface ChatOptions {
  readonly address: AgentAddress;
  /** Files of tools, each with `#module:attribute` for the server in it where that has to be said. */
  readonly tools: readonly string[];
  readonly workspace?: string | undefined;
  /** Say this, print the answer, end. */
  readonly prompt?: string | undefined;
  /** Allow all calls. */
  readonly yes: boolean;
  readonly verbose: boolean;
  readonly trusted: boolean;
  readonly bundle?: string | undefined;
  /** See `HostSandboxOptions`. */
  readonly imageCache?: string | false | undefined;
  /** Seconds that a tool may run. */
  readonly timeLimit?: number | undefined;
}

/** 128 + 2, as a shell has it for what Ctrl-C ended. */
const INTERRUPTED = 130;

/** Holds the conversation. Returns the exit status. */
export function chat(options: ChatOptions): Promise<number> {
  return new Chat(options).run();
}

class Chat {
  readonly #options: ChatOptions;
  readonly #terminal: Terminal;
  readonly #sandbox: HostSandbox;
  readonly #consents = new Consents();
  #conversation: Conversation | undefined;
  /** The turn that runs, until Ctrl-C stops it. */
  #turn: AbortController | undefined;
  /** Ctrl-C was pressed at an empty prompt. */
  #leaving = false;
  /** Why the connection to the agent is over. */
  #over: string | undefined;
  /** Ends the program, with an exit status. */
  #end: ((status: number) => void) | undefined;

  constructor(options: ChatOptions) {
    this.#options = options;
    const terminal = new Terminal(() => this.#interrupt());
    this.#terminal = terminal;
    const { bundle, imageCache, timeLimit, trusted, verbose, yes } = options;
    this.#sandbox = createHostSandbox({
      trusted,
      ...(bundle === undefined ? {} : { bundle }),
      ...(imageCache === undefined ? {} : { imageCache }),
      ...(timeLimit === undefined ? {} : { timeLimit }),
      ...(yes ? {} : { ask: (question: ToolQuestion) => this.#mayRun(question) }),
      onImage: (text) => this.#aside(text),
      on: {
        progress: ({ stage, detail }) => {
          // What is said of the runtime is why the start is slow.
          if (stage === "runtime" && detail) this.#aside(detail);
        },
        log: ({ text, tool }) => {
          if (verbose) this.#aside(`${tool ?? "python"}: ${text}`);
        },
        crashed: ({ reason }) => this.#problem(`The sandbox died: ${reason}`),
      },
    });
  }

  async run(): Promise<number> {
    const ended = new Promise<number>((resolve) => {
      this.#end = resolve;
    });
    const interrupt = (): void => this.#interrupt();
    process.on("SIGINT", interrupt);
    // Whoever reads the answers has had enough, as `head` has.
    process.stdout.on("error", () => this.#end?.(0));
    try {
      return await Promise.race([this.#converse(), ended]);
    } finally {
      process.removeListener("SIGINT", interrupt);
      this.#sandbox.terminate();
      this.#terminal.close();
    }
  }

  async #converse(): Promise<number> {
    const { address, prompt, verbose } = this.#options;
    const channel = await openAgent(address, (text) => {
      if (verbose) this.#aside(text);
    });
    const lending = lend(channel, [this.#sandbox], {
      onProblem: (message) => {
        if (this.#over === undefined) this.#problem(message);
      },
    });
    const ended = lending.port.closed.then(({ reason }): never => {
      this.#over = printable(reason) || "the connection to the agent ended";
      throw new Error(this.#over);
    });
    ended.catch(() => {});
    try {
      // An agent that cannot be started says so at once, not when Python is ready.
      const tools = await Promise.race([this.#start(), ended]);
      this.#terminal.work("waiting for the agent");
      const conversation = await Promise.race([this.#greet(lending), ended]);
      this.#conversation = conversation;
      this.#terminal.rest();
      if (prompt !== undefined) return await this.#say(conversation, prompt);
      this.#welcome(conversation, lending, tools);
      return await this.#talk(conversation);
    } finally {
      lending.lane.close();
      await lending.port.closed;
    }
  }

  /** Starts Python and loads the person's tools; returns how many tools there are. */
  async #start(): Promise<number> {
    const { tools, workspace, yes } = this.#options;
    const terminal = this.#terminal;
    const { isolation } = this.#sandbox;
    const style = isolation === "nothing" ? "yellow" : "dim";
    terminal.note(terminal.style(style, `! ${isolationNotice(isolation)}`));
    if (yes) terminal.note(terminal.style(style, "! --yes: every call of a tool is allowed."));
    terminal.work("starting Python");
    try {
      await this.#sandbox.ready;
      if (workspace !== undefined) await this.#sandbox.mountFolder(workspace);
      for (const file of tools) await loadTools(this.#sandbox, file);
      return (await this.#sandbox.listTools()).length;
    } finally {
      terminal.rest();
    }
  }

  #greet(lending: Lending): Promise<Conversation> {
    const terminal = this.#terminal;
    return Conversation.start(lending.lane, process.cwd(), {
      update: (update) => terminal.update(update),
      permission: (request, signal) => this.#mayCall(request, this.#whileTurn(signal)),
      elicitation: (request, signal) => terminal.elicitation(request, this.#whileTurn(signal)),
    });
  }

  #welcome({ agent }: Conversation, { offers }: Lending, tools: number): void {
    const terminal = this.#terminal;
    const has = offers ? `has ${tools} tools` : "takes no tools";
    terminal.note(
      `${terminal.style("bold", "Sandport")} in ${hostName()}: ${printable(agent)} ${has}. Ctrl-C stops a turn, Ctrl-D ends.`,
    );
  }

  async #talk(conversation: Conversation): Promise<number> {
    const terminal = this.#terminal;
    for (;;) {
      terminal.note("");
      const text = await terminal.ask(terminal.style("bold", "you › "));
      this.#leaving = false;
      if (text === undefined) return 0;
      if (text.trim() === "") continue;
      const status = await this.#say(conversation, text);
      if (status !== 0 && this.#over !== undefined) return status;
    }
  }

  async #say(conversation: Conversation, text: string): Promise<number> {
    const terminal = this.#terminal;
    this.#turn = new AbortController();
    terminal.work("thinking");
    try {
      const reason = await conversation.prompt(text);
      terminal.rest();
      if (reason !== "end_turn") this.#aside(`(${reason.replaceAll("_", " ")})`);
      return 0;
    } catch (error) {
      terminal.rest();
      this.#problem(this.#over ?? messageOf(error));
      return 1;
    } finally {
      // A question that is still open has nobody who waits for it.
      this.#turn.abort();
      this.#turn = undefined;
      this.#consents.endTurn();
    }
  }

  // -- questions ------------------------------------------------------------------------------------------------

  async #mayCall(request: RequestPermissionRequest, signal: AbortSignal): Promise<RequestPermissionResponse> {
    const { options, toolCall } = request;
    if (this.#options.yes) {
      const kinds = ["allow_once", "allow_always"];
      const [option] = options
        .filter(({ kind }) => kinds.includes(kind))
        .sort((left, right) => kinds.indexOf(left.kind) - kinds.indexOf(right.kind));
      // Several answers of one kind are no yes and no: nobody here can choose.
      const unclear = options.filter(({ kind }) => kind === option?.kind).length > 1;
      if (option && !unclear) return { outcome: { outcome: "selected", optionId: option.optionId } };
    }
    const response = await this.#terminal.permission(request, signal);
    const { outcome } = response;
    const chosen = outcome.outcome === "selected" ? outcome.optionId : undefined;
    const kind = options.find(({ optionId }) => optionId === chosen)?.kind;
    if (kind === "allow_once" || kind === "allow_always")
      this.#consents.granted(toolCall.title ?? "", toolCall.rawInput, kind === "allow_always");
    return response;
  }

  async #mayRun(question: ToolQuestion): Promise<ToolAnswer> {
    const { server, tool, arguments: args, readOnly } = question;
    const answered = readOnly ? "once" : this.#consents.take(server, tool, args);
    return answered ?? this.#terminal.toolQuestion({ ...question, signal: this.#whileTurn(question.signal) });
  }

  #whileTurn(signal: AbortSignal): AbortSignal {
    return this.#turn ? AbortSignal.any([signal, this.#turn.signal]) : signal;
  }

  #interrupt(): void {
    const terminal = this.#terminal;
    const turn = this.#turn;
    if (turn && !turn.signal.aborted) {
      turn.abort();
      void this.#conversation?.cancel().catch(() => {});
      this.#aside("Stopping. Ctrl-C again ends.");
    } else if (turn || !this.#conversation || this.#leaving || this.#options.prompt !== undefined) {
      this.#end?.(INTERRUPTED);
    } else if (!terminal.input.discard()) {
      this.#leaving = true;
      this.#aside("Ctrl-C again, or Ctrl-D, ends.");
    }
  }

  #aside(text: string): void {
    this.#terminal.note(this.#terminal.style("dim", printable(text.trimEnd())));
  }

  #problem(text: string): void {
    this.#terminal.note(this.#terminal.style("red", `! ${printable(text)}`));
  }
}

/** Loads what `--tools` names. */
export async function loadTools(sandbox: HostSandbox, given: string): Promise<void> {
  const [, file = given, server] = /^(.*)#([\w.]+(?::\w+)?)$/.exec(given) ?? [];
  if (server === undefined || existsSync(given)) await sandbox.loadFile(given);
  else await sandbox.loadFile(file, { server });
}

function messageOf(error: unknown): string {
  const remedy = (error as { data?: { remedy?: unknown } }).data?.remedy;
  const message = error instanceof Error ? error.message : String(error);
  return typeof remedy === "string" ? `${message}. ${remedy}` : message;
}
