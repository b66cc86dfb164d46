/**
 * `sandport agent`: the agent as a program, started by clients on the official SDKs, by Sandport's own terminal and behind its
 * gateway. Deno and Bun are those of `npm ci --prefix tests/hosts`; without them their tests are skipped.
 *
 *     node --test tests/hosts/agent.test.mjs
 */

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { Readable, Writable } from "node:stream";
import { after, before, describe, it } from "node:test";
import { promisify } from "node:util";
import { fromMcpServer } from "@agentclientprotocol/sdk/experimental/mcp-server";
import { client, McpOverAcpProvider, methods, ndJsonStream } from "@agentclientprotocol/sdk/unstable";
import { McpServer } from "@modelcontextprotocol/server";
import * as z from "zod";
import { scriptedEndpoint } from "../inpage/endpoint.mjs";
import { compile, ROOT, removeCompiled } from "./compiled.mjs";
import { CLI, Editor } from "./editor.mjs";

const run = promisify(execFile);
const PYTHON = path.join(ROOT, ".venv/bin/python");
const KEY = "sk-only-for-the-endpoint";
const installed = (name) => path.join(ROOT, "tests/hosts/node_modules/.bin", name);
const editors = [];
let folder;
let endpoint;

before(async () => {
  compile();
  folder = mkdtempSync(path.join(tmpdir(), "sandport-agent-"));
  endpoint = await scriptedEndpoint({ key: KEY });
});

after(() => {
  for (const { child } of editors) child.kill("SIGKILL");
  endpoint.close();
  removeCompiled();
  rmSync(folder, { recursive: true, force: true });
});

async function start(options = [], settings = {}) {
  const editor = await Editor.start([CLI, "agent", ...options], settings);
  editors.push(editor);
  return editor;
}

