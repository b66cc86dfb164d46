/**
 * The wheels of the bundle: downloaded by name, checked against the lock's hashes.
 *
 * Invariant: a wheel of the locked set is used only when its SHA-256 is one of those in requirements/pyodide.txt.
 */

import { spawnSync } from "node:child_process";
import { copyFileSync, existsSync, readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { BuildError, ensureFolder, ROOT, say, sha256 } from "./shared.mjs";

const PLATFORM = [
  "--platform",
  "pyemscripten_2026_0_wasm32",
  "--python-version",
  "314",
  "--implementation",
  "cp",
  "--abi",
  "cp314",
  "--only-binary=:all:",
];

/** The requirements of a locked file: [{name, version, hashes}]. */
export function parseLock(file) {
  const text = readFileSync(file, "utf8").replaceAll("\\\n", " ");
  const found = [];
  for (const line of text.split("\n")) {
    const match = /^([A-Za-z0-9._-]+)==([^\s;]+)(.*)$/.exec(line);
    if (match) {
      const hashes = [...match[3].matchAll(/--hash=sha256:([0-9a-f]{64})/g)].map((hash) => hash[1]);
      found.push({ name: normal(match[1]), version: match[2], hashes });
    }
  }
  return found;
}

export function normal(name) {
  return name.toLowerCase().replace(/[-_.]+/g, "-");
}

function wheelName(file) {
  return normal(path.basename(file).split("-")[0]);
}

/** Paths of the wheels that requirements/NAME.txt locks; downloads what is missing. */
export function lockedWheels(name) {
  const lock = path.join(ROOT, "requirements", `${name}.txt`);
  const folder = ensureFolder(path.join(ROOT, ".cache", "wheels", name));
  const wanted = parseLock(lock);
  let { found, missing } = match(folder, wanted);
  if (missing.length > 0) {
    say(`downloading ${missing.length} of ${wanted.length} wheels (${name})`);
    pip(["download", ...PLATFORM, "--no-deps", "--require-hashes", "-q", "-d", folder, "-r", lock]);
    ({ found, missing } = match(folder, wanted));
  }
  if (missing.length > 0) throw new BuildError(`no wheel for ${missing.join(", ")} in ${folder}`);
  return found;
}

function match(folder, wanted) {
  const files = readdirSync(folder).filter((file) => file.endsWith(".whl"));
  const hashes = new Map(files.map((file) => [sha256(readFileSync(path.join(folder, file))), file]));
  const found = [];
  const missing = [];
  for (const { name, version, hashes: allowed } of wanted) {
    const hash = allowed.find((candidate) => hashes.has(candidate));
    if (hash) found.push(path.join(folder, hashes.get(hash)));
    else missing.push(`${name}==${version}`);
  }
  return { found, missing };
}

/**
 * Wheels that a user adds: files, or names of packages, which come with what they depend on.
 * What the bundle already has, or stands in for, is left out.
 */
export function extraWheels(names, bundled) {
  if (names.length === 0) return [];
  const has = new Set([...bundled.map(wheelName), "cryptography", "cffi", "joserfc"]);
  const files = names.filter((name) => name.endsWith(".whl"));
  for (const file of files) {
    if (!existsSync(file)) throw new BuildError(`there is no wheel ${file}`);
    if (!/-(none-any|pyemscripten_2026_0_wasm32)\.whl$/.test(file) && !/-none-any\.whl$/.test(file)) {
      throw new BuildError(
        `${path.basename(file)} is neither pure Python nor built for pyemscripten_2026_0_wasm32`,
      );
    }
  }
  const packages = names.filter((name) => !name.endsWith(".whl"));
  const found = files.map((file) => path.resolve(file));
  if (packages.length > 0) {
    const folder = ensureFolder(
      path.join(ROOT, ".cache", "wheels", `with-${sha256(packages.sort().join("\0")).slice(0, 12)}`),
    );
    if (readdirSync(folder).length === 0) {
      say(`downloading ${packages.join(", ")}`);
      pip(["download", ...PLATFORM, "-q", "-d", folder, ...packages]);
    }
    for (const file of readdirSync(folder)) {
      if (!has.has(wheelName(file))) found.push(path.join(folder, file));
    }
  }
  for (const file of found) {
    if (has.has(wheelName(file))) throw new BuildError(`the bundle has ${wheelName(file)} already`);
  }
  return found;
}

/** Copies wheels under their own names into `folder`, for the tests that need pytest inside Pyodide. */
export function copyWheels(files, folder) {
  ensureFolder(folder);
  for (const file of files) copyFileSync(file, path.join(folder, path.basename(file)));
}

function pip(args) {
  const python = [path.join(ROOT, ".tools", "bin", "python"), process.env["SANDPORT_PYTHON"] ?? ""].find(
    (file) => existsSync(file),
  );
  if (!python) throw new BuildError("pip is missing: run ./build.sh build, which sets up .tools");
  const run = spawnSync(python, ["-m", "pip", "--disable-pip-version-check", ...args], { encoding: "utf8" });
  if (run.status !== 0) {
    const why = run.stderr.split("\n").filter((line) => line.startsWith("ERROR"));
    throw new BuildError(`pip ${args[0]} failed: ${why.slice(-2).join(" ") || run.stderr.slice(-500)}`);
  }
}
