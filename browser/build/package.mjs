#!/usr/bin/env node
/**
 * Makes the folder of the npm package: compiled modules with types, the command, and the bundle in assets/.
 *
 *     node browser/build/package.mjs [--out DIR]      then: npm pack DIR, or npm publish DIR
 *
 * Invariant: what is packed was made from the sources just now. The memory image and the pre-compressed siblings stay out:
 * they are four fifths of the bundle's bytes, and a build of one's own makes them.
 */

import { execFileSync } from "node:child_process";
import { copyFileSync, cpSync, existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { ensureFolder, filesBelow, ROOT, say } from "./shared.mjs";

const { values } = parseArgs({
  options: { out: { type: "string", default: path.join(ROOT, ".cache", "package") } },
});
const out = path.resolve(values.out);
const dist = path.join(ROOT, "dist");
const from = (...parts) => path.join(ROOT, "browser", ...parts);
const run = (...args) => execFileSync(process.execPath, args, { cwd: ROOT, stdio: "inherit" });

if (!["runtime", "agent"].every((part) => existsSync(path.join(dist, part, "manifest.json"))))
  run("browser/build/bundle.mjs", "--no-image");

rmSync(out, { recursive: true, force: true });
// One compilation: the projects of the sources are apart only for what their code may use, which `tsc -b` checks.
const project = path.join(ensureFolder(path.join(ROOT, ".cache")), `tsconfig.package-${process.pid}.json`);
writeFileSync(
  project,
  JSON.stringify({
    extends: path.join(ROOT, "tsconfig.base.json"),
    compilerOptions: {
      rootDir: from("src"),
      outDir: path.join(out, "dist"),
      composite: false,
      declaration: true,
      inlineSources: true,
      rewriteRelativeImportExtensions: true,
      noCheck: true,
      types: ["node"],
    },
    include: [from("src")],
  }),
);
try {
  run(path.join(ROOT, "node_modules", "typescript", "bin", "tsc"), "-p", project);
} finally {
  rmSync(project);
}

// Source maps hold their sources; the compiler's way to them leads through this machine's folders.
for (const name of filesBelow(path.join(out, "dist"), (file) => file.endsWith(".js.map"))) {
  const file = path.join(out, "dist", name);
  const map = JSON.parse(readFileSync(file, "utf8"));
  map.sources = [`${path.basename(name, ".js.map")}.ts`];
  writeFileSync(file, JSON.stringify(map));
}

let size = 0;
for (const part of ["runtime", "agent"]) {
  const folder = ensureFolder(path.join(out, "assets", part));
  const manifest = JSON.parse(readFileSync(path.join(dist, part, "manifest.json"), "utf8"));
  const { image: _, ...files } = manifest.files;
  for (const { name } of Object.values(files))
    copyFileSync(path.join(dist, part, name), path.join(folder, name));
  for (const name of manifest.also ?? []) copyFileSync(path.join(dist, part, name), path.join(folder, name));
  writeFileSync(path.join(folder, "manifest.json"), `${JSON.stringify({ ...manifest, files }, null, 2)}\n`);
  size += Object.values(files).reduce((sum, file) => sum + file.size, 0);
}
for (const name of ["sandbox.html", "headers.json", "sw.js"]) {
  copyFileSync(path.join(dist, name), path.join(out, "assets", name));
}

if (existsSync(from("bin"))) cpSync(from("bin"), path.join(out, "bin"), { recursive: true });
copyFileSync(from("README.md"), path.join(out, "README.md"));
copyFileSync(path.join(ROOT, "LICENSE"), path.join(out, "LICENSE"));
// The workspace itself is private, so that nobody publishes it without what is made here.
const { private: __, ...about } = JSON.parse(readFileSync(from("package.json"), "utf8"));
writeFileSync(path.join(out, "package.json"), `${JSON.stringify(about, null, 2)}\n`);
say(
  `${path.relative(ROOT, out)}: the package ${about.name} ${about.version}, with ${(size / 1e6).toFixed(1)} MB of bundle`,
);
