/**
 * A place of the page's own for the bundle's files: the origin private file system.
 *
 * Invariant: what is in it was checked before it was put there, and is whole: a file is empty until it is closed, and
 * its size is looked at. Names hold a hash of the contents, so a name is never wrong, only out of use. A file that a
 * page took stays as long as that page: its sandbox reads from it later, and another tab may have a newer bundle.
 * Everything here may fail (no such file system, no room, a private window); then there is no store, and the network
 * serves.
 */

/** Files by name. */
export interface FileStore {
  /** The file of that name, when it is there with that many bytes. */
  get(name: string, size: number): Promise<Blob | undefined>;
  put(name: string, bytes: Blob): Promise<void>;
  remove(name: string): Promise<void>;
  /** Removes all other files, but for those that a page has in use. */
  keepOnly(names: ReadonlySet<string>): Promise<void>;
}

const FOLDER = "sandport";

/** Opens the store; undefined where the browser has none. */
export async function openStore(): Promise<FileStore | undefined> {
  try {
    const root = await navigator.storage.getDirectory();
    const folder = await root.getDirectoryHandle(FOLDER, { create: true });
    return "createWritable" in FileSystemFileHandle.prototype ? new OriginStore(folder) : undefined;
  } catch {
    return undefined;
  }
}

class OriginStore implements FileStore {
  readonly #folder: FileSystemDirectoryHandle;

  constructor(folder: FileSystemDirectoryHandle) {
    this.#folder = folder;
  }

  async get(name: string, size: number): Promise<Blob | undefined> {
    try {
      const file = await (await this.#folder.getFileHandle(name)).getFile();
      if (file.size !== size) return undefined;
      hold(name);
      return file;
    } catch {
      return undefined;
    }
  }

  async put(name: string, bytes: Blob): Promise<void> {
    const stream = await (await this.#folder.getFileHandle(name, { create: true })).createWritable();
    await stream.write(bytes);
    await stream.close();
  }

  async remove(name: string): Promise<void> {
    await this.#folder.removeEntry(name).catch(() => {});
  }

  async keepOnly(names: ReadonlySet<string>): Promise<void> {
    // The standard library of TypeScript does not know that a folder can be iterated.
    const folder = this.#folder as unknown as { keys(): AsyncIterable<string> };
    for await (const name of folder.keys()) {
      if (!names.has(name)) await ifUnused(name, () => this.remove(name));
    }
  }
}

const held = new Set<string>();

/** Says that this page has the file in use, until it is closed. */
function hold(name: string): void {
  // Not everywhere where there is such a file system: then files are removed from under other tabs, as a last resort.
  if (held.has(name) || !navigator.locks) return;
  held.add(name);
  navigator.locks
    .request(lockOf(name), { mode: "shared" }, () => new Promise(() => {}))
    .catch(() => held.delete(name));
}

async function ifUnused(name: string, task: () => Promise<void>): Promise<void> {
  if (!navigator.locks) return task();
  await navigator.locks.request(lockOf(name), { ifAvailable: true }, (lock) => (lock ? task() : undefined));
}

function lockOf(name: string): string {
  return `sandport:${name}`;
}
