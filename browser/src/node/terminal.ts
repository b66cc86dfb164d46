/**
 * What a person sees, and is asked: a chat in a terminal.
 *
 * Invariants: what comes from the agent or from tools is shown as text; control characters that could move the cursor or
 * set the terminal are taken out. The agent's words go to stdout, all else to stderr, so that a pipe gets the answer alone.
 * Where nobody can be asked, nothing is allowed that was not allowed beforehand.
 */

import process from "node:process";
import type {
  CreateElicitationRequest,
  CreateElicitationResponse,
  PermissionOption,
  RequestPermissionRequest,
  RequestPermissionResponse,
  SessionUpdate,
} from "@agentclientprotocol/sdk";
import { ConsentError, type ToolAnswer, type ToolQuestion } from "../tools/consent.ts";
import { fieldsOf, readField } from "./form.ts";
import { Input } from "./input.ts";

/** Escape sequences, and control characters but for newline and tab. */
const CONTROL: RegExp = new RegExp(
  [
    String.raw`\x1b\[[0-?]*[ -/]*[@-~]`,
    String.raw`\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)`,
    String.raw`[\x00-\x08\x0b-\x1f\x7f-\x9f]`,
    // Marks that turn the direction of what follows.
    "[\\u202a-\\u202e\\u2066-\\u2069]",
  ].join("|"),
  "g",
);
/** Characters of a tool's arguments that are shown beside its name; a question shows all of them. */
const MAX_SHOWN = 200;
/** Milliseconds of silence after which a person is told that something is being done. */
const QUIET = 800;
const NOBODY = "there is no terminal to ask at; --yes allows calls beforehand";

/** Text of somebody else, safe to print. */
export function printable(text: string): string {
  return text.replaceAll(CONTROL, "");
}

type Style = "bold" | "dim" | "red" | "green" | "yellow" | "cyan";
const CODES: Record<Style, number> = { bold: 1, dim: 2, red: 31, green: 32, yellow: 33, cyan: 36 };
/** Keys of answers, by what they mean. */
const KEYS: Partial<Record<PermissionOption["kind"], string>> = {
  allow_once: "y",
  allow_always: "a",
  reject_once: "n",
  reject_always: "never",
};

export class Terminal {
  readonly input: Input;
  readonly #color =
    process.stderr.isTTY === true && !process.env["NO_COLOR"] && process.env["TERM"] !== "dumb";
  #midLine = false;
  #status = "";
  #working: { readonly since: number; readonly timer: NodeJS.Timeout } | undefined;
  #what = "";
  #thinking = false;
  readonly #calls = new Map<string, { readonly title: string; readonly began: number }>();
  /** Questions are put one after the other. */
  #asking: Promise<unknown> = Promise.resolve();

  /** @param onInterrupt called for Ctrl-C. */
  constructor(onInterrupt: () => void) {
    this.input = new Input(onInterrupt);
  }

  /** Puts words in a style, where the terminal has any. */
  style(style: Style, text: string): string {
    return this.#color ? `\u001b[${CODES[style]}m${text}\u001b[0m` : text;
  }

  /** A line beside the conversation. */
  note(text: string): void {
    this.#endLine();
    this.input.aside();
    process.stderr.write(`${text}\n`);
    this.input.again();
  }

