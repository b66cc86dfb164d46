/**
 * Paths and small helpers of the build.
 *
 * Invariant: nothing here changes anything but files below `.cache`.
 */

import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));
export const CACHE = path.join(ROOT, ".cache", "build");
export const PYODIDE = path.join(ROOT, "node_modules", "pyodide");

/** A mistake that a person can mend: printed as one line, without a stack. */
export class BuildError extends Error {}

export function sha256(...parts) {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest("hex");
}

/** Files below `folder` that `wanted` accepts, as paths relative to it, sorted. */
export function filesBelow(folder, wanted = () => true) {
  const found = [];
  const walk = (relative) => {
    for (const entry of readdirSync(path.join(folder, relative), { withFileTypes: true })) {
      const name = path.posix.join(relative, entry.name);
      if (entry.isDirectory()) {
        if (entry.name !== "__pycache__" && entry.name !== "node_modules") walk(name);
      } else if (wanted(name)) found.push(name);
    }
  };
  if (existsSync(folder)) walk("");
  return found.sort();
}

/** One hash over names and contents of files. */
export function hashFiles(base, names) {
  const hash = createHash("sha256");
  for (const name of names) {
    const bytes = readFileSync(path.join(base, name));
    hash.update(`${name}\0${bytes.length}\0`).update(bytes);
  }
  return hash.digest("hex");
}

export function bytes(file) {
  // Pyodide refuses Node's Buffer.
  return new Uint8Array(readFileSync(file));
}

export function fileSize(file) {
  return statSync(file, { throwIfNoEntry: false })?.size ?? -1;
}

export function ensureFolder(folder) {
  mkdirSync(folder, { recursive: true });
  return folder;
}

const started = performance.now();
/** One line of progress, with the seconds since the build began. */
export function say(text) {
  console.log(`bundle: ${((performance.now() - started) / 1000).toFixed(1).padStart(5)} s  ${text}`);
}
