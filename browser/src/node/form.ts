/** A form that a tool or an agent asks for (elicitation), as lines of a terminal. */

import type { CreateElicitationRequest } from "@agentclientprotocol/sdk";
import { isObject, type JsonObject, member } from "../json-text.ts";

export type FieldValue = string | number | boolean | string[];

/** One line to fill in. Without a name it only goes on: its value says whether. */
export interface Field {
  readonly name: string;
  /** With the choices and what Enter takes. Not made safe to print. */
  readonly label: string;
  readonly schema: JsonObject;
  readonly required: boolean;
}

/** Choices of a field, as (value, title). */
function choicesOf(schema: JsonObject): [string, string][] {
  const list = (name: string, of: unknown): unknown[] => {
    const value = member(of, name);
    return Array.isArray(value) ? value : [];
  };
  const items = member(schema, "items");
  const titled = [...list("oneOf", schema), ...list("anyOf", items), ...list("oneOf", items)];
  if (titled.length > 0) {
    return titled.flatMap((one): [string, string][] => {
      const value = member(one, "const");
      return typeof value === "string" ? [[value, String(member(one, "title") ?? value)]] : [];
    });
  }
  const names = list("enumNames", schema);
  return [...list("enum", schema), ...list("enum", items)].map((value, at) => [
    String(value),
    String(names[at] ?? value),
  ]);
}

/** The lines of a form; undefined when it is of a kind that is not known here. */
export function fieldsOf(request: CreateElicitationRequest): Field[] | undefined {
  if (request.mode === "url") {
    const label = `Open ${String(request["url" as keyof typeof request])} yourself. Done? [n]`;
    return [{ name: "", label, schema: { type: "boolean", default: false }, required: true }];
  }
  const schema = member(request, "requestedSchema");
  if (request.mode !== "form" || !isObject(schema)) return undefined;
  const properties = member(schema, "properties");
  const required = member(schema, "required");
  return Object.entries(isObject(properties) ? properties : {}).map(([name, property]) => {
    const own = isObject(property) ? property : {};
    const mandatory = Array.isArray(required) && required.includes(name);
    const title = String(member(own, "title") ?? name);
    const about = member(own, "description");
    const choices = choicesOf(own);
    const kind =
      choices.length > 0
        ? choices.map(([value, text]) => (value === text ? value : `${value} = ${text}`)).join(", ")
        : own["type"] === "boolean"
          ? "y or n"
          : own["type"] === "string"
            ? ""
            : String(own["type"]);
    const standard = own["default"];
    const taken =
      standard !== undefined && standard !== null ? ` [${String(standard)}]` : mandatory ? "" : " [nothing]";
    const parts = [about, kind].filter((part) => typeof part === "string" && part !== "");
    return {
      name,
      label: `${title}${parts.length > 0 ? ` (${parts.join("; ")})` : ""}${taken}`,
      schema: own,
      required: mandatory,
    };
  });
}

/** The value that a line gives; undefined for a field that is left out. */
export function readField(
  { schema, required }: Field,
  line: string,
): { readonly value: FieldValue | undefined } | { readonly problem: string } {
  const text = line.trim();
  const standard = schema["default"];
  if (text === "") {
    if (standard !== undefined && standard !== null) return { value: standard as FieldValue };
    return required ? { problem: "This one is needed." } : { value: undefined };
  }
  const choices = choicesOf(schema);
  const chosen = (word: string): string | undefined =>
    choices.find(([value, title]) => value === word || title.toLowerCase() === word.toLowerCase())?.[0];
  const number = (name: string): number | undefined => {
    const value = schema[name];
    return typeof value === "number" ? value : undefined;
  };
  switch (schema["type"]) {
    case "boolean":
      if (/^(y|yes|true)$/i.test(text)) return { value: true };
      return /^(n|no|false)$/i.test(text) ? { value: false } : { problem: "Type y or n." };
    case "number":
    case "integer": {
      const value = Number(text);
      if (!Number.isFinite(value) || (schema["type"] === "integer" && !Number.isSafeInteger(value)))
        return { problem: `Type a ${schema["type"] === "integer" ? "whole number" : "number"}.` };
      if (value < (number("minimum") ?? value)) return { problem: `At least ${number("minimum")}.` };
      return value > (number("maximum") ?? value) ? { problem: `At most ${number("maximum")}.` } : { value };
    }
    case "array": {
      const values = text.split(",").map((word) => chosen(word.trim()));
      if (values.includes(undefined)) return { problem: "Type some of the choices, with commas between." };
      if (values.length < (number("minItems") ?? 0)) return { problem: `At least ${number("minItems")}.` };
      if (values.length > (number("maxItems") ?? values.length))
        return { problem: `At most ${number("maxItems")}.` };
      return { value: values as string[] };
    }
    default: {
      const value = choices.length > 0 ? chosen(text) : text;
      if (value === undefined) return { problem: "Type one of the choices." };
      if (value.length < (number("minLength") ?? 0))
        return { problem: `At least ${number("minLength")} characters.` };
      if (value.length > (number("maxLength") ?? value.length))
        return { problem: `At most ${number("maxLength")} characters.` };
      return { value };
    }
  }
}
