/**
 * What a sandbox tells its page.
 *
 * Invariant: listeners are called in the order in which they came, one event after the other; a listener that throws
 * harms no other (its error is reported as an uncaught one).
 */

import type { BootMode, BootStage, ServerStatus } from "./protocol.ts";

/** Events of a {@link Sandbox}, by name. Texts come from inside: show them as text only. */
export interface SandboxEvents {
  /** A stage of the boot began, or went on. `fraction`: 0 to 1 within the stage. */
  progress: { readonly stage: BootStage; readonly detail?: string; readonly fraction?: number };
  /** The sandbox serves. `ms`: milliseconds by stage, and in total since the boot began. */
  ready: {
    readonly servers: readonly ServerStatus[];
    readonly mode: BootMode;
    readonly ms: Readonly<Record<string, number>>;
  };
  /** All files of the bundle are in the page's own store: the next visit fetches none, and starts quicker. */
  kept: Record<string, never>;
  /** The sandbox cannot be started, or not again; the state is `failed`. */
  failed: { readonly stage: string; readonly message: string; readonly remedy: string };
  /** Something was printed. Labels are missing where output belongs to no call. */
  log: {
    readonly server?: string;
    readonly tool?: string;
    readonly call?: string;
    readonly stream: "stdout" | "stderr";
    readonly text: string;
  };
  /** The tools changed: ask `listTools` again. */
  tools: Record<string, never>;
  /** The sandbox died or did not answer. What was open with it has been answered with an error. */
  crashed: { readonly reason: string; readonly restarting: boolean };
  /** After a crash or a `restart()`: it serves again; folders, tool modules and declared servers are back in place. */
  restarted: { readonly mode: BootMode; readonly ms: Readonly<Record<string, number>> };
}

export class Emitter {
  readonly #listeners = new Map<keyof SandboxEvents, Set<(event: never) => void>>();

  /** Calls `listener` for each event `name`; the function that it returns ends that. */
  on<Name extends keyof SandboxEvents>(
    name: Name,
    listener: (event: SandboxEvents[Name]) => void,
  ): () => void {
    const listeners = this.#listeners.get(name) ?? new Set();
    this.#listeners.set(name, listeners);
    listeners.add(listener);
    return () => {
      listeners.delete(listener);
    };
  }

  emit<Name extends keyof SandboxEvents>(name: Name, event: SandboxEvents[Name]): void {
    for (const listener of this.#listeners.get(name) ?? []) {
      try {
        (listener as (event: SandboxEvents[Name]) => void)(event);
      } catch (error) {
        reportError(error);
      }
    }
  }
}
