/**
 * How much a worker has not taken from its port: browsers keep what is posted to a busy worker, and tell nobody.
 *
 * Invariant: never less than what waits. The worker says, now and then, how many texts it took; that it takes them in
 * order says which.
 */

/** Texts after which a worker says that it took them. */
export const TAKEN_TEXTS = 64;
/** Characters after which it says so for fewer. */
export const TAKEN_CHARS = 1024 * 1024;

/** The page's count. */
export class Unread {
  #sizes: number[] = [];
  #first = 0;
  #chars = 0;

  get texts(): number {
    return this.#sizes.length - this.#first;
  }

  get chars(): number {
    return this.#chars;
  }

  /** A text was posted. */
  sent(chars: number): void {
    this.#sizes.push(chars);
    this.#chars += chars;
  }

  /** The worker says that it took so many more; a claim, so it may be any number. */
  taken(texts: number): void {
    const end = Math.min(this.#first + Math.max(0, Math.floor(texts)), this.#sizes.length);
    for (let at = this.#first; at < end; at += 1) this.#chars -= this.#sizes[at] ?? 0;
    this.#first = end;
    if (this.#first > 1000 || this.#first === this.#sizes.length) {
      this.#sizes = this.#sizes.slice(this.#first);
      this.#first = 0;
    }
  }
}

/** The worker's side: counts what it takes and says so through `say`. */
export class Taken {
  #texts = 0;
  #chars = 0;
  readonly #say: (texts: number) => void;

  constructor(say: (texts: number) => void) {
    this.#say = say;
  }

  /** A text was taken from the port. */
  add(chars: number): void {
    this.#texts += 1;
    this.#chars += chars;
    if (this.#texts < TAKEN_TEXTS && this.#chars < TAKEN_CHARS) return;
    this.#say(this.#texts);
    this.#texts = 0;
    this.#chars = 0;
  }
}
