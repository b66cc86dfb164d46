/** A folder as a zip archive, stored without compression: it goes no further than into memory. */

import { readdir, readFile } from "node:fs/promises";
import path from "node:path";

/** Folders that are no work of a person. */
const SKIPPED: ReadonlySet<string> = new Set([".git", "node_modules", "__pycache__", ".venv"]);
/** Bytes of a folder that is taken: the sandbox's file system lives in memory. */
export const MAX_FOLDER_BYTES: number = 256 * 1024 * 1024;

const TABLE = Uint32Array.from({ length: 256 }, (_, start) => {
  let value = start;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

function crc32(bytes: Uint8Array): number {
  let value = 0xffffffff;
  for (const byte of bytes) value = (TABLE[(value ^ byte) & 0xff] ?? 0) ^ (value >>> 8);
  return ~value >>> 0;
}

/**
 * Packs a folder; `.git`, `node_modules` and the like are left out, and so are links.
 * @throws {Error} it is larger than {@link MAX_FOLDER_BYTES}.
 */
export async function zipFolder(folder: string): Promise<Uint8Array<ArrayBuffer>> {
  const parts: Uint8Array[] = [];
  const directory: Uint8Array[] = [];
  let offset = 0;
  let total = 0;
  for await (const name of filesOf(folder, "")) {
    const bytes = await readFile(path.join(folder, name));
    total += bytes.length;
    if (total > MAX_FOLDER_BYTES) {
      throw new Error(`${folder} is larger than ${MAX_FOLDER_BYTES} bytes: give a smaller folder`);
    }
    const encoded = new TextEncoder().encode(name);
    const head = new DataView(new ArrayBuffer(30));
    const entry = new DataView(new ArrayBuffer(46));
    head.setUint32(0, 0x04034b50, true);
    entry.setUint32(0, 0x02014b50, true);
    entry.setUint16(4, 20, true);
    entry.setUint32(42, offset, true);
    // What the two headers share, two bytes later in the directory's.
    for (const [view, at] of [
      [head, 4],
      [entry, 6],
    ] as const) {
      view.setUint16(at, 20, true);
      // The name is UTF-8.
      view.setUint16(at + 2, 0x0800, true);
      // 1 January 1980, the first day a zip archive knows.
      view.setUint16(at + 8, 0x21, true);
      view.setUint32(at + 10, crc32(bytes), true);
      view.setUint32(at + 14, bytes.length, true);
      view.setUint32(at + 18, bytes.length, true);
      view.setUint16(at + 22, encoded.length, true);
    }
    parts.push(new Uint8Array(head.buffer), encoded, bytes);
    directory.push(new Uint8Array(entry.buffer), encoded);
    offset += 30 + encoded.length + bytes.length;
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const end = new DataView(new ArrayBuffer(22));
  end.setUint32(0, 0x06054b50, true);
  end.setUint16(8, directory.length / 2, true);
  end.setUint16(10, directory.length / 2, true);
  end.setUint32(12, size, true);
  end.setUint32(16, offset, true);
  const archive = new Uint8Array(offset + size + 22);
  let at = 0;
  for (const part of [...parts, ...directory, new Uint8Array(end.buffer)]) {
    archive.set(part, at);
    at += part.length;
  }
  return archive;
}

async function* filesOf(folder: string, below: string): AsyncGenerator<string> {
  const entries = await readdir(path.join(folder, below), { withFileTypes: true });
  for (const entry of entries.sort((a, b) => (a.name < b.name ? -1 : 1))) {
    const name = path.posix.join(below, entry.name);
    if (entry.isDirectory() && !SKIPPED.has(entry.name)) yield* filesOf(folder, name);
    else if (entry.isFile()) yield name;
  }
}
