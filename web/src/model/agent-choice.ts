/**
 * Which of a gateway's agents the page talks to: `?agent=` in the address, else what was chosen last, else the gateway's
 * own default. A choice is written back to the address, so that it can be shared and bookmarked.
 */

import { IN_PAGE } from "./in-page.ts";

const KEY = "sandport.agent";
const PARAMETER = "agent";
/** How the agent in this page is written in an address. */
const IN_PAGE_WORD = "in-page";

/** What the person wants, whether it is there or not. */
export interface WantedAgent {
  readonly name: string;
  /** From the address, and so said on purpose for this visit. */
  readonly named: boolean;
}

export function wantedAgent(): WantedAgent | undefined {
  const named = new URLSearchParams(location.search).get(PARAMETER);
  if (named) return { name: named === IN_PAGE_WORD ? IN_PAGE : named, named: true };
  try {
    const kept = localStorage.getItem(KEY);
    return kept === null ? undefined : { name: kept, named: false };
  } catch {
    return undefined;
  }
}

/** Remembers the choice, here and in the address. */
export function keepAgent(name: string): void {
  const address = new URL(location.href);
  address.searchParams.set(PARAMETER, name === IN_PAGE ? IN_PAGE_WORD : name);
  history.replaceState(history.state, "", address);
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // A browser that keeps nothing: the address still does.
  }
}
