#!/usr/bin/env node
/**
 * Runs tests inside Pyodide in Node, over the bundle's own bytes: core's tests again, and those of the runtime.
 *
 *     node tests/pyodide/run.mjs [--dist DIR] [pytest arguments]
 *
 * Prints pytest's lines and last `N passed, N failed`. Exits with 1 when something failed.
 */

import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { bootBundle } from "../../browser/build/image.mjs";
import { bootModule } from "../../browser/build/python.mjs";
import { BuildError, bytes, filesBelow, ROOT } from "../../browser/build/shared.mjs";
import { lockedWheels } from "../../browser/build/wheels.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const argv = process.argv.slice(2);
const at = argv.indexOf("--dist");
const dist = at >= 0 ? path.resolve(argv.splice(at, 2)[1]) : path.join(ROOT, "dist");

/** Folders whose tests run, and what they read. */
const MOUNTED = [
  ["tests/core", (name) => /\.(py|json)$/.test(name)],
  ["tests/vectors", () => true],
  ["tests/pyodide", (name) => name.endsWith(".py")],
  ["tests/web_tools", (name) => name.endsWith(".py")],
  ["core/sandport_demo", (name) => name.endsWith(".py")],
  ["core/sandport_demo", (name) => name.endsWith(".py")],
];

function fail(error) {
  console.error(`pyodide tests: ${String(error?.message ?? error).slice(-4000)}`);
  console.log("0 passed, 1 failed");
  process.exit(1);
}
// A PythonError nobody caught would print a megabyte of Pyodide's source.
process.on("uncaughtException", fail);

async function main() {
  const manifestFile = path.join(dist, "runtime", "manifest.json");
  if (!existsSync(manifestFile)) throw new BuildError("there is no bundle: run ./build.sh build first");
  const manifest = JSON.parse(readFileSync(manifestFile, "utf8"));
  const files = Object.fromEntries(
    Object.entries(manifest.files).map(([role, { name }]) => [
      role,
      { data: bytes(path.join(dist, "runtime", name)) },
    ]),
  );
  const boot = await bootModule();
  const pyodide = await bootBundle(boot, files, manifest.preload, {
    options: {
      output: (_stream, text) => process.stdout.write(text),
    },
  });
  for (const wheel of lockedWheels("pyodide-test")) {
    pyodide.unpackArchive(bytes(wheel), "wheel", { extractDir: "/test-packages" });
  }
  for (const [folder, wanted] of MOUNTED) {
    for (const name of filesBelow(path.join(ROOT, folder), wanted)) {
      const target = `/repo/${folder}/${name}`;
      pyodide.FS.mkdirTree(path.posix.dirname(target));
      pyodide.FS.writeFile(target, bytes(path.join(ROOT, folder, name)));
    }
  }
  pyodide.FS.mkdirTree("/repo/web");
  pyodide.globals.set("arguments", pyodide.toPy(argv));
  // Real interrupts, as in the sandbox's worker.
  const deadline = boot.installDeadline(pyodide, null);
  pyodide.registerJsModule("sandbox_host", {
    arm: (seconds) => deadline.arm(seconds),
    disarm: () => deadline.disarm(),
  });
  const result = pyodide.runPython(readFileSync(path.join(HERE, "main.py"), "utf8"), { filename: "main.py" });
  const [passed, failed, skipped] = result.toJs();
  console.log(`${passed} passed, ${failed} failed, ${skipped} skipped`);
  process.exit(failed > 0 || passed === 0 ? 1 : 0);
}

main().catch(fail);