describe("sandport agent", { timeout: 120_000 }, () => {
  it("calls the tools that its client lends it, and asks first", async () => {
    const editor = await start();
    assert.equal(editor.hello.agentInfo.title, "Sandport agent");
    assert.equal(editor.hello.agentCapabilities.mcpCapabilities.acp, true);
    const id = await editor.session();
    assert.equal(await editor.prompt(id, 'Call add with {"a": 40, "b": 2}'), "end_turn");
    assert.match(editor.said, /42/);
    assert.deepEqual(editor.questions, ["add"]);
    editor.answer = "reject_once";
    await editor.prompt(id, 'Call add with {"a": 1, "b": 2}');
    assert.match(editor.said, /did not allow/);
    editor.answer = "allow_always";
    await editor.prompt(id, 'Call add with {"a": 3, "b": 4}');
    await editor.prompt(id, 'Call add with {"a": 5, "b": 6}');
    assert.deepEqual(editor.questions, []);
    const other = await editor.session();
    await editor.agent.request(methods.agent.session.setMode, { sessionId: other, modeId: "auto" });
    await editor.prompt(other, 'Call add with {"a": 7, "b": 8}');
    assert.deepEqual(editor.questions, []);
    assert.deepEqual(
      editor.calls.map(([, a]) => a),
      [40, 3, 5, 7],
    );
    assert.deepEqual(await editor.leave(), { status: 0, signal: null });
    const lines = editor.stdout.trimEnd().split("\n");
    assert.ok(lines.every((line) => JSON.parse(line).jsonrpc === "2.0"));
    assert.equal(editor.stderr, "");
  });

  it("stops a turn and its call when it is cancelled, and one that its end leaves is kept", async () => {
    const data = path.join(folder, "cancelled");
    const editor = await start(["--data", data]);
    const id = await editor.session();
    let begun = editor.waits();
    const turn = editor.prompt(id, "Call wait with {}");
    await begun;
    await editor.agent.notify(methods.agent.session.cancel, { sessionId: id });
    assert.equal(await turn, "cancelled");
    assert.deepEqual(editor.calls, [["wait"], ["stopped"]]);
    await editor.prompt(id, 'Call add with {"a": 1, "b": 1}');
    assert.match(editor.said, /2/);
    assert.deepEqual(editor.questions, ["add"]);
    begun = editor.waits();
    const cut = editor.prompt(id, "Call wait with {}").catch(() => "cut off");
    await begun;
    assert.deepEqual(await editor.leave(), { status: 0, signal: null });
    await cut;
    const [file] = readdirSync(data);
    const [, text] = readFileSync(path.join(data, file), "utf8").split("\n");
    assert.equal(text.match(/Call wait with/g).length, 2);
  });

  it("keeps sessions in a folder: list, load, fork, resume, close, delete after a restart", async () => {
    const data = path.join(folder, "sessions");
    const before = await start(["--data", data]);
    const id = await before.session("/home/me/project");
    await before.prompt(id, 'Call add with {"a": 30, "b": 3}');
    await before.leave();
    const [file] = readdirSync(data);
    assert.equal(statSync(path.join(data, file)).mode & 0o777, 0o600);
    assert.equal(statSync(data).mode & 0o777, 0o700);
    writeFileSync(path.join(data, "broken.session"), "no session");

    const editor = await start(["--data", data]);
    const { agent } = editor;
    const where = { cwd: "/home/me/project", mcpServers: [] };
    const list = async () => (await agent.request(methods.agent.session.list, {})).sessions;
    assert.deepEqual(
      (await list()).map(({ sessionId, title }) => [sessionId, title]),
      [[id, 'Call add with {"a": 30, "b": 3}']],
    );
    await agent.request(methods.agent.session.load, { sessionId: id, ...where });
    assert.deepEqual(
      editor.updates.map(({ sessionUpdate }) => sessionUpdate),
      ["user_message_chunk", "tool_call", "agent_message_chunk"],
    );
    assert.match(editor.said, /33/);
    const fork = (await agent.request("session/fork", { sessionId: id, ...where })).sessionId;
    await editor.prompt(fork, 'Call add with {"a": 1, "b": 5}');
    assert.match(editor.said, /6/);
    await agent.request(methods.agent.session.close, { sessionId: id });
    await assert.rejects(editor.prompt(id, "help"), /There is no session/);
    editor.clear();
    await agent.request(methods.agent.session.resume, { sessionId: id, ...where });
    assert.deepEqual(editor.updates, []);
    await editor.prompt(id, 'Call add with {"a": 2, "b": 2}');
    assert.match(editor.said, /4/);
    await agent.request("session/delete", { sessionId: id });
    assert.deepEqual(
      (await list()).map(({ sessionId }) => sessionId),
      [fork],
    );
    const odd = { sessionId: "../broken", ...where };
    await assert.rejects(agent.request(methods.agent.session.load, odd), /is no id of a session/);
    await editor.leave();
  });

  it("works with an endpoint: plan, streamed answer, cancel; the key goes there alone", async () => {
    const data = path.join(folder, "endpoint");
    const model = `${endpoint.address}#${endpoint.model}`;
    const editor = await start(["--model", model, "--key-env", "MY_KEY", "--data", data, "--verbose"], {
      env: { MY_KEY: KEY },
    });
    const id = await editor.session();
    assert.equal(await editor.prompt(id, 'call add {"a": 20, "b": 22}'), "end_turn");
    assert.match(editor.said, /said: .*42/);
    const plan = editor.updates.find(({ sessionUpdate }) => sessionUpdate === "plan");
    assert.equal(plan.entries[0].content, "Call add");
    const began = editor.next(({ sessionUpdate }) => sessionUpdate === "agent_message_chunk");
    const turn = editor.prompt(id, "hang");
    await began;
    await editor.agent.notify(methods.agent.session.cancel, { sessionId: id });
    assert.equal(await turn, "cancelled");
    await editor.leave();
    assert.ok(endpoint.requests.every(({ headers }) => headers.authorization === `Bearer ${KEY}`));
    assert.ok(endpoint.closed.includes(false), "the stopped answer did not end its request");
    const kept = readdirSync(data).map((name) => readFileSync(path.join(data, name), "utf8"));
    assert.ok(kept.join("").includes("hang"));
    for (const text of [editor.stdout, editor.stderr, ...kept]) assert.ok(!text.includes(KEY));
  });

  it("says what is wrong with an endpoint, with a remedy and without the key", async () => {
    const gone = await scriptedEndpoint();
    gone.close();
    for (const [address, expected] of [
      [`${endpoint.address}#${endpoint.model}`, /401.*--key-env/],
      [`${gone.address}#x`, /gave no answer: .*ECONNREFUSED.*after --model/],
    ]) {
      const editor = await start(["--model", address], { env: { SANDPORT_MODEL_KEY: "sk-wrong" } });
      const error = await editor.prompt(await editor.session(), "hello").catch((reason) => reason);
      assert.match(`${error.message} ${JSON.stringify(error.data)}`, expected);
      await editor.leave();
      assert.ok(!`${editor.stdout}${editor.stderr}`.includes("sk-wrong"));
    }
  });

  it("answers what was asked before its input ended", async () => {
    const child = spawn(process.execPath, [CLI, "agent"], { stdio: ["pipe", "pipe", "inherit"] });
    let text = "";
    child.stdout.on("data", (chunk) => {
      text += chunk;
    });
    child.stdin.end(
      '[]\nnonsense\n{"jsonrpc":"2.0","id":"a","method":"initialize","params":{"protocolVersion":1}}\n' +
        '{"jsonrpc":"2.0","id":2,"method":"session/list","params":{}}\n',
    );
    const [status] = await once(child, "close");
    const answers = text.trimEnd().split("\n").map(JSON.parse);
    assert.equal(status, 0);
    assert.deepEqual(answers.find(({ id }) => id === 2).result, { sessions: [] });
    assert.equal(answers.find(({ id }) => id === "a").result.protocolVersion, 1);
    assert.deepEqual(
      answers.filter(({ id }) => id === null).map(({ error }) => error.code),
      [-32600, -32700],
    );
  });

  it("ends on a signal, and when nobody reads", async () => {
    const editor = await start();
    editor.child.kill("SIGTERM");
    assert.deepEqual(await editor.exited, { status: 143, signal: null });
    const unread = await start();
    unread.child.stdout.destroy();
    unread.child.stdin.write('{"jsonrpc":"2.0","id":9,"method":"session/list","params":{}}\n');
    assert.deepEqual(await unread.exited, { status: 0, signal: null });
  });

  it("names what is wrong in its options, and never a key", async () => {
    for (const [options, expected] of [
      [["--model", "http://localhost:1/v1"], /--model is ADDRESS#NAME/],
      [["--model", "localhost#x"], /--model: .*is no address/],
      [["--model", "https://me:secret@localhost/v1#x"], /must not hold a name, a password/],
      [["--model", "http://localhost:1/v1#x", "--key-env", "NOT_THERE"], /has no NOT_THERE/],
      [["--key-env", "PATH"], /give --model/],
      [["extra"], /agent takes options only/],
      [["--bundle", folder], /manifest\.json cannot be read/],
    ]) {
      const child = spawn(process.execPath, [CLI, "agent", ...options], { stdio: ["pipe", "pipe", "pipe"] });
      let said = "";
      child.stderr.on("data", (chunk) => {
        said += chunk;
      });
      const [status] = await once(child, "close");
      assert.match(said, expected);
      assert.equal(status, options[0] === "--bundle" ? 1 : 2);
      assert.ok(!said.includes("secret") && !said.includes(process.env.PATH));
    }
  });
});

describe("sandport agent, started by", () => {
  const tools = path.join(ROOT, "examples/04-terminal/tools.py");
  const sum = 'Call summary with {"numbers": [1, 2, 3]}';

  it("the official Python SDK's client", async () => {
    const lend = path.join(ROOT, "examples/03-python-sdk/lend.py");
    const agent = ["--", process.execPath, CLI, "agent"];
    const { stdout } = await run(PYTHON, [lend, 'Call greet with {"name": "Ada"}', ...agent], { cwd: ROOT });
    assert.match(stdout.replaceAll(/\n/g, ""), /Hello, Ada!/);
  });

  it("a client that lends statelessly, by the official TypeScript SDK's own provider", async () => {
    const child = spawn(process.execPath, [CLI, "agent"], { stdio: ["pipe", "pipe", "inherit"] });
    editors.push({ child });
    let said = "";
    const seen = [];
    const provider = new McpOverAcpProvider();
    const server = () => {
      const made = new McpServer({ name: "stateless", version: "1" });
      const schema = z.object({ a: z.number(), b: z.number() });
      made.registerTool("add", { inputSchema: schema }, ({ a, b }) => ({
        content: [{ type: "text", text: String(a + b) }],
      }));
      return made;
    };
    const { agent } = client({ name: "stateless" })
      .onRequest(methods.client.mcp.message, (request) => {
        seen.push(request.params.method);
        return provider.handleRequest(request);
      })
      .onRequest(methods.client.session.requestPermission, () => ({
        outcome: { outcome: "selected", optionId: "once" },
      }))
      .onNotification(methods.client.session.update, ({ params: { update } }) => {
        if (update.sessionUpdate === "agent_message_chunk") said += update.content.text;
      })
      .connect(ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout)));
    const { declaration } = provider.registerServer(agent, {
      name: "stateless",
      handler: fromMcpServer(server).handler,
    });
    await agent.request(methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} });
    const { sessionId } = await agent.request(methods.agent.session.new, {
      cwd: "/",
      mcpServers: [declaration],
    });
    const prompt = [{ type: "text", text: 'Call add with {"a": 20, "b": 22}' }];
    await agent.request(methods.agent.session.prompt, { sessionId, prompt });
    assert.match(said, /42/);
    assert.ok(seen.includes("tools/call") && !seen.includes("initialize"), `${seen}`);
    child.stdin.end();
    await once(child, "close");
  });

  it("Sandport's own terminal", async () => {
    const { stdout, stderr } = await run(
      process.execPath,
      [CLI, "--tools", tools, "--yes", "--prompt", sum, "--", process.execPath, CLI, "agent"],
      { cwd: ROOT, timeout: 120_000 },
    );
    assert.match(stdout, /"mean": 2/);
    assert.match(stderr, /✓ summary/);
  });

  it("Sandport's gateway", async () => {
    const gateway = spawn(
      path.join(ROOT, ".venv/bin/sandport"),
      ["serve", "--dist", "dist", "--agent", `${process.execPath} ${CLI} agent`],
      { cwd: ROOT, stdio: ["ignore", "pipe", "pipe"] },
    );
    try {
      let said = "";
      const address = await new Promise((resolve, reject) => {
        const hear = (chunk) => {
          said += chunk;
          const found = /http:\S+#token=\S+/.exec(said);
          if (found) resolve(found[0]);
        };
        gateway.stdout.on("data", hear);
        gateway.stderr.on("data", hear);
        gateway.on("close", () => reject(new Error(said)));
      });
      const { stdout } = await run(
        process.execPath,
        [CLI, "--tools", tools, "--yes", "--prompt", sum, "--agent", address],
        { cwd: ROOT, timeout: 120_000 },
      );
      assert.match(stdout, /"mean": 2/);
    } finally {
      gateway.kill();
      await once(gateway, "close");
    }
  });
});

