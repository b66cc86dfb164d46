/**
 * The npm package as somebody else gets it: packed, installed into an empty folder, type-checked, bundled and run.
 *
 *     node --test tests/package/npm.test.mjs
 */

import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, describe, it } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { build as esbuild } from "esbuild";
import { build as vite } from "vite";
import { launchChromium } from "../examples/chromium.mjs";
import { imageMade } from "../hosts/compiled.mjs";
import { plainServer } from "../inpage/static-server.mjs";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const run = promisify(execFile);
let folder;
let packed;

before(async () => {
  folder = mkdtempSync(path.join(tmpdir(), "sandport-npm-"));
  const staged = path.join(folder, "staged");
  execFileSync(process.execPath, [path.join(ROOT, "browser/build/package.mjs"), "--out", staged], {
    stdio: ["ignore", "ignore", "inherit"],
  });
  const { stdout } = await run("npm", ["pack", "--json", staged], { cwd: folder, maxBuffer: 1 << 24 });
  [packed] = JSON.parse(stdout);
  write("package.json", JSON.stringify({ name: "app", private: true, type: "module" }));
  await run("npm", ["install", "--no-audit", "--no-fund", "--prefer-offline", `./${packed.filename}`], {
    cwd: folder,
  });
});

after(() => rmSync(folder, { recursive: true, force: true }));

function write(name, text) {
  writeFileSync(path.join(folder, name), text);
  return path.join(folder, name);
}

/** An app's one file, bundled by esbuild for a page. */
async function bundled(source, options = {}) {
  const entry = write("entry.js", source);
  const { outputFiles } = await esbuild({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: "esm",
    platform: "browser",
    target: "es2022",
    write: false,
    absWorkingDir: folder,
    ...options,
  });
  return outputFiles[0].text;
}

async function viteBuilt(source) {
  const outDir = path.join(folder, "out");
  write("main.js", source);
  await vite({
    root: folder,
    configFile: false,
    logLevel: "error",
    build: {
      outDir,
      emptyOutDir: true,
      lib: { entry: path.join(folder, "main.js"), formats: ["es"], fileName: "main" },
    },
  });
  const [file] = readdirSync(outDir);
  return { file: path.join(outDir, file), text: readFileSync(path.join(outDir, file), "utf8") };
}

const PORT = /burst:\s*4(e3|000)/;
const SANDBOX = "sandbox.html";
const AGENT = "relay.js";
const MCP = "notifications/tools/list_changed";

describe("the tarball", () => {
  it("has modules, types, the command, the bundle and the papers, and nothing else", () => {
    const files = packed.files.map(({ path: name }) => name);
    for (const name of ["README.md", "LICENSE", "dist/index.js", "dist/index.d.ts", "assets/sandbox.html"]) {
      assert.ok(files.includes(name), name);
    }
    const others = files.filter(
      (name) => !/^(package\.json|README\.md|LICENSE|(dist|bin|assets)\/.*)$/.test(name),
    );
    assert.deepEqual(others, []);
    const odd = files.filter((name) => /\.(br|gz|ts|tsbuildinfo)$/.test(name) && !name.endsWith(".d.ts"));
    assert.deepEqual(odd, []);
    for (const name of ["assets/agent/manifest.json", "assets/agent/relay.js", "assets/sw.js"])
      assert.ok(files.includes(name), name);
    assert.ok(packed.size < 26e6, `${packed.size} bytes`);
  });

  it("says nothing of the machine it was made on", () => {
    for (const name of readdirSync(path.join(folder, "node_modules/sandport/dist"), { recursive: true })) {
      if (!/\.(js|map|ts)$/.test(name)) continue;
      const text = readFileSync(path.join(folder, "node_modules/sandport/dist", name), "utf8");
      assert.ok(!text.includes(ROOT.replace(/^\/|\/$/g, "")), name);
    }
  });
});

