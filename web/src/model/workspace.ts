/**
 * The workspace as the page knows it: the zip that was mounted or taken out of the sandbox, and what is in it.
 *
 * Invariant: the page never writes into the sandbox's folder but by mounting a whole zip. What tools wrote there leaves
 * it only when the person downloads it, and then under paths that stay below one folder. A dropped folder becomes a zip
 * in memory and goes nowhere else.
 */

import { strToU8, unzipSync, zipSync } from "fflate";

/** A file of the mounted zip. */
export interface FileInfo {
  readonly path: string;
  readonly size: number;
}

/** Most bytes a workspace may have unpacked: it lives in the sandbox's memory. */
export const MAX_WORKSPACE_BYTES = 200 * 1024 * 1024;
/** Most files taken from a dropped folder. */
export const MAX_WORKSPACE_FILES = 20_000;
/** Folders of machine-made files, left out of a dropped folder. */
const SKIPPED = new Set([
  ".git",
  ".hg",
  ".venv",
  "__pycache__",
  "node_modules",
  ".mypy_cache",
  ".ruff_cache",
]);

/** A workspace cannot be used; the message says why and what to do. */
export class WorkspaceError extends Error {
  override readonly name = "WorkspaceError";
}

/** Lists what is in a zip. Paths that would leave the folder are left out, as the sandbox does. */
export function listZip(zip: Uint8Array): FileInfo[] {
  const found: FileInfo[] = [];
  let total = 0;
  try {
    unzipSync(zip, {
      filter({ name, originalSize }) {
        if (!/^\/|\/$|\\/.test(name) && !name.split("/").includes("..")) {
          found.push({ path: name, size: originalSize });
          total += originalSize;
        }
        return false;
      },
    });
  } catch (error) {
    throw new WorkspaceError(
      `This is no zip archive that can be read: ${error instanceof Error ? error.message : error}`,
    );
  }
  if (total > MAX_WORKSPACE_BYTES || found.length > MAX_WORKSPACE_FILES) {
    throw new WorkspaceError(
      `It holds ${found.length} files and ${Math.round(total / 1048576)} MB; the limit is ${MAX_WORKSPACE_FILES} files and ${MAX_WORKSPACE_BYTES / 1048576} MB. Drop a smaller folder.`,
    );
  }
  return found.sort((a, b) => (a.path < b.path ? -1 : 1));
}

/** The bytes of a file in a zip; undefined when there is none of that path. */
export function readZipFile(zip: Uint8Array, path: string): Uint8Array<ArrayBuffer> | undefined {
  const data = unzipSync(zip, { filter: ({ name }) => name === path })[path];
  return data && new Uint8Array(data);
}

/**
 * A zip for the person's own disk: only what {@link listZip} lists, compressed.
 * @throws {WorkspaceError} it is no zip, or over the limits.
 */
export function packForDownload(zip: Uint8Array): Uint8Array<ArrayBuffer> {
  const listed = new Set(listZip(zip).map(({ path }) => path));
  const files = unzipSync(zip, { filter: ({ name }) => listed.has(name) });
  return new Uint8Array(zipSync(files, { level: 1 }));
}

/** The text of a file in a zip; undefined for a binary one. */
export function readZipText(zip: Uint8Array, path: string): string | undefined {
  const data = readZipFile(zip, path);
  if (!data || data.subarray(0, 8192).includes(0)) return undefined;
  return new TextDecoder().decode(data);
}

/** Packs files, without compression: they only go from one place in memory to another. */
export function packFiles(entries: Readonly<Record<string, Uint8Array>>): Uint8Array<ArrayBuffer> {
  return new Uint8Array(zipSync({ ...entries }, { level: 0 }));
}

function readEntries(reader: FileSystemDirectoryReader): Promise<FileSystemEntry[]> {
  return new Promise((resolve, reject) => reader.readEntries(resolve, reject));
}