  /** Says that something takes time, until {@link rest}; shown to people only. */
  work(what: string): void {
    this.#what = what;
    if (!this.input.interactive || this.#working) return;
    const since = performance.now();
    const timer = setInterval(() => {
      if (this.#midLine) return;
      const seconds = Math.round((performance.now() - since) / 1000);
      this.#clear();
      this.#status = `${this.#what} … ${seconds} s`;
      const width = (process.stderr.columns ?? 80) - 1;
      process.stderr.write(this.style("dim", this.#status.slice(0, width)));
    }, QUIET);
    this.#working = { since, timer };
  }

  rest(): void {
    clearInterval(this.#working?.timer);
    this.#working = undefined;
    this.#clear();
  }

  /** The next prompt of the person; undefined at the end of the input. */
  ask(prompt: string): Promise<string | undefined> {
    this.#endLine();
    return this.input.line(prompt);
  }

  close(): void {
    this.rest();
    this.#endLine();
    this.input.close();
  }

  /** Shows what the agent does. */
  update(update: SessionUpdate): void {
    if (update.sessionUpdate !== "agent_thought_chunk" && this.#thinking) {
      this.#thinking = false;
      this.#endLine();
    }
    switch (update.sessionUpdate) {
      case "agent_message_chunk":
        if (update.content.type === "text") this.#say(update.content.text);
        else this.note(this.style("dim", `[${update.content.type}]`));
        break;
      case "agent_thought_chunk":
        if (update.content.type === "text") this.#think(update.content.text);
        break;
      case "plan":
        for (const { content, status } of update.entries) {
          const mark = { pending: "○", in_progress: "◐", completed: "●" }[status] ?? "○";
          this.note(`${this.style("cyan", mark)} ${this.style("dim", printable(content))}`);
        }
        break;
      case "tool_call":
        this.#calls.set(update.toolCallId, { title: printable(update.title), began: performance.now() });
        this.note(
          `${this.style("cyan", "›")} ${printable(update.title)} ${this.style("dim", short(update.rawInput))}`,
        );
        this.#what = printable(update.title);
        if (update.status === "completed" || update.status === "failed")
          this.#toolEnd(update.toolCallId, update.status);
        break;
      case "tool_call_update":
        if (update.status === "completed" || update.status === "failed") {
          this.#toolEnd(update.toolCallId, update.status, textOf(update.content));
        } else {
          const progress = textOf(update.content);
          const title = this.#calls.get(update.toolCallId)?.title;
          if (progress && title) this.#what = `${title}: ${progress}`;
        }
        break;
      default:
    }
  }

  /** Puts a question of the agent to the person. */
  permission(request: RequestPermissionRequest, signal: AbortSignal): Promise<RequestPermissionResponse> {
    const { options, toolCall } = request;
    const title = printable(toolCall.title ?? toolCall.toolCallId);
    return this.#inTurn(async () => {
      // Agents put other questions in this way too, about no call that was told of.
      if (this.#calls.has(toolCall.toolCallId)) this.#question(title, toolCall.rawInput);
      else
        this.note(
          `${this.style("yellow", "?")} ${title}${this.style("dim", argumentsOf(toolCall.rawInput))}`,
        );
      if (!this.input.interactive) {
        this.note(`  Refused: ${NOBODY}.`);
        const refusal = options.find(({ kind }) => kind === "reject_once" || kind === "reject_always");
        return outcomeOf(refusal);
      }
      const keys = keysOf(options);
      const shown = options.map(({ name }, at) => `${this.style("bold", keys[at] ?? "")} ${printable(name)}`);
      for (;;) {
        const answer = await this.#answer(`  ${shown.join("   ")}  `, signal);
        if (answer === undefined) return outcomeOf(undefined);
        const at = keys.indexOf(answer.trim().toLowerCase());
        if (at >= 0) return outcomeOf(options[at]);
        this.note(this.style("dim", `  Type one of ${keys.join(", ")}.`));
      }
    });
  }

  /** Asks whether a tool may run here. */
  toolQuestion(question: ToolQuestion): Promise<ToolAnswer> {
    const { server, tool, arguments: args, signal } = question;
    return this.#inTurn(async () => {
      if (!this.input.interactive) {
        this.note(`${this.style("yellow", "!")} ${printable(`${server}/${tool}`)} was refused: ${NOBODY}.`);
        throw new ConsentError(`The tool ${tool} did not run: nobody can be asked whether it may.`);
      }
      this.#question(printable(`${server}/${tool}`), args);
      const [y, a, n] = [this.style("bold", "y"), this.style("bold", "a"), this.style("bold", "n")];
      for (;;) {
        const answer = (await this.#answer(`  ${y} Yes   ${a} Always this tool   ${n} No  `, signal)) ?? "n";
        const meant = { y: "once", a: "always", n: "deny" }[answer.trim().toLowerCase()];
        if (meant) return meant as ToolAnswer;
        this.note(this.style("dim", "  Type y, a or n."));
      }
    });
  }

  /** Lets the person fill in a form that a tool or the agent asks for. Where nobody can, it is declined. */
  elicitation(request: CreateElicitationRequest, signal: AbortSignal): Promise<CreateElicitationResponse> {
    return this.#inTurn(async () => {
      this.note(`${this.style("yellow", "?")} ${printable(request.message)}`);
      const fields = fieldsOf(request);
      if (!this.input.interactive || !fields) {
        this.note(`  Declined: ${fields ? NOBODY : "this terminal cannot show the form"}.`);
        return { action: "decline" };
      }
      if (fields.length > 0) this.note(this.style("dim", "  Enter takes what is in brackets; ! declines."));
      const content: Record<string, string | number | boolean | string[]> = {};
      for (const field of fields) {
        for (;;) {
          const answer = await this.#answer(`  ${printable(field.label)} › `, signal);
          if (answer === undefined) return { action: "cancel" };
          if (answer.trim() === "!") return { action: "decline" };
          const read = readField(field, answer);
          if ("problem" in read) {
            this.note(this.style("dim", `  ${read.problem}`));
            continue;
          }
          if (read.value !== undefined && field.name !== "") content[field.name] = read.value;
          if (field.name === "" && read.value === false) return { action: "decline" };
          break;
        }
      }
      return { action: "accept", content };
    });
  }

  #inTurn<Answer>(put: () => Promise<Answer>): Promise<Answer> {
    const mine = this.#asking.then(put);
    this.#asking = mine.catch(() => {});
    return mine;
  }

