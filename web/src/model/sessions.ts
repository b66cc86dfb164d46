/**
 * What this tab remembers over a reload: the session with each agent, and the message that an agent was working on.
 *
 * Invariant: it is the tab's own. Another tab on the same agent has a conversation of its own.
 */

const SESSIONS = "sandport.sessions";
const TURN = "sandport.turn";
const TAB = "sandport.tab";
/** Milliseconds for the page before to go: its locks end with it, and a reload may be a little quicker. */
const GONE_WITHIN = 1000;

/**
 * Makes what is remembered this tab's own. A tab that was duplicated, or opened by another, starts with a copy of that
 * one's storage: it forgets it, for a session has one place where it goes on.
 *
 * Each tab holds a lock of its own name as long as it lives. Where there are no locks, nothing is found out.
 */
export async function ownStorage(): Promise<void> {
  const { locks } = navigator as { locks?: LockManager };
  if (!locks) return;
  const name = sessionStorage.getItem(TAB);
  if (name !== null && (await hold(locks, name))) return;
  if (name !== null) {
    sessionStorage.removeItem(SESSIONS);
    sessionStorage.removeItem(TURN);
  }
  const fresh = crypto.randomUUID();
  store(TAB, fresh);
  await hold(locks, fresh);
}

/** Takes the lock of a tab until the page goes; false when another page has it. */
async function hold(locks: LockManager, tab: string): Promise<boolean> {
  return new Promise((resolve) => {
    locks
      .request(`sandport.tab.${tab}`, { signal: AbortSignal.timeout(GONE_WITHIN) }, () => {
        resolve(true);
        return new Promise(() => {});
      })
      .catch(() => resolve(false));
  });
}

function all(): Record<string, string> {
  try {
    const value: unknown = JSON.parse(sessionStorage.getItem(SESSIONS) ?? "{}");
    return typeof value === "object" && value !== null ? (value as Record<string, string>) : {};
  } catch {
    return {};
  }
}

/** The session that this tab had with an agent. */
export function lastSession(agent: string): string | undefined {
  const found = Object.hasOwn(all(), agent) ? all()[agent] : undefined;
  return typeof found === "string" ? found : undefined;
}

/** Notes it; undefined forgets it. */
export function noteSession(agent: string, sessionId: string | undefined): void {
  const { [agent]: _, ...others } = all();
  store(SESSIONS, JSON.stringify(sessionId === undefined ? others : { ...others, [agent]: sessionId }));
}

/** Notes the message that the agent works on; undefined when it has finished. */
export function noteTurn(text: string | undefined): void {
  if (text === undefined) sessionStorage.removeItem(TURN);
  else store(TURN, text);
}

/** The message whose turn a reload of this tab cut off; it is told once. */
export function takeTurn(): string | undefined {
  const text = sessionStorage.getItem(TURN) ?? undefined;
  sessionStorage.removeItem(TURN);
  return text;
}

function store(key: string, value: string): void {
  try {
    sessionStorage.setItem(key, value);
  } catch {
    // Full: then a reload starts anew.
  }
}
