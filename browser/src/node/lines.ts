/** Text in pieces, one message a line out. */

/** Longest line accepted: what an ACP connection buffers (TypeScript SDK 2.4.0). */
export const MAX_LINE: number = 64 * 1024 * 1024;

/** Cuts a stream of text into its lines; empty ones are left out. */
export class Lines {
  #rest = "";

  /**
   * Takes the next piece.
   * @returns the lines that it completed.
   * @throws {RangeError} a line is longer than {@link MAX_LINE}; nothing more can be read.
   */
  feed(text: string): string[] {
    const lines = (this.#rest + text).split("\n");
    this.#rest = lines.pop() ?? "";
    if (this.#rest.length > MAX_LINE) throw new RangeError(`a line is longer than ${MAX_LINE} characters`);
    return lines.filter((line) => line.trim() !== "");
  }
}

/** A message as one line, also where it was formatted over several. */
export function asLine(text: string): string {
  return `${text.replaceAll(/[\r\n]+/g, " ")}\n`;
}
