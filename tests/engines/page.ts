/**
 * What a sandbox must do in every engine, as one page with one global function; the drivers only open it and call.
 *
 * Invariant: each check says what it saw when it fails. Nothing sleeps: each waits for an answer or an event.
 */

import {
  createSandbox,
  memoryChannelPair,
  Port,
  type Sandbox,
  type SandboxEvents,
  type SandboxOptions,
} from "../../browser/src/index.ts";
import { openStore } from "../../browser/src/sandbox/store.ts";
import { Agent, type CallResult, type Connection, RpcError } from "./agent.ts";

interface Outcome {
  name: string;
  ok: boolean;
  detail: string;
  ms: number;
}

interface Settings {
  /** Text of tests/engines/tools.py. */
  readonly tools: string;
  /** Names of checks to leave out, with the reason. */
  readonly skip: Readonly<Record<string, string>>;
  /** Only these, when given. */
  readonly only?: readonly string[];
  readonly inlineFrame?: boolean;
}

interface World {
  readonly sandbox: Sandbox;
  readonly port: Port;
  readonly agent: Agent;
  readonly logs: SandboxEvents["log"][];
  readonly events: { name: string; event: unknown }[];
  readonly user: Connection;
  readonly workspace: Connection;
}

/** Seconds; generous, as machines that test are busy. */
const TIME_LIMIT = 2.5;
/** Seconds; some of the attacks hold a slow machine up for long. */
const HANG_LIMIT = 12;

function check(condition: unknown, what: string): asserts condition {
  if (!condition) throw new Error(what);
}

function text(result: CallResult): string {
  return result.content.map((block) => block.text).join("\n");
}

function next<Name extends keyof SandboxEvents>(
  sandbox: Sandbox,
  name: Name,
  wanted: (event: SandboxEvents[Name]) => boolean = () => true,
): Promise<SandboxEvents[Name]> {
  return new Promise((resolve) => {
    const stop = sandbox.on(name, (event) => {
      if (!wanted(event)) return;
      stop();
      resolve(event);
    });
  });
}

async function makeWorld(settings: Settings, options: SandboxOptions = {}): Promise<World> {
  const logs: SandboxEvents["log"][] = [];
  const events: { name: string; event: unknown }[] = [];
  const sandbox = createSandbox({
    base: "/",
    timeLimit: TIME_LIMIT,
    hangLimit: HANG_LIMIT,
    inlineFrame: settings.inlineFrame ?? false,
    ...options,
    on: {
      log: (event) => logs.push(event),
      ...Object.fromEntries(
        ["progress", "ready", "failed", "tools", "crashed", "restarted"].map((name) => [
          name,
          (event: unknown) => events.push({ name, event }),
        ]),
      ),
    },
  });
  await sandbox.ready;
  const [outer, inner] = memoryChannelPair();
  const agent = new Agent(outer);
  const port = new Port(inner);
  await sandbox.join(port);
  await sandbox.loadTools("probe", settings.tools);
  const declared = await sandbox.declare();
  const id = (name: string): string => {
    const found = declared.find((server) => server.name === name);
    check(found, `no server ${name} among ${declared.map((server) => server.name).join(", ")}`);
    return found.id;
  };
  const [user, workspace] = await Promise.all([agent.connect(id("user")), agent.connect(id("workspace"))]);
  return { sandbox, port, agent, logs, events, user, workspace };
}