  async #answer(prompt: string, signal: AbortSignal): Promise<string | undefined> {
    const what = this.#what;
    const { interactive } = this.input;
    this.rest();
    try {
      return await this.input.answer(prompt, signal);
    } finally {
      if (interactive) this.work(what);
    }
  }

  #question(title: string, args: unknown): void {
    this.note(
      `${this.style("yellow", "?")} May ${this.style("bold", title)} run?${this.style("dim", argumentsOf(args))}`,
    );
  }

  #toolEnd(id: string, status: "completed" | "failed", text = ""): void {
    const call = this.#calls.get(id);
    this.#calls.delete(id);
    const time = call ? ` ${((performance.now() - call.began) / 1000).toFixed(1)} s` : "";
    const good = status === "completed";
    const mark = good ? this.style("green", "✓") : this.style("red", "✗");
    const why = good || !text ? "" : ` ${text}`;
    this.note(`${mark} ${call?.title ?? printable(id)}${this.style("dim", `${time}${why}`)}`);
    this.#what = "thinking";
  }

  #say(text: string): void {
    const shown = printable(text);
    if (shown === "") return;
    this.#clear();
    process.stdout.write(shown);
    this.#midLine = !shown.endsWith("\n");
  }

  #think(text: string): void {
    const shown = printable(text);
    if (shown === "") return;
    if (!this.#thinking) this.#endLine();
    this.#clear();
    this.#thinking = true;
    process.stderr.write(this.style("dim", shown));
    this.#midLine = !shown.endsWith("\n");
  }

  #endLine(): void {
    this.#clear();
    if (this.#midLine) (this.#thinking ? process.stderr : process.stdout).write("\n");
    this.#midLine = false;
  }

  #clear(): void {
    if (this.#status) process.stderr.write("\r\u001b[2K");
    this.#status = "";
  }
}

/** A letter for each option where each kind is there once, else a number. */
function keysOf(options: readonly PermissionOption[]): string[] {
  const letters = options.map(({ kind }) => KEYS[kind] ?? "");
  return new Set(letters).size === letters.length && !letters.includes("")
    ? letters
    : options.map((_, at) => String(at + 1));
}

function outcomeOf(option: PermissionOption | undefined): RequestPermissionResponse {
  return { outcome: option ? { outcome: "selected", optionId: option.optionId } : { outcome: "cancelled" } };
}

/** All of the arguments, since it is they that are allowed: on lines of their own where they are long. */
function argumentsOf(args: unknown): string {
  if (args === undefined || args === null) return "";
  const flat = printable(JSON.stringify(args));
  if (flat === "{}") return "";
  return flat.length <= MAX_SHOWN
    ? ` ${flat}`
    : `\n${printable(JSON.stringify(args, null, 2)).replaceAll(/^/gm, "    ")}`;
}

function textOf(content: unknown): string {
  if (!Array.isArray(content)) return "";
  const texts = content.map((block: { content?: { text?: unknown } }) => block?.content?.text);
  const text = printable(texts.filter((one) => typeof one === "string").join(" "))
    .replaceAll(/\s+/g, " ")
    .trim();
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text;
}

function short(rawInput: unknown): string {
  if (rawInput === undefined || rawInput === null) return "";
  const text = printable(JSON.stringify(rawInput));
  return text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text;
}
