/**
 * A place of the page's own for the bundle's files: the origin private file system.
 *
 * Invariant: what is in it was checked before it was put there, and is whole: a file is empty
 * until it is closed, and its size is looked at. Names hold a hash of the contents, so a name is never wrong, only out
 * of use. Everything here may fail (no such file
 * system, no room, a private window); then there is no store, and the network serves.
 */

/** Files by name. */
export interface FileStore {
  /** The file of that name, when it is there with that many bytes. */
  get(name: string, size: number): Promise<Blob | undefined>;
  put(name: string, bytes: Blob): Promise<void>;
  remove(name: string): Promise<void>;
  /** Removes all other files. */
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
      return file.size === size ? file : undefined;
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
    for await (const name of folder.keys()) if (!names.has(name)) await this.remove(name);
  }
}
