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
  /** All that identifies the tool, as one text. Whoever remembers an answer must remember it for this, not for the name. */
  readonly definition: string;
  /**
   * Aborted when the answer no longer counts: close the question. Its `reason` says why: the agent no longer waits, the
   * time for an answer is over, or the tools were switched off.
   */
  readonly signal: AbortSignal;
}

/** `once` this call; `always` this tool, as it is now, until the page is gone; `deny` this call. */
export type ToolAnswer = "once" | "always" | "deny";

/** Asks the person. A rejection counts as `deny`; the agent reads the text of a {@link ConsentError}. */
export type Ask = (question: ToolQuestion) => ToolAnswer | Promise<ToolAnswer>;

/** For tools that need no question, such as the ones that only read what the page shows to the agent anyway. */
export const allowAll: Ask = () => "once";

/** The tool may not run; its text is what the agent gets to read. */
export class ConsentError extends Error {
  override readonly name = "ConsentError";
  /** Nobody answered in time. */
  readonly unanswered: boolean;

  constructor(message: string, { unanswered = false }: { readonly unanswered?: boolean } = {}) {
    super(message);
    this.unanswered = unanswered;
  }
}

/**
 * Seconds a question waits for its answer when nothing else was said: long enough to come back from the next room, and
 * less than the five minutes that agents give a tool, so that they read why it did not run.
 */
export const QUESTION_LIMIT = 240;

/** Asks, and remembers what was allowed for good. One for each server. */
export class Gate {
  readonly #ask: Ask;
  readonly #limit: number | null;
  readonly #place: string;
  readonly #allowed = new Map<string, string>();

  /**
   * @param limit seconds that a question waits for its answer; null for ever.
   * @param place where the person is, for what the agent reads.
   */
  constructor(ask: Ask, limit: number | null = QUESTION_LIMIT, place = "at the page") {
    this.#ask = ask;
    this.#limit = limit;
    this.#place = place;
  }

  /**
   * Returns when the call may go on.
   * @throws {ConsentError} it may not; the text is for the agent.
   */
  async pass(question: ToolQuestion): Promise<void> {
    const { tool, definition } = question;
    if (this.#allowed.get(tool) === definition) return;
    const answer = await this.#answer(question);
    if (answer === "always") this.#allowed.set(tool, definition);
    else if (answer !== "once") {
      throw new ConsentError(`The person ${this.#place} did not allow the tool ${tool} to run.`);
    }
  }

  /** The answer, or the reason why there will be none: nobody is waited for who does not listen to the signal. */
  async #answer(question: ToolQuestion): Promise<ToolAnswer> {
    const over = new AbortController();
    const signal = AbortSignal.any([question.signal, over.signal]);
    if (signal.aborted) throw withdrawn(signal);
    const late = () =>
      over.abort(new ConsentError(unanswered(question.tool, this.#limit, this.#place), { unanswered: true }));
    const timer = this.#limit === null ? undefined : setTimeout(late, this.#limit * 1000);
    const end = new Promise<never>((_, reject) => {
      signal.addEventListener("abort", () => reject(withdrawn(signal)), { once: true });
    });
    try {
      return await Promise.race([(async () => this.#ask({ ...question, signal }))(), end]);
    } catch (error) {
      if (error instanceof ConsentError) throw error;
      return "deny";
    } finally {
      clearTimeout(timer);
    }
  }

  /** Takes back what was allowed for good: of one tool, or of all. */
  revoke(tool?: string): void {
    if (tool === undefined) this.#allowed.clear();
    else this.#allowed.delete(tool);
  }
}

function unanswered(tool: string, limit: number | null, place: string): string {
  return `Nobody ${place} answered within ${limit} s whether the tool ${tool} may run, so it did not run.`;
}

function withdrawn({ reason }: AbortSignal): ConsentError {
  return reason instanceof ConsentError
    ? reason
    : new ConsentError("The call was cancelled before it was allowed.");
}