const CHECKS: Record<string, (world: World, settings: Settings) => Promise<string | undefined>> = {
  async "boots in the confined frame, with progress"({ events, sandbox }) {
    const ready = await sandbox.ready;
    const stages = events
      .filter(({ name }) => name === "progress")
      .map(({ event }) => (event as { stage: string }).stage);
    for (const stage of ["fetch", "runtime", "modules", "servers"])
      check(stages.includes(stage), `no progress ${stage}: ${stages}`);
    check(
      ready.servers.some(({ name, tools }) => name === "workspace" && tools >= 5),
      JSON.stringify(ready.servers),
    );
    const frame = document.querySelector("iframe");
    check(frame?.getAttribute("sandbox") === "allow-scripts", "the frame is not confined");
    const ms = Object.entries(ready.ms).map(([stage, value]) => `${stage} ${Math.round(value)}`);
    return `${ready.mode}: ${ms.join(", ")} ms; isolated ${crossOriginIsolated}`;
  },

  async "lists tools, for the agent and for the page"({ user, workspace, sandbox }) {
    const names = await workspace.tools();
    for (const name of ["list_files", "read_file", "search", "summarise_csv", "run_python"])
      check(names.includes(name), `${names}`);
    check((await user.tools()).includes("add"), "the loaded module's tools are not listed");
    const shown = await sandbox.listTools();
    check(
      shown.some(({ server, name }) => server === "user" && name === "add"),
      JSON.stringify(shown).slice(0, 500),
    );
    return undefined;
  },

  async "calls sync and async tools"({ user }) {
    for (const name of ["add", "add_later"]) {
      const result = await user.call(name, { a: 2, b: 40 });
      check(result.structuredContent?.result === 42 && !result.isError, JSON.stringify(result));
    }
    const many = await Promise.all(
      Array.from({ length: 64 }, (_, i) => user.call("add_later", { a: i, b: i })),
    );
    check(
      many.every((result, i) => result.structuredContent?.result === 2 * i),
      "64 calls at once were mixed up",
    );
    return undefined;
  },

  async "a tool that raises gives isError, readable"({ user }) {
    const result = await user.call("fail");
    check(result.isError === true && text(result).includes("the tool's own words"), JSON.stringify(result));
    check(!text(result).includes("/sandport/"), `paths of the sandbox: ${text(result)}`);
    return undefined;
  },

  async "endless code meets its time limit, the server lives"({ user }) {
    const began = performance.now();
    const result = await user.call("spin");
    const seconds = (performance.now() - began) / 1000;
    check(result.isError === true && text(result).includes("time limit"), JSON.stringify(result));
    check(seconds < TIME_LIMIT + 3, `it took ${seconds} s`);
    check((await user.call("add", { a: 1, b: 1 })).structuredContent?.result === 2, "the next call failed");
    return `${seconds.toFixed(2)} s`;
  },

  async "time.sleep and a wait without end meet it too"({ user }) {
    for (const [name, args] of [
      ["doze", { seconds: 600 }],
      ["wait_forever", {}],
    ] as const) {
      const result = await user.call(name, args);
      check(
        result.isError === true && text(result).includes("time limit"),
        `${name}: ${JSON.stringify(result)}`,
      );
    }
    check((await user.call("doze", { seconds: 0.05 })).content[0]?.text === "awake", "a short sleep failed");
    return undefined;
  },

  async "prints go to the log, with their call, and are bounded"({ user, logs }) {
    logs.length = 0;
    await user.call("say", { text: "grüße" });
    const line = logs.find((log) => log.text.includes("grüße"));
    check(
      line?.tool === "say" && line.stream === "stdout" && line.server !== undefined,
      JSON.stringify(logs),
    );
    logs.length = 0;
    await user.call("say_much", { megabytes: 10 });
    const size = logs.reduce((sum, log) => sum + log.text.length, 0);
    check(size > 100_000 && size < 400_000, `${size} characters of 10 MB came`);
    check(logs.at(-1)?.text.includes("left out"), `no note at the end: ${logs.at(-1)?.text.slice(0, 100)}`);
    logs.length = 0;
    const result = await user.call("say_badly");
    check(!result.isError, JSON.stringify(result));
    const all = logs.map((log) => log.text).join("");
    check(all.includes("héllo\0") && all.includes("raw \ufffd bytes"), JSON.stringify(all));
    logs.length = 0;
    await user.call("say", { text: "still there" });
    check(
      logs.some((log) => log.text.includes("still there")),
      "sys.stdout=None silenced the next tool",
    );
    return undefined;
  },

  async "tools loaded while it runs are announced, bad ones are refused"({ sandbox, user, agent }) {
    agent.notified.length = 0;
    const source = (name: string, value: number): string =>
      `from fastmcp import FastMCP\nmcp = FastMCP("m")\n@mcp.tool\ndef ${name}() -> int:\n    return ${value}\n`;
    const told = next(sandbox, "tools");
    check((await sandbox.loadTools("mine", source("one", 1))).join() === "one", "the names of its tools");
    await told;
    await agent.until(() => agent.notified.includes("notifications/tools/list_changed"));
    check((await user.call("one")).structuredContent?.result === 1, "the new tool does not answer");
    await sandbox.loadTools("mine", source("one", 11));
    check((await user.call("one")).structuredContent?.result === 11, "the old version answers");
    for (const [bad, words] of [
      ["import nothing_of_that_name", "nothing_of_that_name"],
      ["x = (", "SyntaxError"],
      ["x = 1", "defines no server"],
      [source("add", 1), "already has a tool"],
      ["while True: pass", "time limit"],
    ] as const) {
      const error = await sandbox.loadTools(bad.includes("def add") ? "other" : "mine", bad).then(
        () => "loaded",
        (reason: Error) => reason.message,
      );
      check(error.includes(words), `${bad}: ${error}`);
    }
    check(
      (await user.call("one")).structuredContent?.result === 11,
      "a refused module took the old one away",
    );
    await sandbox.unloadTools("mine");
    check(!(await user.tools()).includes("one"), "an unloaded tool is listed");
    return undefined;
  },

  async "a package is loaded, replaced, kept by a restart and taken out"({ sandbox, user, agent }) {
    const source = (value: number): string =>
      `from fastmcp import FastMCP\nmcp = FastMCP("m")\n@mcp.tool\ndef packed() -> int:\n    from . import part\n    return ${value} + part.ZERO\n`;
    const archive = (value: number): ArrayBuffer =>
      storedZip({ "acme/__init__.py": "", "acme/part.py": "ZERO = 0\n", "acme/server.py": source(value) });
    const value = async (): Promise<unknown> => (await user.call("packed")).structuredContent?.result;
    agent.notified.length = 0;
    const bytes = archive(1);
    check((await sandbox.loadPackage("acme", bytes)).join() === "packed", "the names of its tools");
    check(bytes.byteLength > 0, "the caller's bytes were taken away");
    await agent.until(() => agent.notified.includes("notifications/tools/list_changed"));
    check((await value()) === 1, "the package's tool does not answer");
    const told = agent.notified.filter((method) => method === "notifications/tools/list_changed").length;
    check(told === 1, `list_changed was sent ${told} times`);
    await sandbox.loadPackage("acme", new Blob([archive(2)]), { server: "acme.server:mcp" });
    const error = await sandbox.loadPackage("acme", storedZip({ "acme/__init__.py": "1 / 0" })).catch(String);
    check(String(error).includes("ZeroDivisionError"), String(error));
    check((await value()) === 2, "a refused version took the old one away");
    await sandbox.restart();
    check((await value()) === 2, "the package is not back after a restart");
    await sandbox.unloadTools("acme");
    check(!(await user.tools()).includes("packed"), "an unloaded tool is listed");
    return undefined;
  },

  async "a module that ends the sandbox when it is put back is left out"({ sandbox, user, logs, events }) {
    const source = (name: string, first: string): string =>
      `import os\nif os.path.exists("/workspace/again"):\n    ${first}\nfrom fastmcp import FastMCP\nmcp = FastMCP("m")\n@mcp.tool\ndef ${name}() -> int:\n    return 1\n`;
    await sandbox.loadTools("closing", source("closing", "import js; js.close()"));
    await sandbox.loadTools("failing", source("failing", "1 / 0"));
    await sandbox.loadTools("sound", source("sound", "pass"));
    await sandbox.mountZip("/workspace", storedZip({ again: "" }));
    logs.length = 0;
    await sandbox.restart();
    const names = await user.tools();
    check(names.includes("sound") && names.includes("add"), `${names}`);
    check(!names.includes("closing") && !names.includes("failing"), `${names}`);
    const said = logs.map(({ text }) => text).join("");
    check(said.includes("closing: loading it again ended the sandbox"), said);
    check(said.includes("ZeroDivisionError"), said);
    for (const name of ["closing", "failing", "sound"]) await sandbox.unloadTools(name);
    check(events.filter(({ name }) => name === "failed").length === 0, JSON.stringify(events.slice(-5)));
    return undefined;
  },

  async "a folder is mounted from a zip, and tools work on it"({ sandbox, workspace }) {
    const zip = storedZip({ "data/a.csv": "x,y\n1,2\n3,4\n", "readme.txt": "needle here\n" });
    check((await sandbox.mountZip("/workspace", zip, { replace: true })).files === 2, "number of files");
    const found = await workspace.call("search", { pattern: "needle" });
    check(text(found).includes("readme.txt"), text(found));
    const python = await workspace.call("run_python", { code: "sum(1 for _ in open('data/a.csv'))" });
    check(text(python).includes("3"), text(python));
    const refused = await sandbox
      .mountZip("/workspace", storedZip({ "../up.txt": "x" }))
      .catch((error: Error) => error.message);
    check(String(refused).includes("leads outside"), String(refused));
    await workspace.call("run_python", { code: "open('made.bin', 'wb').write(bytes(range(256)))" });
    const taken = new TextDecoder("latin1").decode(await sandbox.zipFolder("/workspace"));
    for (const part of ["data/a.csv", "needle here", "made.bin", "\x01\x02\x03\x04"])
      check(taken.includes(part), `the archive lacks ${part}`);
    return undefined;
  },

  async "nothing gets out: network, storage, processes, code from text"({ user }) {
    const result = await user.call("attack", { origin: location.origin });
    check(!result.isError, text(result));
    const seen = JSON.parse(text(result)) as Record<string, string>;
    const open = Object.entries(seen).filter(([, what]) => what === "OPEN");
    check(open.length === 0 && Object.keys(seen).length > 15, JSON.stringify(seen));
    return `${Object.keys(seen).length} ways`;
  },

  async "bundled packages are found by name, a missing one is named"({ user }) {
    const result = await user.call("packages");
    check(!result.isError, text(result));
    const seen = JSON.parse(text(result)) as Record<string, string>;
    for (const way of ["loadPackage", "micropip"]) {
      check(seen[`${way} rich`] === "ok", JSON.stringify(seen));
      check(seen[`${way} numpy`]?.includes("numpy"), JSON.stringify(seen));
    }
    return undefined;
  },

  async "forged postMessage has no reader"({ user, port, sandbox, events }) {
    let heard = 0;
    const listen = (): void => {
      heard += 1;
    };
    window.addEventListener("message", listen);
    const before = events.length;
    await user.call("forge");
    await sandbox.listTools();
    window.removeEventListener("message", listen);
    check(heard === 0, `the page heard ${heard} messages`);
    check(events.length === before, JSON.stringify(events.slice(before)));
    check(Object.keys(port.stats.dropped).length === 0, JSON.stringify(port.stats.dropped));
    return undefined;
  },

  async "an interrupt from the page stops endless code (where isolated)"({ sandbox, user }) {
    if (!crossOriginIsolated || typeof SharedArrayBuffer === "undefined") return "not isolated here";
    const began = performance.now();
    const call = user.call("spin");
    // The call has to be on its way before the interrupt means anything; it is asked for until it is heard.
    const timer = setInterval(() => sandbox.interrupt(), 50);
    const result = await call;
    clearInterval(timer);
    const ms = performance.now() - began;
    check(result.isError === true && ms < TIME_LIMIT * 1000, `${ms} ms, ${JSON.stringify(result)}`);
    return `${Math.round(ms)} ms`;
  },

  async "a worker that dies in a call: an error within a second, then it is back"({
    sandbox,
    user,
    events,
    workspace,
  }) {
    events.length = 0;
    const restarted = next(sandbox, "restarted");
    const began = performance.now();
    const error = await user.call("close_worker").then(
      (result) => JSON.stringify(result),
      (reason: unknown) => reason,
    );
    const ms = performance.now() - began;
    check(error instanceof RpcError, `no error: ${String(error)}`);
    check(ms < 1000, `it took ${ms} ms`);
    await restarted;
    // The agent's connections live on, modules and folders are back.
    check((await user.call("add", { a: 20, b: 22 })).structuredContent?.result === 42, "not back");
    check(text(await workspace.call("list_files")).includes("readme.txt"), "the folder is gone");
    const back = events.find(({ name }) => name === "restarted")?.event as SandboxEvents["restarted"];
    return `error after ${Math.round(ms)} ms, back (${back.mode}) after ${Math.round(back.ms["total"] ?? 0)} ms`;
  },

  async "random things differ between two lives"({ sandbox, user }) {
    const numbers = async (): Promise<string[]> => JSON.parse(text(await user.call("numbers"))) as string[];
    const first = await numbers();
    await sandbox.restart();
    const second = await numbers();
    const same = first.filter((value, index) => value === second[index]);
    check(same.length === 0 && first.length === 6, `the same in both: ${same}`);
    return undefined;
  },

  async "code that swallows interrupts costs a restart, nothing else"({ sandbox, user }) {
    const restarted = next(sandbox, "restarted");
    const began = performance.now();
    const error = await user.call("obstinate").then(
      (result) => JSON.stringify(result),
      (reason: unknown) => reason,
    );
    check(error instanceof RpcError, `no error: ${String(error)}`);
    const ms = performance.now() - began;
    check(ms > TIME_LIMIT * 1000 && ms < 3 * HANG_LIMIT * 1000, `ended after ${ms} ms`);
    await restarted;
    check((await user.call("add", { a: 1, b: 2 })).structuredContent?.result === 3, "not back");
    return `ended after ${Math.round(ms)} ms`;
  },
};