describe("checkers of packages", () => {
  it("publint and arethetypeswrong have nothing to say", async () => {
    const place = mkdtempSync(path.join(tmpdir(), "sandport-lint-"));
    try {
      writeFileSync(path.join(place, "package.json"), '{"private": true}');
      const tools = ["publint@0.3.25", "@arethetypeswrong/cli@0.18.5"];
      await run("npm", ["install", "--no-audit", "--no-fund", "--prefer-offline", ...tools], { cwd: place });
      const check = (tool, ...args) =>
        run(path.join(place, "node_modules/.bin", tool), args, { cwd: place }).then(
          () => "",
          ({ stdout, stderr }) => stdout + stderr,
        );
      const tarball = path.join(folder, packed.filename);
      assert.equal(await check("publint", "--strict", tarball), "");
      assert.equal(await check("attw", tarball, "--profile", "esm-only"), "");
    } finally {
      rmSync(place, { recursive: true });
    }
  });
});

describe("import", () => {
  it("has no side effects: nothing printed, no new global", async () => {
    const code = `
      const before = new Set(Reflect.ownKeys(globalThis));
      const [main, tools] = [await import("sandport"), await import("sandport/tools")];
      await import("sandport/agent");
      await import("sandport/node");
      const grown = Reflect.ownKeys(globalThis).filter((key) => !before.has(key)).map(String);
      console.log(JSON.stringify({ main: typeof main.lend, tools: typeof tools.createToolServer, grown }));`;
    const { stdout, stderr } = await run(process.execPath, ["--input-type=module", "-e", code], {
      cwd: folder,
    });
    // zod keeps its registry of schemas in a global.
    const { main, tools, grown } = JSON.parse(stdout);
    assert.deepEqual([main, tools, stderr], ["function", "function", ""]);
    assert.deepEqual(
      grown.filter((key) => !key.startsWith("__zod")),
      [],
    );
  });

  it("costs nothing when nothing is used", async () => {
    assert.equal((await bundled('import "sandport";', { logLevel: "silent" })).trim(), "");
    assert.equal((await bundled('import { Port } from "sandport"; export {};')).trim(), "");
  });
});

describe("the command", () => {
  it("runs where it was installed, from the package's own bundle", async () => {
    const command = path.join(folder, "node_modules/.bin/sandport");
    const { stdout: version } = await run(command, ["--version"], { cwd: folder });
    assert.equal(version, "sandport 0.1.0\n");
    const tools = write(
      "tools.py",
      `from fastmcp import FastMCP
mcp = FastMCP("mine")

@mcp.tool
def add(a: int, b: int) -> int:
    return a + b
`,
    );
    const agent = path.join(ROOT, "examples/agent/agent.mjs");
    const args = [
      "--tools",
      tools,
      "--yes",
      "--prompt",
      'call add {"a": 20, "b": 22}',
      "--",
      process.execPath,
      agent,
    ];
    const images = path.join(folder, "images");
    const env = { ...process.env, SANDPORT_IMAGE_CACHE: images };
    const made = /a memory image is being made aside/;
    for (const first of [true, false]) {
      const { stdout, stderr } = await run(command, args, { cwd: folder, env, timeout: 180_000 });
      assert.equal(stdout, "add says: 42\n");
      assert.match(stderr, /Nothing isolates tools here/);
      assert.equal(made.test(stderr), first, stderr);
      if (first) await imageMade(images);
      assert.match(readdirSync(images).join(), /^runtime-\w+\.image$/);
    }
  });
});