describe("sandport lend", { timeout: 120_000 }, () => {
  it("lends Python tools to an editor's agent, beside the editor's own, and asks in the editor", async () => {
    const tools = path.join(ROOT, "examples/04-terminal/tools.py");
    const agent = [process.execPath, path.join(ROOT, "examples/agent/agent.mjs")];
    const editor = await Editor.start([CLI, "lend", "--tools", tools, "--", ...agent]);
    editors.push(editor);
    assert.equal(editor.hello.agentInfo.title, "Example agent");
    const id = await editor.session();
    await editor.prompt(id, 'call summary {"numbers": [1, 2, 3]}');
    assert.match(editor.said, /summary says: .*"mean":2/);
    assert.deepEqual(editor.questions, ["user/summary"]);
    await editor.prompt(id, 'call add {"a": 1, "b": 2}');
    assert.match(editor.said, /add says: 3/);
    assert.deepEqual(editor.questions, []);
    editor.answer = "reject_once";
    await editor.prompt(id, 'call summary {"numbers": [4]}');
    assert.match(editor.said, /summary failed: .*did not allow/);
    assert.deepEqual(await editor.leave(), { status: 0, signal: null });
    assert.ok(
      editor.stdout
        .trimEnd()
        .split("\n")
        .every((line) => JSON.parse(line).jsonrpc === "2.0"),
    );
    assert.match(editor.stderr, /Nothing isolates tools here/);
  });

  it("ends with an agent that cannot be started, and says why", async () => {
    const child = spawn(process.execPath, [CLI, "lend", "--", "there-is-no-such-agent"]);
    let said = "";
    child.stderr.on("data", (chunk) => {
      said += chunk;
    });
    const [status] = await once(child, "close");
    assert.match(said, /there-is-no-such-agent: spawn .*ENOENT/);
    assert.equal(status, 1);
  });
});