/** A zip of stored entries, as small as can be. */
function storedZip(files: Record<string, string>): ArrayBuffer {
  const encoder = new TextEncoder();
  const parts: Uint8Array<ArrayBuffer>[] = [];
  const directory: Uint8Array<ArrayBuffer>[] = [];
  let offset = 0;
  for (const [name, content] of Object.entries(files)) {
    const path = encoder.encode(name);
    const data = encoder.encode(content);
    const crc = crc32(data);
    const head = (central: boolean): Uint8Array<ArrayBuffer> => {
      const view = new DataView(new ArrayBuffer(central ? 46 : 30));
      let at = 0;
      const u16 = (value: number): void => {
        view.setUint16(at, value, true);
        at += 2;
      };
      const u32 = (value: number): void => {
        view.setUint32(at, value, true);
        at += 4;
      };
      u32(central ? 0x02014b50 : 0x04034b50);
      if (central) u16(20);
      for (const value of [20, 0, 0, 0, 33]) u16(value);
      for (const value of [crc, data.length, data.length]) u32(value);
      u16(path.length);
      u16(0);
      if (central) {
        for (const value of [0, 0, 0]) u16(value);
        u32(0);
        u32(offset);
      }
      return new Uint8Array(view.buffer);
    };
    directory.push(head(true), path);
    parts.push(head(false), path, data);
    offset += 30 + path.length + data.length;
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const end = new DataView(new ArrayBuffer(22));
  end.setUint32(0, 0x06054b50, true);
  end.setUint16(8, Object.keys(files).length, true);
  end.setUint16(10, Object.keys(files).length, true);
  end.setUint32(12, size, true);
  end.setUint32(16, offset, true);
  const all = [...parts, ...directory, new Uint8Array(end.buffer)];
  const zip = new Uint8Array(all.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of all) {
    zip.set(part, at);
    at += part.length;
  }
  return zip.buffer;
}

function crc32(data: Uint8Array): number {
  let crc = ~0;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (0xedb88320 & -(crc & 1));
  }
  return ~crc >>> 0;
}