describe("types", () => {
  for (const [name, module_] of [
    ["bundler", "esnext"],
    ["nodenext", "nodenext"],
  ]) {
    it(`are right for strict code (moduleResolution ${name})`, async () => {
      write(
        "typed.ts",
        `import { lend, memoryChannelPair, type TextChannel } from "sandport";
         import { createToolServer, defineTool, type ToolQuestion } from "sandport/tools";
         import { createHostAgent, createHostSandbox, type HostSandbox } from "sandport/node";
         import { createInPageAgent, type InPageAgent, type SessionStore } from "sandport/agent";
         import * as z from "zod";
         export const python: () => HostSandbox = () => createHostSandbox({ timeLimit: 5, ask: () => "deny" });
         export const inPage = (store: SessionStore): InPageAgent => createInPageAgent({ store });
         export const agent = (): Promise<TextChannel> => createHostAgent({ data: "sessions" }).open();
         const tool = defineTool({
           name: "double", description: "Doubles.", input: z.object({ n: z.number() }),
           run: ({ n }) => n * 2,
         });
         // @ts-expect-error a number is no text
         defineTool({ name: "bad", description: "", input: z.object({ n: z.number() }), run: ({ n }) => n.trim() });
         const ask = ({ tool }: ToolQuestion) => (tool === "double" ? "always" : "deny") as "always" | "deny";
         const [channel]: [TextChannel, TextChannel] = memoryChannelPair();
         export const lane: TextChannel = lend(channel, [createToolServer({ name: "page", ask, tools: [tool] })]).lane;`,
      );
      const config = {
        compilerOptions: {
          strict: true,
          noEmit: true,
          target: "es2022",
          lib: ["es2023", "dom"],
          types: [],
          module: module_,
          moduleResolution: name,
          skipLibCheck: true,
        },
        files: ["typed.ts"],
      };
      write("tsconfig.json", JSON.stringify(config));
      const tsc = path.join(ROOT, "node_modules/typescript/bin/tsc");
      const { stdout } = await run(process.execPath, [tsc, "-p", folder]).catch((error) => error);
      assert.equal(stdout, "");
    });
  }
});

