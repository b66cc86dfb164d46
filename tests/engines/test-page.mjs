/** What a run of checks in real engines needs: the page that holds them, and the tally of what came out. */

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { build } from "esbuild";

/** Bundles a module as `page.html` in a folder of its own; returns the folder, and what removes it. */
export async function testPage(entry) {
  const folder = mkdtempSync(path.join(tmpdir(), "sandport-page-"));
  const remove = () => rmSync(folder, { recursive: true });
  try {
    await build({
      entryPoints: [entry],
      bundle: true,
      format: "esm",
      target: "es2022",
      outfile: path.join(folder, "page.js"),
      logLevel: "warning",
    });
  } catch (error) {
    remove();
    throw error;
  }
  writeFileSync(
    path.join(folder, "page.html"),
    '<!doctype html><meta charset="utf-8"><body><script type="module" src="page.js"></script>',
  );
  return { folder, remove };
}

/** Prints a line a check and counts them; `conclude` prints the sum and ends the process. */
export function tally() {
  let passed = 0;
  let failed = 0;
  return {
    report(where, { name, ok, detail = "", ms = 0 }) {
      if (ok) passed += 1;
      else failed += 1;
      console.log(
        `${ok ? "ok  " : "FAIL"} ${where}: ${name}${detail ? ` - ${detail}` : ""} (${(ms / 1000).toFixed(1)} s)`,
      );
    },
    conclude() {
      console.log(`${passed} passed, ${failed} failed`);
      process.exit(failed > 0 ? 1 : 0);
    },
  };
}
