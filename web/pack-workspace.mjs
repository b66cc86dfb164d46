#!/usr/bin/env node
/**
 * Packs Sandport's own sources into dist/workspace.zip, the project that the page opens with.
 *
 *     node web/pack-workspace.mjs [--out FILE]
 *
 * Invariant: the same sources give the same bytes: paths are sorted, times are fixed. Nothing but text that belongs to
 * the repository goes in: no build output, no packages, no lock files.
 */

import { mkdirSync, readdirSync, readFileSync, renameSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { zipSync } from "fflate";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const FOLDERS = ["bench", "browser", "core", "docs", "examples", "native", "tests", "web"];
const FILES = [
  "README.md",
  "CHANGELOG.md",
  "CONTRIBUTING.md",
  "LICENSE",
  "build.sh",
  "pyproject.toml",
  "package.json",
];
const SKIPPED = new Set(["node_modules", "dist", "__pycache__", "test-results", "vectors"]);
const TEXT = /\.(py|ts|tsx|mjs|js|json|md|css|html|toml|yml|yaml|sh|csv|svg|txt|in)$/;
/** Larger files are data, not sources; the sandbox holds all of it in memory. */
const MAX_BYTES = 200_000;
/** The earliest time a zip can hold, in UTC and local time alike. */
const TIME = new Date(1980, 0, 2);

/** Adds a file to `entries` if it is text and small enough. */
function add(entries, name, file) {
  if (statSync(file).size <= MAX_BYTES) entries[name] = new Uint8Array(readFileSync(file));
}

function walk(entries, folder) {
  for (const entry of readdirSync(path.join(ROOT, folder), { withFileTypes: true })) {
    const name = `${folder}/${entry.name}`;
    if (entry.name.startsWith(".") || SKIPPED.has(entry.name)) continue;
    if (entry.isDirectory()) walk(entries, name);
    else if (entry.isFile() && TEXT.test(entry.name)) add(entries, name, path.join(ROOT, name));
  }
}

/** Everything that goes in, by path. */
export function workspaceFiles() {
  const entries = {};
  for (const folder of FOLDERS.filter((name) => statSync(path.join(ROOT, name), { throwIfNoEntry: false }))) {
    walk(entries, folder);
  }
  for (const name of FILES.filter((one) => statSync(path.join(ROOT, one), { throwIfNoEntry: false }))) {
    add(entries, name, path.join(ROOT, name));
  }
  add(entries, "data/tides.csv", path.join(ROOT, "web/sample/tides.csv"));
  return Object.fromEntries(Object.entries(entries).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Writes the zip, in one step for whoever reads it at that moment; not at all if it would not change. */
export function packWorkspace(out = path.join(ROOT, "dist/workspace.zip")) {
  const zip = zipSync(workspaceFiles(), { level: 9, mtime: TIME });
  if (statSync(out, { throwIfNoEntry: false }) && readFileSync(out).equals(zip)) return;
  mkdirSync(path.dirname(out), { recursive: true });
  writeFileSync(`${out}.new`, zip);
  renameSync(`${out}.new`, out);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { out: { type: "string" } } });
  packWorkspace(values.out);
}
