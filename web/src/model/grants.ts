/**
 * What the person allowed for longer than one call.
 *
 * Invariants: what is remembered is the tool's whole definition, so a tool that changed is asked for anew. Grants of a
 * conversation end with it, and with this page; only what was allowed for good is kept in this browser.
 */

import { signal } from "@preact/signals";

export type Scope = "session" | "always";

/** One tool that runs without a question. */
export interface Grant {
  readonly server: string;
  readonly tool: string;
  readonly definition: string;
  readonly scope: Scope;
}

const KEY = "sandport.grants";

export const grants = signal<readonly Grant[]>(load());

function load(): readonly Grant[] {
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    if (!Array.isArray(kept)) return [];
    return kept.flatMap((one: Partial<Grant> | null): Grant[] => {
      const { server, tool, definition } = one ?? {};
      if (typeof server !== "string" || typeof tool !== "string" || typeof definition !== "string") return [];
      return [{ server, tool, definition, scope: "always" }];
    });
  } catch {
    return [];
  }
}

function set(next: readonly Grant[]): void {
  grants.value = next;
  try {
    localStorage.setItem(KEY, JSON.stringify(next.filter(({ scope }) => scope === "always")));
  } catch {
    // A browser that keeps nothing: what was allowed lasts as long as the page.
  }
}

export function isGranted(server: string, tool: string, definition: string): boolean {
  return grants.value.some(
    (one) => one.server === server && one.tool === tool && one.definition === definition,
  );
}

export function grant(next: Grant): void {
  set([...grants.value.filter(({ server, tool }) => server !== next.server || tool !== next.tool), next]);
}

/** The tool is asked for again. */
export function revoke(server: string, tool: string): void {
  set(grants.value.filter((one) => one.server !== server || one.tool !== tool));
}

/** The conversation is over, and what was allowed for it. */
export function endSession(): void {
  if (grants.value.some(({ scope }) => scope === "session"))
    set(grants.value.filter(({ scope }) => scope === "always"));
}
