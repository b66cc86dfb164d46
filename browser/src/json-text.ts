/**
 * JSON as text: look at members without turning the message into objects and back.
 *
 * Invariant: what is cut out of a text is the peer's own spelling, character for character. JavaScript numbers lose
 * integers above 2^53, so an id must never make the way text -> number -> text.
 */

/** A parsed JSON object; read it with `Object.hasOwn`-safe helpers only, for its keys are the peer's. */
export type JsonObject = { readonly [key: string]: unknown };

/** Tells a JSON object from everything else. */
export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A member of an object, never one of its prototype. */
export function member(value: unknown, name: string): unknown {
  return isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined;
}

/** Skips white space (RFC 8259 section 2). */
function space(text: string, at: number): number {
  let here = at;
  for (;;) {
    const code = text.charCodeAt(here);
    if (code !== 0x20 && code !== 0x0a && code !== 0x0d && code !== 0x09) return here;
    here += 1;
  }
}

/** The position after the string whose opening quote is at `at`. */
function afterString(text: string, at: number): number {
  let end = at;
  for (;;) {
    end = text.indexOf('"', end + 1);
    let escapes = 0;
    while (text.charCodeAt(end - 1 - escapes) === 0x5c) escapes += 1;
    if (escapes % 2 === 0) return end + 1;
  }
}

/** The position after the value that starts at `at`. */
function afterValue(text: string, at: number): number {
  let here = at;
  let depth = 0;
  do {
    const first = text[here];
    if (first === '"') {
      here = afterString(text, here);
    } else if (first === "{" || first === "[") {
      depth += 1;
      here += 1;
    } else if (first === "}" || first === "]") {
      depth -= 1;
      here += 1;
    } else if (depth === 0) {
      // A number or a word ends where structure or white space begins.
      while (here < text.length && !",]} \n\r\t".includes(text.charAt(here))) here += 1;
    } else {
      here += 1;
    }
  } while (depth > 0);
  return here;
}

/** Where a member's value stands in a text: `text.slice(start, end)`. */
export interface Span {
  readonly start: number;
  readonly end: number;
}

/**
 * Finds a member of the object that `text` holds. Of several members with one name the last counts, as for
 * `JSON.parse`.
 *
 * @param text a JSON object; it must have been parsed before, for nothing is checked here.
 */
export function findMember(text: string, name: string): Span | undefined {
  let found: Span | undefined;
  let at = space(text, space(text, 0) + 1);
  while (text[at] === '"') {
    const keyEnd = afterString(text, at);
    const raw = text.slice(at + 1, keyEnd - 1);
    const start = space(text, space(text, keyEnd) + 1);
    const end = afterValue(text, start);
    if (raw === name || (raw.includes("\\") && JSON.parse(`"${raw}"`) === name)) found = { start, end };
    at = space(text, end);
    if (text[at] !== ",") break;
    at = space(text, at + 1);
  }
  return found;
}

/**
 * Whether the object that `text` holds has two members of one name. Readers differ in which of them counts.
 *
 * @param text a JSON object; it must have been parsed before, for nothing is checked here.
 */
export function hasTwins(text: string): boolean {
  const names = new Set<string>();
  let count = 0;
  let at = space(text, space(text, 0) + 1);
  while (text[at] === '"') {
    const keyEnd = afterString(text, at);
    const raw = text.slice(at, keyEnd);
    names.add(raw.includes("\\") ? JSON.parse(raw) : raw.slice(1, -1));
    count += 1;
    at = space(text, afterValue(text, space(text, space(text, keyEnd) + 1)));
    if (text[at] !== ",") break;
    at = space(text, at + 1);
  }
  return names.size < count;
}

/** The text of a member of the object that `text` holds; see {@link findMember}. */
export function memberText(text: string, name: string): string | undefined {
  const span = findMember(text, name);
  return span && text.slice(span.start, span.end);
}

/** Returns `text` with `"name":value` added to the object at `path`; nothing else changes. */
export function addMember(text: string, path: string, name: string, value: string): string {
  const span = findMember(text, path);
  if (!span) return text;
  const empty = text.slice(span.start + 1, span.end - 1).trim() === "";
  return `${text.slice(0, span.end - 1)}${empty ? "" : ","}${JSON.stringify(name)}:${value}${text.slice(span.end - 1)}`;
}
