/**
 * Keeps the in-page agent's sessions in the browser.
 *
 * Invariant: the page does not read a session's text; it keeps it under its id, whole, next to a head of known shape and
 * bounded size. What is kept is bounded: the sessions that were used least recently go first.
 */

/** What a list of sessions shows. */
export interface SessionHead {
  readonly sessionId: string;
  readonly cwd: string;
  readonly title: string | null;
  /** ISO 8601, UTC. */
  readonly updatedAt: string;
}

/** Keeps one text for each session. */
export interface SessionStore {
  list(): Promise<readonly SessionHead[]>;
  read(sessionId: string): Promise<string | null>;
  write(head: SessionHead, text: string): Promise<void>;
  delete(sessionId: string): Promise<void>;
}

/** Sessions that are kept: some months of use. */
export const MAX_SESSIONS = 200;
/** Characters of one session: a conversation that long no longer fits any model. */
export const MAX_SESSION_LENGTH = 32 * 1024 * 1024;
const MAX_SHORT = 1000;

/** A head that came from the agent's worker, checked and copied. */
export function readHead(value: unknown): SessionHead {
  const claim = (typeof value === "object" && value !== null ? value : {}) as Record<string, unknown>;
  const text = (name: string): string => {
    const member = claim[name];
    if (typeof member !== "string") throw new Error(`a session's head lacks ${name}`);
    return member.slice(0, MAX_SHORT);
  };
  return {
    sessionId: text("sessionId"),
    cwd: text("cwd"),
    title: typeof claim["title"] === "string" ? text("title") : null,
    updatedAt: text("updatedAt"),
  };
}

/** A store that lasts as long as the page. */
export function memoryStore(): SessionStore {
  const records = new Map<string, { head: SessionHead; text: string }>();
  return {
    list: async () => [...records.values()].map(({ head }) => head),
    read: async (id) => records.get(id)?.text ?? null,
    write: async (head, text) => void records.set(head.sessionId, { head, text }),
    delete: async (id) => void records.delete(id),
  };
}

const HEADS = "heads";
const TEXTS = "texts";

/**
 * A store in this origin's IndexedDB.
 * @throws {Error} the browser has none for this page, as in some private windows.
 */
export async function browserStore(name = "sandport-agent"): Promise<SessionStore> {
  const opening = indexedDB.open(name, 1);
  opening.onupgradeneeded = () => {
    // Apart, so that a list of sessions does not read them all.
    opening.result.createObjectStore(HEADS, { keyPath: "sessionId" });
    opening.result.createObjectStore(TEXTS);
  };
  const database = await settled(opening);
  // Another tab has a newer page: give way, or it would wait for ever.
  database.onversionchange = () => database.close();
  const remove = (transaction: IDBTransaction, id: string): void => {
    transaction.objectStore(HEADS).delete(id);
    transaction.objectStore(TEXTS).delete(id);
  };
  const change = async (action: (transaction: IDBTransaction) => void): Promise<void> => {
    const transaction = database.transaction([HEADS, TEXTS], "readwrite");
    const done = finished(transaction);
    action(transaction);
    await done;
  };
  const heads = (): Promise<SessionHead[]> =>
    settled(database.transaction(HEADS).objectStore(HEADS).getAll());
  return {
    list: heads,
    read: async (id) =>
      (await settled<string | undefined>(database.transaction(TEXTS).objectStore(TEXTS).get(id))) ?? null,
    async write(head, text) {
      await change((transaction) => {
        transaction.objectStore(HEADS).put(head);
        transaction.objectStore(TEXTS).put(text, head.sessionId);
      });
      const newestFirst = (await heads()).sort((left, right) =>
        right.updatedAt.localeCompare(left.updatedAt),
      );
      const tooMany = newestFirst.slice(MAX_SESSIONS);
      if (tooMany.length === 0) return;
      await change((transaction) => {
        for (const { sessionId } of tooMany) remove(transaction, sessionId);
      });
    },
    delete: (id) => change((transaction) => remove(transaction, id)),
  };
}

function settled<Result>(request: IDBRequest<Result>): Promise<Result> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () =>
      reject(new Error(`the browser's storage failed: ${request.error?.message ?? "no reason"}`));
  });
}

function finished(transaction: IDBTransaction): Promise<void> {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () =>
      reject(new Error(`the browser's storage failed: ${transaction.error?.message ?? "no reason"}`));
  });
}
