/**
 * Makes the in-page agent's part of dist/: agent/*, on top of the sandbox's runtime/*.
 *
 * Invariant: what is written has answered a prompt in Node, with the demo script and through an endpoint's stream, booted
 * by the sandbox's own code from exactly these bytes and the runtime's.
 */

import { readFileSync } from "node:fs";
import path from "node:path";
import { build } from "esbuild";
import { bootBundle, bootForImage, loadedModules } from "./image.mjs";
import {
  cached,
  compilerKey,
  file,
  listed,
  MODULES,
  putFiles,
  replace,
  report,
  siblings,
  sourceFiles,
  sourcesHash,
  tidy,
} from "./output.mjs";
import { bootModule, compiler } from "./python.mjs";
import { BuildError, bytes, fileSize, filesBelow, hashFiles, ROOT, say, sha256 } from "./shared.mjs";
import { lockedWheels } from "./wheels.mjs";

const MODULE = "sandport_inpage.boot";
const py = (name) => name.endsWith(".py");
/** As in bundle.mjs: [folder, place in the zip, what to take]. */
const SOURCES = [
  ["core/sandport", "sandport", py],
  ["browser/runtime/sandport_runtime", "sandport_runtime", py],
  ["browser/runtime/standins", "standins", py],
  ["browser/agent/sandport_inpage", "sandport_inpage", py],
  ["browser/agent/standins", "standins", py],
  // The demo's script is the native agent's: the same requests, calls and answers in both.
  ["core/sandport_demo", "sandport_demo", py],
];
/** Scripts that are files of their own, below dist: a service worker answers for the folder it lies in. */
const SCRIPTS = { "agent/relay.js": "relay-worker.ts", "sw.js": "offline-worker.ts" };

