/**
 * What this tab remembers over a reload: the session with each agent, and the message that an agent was working on.
 *
 * Invariant: it is the tab's own. Another tab on the same agent has a conversation of its own.
 */

const SESSIONS = "sandport.sessions";
const TURN = "sandport.turn";

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
