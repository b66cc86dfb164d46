/**
 * Tools of a folder, a wheel and a zip, in a host sandbox and by the command `sandport`.
 *
 *     node --test tests/hosts/packages.test.mjs
 */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, describe, it } from "node:test";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { compile, PACKAGE, ROOT, removeCompiled } from "./compiled.mjs";

const run = promisify(execFile);
const server = (tool, name = "mcp") =>
  `from fastmcp import FastMCP\nfrom .numbers import FACTOR\n${name} = FastMCP("m")\n@${name}.tool\ndef ${tool}(n: int) -> int:\n    return FACTOR * n\n`;
const WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n";

let folder;

/** Writes files below a folder of the test's; returns the folder. */
function written(name, files) {
  const base = path.join(folder, name);
  for (const [file, text] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(base, file)), { recursive: true });
    writeFileSync(path.join(base, file), text);
  }
  return base;
}

before(() => {
  compile();
  folder = mkdtempSync(path.join(tmpdir(), "sandport-packages-"));
});

after(() => {
  removeCompiled();
  rmSync(folder, { recursive: true, force: true });
});

describe("tools of a package", () => {
  it("a host loads a folder that is a package, a project's folder, a wheel; a restart brings them back", async () => {
    const { createHostSandbox } = await import(pathToFileURL(`${PACKAGE}/dist/node/index.js`).href);
    const { zipFolder } = await import(pathToFileURL(`${PACKAGE}/dist/node/zip.js`).href);
    const itself = written("the-tools", {
      "__init__.py": "from .server import mcp\n",
      "server.py": server("double"),
      "numbers.py": "FACTOR = 2\n",
    });
    const project = written("project", {
      "pyproject.toml": "",
      "tests/test_it.py": "raise SystemExit",
      "src/acme/__init__.py": "",
      "src/acme/first.py": server("triple", "first"),
      "src/acme/second.py": server("other", "second"),
      "src/acme/numbers.py": "FACTOR = 3\n",
    });
    const unpacked = written("wheel", {
      "quad/__init__.py": "",
      "quad/server.py": server("quadruple"),
      "quad/numbers.py": "FACTOR = 4\n",
      "quad-1.0.dist-info/METADATA":
        "Metadata-Version: 2.1\nName: quad\nVersion: 1.0\nRequires-Dist: pydantic\n",
      "quad-1.0.dist-info/WHEEL": WHEEL,
    });
    const wheel = path.join(folder, "quad-1.0-py3-none-any.whl");
    writeFileSync(wheel, await zipFolder(unpacked));
    const sandbox = createHostSandbox();
    try {
      assert.deepEqual(await sandbox.loadFile(itself), ["double"]);
      await assert.rejects(sandbox.loadFile(project), /'project' defines 2 servers/);
      assert.deepEqual(await sandbox.loadFile(project, { server: "acme.first:first" }), ["triple"]);
      assert.deepEqual(await sandbox.loadFile(wheel), ["quadruple"]);
      await assert.rejects(sandbox.loadFile(path.join(folder, "nothing")), /ENOENT/);
      await sandbox.restart();
      await sandbox.unloadTools("the_tools");
      const names = (await sandbox.listTools()).flatMap(({ server, name }) =>
        server === "user" ? [name] : [],
      );
      assert.deepEqual(names, ["triple", "quadruple"]);
    } finally {
      sandbox.terminate();
    }
  });

  it("a module that never ends when it is put back is left out", async () => {
    const { createHostSandbox } = await import(pathToFileURL(`${PACKAGE}/dist/node/index.js`).href);
    const obstinate = `
import os
while os.path.exists("/workspace/again"):
    try:
        while True:
            pass
    except BaseException:
        pass
from fastmcp import FastMCP
mcp = FastMCP("m")
@mcp.tool
def obstinate() -> int:
    return 1
`;
    const said = [];
    const sandbox = createHostSandbox({
      timeLimit: 1,
      hangLimit: 1.5,
      on: { log: ({ text }) => said.push(text) },
    });
    try {
      await sandbox.loadTools("obstinate", obstinate);
      await sandbox.loadFile(
        written("still", { "still.py": server("still").replace(/.*FACTOR$/m, "FACTOR = 1") }),
      );
      await sandbox.mountFolder(written("marked", { again: "" }));
      await sandbox.restart();
      const names = (await sandbox.listTools()).map(({ name }) => name);
      assert.ok(names.includes("still") && !names.includes("obstinate"), `${names}`);
      assert.match(said.join(""), /obstinate: loading it again ended the sandbox/);
    } finally {
      sandbox.terminate();
    }
  });

  it("the command takes a folder, and which of its servers is meant", async () => {
    const tools = written("many", {
      "acme/__init__.py": "",
      "acme/one.py": server("five", "one"),
      "acme/two.py": server("six", "two"),
      "acme/numbers.py": "FACTOR = 5\n",
    });
    const { stdout } = await run(
      process.execPath,
      [
        path.join(PACKAGE, "bin/sandport.mjs"),
        ...["--tools", `${tools}#acme.one:one`, "--yes", "--prompt", 'call five {"n": 5}'],
        ...["--", process.execPath, path.join(ROOT, "examples/agent/agent.mjs")],
      ],
      { cwd: ROOT, timeout: 90_000 },
    );
    assert.equal(stdout, "five says: 25\n");
  });
});
