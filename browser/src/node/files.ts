/** Files that are replaced whole. */

import { chmod, open, rename, rm } from "node:fs/promises";
import process from "node:process";

let written = 0;

/**
 * Writes a file of the user's alone, by a rename: it is as it was before, or as it is now.
 * @param file in a folder that is there.
 */
export async function writeWhole(file: string, ...parts: (Uint8Array | string)[]): Promise<void> {
  written += 1;
  const fresh = `${file}.${process.pid}.${written}`;
  try {
    const handle = await open(fresh, "wx", 0o600);
    try {
      for (const part of parts) await handle.writeFile(part);
      await handle.sync();
    } finally {
      await handle.close();
    }
    // Whatever the umask was.
    await chmod(fresh, 0o600);
    await rename(fresh, file);
  } catch (error) {
    await rm(fresh, { force: true });
    throw error;
  }
}
