/**
 * What ends Python code that does not return to the loop, without shared memory.
 *
 * Pyodide's interrupt buffer may be any object: Python reads element 0 while it runs, takes 2 for SIGINT, and writes 0
 * when it has taken it. Here element 0 is a question of the clock.
 *
 * Invariant: element 0 is 2 only between `arm` and `disarm`: Python's own loop is never interrupted, only a handle
 * that runs under a limit. Code that swallows the interrupt gets the next one after {@link AGAIN_MS}.
 */

/** Milliseconds until code that caught KeyboardInterrupt and went on is interrupted again. */
const AGAIN_MS = 500;

export class Deadline {
  #until = Number.POSITIVE_INFINITY;
  #armed = false;
  readonly #signal: Int32Array | null;

  /** @param signal shared with the frame, which writes 2 into element 0 when the page asks; null where there is none. */
  constructor(signal: Int32Array | null) {
    this.#signal = signal;
  }

  /** Interrupts what still runs after `seconds`. */
  arm(seconds: number): void {
    // What was asked for before this handle ran was meant for another.
    if (this.#signal) Atomics.store(this.#signal, 0, 0);
    this.#until = performance.now() + seconds * 1000;
    this.#armed = true;
  }

  disarm(): void {
    this.#armed = false;
  }

  get 0(): number {
    if (!this.#armed) return 0;
    if (performance.now() > this.#until) return 2;
    return this.#signal !== null && Atomics.load(this.#signal, 0) === 2 ? 2 : 0;
  }

  set 0(_taken: number) {
    if (!this.#armed) return;
    if (this.#signal) Atomics.store(this.#signal, 0, 0);
    if (performance.now() > this.#until) this.#until = performance.now() + AGAIN_MS;
  }
}
