/**
 * The same bundle in Node, Deno and Bun: it serves, it comes back after a crash, and hostile tool code finds exactly the ways
 * that docs/hosts.md says. Deno and Bun are those of `npm ci --prefix tests/hosts`; without them their tests are skipped.
 *
 *     node --test tests/hosts/hosts.test.mjs
 */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { ATTACKS } from "./attacks.mjs";
import { compile, PACKAGE, ROOT, removeCompiled } from "./compiled.mjs";

const HERE = fileURLToPath(new URL(".", import.meta.url));
const SECRET = "the secret of this machine";
const run = promisify(execFile);
const installed = (name) => path.join(HERE, "node_modules/.bin", name);

/** Host -> how to run a module there. */
const HOSTS = {
  node: [process.execPath],
  deno: [installed("deno"), "run", "-A", "--unstable-worker-options"],
  bun: [installed("bun")],
};

/** What nothing closes in Node and Bun; what else is open there is not listed. */
const OPEN = {
  node: [
    "read a file (node:fs)",
    "run a command (node)",
    "send to the network (fetch)",
    "write a file (node)",
    "signal another process (node)",
    "write to the program's output (node)",
    "look at the process (node:inspector)",
    "a thread of its own",
  ],
  bun: [
    "read a file (builtin)",
    "run a command (Bun)",
    "read the environment (node)",
    "a thread of its own",
    "write a file (node)",
    "write a file (node:sqlite)",
    "native code (Bun)",
    "signal another process (node)",
    "write to the program's output (node)",
    "look at the process (node:inspector)",
  ],
};
/** What Deno leaves open to a worker without permissions. */
const OPEN_IN_DENO = [
  "signal this process (Deno)",
  "write to the program's output (Deno)",
  "write to the program's output (node)",
  "read the program's input (Deno)",
  "keep data between runs (caches)",
  "talk to other threads (BroadcastChannel)",
];

let folder;
let server;
let hits = [];

before(async () => {
  compile();
  folder = mkdtempSync(path.join(tmpdir(), "sandport-hosts-"));
  writeFileSync(path.join(folder, "secret"), SECRET);
  writeFileSync(path.join(folder, "secret.json"), JSON.stringify({ text: SECRET }));
  server = createServer((request, response) => {
    hits.push(request.url);
    response.setHeader("content-type", "text/javascript");
    response.end("export default 'came'");
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
});

after(() => {
  server.close();
  server.closeAllConnections();
  removeCompiled();
  rmSync(folder, { recursive: true, force: true });
});

/** Runs drive.mjs in a host; resolves to its report. */
async function drive(host, scenario, given) {
  const [command, ...args] = HOSTS[host];
  const running = run(
    command,
    [...args, path.join(HERE, "drive.mjs"), scenario, PACKAGE, JSON.stringify(given)],
    { cwd: ROOT, env: { ...process.env, SANDPORT_TEST_SECRET: SECRET, NO_COLOR: "1" }, timeout: 240_000 },
  );
  // Something that a tool may read.
  running.child.stdin.end("typed");
  const { stdout } = await running;
  return JSON.parse(stdout.trim().split("\n").at(-1));
}

function attack(ways) {
  const { port } = server.address();
  return {
    attack: {
      ways: ways ? Object.fromEntries(ways.map((name) => [name, ATTACKS[name]])) : ATTACKS,
      secret: path.join(folder, "secret"),
      out: path.join(folder, "out"),
      address: `http://127.0.0.1:${port}/`,
      pid: process.pid,
    },
  };
}

const openWays = ({ found }) =>
  Object.entries(found)
    .filter(([, what]) => what.startsWith("open"))
    .map(([name]) => name);

for (const host of Object.keys(HOSTS)) {
  describe(host, {
    skip: !existsSync(HOSTS[host][0]) && `${host} is not installed: npm ci --prefix tests/hosts`,
  }, () => {
    it(`serves; ${host === "deno" ? "tools find no way to the machine" : "nothing isolates tools"}`, async () => {
      hits = [];
      rmSync(path.join(folder, "out"), { force: true });
      // In Bun some of the attempts end the worker, which says nothing about the others.
      const report = await drive(host, "serve", attack(host === "bun" ? OPEN.bun : undefined));
      assert.equal(report.host, host);
      assert.equal(report.sum, "5");
      assert.deepEqual(report.tools, ["add", "stubborn", "attack"]);
      assert.ok(report.files.includes("attack.py"), `${report.files}`);
      assert.ok(report.mounted.files >= 3);
      if (host === "deno") {
        assert.equal(report.isolation, "permissions");
        assert.deepEqual(openWays(report), OPEN_IN_DENO);
        assert.equal(Object.keys(report.found).length, Object.keys(ATTACKS).length + 5);
        assert.ok(!JSON.stringify(report.found).includes(SECRET));
        assert.deepEqual(hits, []);
        assert.ok(!existsSync(path.join(folder, "out")));
      } else {
        assert.equal(report.isolation, "nothing");
        assert.deepEqual(
          OPEN[host].filter((name) => !openWays(report).includes(name)),
          [],
        );
        assert.ok(JSON.stringify(report.found).includes(SECRET));
      }
    });

    it("comes back after a tool that only the end of its thread stops", async () => {
      const report = await drive(host, "crash", { timeLimit: 1, hangLimit: 3 });
      assert.match(report.answer, /gave no sign of life for 3 s/);
      assert.equal(report.restarted.length, 1);
      assert.equal(report.sum, "5");
    });
  });
}

describe("the command in Deno and Bun", () => {
  for (const [host, notice] of [
    ["deno", /Tools have no Deno permissions/],
    ["bun", /Nothing isolates tools here/],
  ]) {
    it(host, { skip: !existsSync(HOSTS[host][0]) && `${host} is not installed` }, async () => {
      const [command, ...args] = HOSTS[host];
      const { stdout, stderr } = await run(
        command,
        [
          ...[...args, path.join(PACKAGE, "bin/sandport.mjs")],
          ...["--tools", path.join(ROOT, "examples/04-terminal/tools.py")],
          ...["--yes", "--prompt", 'call summary {"numbers": [1, 2, 3]}'],
          ...["--", process.execPath, path.join(ROOT, "examples/agent/agent.mjs")],
        ],
        { cwd: ROOT, timeout: 120_000 },
      );
      assert.match(stdout, /^summary says: \{"mean":2/);
      assert.match(stderr, notice);
    });
  }
});

describe("deno, when trusted", { skip: !existsSync(HOSTS.deno[0]) && "deno is not installed" }, () => {
  it("gives tools the permissions of the process", async () => {
    const way = "read a file (node:fs)";
    const report = await drive("deno", "serve", { ...attack([way]), trusted: true });
    assert.equal(report.isolation, "nothing");
    assert.deepEqual(openWays(report), [way]);
  });
});
