/**
 * The npm package's folder for tests: compiled from the sources as they are, with the repository's bundle behind a link.
 * Types are checked elsewhere (`tsc -b`).
 */

import { execFileSync } from "node:child_process";
import {
  copyFileSync,
  cpSync,
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  watch,
  writeFileSync,
} from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));
/** One for each process: tests run side by side. */
export const PACKAGE = path.join(ROOT, ".cache", "tests", `package-${process.pid}`);

export function compile() {
  if (!existsSync(path.join(ROOT, "dist/runtime/manifest.json"))) {
    throw new Error("there is no bundle: ./build.sh build");
  }
  rmSync(PACKAGE, { recursive: true, force: true });
  mkdirSync(PACKAGE, { recursive: true });
  const tsc = path.join(ROOT, "node_modules/typescript/bin/tsc");
  for (const [project, place] of [
    ["browser/tsconfig.json", "dist"],
    ["browser/tsconfig.node.json", "dist/node"],
  ]) {
    const options = ["--noCheck", "--composite", "false", "--incremental", "false", "--declaration", "false"];
    execFileSync(process.execPath, [tsc, "-p", project, ...options, "--outDir", path.join(PACKAGE, place)], {
      cwd: ROOT,
      stdio: ["ignore", "inherit", "inherit"],
    });
  }
  cpSync(path.join(ROOT, "browser/bin"), path.join(PACKAGE, "bin"), { recursive: true });
  cpSync(path.join(ROOT, "browser/package.json"), path.join(PACKAGE, "package.json"));
  symlinkSync(path.join(ROOT, "dist"), path.join(PACKAGE, "assets"));
}

/**
 * The repository's bundle in a folder, without images, as the npm package has it.
 * @param changed members of the manifests that are to be others.
 */
export function withoutImages(folder, changed = {}) {
  for (const part of ["runtime", "agent"]) {
    const from = path.join(ROOT, "dist", part);
    const to = path.join(folder, part);
    mkdirSync(to, { recursive: true });
    const manifest = { ...JSON.parse(readFileSync(path.join(from, "manifest.json"), "utf8")), ...changed };
    const { image: _, ...files } = manifest.files;
    writeFileSync(path.join(to, "manifest.json"), JSON.stringify({ ...manifest, files }));
    for (const name of [...Object.values(files).map((file) => file.name), "modules.json"])
      share(path.join(from, name), path.join(to, name));
  }
  return folder;
}

/** The same bytes under two names: they stay when the repository's bundle is built anew meanwhile. */
function share(from, to) {
  try {
    linkSync(from, to);
  } catch {
    copyFileSync(from, to);
  }
}

/** Settles when no image is being made in a folder any more. */
export async function imageMade(folder) {
  const watcher = watch(folder);
  await new Promise((resolve) => {
    const look = () => readdirSync(folder).some((name) => name.endsWith(".making")) || resolve();
    watcher.on("change", look);
    look();
  });
  watcher.close();
}

export function removeCompiled() {
  rmSync(PACKAGE, { recursive: true, force: true });
}