/** Builds `OUT/agent`, when it is not there already. */
export async function agentBundle({ out, force, image }) {
  const folder = path.join(out, "agent");
  const runtime = JSON.parse(readFileSync(path.join(out, "runtime", "manifest.json"), "utf8"));
  const wheels = lockedWheels("pyodide-agent");
  const sources = sourceFiles(SOURCES);
  const code = path.join(ROOT, "browser", "src", "agent");
  const layerKey = sha256(
    compilerKey(),
    ...[...wheels].sort().map((wheel) => `${path.basename(wheel)}:${sha256(readFileSync(wheel))}`),
  );
  const inputs = sha256(
    layerKey,
    runtime.inputs,
    sourcesHash(sources),
    hashFiles(code, filesBelow(code)),
    String(image),
  );
  if (!force && isCurrent(out, folder, inputs)) return;

  let started;
  const python = () => {
    started ??= compiler();
    return started;
  };
  const extra = await cached(`agent-${layerKey.slice(0, 24)}.zip`, async () => {
    const compile = await python();
    say(`compiling ${wheels.length} wheels of the in-page agent`);
    for (const wheel of wheels) compile.put(wheel, `/wheels/${path.basename(wheel)}`);
    return compile.call("wheels", "/wheels").site;
  });
  const core = await cached(
    `agent-core-${sha256(compilerKey(), sourcesHash(sources)).slice(0, 24)}.zip`,
    async () => {
      const compile = await python();
      for (const { file: source, name } of sources) compile.put(source, `/src/${name}`);
      return compile.call("sources", "/src");
    },
  );
  const files = { core: file("core.zip", core), extra: file("wheels.zip", extra) };
  say("letting the in-page agent answer in Node");
  const boot = await bootModule();
  const all = { ...runtimeFiles(out, runtime), ...files };
  const modules = await proveTurns(boot, all, runtime.preload);
  if (image) {
    say("making the in-page agent's memory image");
    const pyodide = await bootForImage(boot, all, runtime.preload);
    pyodide.pyimport(MODULE).prepare();
    files.image = file("image.bin", boot.takeImage(pyodide, modules));
    await proveTurns(boot, all, runtime.preload, files.image.data);
  }

  putFiles(folder, files, await siblings(files));
  for (const [name, source] of Object.entries(SCRIPTS))
    replace(path.join(out, name), await script(path.join(code, source)));
  replace(path.join(folder, MODULES), JSON.stringify(modules));
  const manifest = {
    format: 1,
    inputs,
    module: MODULE,
    also: ["relay.js", MODULES],
    files: listed(files),
  };
  replace(path.join(folder, "manifest.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  tidy(folder, manifest);
  report(folder, files);
}

function isCurrent(out, folder, inputs) {
  try {
    const manifest = JSON.parse(readFileSync(path.join(folder, "manifest.json"), "utf8"));
    return (
      manifest.inputs === inputs &&
      Object.keys(SCRIPTS).every((name) => fileSize(path.join(out, name)) > 0) &&
      Object.values(manifest.files).every(({ name, size }) => fileSize(path.join(folder, name)) === size)
    );
  } catch {
    return false;
  }
}

function runtimeFiles(out, manifest) {
  return Object.fromEntries(
    Object.entries(manifest.files).map(([role, { name }]) => [
      role,
      { data: bytes(path.join(out, "runtime", name)) },
    ]),
  );
}

async function script(source) {
  const result = await build({
    entryPoints: [source],
    bundle: true,
    format: "iife",
    target: "es2022",
    minify: true,
    legalComments: "none",
    write: false,
    logLevel: "silent",
  });
  return result.outputFiles[0].text;
}

/** What a scripted endpoint streams: one answer. */
const STREAM = [{ role: "assistant", content: "" }, { content: "From the " }, { content: "endpoint." }].map(
  (delta) => ({
    id: "c1",
    object: "chat.completion.chunk",
    created: 1,
    model: "m",
    choices: [{ index: 0, delta }],
  }),
);

/** What a scripted server of the page answers, by MCP method. */
const LENT = {
  initialize: {
    protocolVersion: "2025-11-25",
    capabilities: { tools: { listChanged: true } },
    serverInfo: { name: "build", version: "1" },
  },
  "tools/list": {
    tools: [
      {
        name: "add",
        inputSchema: { type: "object", properties: { a: { type: "integer" } } },
        outputSchema: { type: "object", properties: { sum: { type: "integer" } } },
      },
    ],
  },
  "tools/call": { content: [{ type: "text", text: "43" }], structuredContent: { sum: 43 } },
};
const LENT_SERVER = { type: "acp", name: "build", id: "build", serverId: "build" };

/**
 * Boots the agent, and lets it answer one prompt by script and one through an endpoint.
 * Returns the names of the modules that it loaded.
 */
async function proveTurns(boot, files, preload, image) {
  const pyodide = await bootBundle(boot, files, preload, image ? { image } : {});
  const runtime = pyodide.pyimport(MODULE);
  const updates = [];
  const printed = [];
  const waiting = new Map();
  const settle = (key, message) => {
    waiting.get(key)?.(message);
    waiting.delete(key);
  };
  const answer = (key, what) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${what} within 60 s`)), 60_000);
      waiting.set(key, (message) => {
        clearTimeout(timer);
        if (message.error) reject(new Error(`${what}: ${JSON.stringify(message.error)}`));
        else resolve(message.result);
      });
    });
  let control;
  const tell = (message) => setImmediate(() => control.control(JSON.stringify(message)));
  const event = (message) => {
    if (message.event === "log") printed.push(message.text);
    else if (message.event === "ask") tell({ op: "answer", ask: message.ask, ok: true, value: null });
    else if (message.event === "http") respond(message);
    else if (message.event === "failed") for (const key of waiting.keys()) settle(key, { error: message });
    else if (message.seq !== undefined) settle(`seq ${message.seq}`, { ...message, result: message.value });
  };
  const respond = ({ http }) => {
    const lines = [...STREAM.map((chunk) => JSON.stringify(chunk)), "[DONE]"];
    tell({ op: "http", http, kind: "head", status: 200, headers: { "content-type": "text/event-stream" } });
    tell({ op: "http", http, kind: "data", text: lines.map((line) => `data: ${line}\n\n`).join("") });
    tell({ op: "http", http, kind: "end" });
  };
  const host = {
    post: (text) => {
      const message = JSON.parse(text);
      if (message.method === "session/update") updates.push(message.params.update);
      else if (message.method?.startsWith("mcp/")) lend(message);
      else settle(`id ${message.id}`, message);
    },
    event: (text) => event(JSON.parse(text)),
    schedule: (callback, delay) => (delay > 0 ? setTimeout(callback, delay) : setImmediate(callback)),
    arm: () => {},
    disarm: () => {},
  };
  const lend = ({ id, method, params }) => {
    if (id === undefined) return;
    const result = method === "mcp/connect" ? { connectionId: "build" } : (LENT[params.method] ?? {});
    setImmediate(() => control.receive(JSON.stringify({ jsonrpc: "2.0", id, result })));
  };
  let next = 0;
  const ask = (op) => {
    next += 1;
    const done = answer(`seq ${next}`, op.op);
    control.control(JSON.stringify({ ...op, seq: next }));
    return done;
  };
  const call = (method, params) => {
    next += 1;
    const done = answer(`id ${next}`, method);
    control.receive(JSON.stringify({ jsonrpc: "2.0", id: next, method, params }));
    return done;
  };
  try {
    if (!image) runtime.prepare();
    control = runtime.start(host, JSON.stringify({ boot: {}, restored: image !== undefined }));
    await ask({ op: "open" });
    await call("initialize", { protocolVersion: 1 });
    const { sessionId } = await call("session/new", { cwd: "/", mcpServers: [LENT_SERVER] });
    const prompt = (text) => call("session/prompt", { sessionId, prompt: [{ type: "text", text }] });
    await prompt('Call add with {"a": 42}');
    await ask({ op: "model", kind: "endpoint", name: "m" });
    await prompt("Hello");
    const said = updates.map(({ content }) => content?.text ?? "").join("");
    for (const wanted of ['"sum": 43', "From the endpoint."]) {
      if (!said.includes(wanted)) throw new Error(`the answer lacks ${JSON.stringify(wanted)}: ${said}`);
    }
    return loadedModules(pyodide);
  } catch (error) {
    throw new BuildError(
      `the in-page agent does not answer: ${String(error.message ?? error).slice(-3000)}\n${printed.join("").slice(-3000)}`,
    );
  }
}
