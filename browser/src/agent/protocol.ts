/**
 * What the agent's worker asks of its page, beside the ACP texts.
 *
 * Invariant: everything that comes is a claim: {@link readRequest} gives a value of a known shape and bounded size, or
 * nothing.
 */

import type { RelayRequest } from "./endpoint.ts";
import { MAX_SESSION_LENGTH, readHead, type SessionHead } from "./store.ts";

export type WorkerRequest =
  | { readonly kind: "http"; readonly request: RelayRequest }
  | { readonly kind: "httpStop"; readonly http: number }
  | { readonly kind: "store"; readonly ask: number; readonly action: StoreAction };

export type StoreAction =
  | { readonly what: "store.list" }
  | { readonly what: "store.read" | "store.delete"; readonly key: string }
  | { readonly what: "store.write"; readonly head: SessionHead; readonly text: string }
  | { readonly what: "refused"; readonly why: string };

/** Characters of one request to the endpoint: a long conversation with pictures in it. */
const MAX_BODY = 64 * 1024 * 1024;
const MAX_SHORT = 4_000;

/** A request of the worker, checked and copied; undefined for anything that is none. */
export function readRequest(data: unknown): WorkerRequest | undefined {
  if (typeof data !== "object" || data === null) return undefined;
  const claim = data as Record<string, unknown>;
  const { ask, http } = claim;
  switch (claim["event"]) {
    case "ask":
      return typeof ask === "number" ? { kind: "store", ask, action: readAction(claim) } : undefined;
    case "httpStop":
      return typeof http === "number" ? { kind: "httpStop", http } : undefined;
    case "http": {
      const { method, path, headers, body } = claim;
      if (typeof http !== "number" || typeof method !== "string" || typeof path !== "string")
        return undefined;
      if (typeof body !== "string" || body.length > MAX_BODY || path.length > MAX_SHORT) return undefined;
      if (typeof headers !== "object" || headers === null) return undefined;
      const strings = Object.entries(headers).filter(
        (entry): entry is [string, string] => typeof entry[1] === "string" && entry[1].length <= MAX_SHORT,
      );
      const request = { http, method, path, headers: Object.fromEntries(strings), body };
      return { kind: "http", request };
    }
    default:
      return undefined;
  }
}

function readAction(claim: Record<string, unknown>): StoreAction {
  const { what, key, text } = claim;
  if (what === "store.list") return { what };
  if ((what === "store.read" || what === "store.delete") && typeof key === "string") return { what, key };
  if (what !== "store.write" || typeof text !== "string")
    return { what: "refused", why: "the page does not know this request" };
  if (text.length > MAX_SESSION_LENGTH)
    return { what: "refused", why: `the session is longer than ${MAX_SESSION_LENGTH} characters` };
  try {
    return { what, head: readHead(claim["head"]), text };
  } catch (error) {
    return { what: "refused", why: error instanceof Error ? error.message : String(error) };
  }
}