async function walk(
  entry: FileSystemEntry,
  prefix: string,
  into: Record<string, Uint8Array>,
  budget: { bytes: number; files: number },
): Promise<void> {
  if (SKIPPED.has(entry.name)) return;
  if (entry.isFile) {
    const file = await new Promise<File>((resolve, reject) =>
      (entry as FileSystemFileEntry).file(resolve, reject),
    );
    budget.bytes -= file.size;
    budget.files -= 1;
    if (budget.bytes < 0 || budget.files < 0) {
      throw new WorkspaceError(
        `The folder is over the limit of ${MAX_WORKSPACE_FILES} files and ${MAX_WORKSPACE_BYTES / 1048576} MB. Drop a smaller one.`,
      );
    }
    into[prefix + entry.name] = new Uint8Array(await file.arrayBuffer());
    return;
  }
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  // A reader gives its entries in portions and an empty one at the end.
  for (let part = await readEntries(reader); part.length > 0; part = await readEntries(reader)) {
    for (const child of part) await walk(child, `${prefix}${entry.name}/`, into, budget);
  }
}

/** Strips a single outer folder, so that a dropped project's root is the workspace's root. */
function stripRoot(entries: Record<string, Uint8Array>): Record<string, Uint8Array> {
  const paths = Object.keys(entries);
  const root = paths[0]?.split("/")[0];
  if (root === undefined || !paths.every((path) => path.startsWith(`${root}/`))) return entries;
  return Object.fromEntries(
    paths.map((path) => [path.slice(root.length + 1), entries[path] ?? new Uint8Array()]),
  );
}

/** What a person dropped: one zip, or files and folders. */
export async function readDrop(data: DataTransfer): Promise<{ name: string; zip: Uint8Array<ArrayBuffer> }> {
  // All entries have to be taken before the first await; the list is empty afterwards.
  const entries = [...data.items].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
  const first = data.files[0];
  if (data.files.length === 1 && first && /\.zip$/i.test(first.name)) {
    return { name: first.name, zip: new Uint8Array(await first.arrayBuffer()) };
  }
  if (entries.length === 0)
    throw new WorkspaceError("Nothing to read was dropped. Drop a folder or a zip archive.");
  const into: Record<string, Uint8Array> = {};
  const budget = { bytes: MAX_WORKSPACE_BYTES, files: MAX_WORKSPACE_FILES };
  for (const entry of entries) await walk(entry, "", into, budget);
  return { name: entries.map((entry) => entry.name).join(", "), zip: packFiles(stripRoot(into)) };
}

/** What a person chose in a file dialog: one zip, or the files of a folder. */
export async function readFiles(list: FileList): Promise<{ name: string; zip: Uint8Array<ArrayBuffer> }> {
  const [first] = list;
  if (!first) throw new WorkspaceError("No file was chosen.");
  if (list.length === 1 && /\.zip$/i.test(first.name)) {
    return { name: first.name, zip: new Uint8Array(await first.arrayBuffer()) };
  }
  const into: Record<string, Uint8Array> = {};
  let [bytes, files] = [MAX_WORKSPACE_BYTES, MAX_WORKSPACE_FILES];
  for (const file of list) {
    const path = file.webkitRelativePath || file.name;
    if (path.split("/").some((part) => SKIPPED.has(part))) continue;
    bytes -= file.size;
    files -= 1;
    if (bytes < 0 || files < 0) {
      throw new WorkspaceError(
        `The folder is over the limit of ${MAX_WORKSPACE_FILES} files and ${MAX_WORKSPACE_BYTES / 1048576} MB. Choose a smaller one.`,
      );
    }
    into[path] = new Uint8Array(await file.arrayBuffer());
  }
  return { name: first.webkitRelativePath.split("/")[0] || first.name, zip: packFiles(stripRoot(into)) };
}

/** An empty workspace, for a bundle that has none. */
export function emptyZip(): Uint8Array<ArrayBuffer> {
  return packFiles({ "README.md": strToU8("An empty workspace. Drop a folder or a zip into the page.\n") });
}