async function run(settings: Settings): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  const one = async (name: string, body: () => Promise<string | undefined>): Promise<boolean> => {
    const began = performance.now();
    const outcome = await body().then(
      (detail) => ({ ok: true, detail: detail ?? "" }),
      (error: unknown) => ({ ok: false, detail: error instanceof Error ? error.message : String(error) }),
    );
    outcomes.push({ name, ...outcome, ms: performance.now() - began });
    return outcome.ok;
  };
  let world: World | undefined;
  const started = await one("starts", async () => {
    world = await makeWorld(settings);
    return undefined;
  });
  for (const [name, body] of Object.entries(CHECKS)) {
    if (settings.only && !settings.only.some((part) => name.includes(part))) continue;
    if (settings.skip[name] !== undefined || !started || !world) continue;
    const here = world;
    await one(name, () => body(here, settings));
  }
  world?.sandbox.terminate();
  return outcomes;
}

/** A start under other circumstances: says how it went, and that it serves. */
async function start(settings: Settings): Promise<{ mode: string; details: string[]; ms: number }> {
  const began = performance.now();
  const world = await makeWorld(settings);
  const { mode } = await world.sandbox.ready;
  const details = world.events
    .filter(({ name }) => name === "progress")
    .map(({ event }) => (event as { detail?: string }).detail ?? "")
    .filter((detail) => detail.includes("memory image"));
  check((await world.user.call("add", { a: 1, b: 1 })).structuredContent?.result === 2, "it does not serve");
  world.sandbox.terminate();
  return { mode, details, ms: performance.now() - began };
}

