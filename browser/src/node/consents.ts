/**
 * What the person has answered already, so that one call is not asked for twice: by its agent, and by the sandbox.
 *
 * Invariant: an answer to the agent counts for the call that was shown, with the tool's own name and these very arguments;
 * anything else is asked for.
 */

interface Granted {
  readonly title: string;
  readonly arguments: string;
}

/** Answers given to the agent, for the sandbox's own question. */
export class Consents {
  readonly #once: Granted[] = [];
  readonly #always = new Set<string>();

  /** The person let the agent make a call: once, or this tool from now on. */
  granted(title: string, args: unknown, always: boolean): void {
    if (always) this.#always.add(title);
    else this.#once.push({ title, arguments: canonical(args) });
  }

  /**
   * What was answered for a call; it is used up. "always" is for whoever remembers the tool as it is now: one that changes
   * later is asked for anew.
   */
  take(server: string, tool: string, args: unknown): "once" | "always" | undefined {
    const titles = [tool, `${server}_${tool}`, `${server}/${tool}`];
    const always = titles.find((title) => this.#always.has(title));
    if (always !== undefined) {
      this.#always.delete(always);
      return "always";
    }
    const text = canonical(args);
    const at = this.#once.findIndex((one) => titles.includes(one.title) && one.arguments === text);
    if (at < 0) return undefined;
    this.#once.splice(at, 1);
    return "once";
  }

  /** The turn is over: calls that were allowed and not made are not allowed later. */
  endTurn(): void {
    this.#once.length = 0;
  }
}

/** One text for equal values, in whatever order their members stand. */
function canonical(value: unknown): string {
  return JSON.stringify(value ?? {}, (_, inner: unknown) =>
    typeof inner === "object" && inner !== null && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([left], [right]) => (left < right ? -1 : 1)))
      : inner,
  );
}
