/**
 * The chat on a terminal: compiles the package for tests/hosts/test_chat.py, which has the keys.
 *
 *     node --test tests/hosts/chat.test.mjs
 */

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import path from "node:path";
import { after, before, it } from "node:test";
import { compile, PACKAGE, ROOT, removeCompiled } from "./compiled.mjs";

before(compile);
after(removeCompiled);

it("the chat on a terminal", () => {
  const { status, stdout } = spawnSync(
    path.join(ROOT, ".venv/bin/python"),
    ["-m", "pytest", "-q", "-x", "tests/hosts/test_chat.py"],
    {
      cwd: ROOT,
      encoding: "utf8",
      env: { ...process.env, SANDPORT_CLI: path.join(PACKAGE, "bin/sandport.mjs") },
    },
  );
  assert.equal(status, 0, stdout);
});