/** Two visits: the second must ask the network for the manifest alone, where the browser has a place to keep files. */
async function visitTwice(settings: Settings): Promise<{ mode: string; details: string[]; message: string }> {
  const storage: StorageManager | undefined = navigator.storage;
  if (storage === undefined || !("getDirectory" in storage)) {
    return { mode: "none", details: [], message: "no place to keep files" };
  }
  const first = await makeWorld(settings);
  await next(first.sandbox, "kept");
  first.sandbox.terminate();
  performance.clearResourceTimings();
  const began = performance.now();
  const second = await makeWorld(settings);
  const ms = Math.round(performance.now() - began);
  const fetched = performance
    .getEntriesByType("resource")
    .map(({ name }) => name.split("/runtime/")[1] ?? "")
    .filter((name) => name !== "" && name !== "manifest.json");
  const { mode } = await second.sandbox.ready;
  check((await second.user.call("add", { a: 1, b: 1 })).structuredContent?.result === 2, "it does not serve");
  await second.sandbox.restart();
  check(
    (await second.user.call("add", { a: 2, b: 1 })).structuredContent?.result === 3,
    "not after a restart",
  );
  await surviveTidying(second);
  second.sandbox.terminate();
  return { mode, details: fetched, message: `second visit ready after ${ms} ms` };
}

