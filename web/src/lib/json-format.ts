/**
 * Makes JSON text readable without parsing it, so that every digit and the order of keys stay as they are.
 */

import { memberText } from "sandport";

/** Longest text that is laid out anew; longer ones are shown as they came. */
const MAX_FORMATTED = 200_000;

/** Lays JSON text out with two spaces of indent; text that is no JSON comes back unchanged. */
export function formatJson(text: string): string {
  const source = text.trim();
  if (source.length > MAX_FORMATTED || !/^[[{]/.test(source)) return text;
  try {
    JSON.parse(source);
  } catch {
    return text;
  }
  const tokens = source.match(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g) ?? [];
  let out = "";
  let depth = 0;
  for (const [at, token] of tokens.entries()) {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      const empty = next === "}" || next === "]";
      depth += 1;
      out += empty ? token : `${token}\n${"  ".repeat(depth)}`;
    } else if (token === "}" || token === "]") {
      const previous = tokens[at - 1];
      depth -= 1;
      out += previous === "{" || previous === "[" ? token : `\n${"  ".repeat(depth)}${token}`;
    } else if (token === ",") {
      out += `,\n${"  ".repeat(depth)}`;
    } else {
      out += token === ":" ? ": " : token;
    }
  }
  return out;
}

/** JSON text parted for reading. */
export interface ReadableJson {
  /** What is left as JSON, laid out; undefined if nothing is. */
  readonly json: string | undefined;
  /** Members that are texts of several lines, such as a program: as they are, not as JSON strings. */
  readonly texts: readonly { readonly name: string; readonly text: string }[];
}

/** Takes the texts of several lines out of a JSON object; everything else stays JSON. */
export function readable(text: string): ReadableJson {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { json: text, texts: [] };
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    return { json: formatJson(text), texts: [] };
  }
  const texts: { name: string; text: string }[] = [];
  const rest: string[] = [];
  for (const [name, one] of Object.entries(value)) {
    if (typeof one === "string" && one.trim().includes("\n")) texts.push({ name, text: one });
    else rest.push(`${JSON.stringify(name)}:${memberText(text.trim(), name)}`);
  }
  if (texts.length === 0) return { json: formatJson(text), texts };
  return { json: rest.length > 0 ? formatJson(`{${rest.join(",")}}`) : undefined, texts };
}

/** A short form of JSON arguments for one line: `path="a.py", limit=5`. */
export function briefArguments(text: string, width = 90): string {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return text.slice(0, width);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) return text.slice(0, width);
  const brief = Object.entries(value)
    .map(([name, one]) => `${name}=${JSON.stringify(one)}`)
    .join(", ");
  return brief.length > width ? `${brief.slice(0, width - 1)}…` : brief;
}
