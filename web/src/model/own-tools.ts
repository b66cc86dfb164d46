/**
 * Tools of one's own that are loaded into the sandbox: the text of the editor, and packages from files.
 *
 * Invariant: what is listed was loaded once, and the sandbox puts it back after a restart; nothing of it outlives the page.
 */

import { signal } from "@preact/signals";

/** What was loaded under one name. */
export interface OwnTools {
  /** A Python identifier. */
  readonly name: string;
  /** The file's name; undefined for the editor's text. */
  readonly file: string | undefined;
  readonly tools: readonly string[];
}

/** The sandbox, as far as it is needed here. */
export interface Loader {
  loadTools(name: string, source: string): Promise<readonly string[]>;
  loadPackage(name: string, archive: Blob): Promise<readonly string[]>;
  unloadTools(name: string): Promise<void>;
}

/** The module that is made of the editor's text. */
export const EDITOR = "my_tools";
/** Most bytes of a file: it lives in the page's and in the sandbox's memory. */
export const MAX_FILE_BYTES = 100 * 1024 * 1024;
/** Endings of files that are taken. */
export const ACCEPTED = [".py", ".whl", ".zip"] as const;

export const ownTools = signal<readonly OwnTools[]>([]);

function keep(entry: OwnTools): void {
  const others = ownTools.value.filter(({ name }) => name !== entry.name);
  ownTools.value = [...others, entry];
}

/** The name that a file's package gets: a wheel's name without version and tags, as an identifier. */
export function moduleName(file: string): string {
  const title = file.replace(/\.[^.]*$/, "").replace(/-\d.*$/, "");
  return title.replaceAll(/[^\p{L}\p{N}_]/gu, "_").replace(/^(?=\p{N}|$)/u, "_");
}

/** Loads the editor's text. Returns the names of its tools. */
export async function loadText(loader: Loader, source: string): Promise<readonly string[]> {
  const tools = await loader.loadTools(EDITOR, source);
  keep({ name: EDITOR, file: undefined, tools });
  return tools;
}

/**
 * Loads a wheel or a zipped folder.
 * @throws {Error} it is no such file, or the sandbox refused it; the message says why.
 */
export async function loadFile(loader: Loader, file: File): Promise<readonly string[]> {
  if (file.size > MAX_FILE_BYTES) {
    throw new Error(
      `${file.name} has ${Math.round(file.size / 1048576)} MB; the limit is ${MAX_FILE_BYTES / 1048576} MB.`,
    );
  }
  const name = moduleName(file.name);
  const tools = await loader.loadPackage(name, file);
  keep({ name, file: file.name, tools });
  return tools;
}

/** Takes out what was loaded under a name. */
export async function takeOut(loader: Loader, name: string): Promise<void> {
  await loader.unloadTools(name);
  ownTools.value = ownTools.value.filter((entry) => entry.name !== name);
}