describe("the entries for editors in docs/hosts.md", { timeout: 120_000 }, () => {
  const page = readFileSync(path.join(ROOT, "docs/hosts.md"), "utf8");
  const entries = [...page.matchAll(/```json\n(.*?)```/gs)].flatMap(([, text]) =>
    Object.entries(JSON.parse(text).agent_servers),
  );
  assert.equal(entries.length, 2);
  for (const [name, { command, args }] of entries) {
    it(name, async () => {
      const words = [command, ...args].map((word) =>
        word
          .replace("/home/you/my_tools.py", path.join(ROOT, "examples/04-terminal/tools.py"))
          .replace("/home/you/.local/share/sandport", path.join(folder, "editor"))
          .replace(/^http:.*#.*$/, `${endpoint.address}#${endpoint.model}`),
      );
      // `npx sandport` is the package's command, wherever it is installed.
      const line = words.join("\n").replaceAll("npx\nsandport", `${process.execPath}\n${CLI}`).split("\n");
      const editor = await Editor.start(line.slice(1), {
        command: line[0],
        env: { SANDPORT_MODEL_KEY: KEY },
      });
      editors.push(editor);
      const id = await editor.session();
      const isLend = args.includes("lend");
      await editor.prompt(
        id,
        isLend ? 'Call summary with {"numbers": [1, 2, 3]}' : 'call add {"a": 20, "b": 22}',
      );
      assert.match(editor.said, isLend ? /"mean": 2/ : /said: .*42/);
      assert.ok(editor.questions.length > 0);
      await editor.leave();
    });
  }
});

describe("sandport agent, in", () => {
  const HOSTS = {
    // The process has no other permissions than these, and the agent's thread has none.
    deno: () => [
      "run",
      "--no-prompt",
      "--unstable-worker-options",
      `--allow-read=${ROOT},${path.join(folder, "deno")}`,
      `--allow-write=${path.join(folder, "deno")}`,
      `--allow-net=${new URL(endpoint.address).host}`,
      "--allow-env",
    ],
    bun: () => [],
  };
  for (const [host, options] of Object.entries(HOSTS)) {
    it(host, { skip: !existsSync(installed(host)) && `${host} is not installed` }, async () => {
      const data = path.join(folder, host);
      const model = ["--model", `${endpoint.address}#${endpoint.model}`, "--data", data];
      const editor = await Editor.start([...options(), CLI, "agent", ...model], {
        command: installed(host),
        env: { SANDPORT_MODEL_KEY: KEY, NO_COLOR: "1" },
      });
      editors.push(editor);
      const id = await editor.session();
      await editor.prompt(id, 'call add {"a": 20, "b": 22}');
      assert.match(editor.said, /said: .*42/);
      assert.deepEqual(await editor.leave(), { status: 0, signal: null });
      assert.deepEqual(readdirSync(data), [`${id}.session`]);
      assert.ok(!`${editor.stdout}${editor.stderr}`.includes(KEY));
    });
  }
});
