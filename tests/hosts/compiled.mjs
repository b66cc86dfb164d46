/**
 * The npm package's folder for tests: compiled from the sources as they are, with the repository's bundle behind a link.
 * Types are checked elsewhere (`tsc -b`).
 */

import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, rmSync, symlinkSync } from "node:fs";
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

export function removeCompiled() {
  rmSync(PACKAGE, { recursive: true, force: true });
}
