/**
 * Keeps an agent's sessions in a folder: one file for each.
 *
 * Invariant: a file is replaced whole, by a rename, so a session is as it was before or as it is now. Files are the user's
 * alone. Names are ids of a known form: what comes from the agent names no other file.
 */

import { mkdir, open, readdir, readFile, rm } from "node:fs/promises";
import path from "node:path";
import { readHead, type SessionHead, type SessionStore } from "../agent/store.ts";
import { writeWhole } from "./files.ts";

/** Ids that are file names: what the agent makes. */
const ID = /^[\w-]{1,100}$/;
const ENDING = ".session";

/**
 * A store in a folder, which is made when it is first written to.
 *
 * Each file has the session's head as JSON in its first line, and below it the session's text.
 */
export function folderStore(folder: string): SessionStore {
  const fileOf = (id: string): string => {
    if (!ID.test(id)) throw new Error(`${JSON.stringify(id)} is no id of a session`);
    return path.join(folder, id + ENDING);
  };
  return {
    async list() {
      const names = await readdir(folder).catch(orElse([]));
      const heads: SessionHead[] = [];
      for (const name of names) {
        if (!name.endsWith(ENDING)) continue;
        const head = await firstLine(path.join(folder, name));
        // What is no session, or broken, is not this list's to judge: opening it says so.
        if (head) heads.push(head);
      }
      return heads;
    },
    async read(id) {
      const text = await readFile(fileOf(id), "utf8").catch(orElse(null));
      return text === null ? null : text.slice(text.indexOf("\n") + 1);
    },
    async write(head, text) {
      const file = fileOf(head.sessionId);
      await mkdir(folder, { recursive: true, mode: 0o700 });
      await writeWhole(file, `${JSON.stringify(head)}\n${text}`);
    },
    delete: (id) => rm(fileOf(id), { force: true }),
  };
}

function orElse<Value>(value: Value) {
  return (error: NodeJS.ErrnoException): Value => {
    if (error.code === "ENOENT") return value;
    throw error;
  };
}

/** Bytes in which a head ends: its members are short. */
const MAX_HEAD = 32 * 1024;

async function firstLine(file: string): Promise<SessionHead | undefined> {
  try {
    const handle = await open(file);
    try {
      const { buffer, bytesRead } = await handle.read(Buffer.alloc(MAX_HEAD), 0, MAX_HEAD, 0);
      const [line = ""] = buffer.subarray(0, bytesRead).toString().split("\n", 1);
      return readHead(JSON.parse(line));
    } finally {
      await handle.close();
    }
  } catch {
    return undefined;
  }
}
