/**
 * Permission for tools that run in the page.
 *
 * Invariant: no tool function starts before the person allowed this call, or allowed this very tool for the rest of
 * the page's life. What was allowed is the definition, not the name: a tool that comes back under an old name with
 * other words, another schema or another origin is asked for anew.
 */

/** What a person is asked: may the agent run this tool with these arguments? Show all of it as text only. */
export interface ToolQuestion {
  readonly server: string;
  readonly tool: string;
  readonly title?: string;
  readonly description: string;
  /** The checked arguments, as the tool would get them. */
  readonly arguments: unknown;
  /** Where the tool comes from, when that is not simply this page's own code: a web origin. */
  readonly origin?: string;
  /** The tool says that it changes nothing. A claim, no promise. */
  readonly readOnly: boolean;
  /** Aborted when the agent no longer waits: close the question, the answer no longer counts. */
  readonly signal: AbortSignal;
}

/** `once` this call; `always` this tool, as it is now, until the page is gone; `deny` this call. */
export type ToolAnswer = "once" | "always" | "deny";

/** Asks the person. A rejection counts as `deny`. */
export type Ask = (question: ToolQuestion) => ToolAnswer | Promise<ToolAnswer>;

/** For tools that need no question, such as the ones that only read what the page shows to the agent anyway. */
export const allowAll: Ask = () => "once";

/** The tool may not run; its text is what the agent gets to read. */
export class ConsentError extends Error {
  override readonly name = "ConsentError";
}

/** Remembers what was allowed for good. One for each server. */
export class Gate {
  readonly #ask: Ask;
  readonly #allowed = new Map<string, string>();

  constructor(ask: Ask) {
    this.#ask = ask;
  }

  /**
   * Returns when the call may go on.
   * @param definition all that identifies the tool, as text.
   * @throws {ConsentError} it may not.
   */
  async pass(question: ToolQuestion, definition: string): Promise<void> {
    if (this.#allowed.get(question.tool) === definition) return;
    let answer: ToolAnswer;
    try {
      answer = await this.#ask(question);
    } catch {
      answer = "deny";
    }
    if (question.signal.aborted) throw new ConsentError("The call was cancelled before it was allowed.");
    if (answer === "always") this.#allowed.set(question.tool, definition);
    else if (answer !== "once") {
      throw new ConsentError(`The person at the page did not allow the tool ${question.tool} to run.`);
    }
  }

  /** Takes back what was allowed for good: of one tool, or of all. */
  revoke(tool?: string): void {
    if (tool === undefined) this.#allowed.clear();
    else this.#allowed.delete(tool);
  }
}