/** A tab with a newer bundle tidies the store: what a living sandbox reads from stays, what nobody uses goes. */
async function surviveTidying({ sandbox, user }: World): Promise<void> {
  const store = await openStore();
  check(store !== undefined, "there is no store");
  const count = async (): Promise<number> => {
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("sandport");
    let files = 0;
    for await (const _ of (folder as unknown as { keys(): AsyncIterable<string> }).keys()) files += 1;
    return files;
  };
  const before = await count();
  await store.put("of-no-use.bin", new Blob(["left over"]));
  check((await count()) === before + 1, "nothing was put");
  await store.keepOnly(new Set());
  const left = await count();
  check(left === before, `${left} of ${before} files are left`);
  // Not in the image, so Python reads it from the file now.
  const source = `import wave\nfrom fastmcp import FastMCP\nmcp = FastMCP("m")\n@mcp.tool\ndef late() -> str:\n    return wave.__name__\n`;
  await sandbox.loadTools("late", source);
  check((await user.call("late", {})).structuredContent?.result === "wave", "a file is read no more");
  const again = next(sandbox, "restarted");
  await sandbox.restart();
  const { mode } = await again;
  check(mode === "snapshot", `${mode} after a restart`);
}

/** A bundle that cannot be had: says what the sandbox says. */
async function startInVain(): Promise<{ stage: string; message: string; remedy: string; state: string }> {
  const sandbox = createSandbox({ base: "/" });
  const failed = await next(sandbox, "failed");
  await sandbox.ready.then(
    () => check(false, "ready all the same"),
    () => {},
  );
  const { state } = sandbox;
  sandbox.terminate();
  return { ...failed, state };
}

Object.assign(globalThis, { run, start, startInVain, visitTwice });
