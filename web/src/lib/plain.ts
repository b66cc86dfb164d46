/**
 * Foreign text that a person decides by: what cannot be seen, or changes the order of what can, is spelled out.
 *
 * Letters of all scripts stay, joiners included; marks of direction, invisible characters and controls do not.
 */

const HIDDEN =
  /[\p{Cc}\u00ad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** `text` with hidden characters as `\u{…}`; line breaks and tabs stay. */
export function plain(text: string): string {
  return text.replace(HIDDEN, (one) =>
    one === "\n" || one === "\t" ? one : `\\u{${one.codePointAt(0)?.toString(16)}}`,
  );
}

/** The same on one line, at most `length` characters. */
export function plainLine(text: string, length = 120): string {
  const line = plain(text.replace(/\s+/g, " ").trim());
  return line.length > length ? `${line.slice(0, length - 1)}…` : line;
}