describe("bundlers shake out what an app does not use", () => {
  it("esbuild: the port without the sandbox and the MCP SDK", async () => {
    const text = await bundled('import { Port } from "sandport"; globalThis.P = Port;');
    assert.ok(PORT.test(text) && !text.includes(SANDBOX) && !text.includes(AGENT) && !text.includes(MCP));
    assert.ok(text.length < 25_000, `${text.length} characters`);
  });

  it("esbuild: the sandbox without the agent and the MCP SDK", async () => {
    const text = await bundled('import { createSandbox } from "sandport"; globalThis.S = createSandbox;');
    assert.ok(text.includes(SANDBOX) && !PORT.test(text) && !text.includes(AGENT) && !text.includes(MCP));
  });

  it("esbuild: the agent in the page without the sandbox's life and the MCP SDK", async () => {
    const text = await bundled('import { createInPageAgent as a } from "sandport/agent"; globalThis.A = a;');
    assert.ok(
      text.includes(AGENT) && !text.includes("was restarted") && !PORT.test(text) && !text.includes(MCP),
    );
  });

  it("Vite: the same for the port", async () => {
    const { text } = await viteBuilt('export { Port } from "sandport";');
    assert.ok(PORT.test(text) && !text.includes(SANDBOX) && !text.includes(MCP));
  });

  const APP = `
    import { lend, memoryChannelPair } from "sandport";
    import { createToolServer, defineTool } from "sandport/tools";
    export const page = createToolServer({
      name: "page", ask: () => "once",
      tools: [defineTool({ name: "add", description: "Adds.", input: { properties: { a: { type: "number" } } }, run: ({ a }) => a + 1 })],
    });
    export { lend, memoryChannelPair };`;

  /** Talks to the built app as an agent of the stateless family would. */
  async function callAdd({ page, lend, memoryChannelPair }) {
    const [ours, theirs] = memoryChannelPair();
    const texts = [];
    let wake = () => {};
    const text = (message) => {
      texts.push(JSON.parse(message));
      wake();
    };
    theirs.listen({ text, close: () => {} });
    const next = async () => {
      while (texts.length === 0)
        await new Promise((resolve) => {
          wake = resolve;
        });
      return texts.shift();
    };
    const { lane } = lend(ours, [page]);
    lane.listen({ text: () => {}, close: () => {} });
    lane.send('{"jsonrpc":"2.0","id":0,"method":"initialize"}');
    await next();
    theirs.send('{"jsonrpc":"2.0","id":0,"result":{"agentCapabilities":{"mcpCapabilities":{"acp":true}}}}');
    await new Promise((resolve) => setImmediate(resolve));
    lane.send('{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"mcpServers":[]}}');
    const [{ serverId }] = (await next()).params.mcpServers;
    const _meta = {
      "io.modelcontextprotocol/protocolVersion": "2026-07-28",
      "io.modelcontextprotocol/clientCapabilities": {},
    };
    const params = {
      serverId,
      requestId: "r",
      method: "tools/call",
      params: { name: "add", arguments: { a: 1 }, _meta },
    };
    theirs.send(JSON.stringify({ jsonrpc: "2.0", id: 7, method: "mcp/message", params }));
    return (await next()).result.result.content[0].text;
  }

  it("esbuild: an app with tools works, without the sandbox", async () => {
    const text = await bundled(APP);
    assert.ok(text.includes(MCP) && !text.includes(SANDBOX));
    assert.equal(await callAdd(await import(pathToFileURL(write("app.mjs", text)).href)), "2");
  });

  it("Vite: an app with tools works, without the sandbox", async () => {
    const { text, file } = await viteBuilt(APP);
    assert.ok(text.includes(MCP) && !text.includes(SANDBOX));
    assert.equal(await callAdd(await import(pathToFileURL(file).href)), "2");
  });

  it("no bundle needs eval: a page's policy may forbid it", async () => {
    const text = await bundled(APP);
    assert.doesNotMatch(text, /\beval\(/);
  });
});

describe("an app with the sandbox and the agent in the page", { timeout: 240_000 }, () => {
  const APP = `
    import { client, methods, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";
    import { createInPageAgent, createSandbox, lend } from "sandport";

    const options = { base: "/sandport/", inlineFrame: true };
    let said = "";
    globalThis.answer = async (text) => {
      const onProblem = (problem) => { said += problem; };
      const { lane } = lend(await createInPageAgent(options).open(), [createSandbox(options)], { onProblem });
      const { agent } = client({ name: "app" })
        .onNotification(methods.client.session.update, ({ params: { update } }) => {
          if (update.sessionUpdate === "agent_message_chunk") said += update.content.text;
        })
        .connect({
          readable: new ReadableStream({
            start: (controller) => lane.listen({
              text: (message) => controller.enqueue(JSON.parse(message)),
              close: () => controller.close(),
            }),
          }),
          writable: new WritableStream({ write: (message) => lane.send(JSON.stringify(message)) }),
        });
      await agent.request(methods.agent.initialize, { protocolVersion: PROTOCOL_VERSION, clientCapabilities: {} });
      const { sessionId } = await agent.request(methods.agent.session.new, { cwd: "/", mcpServers: [] });
      await agent.request(methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
      return said;
    };`;
  let site;
  let server;
  let browser;

  before(async () => {
    site = mkdtempSync(path.join(tmpdir(), "sandport-site-"));
    await run(path.join(folder, "node_modules/.bin/sandport"), ["assets", path.join(site, "sandport")]);
    server = await plainServer(site);
    browser = await launchChromium();
  });

  after(async () => {
    await browser?.close();
    server?.close();
    rmSync(site, { recursive: true, force: true });
  });

  /** Opens a page with a built script, and lets its agent run Python. */
  async function tryPage(script) {
    writeFileSync(path.join(site, "app.js"), script);
    writeFileSync(
      path.join(site, "index.html"),
      '<!doctype html><meta charset="utf-8"><body><script type="module" src="app.js"></script>',
    );
    const page = await browser.newPage();
    await page.goto(server.address);
    assert.match(
      await page.evaluate(() => globalThis.answer('Call run_python with {"code": "6 * 7"}')),
      /42/,
    );
    await page.close();
  }

  it("esbuild", async () => {
    await tryPage(await bundled(APP));
  });

  it("Vite", async () => {
    await tryPage((await viteBuilt(APP)).text);
  });
});
