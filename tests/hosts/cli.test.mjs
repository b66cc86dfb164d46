/**
 * The command `sandport` of the npm package in Node: a person's file of tools, agents by command and by address.
 *
 *     node --test tests/hosts/cli.test.mjs
 */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { after, before, describe, it } from "node:test";
import { compile, PACKAGE, ROOT, removeCompiled } from "./compiled.mjs";

const CLI = path.join(PACKAGE, "bin/sandport.mjs");
const AGENT = path.join(ROOT, "examples/agent/agent.mjs");
const NOTICE = /Nothing isolates tools here: their code can run commands and read files as you/;

let folder;
let tools;

before(() => {
  compile();
  folder = mkdtempSync(path.join(tmpdir(), "sandport-cli-"));
  tools = path.join(folder, "my-tools.py");
  writeFileSync(
    tools,
    `from fastmcp import FastMCP
mcp = FastMCP("mine")

@mcp.tool
def double(n: int) -> int:
    """Doubles a number."""
    return 2 * n
`,
  );
});

after(() => {
  removeCompiled();
  rmSync(folder, { recursive: true, force: true });
});

/** Runs the command; resolves to what it wrote and how it ended. */
function sandport(args, input = "") {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [CLI, ...args], {
      cwd: ROOT,
      timeout: 90_000,
      killSignal: "SIGKILL",
    });
    const out = { stdout: "", stderr: "" };
    for (const name of ["stdout", "stderr"]) {
      child[name].setEncoding("utf8").on("data", (text) => {
        out[name] += text;
      });
    }
    child.on("error", reject);
    child.on("close", (status) => resolve({ ...out, status }));
    child.stdin.end(input);
  });
}

describe("sandport", () => {
  it("lends a file of tools to an agent that it starts, and prints the answer alone to stdout", async () => {
    const args = [
      "--tools",
      tools,
      "--yes",
      "--prompt",
      'call double {"n": 21}',
      "--",
      process.execPath,
      AGENT,
    ];
    const { stdout, stderr, status } = await sandport(args);
    assert.deepEqual([stdout, status], ["double says: 42\n", 0]);
    assert.match(stderr, NOTICE);
    assert.match(stderr, /› double \{"n":21\}\n✓ double/);
  });

  it("chats line by line, with an agent at an address, and with files of a folder", async () => {
    const agent = spawn(process.execPath, [AGENT, "--port", "0"]);
    try {
      const [address] = await new Promise((resolve) => {
        createInterface({ input: agent.stdout }).once("line", (line) => resolve([line]));
      });
      const lines = ["tools", 'call read_file {"path": "my-tools.py", "end": 1}', 'call double {"n": "x"}'];
      const { stdout, stderr, status } = await sandport(
        ["--tools", tools, "--yes", "--workspace", folder, "--agent", address],
        `${lines.join("\n")}\n`,
      );
      assert.equal(status, 0);
      assert.match(stderr, /Example agent has 6 tools/);
      assert.match(stdout, /user\/double: Doubles a number\.$/m);
      assert.match(stdout, /from fastmcp import FastMCP/);
      assert.match(stdout, /double failed: /);
    } finally {
      agent.kill();
    }
  });

  it("says at once when the agent cannot be started, or why it ended", async () => {
    const missing = await sandport(["--agent", "there-is-no-such-agent --acp", "--prompt", "x"]);
    assert.match(missing.stderr, /there-is-no-such-agent: spawn .* ENOENT/);
    const script = "console.error('no key in the environment'); process.exit(3)";
    const dead = await sandport(["--prompt", "x", "--", process.execPath, "-e", script]);
    assert.match(dead.stderr, /ended with status 3:\nno key in the environment/);
    assert.deepEqual([missing.status, dead.status], [1, 1]);
  });

  it("says that an agent takes no tools over ACP", async () => {
    const script = `
      require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
        const { id, method, params } = JSON.parse(line);
        const say = (message) => console.log(JSON.stringify({ jsonrpc: "2.0", ...message }));
        if (method === "initialize") say({ id, result: { protocolVersion: 1, agentCapabilities: {} } });
        if (method === "session/new") say({ id, result: { sessionId: String(params.mcpServers.length) } });
        if (method === "session/prompt") {
          const content = { type: "text", text: "servers: " + params.sessionId + "\\u001b]0;owned\\u0007\\u001b[2J" };
          say({ method: "session/update", params: { sessionId: params.sessionId, update: { sessionUpdate: "agent_message_chunk", content } } });
          say({ id, result: { stopReason: "end_turn" } });
        }
      });`;
    const { stdout, stderr } = await sandport(["--prompt", "x", "--", process.execPath, "-e", script]);
    // And its words do not reach the terminal as commands.
    assert.equal(stdout, "servers: 0\n");
    assert.match(
      stderr,
      /the agent does not take tools over ACP \(it did not advertise mcpCapabilities\.acp\)/,
    );
  });

  it("names the file and the fault of tools that do not load", async () => {
    const broken = path.join(folder, "broken.py");
    writeFileSync(broken, "import nothing_like_it\n");
    const { stderr, status } = await sandport([
      "--tools",
      broken,
      "--prompt",
      "x",
      "--",
      process.execPath,
      AGENT,
    ]);
    assert.match(stderr, /nothing_like_it/);
    assert.equal(status, 1);
  });

  it("copies the sandbox's files", async () => {
    const target = path.join(folder, "public");
    const { status } = await sandport(["assets", target]);
    assert.equal(status, 0);
    assert.ok(
      existsSync(path.join(target, "sandbox.html")) && existsSync(path.join(target, "runtime/manifest.json")),
    );
  });

  it("explains itself, and wrong usage", async () => {
    const [help, none, odd, both] = await Promise.all([
      sandport(["--help"]),
      sandport([]),
      sandport(["--nonsense"]),
      sandport(["--agent", "x", "--", "y"]),
    ]);
    assert.match(help.stdout, /^usage: sandport --agent AGENT/);
    assert.match(none.stderr, /which agent\? Give --agent or -- COMMAND\nSee sandport --help/);
    assert.match(both.stderr, /give either/);
    assert.deepEqual([help.status, none.status, odd.status, both.status], [0, 2, 2, 2]);
  });
});
