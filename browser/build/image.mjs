/**
 * Runs the bundle in Node: proves that it serves, and makes the memory image.
 *
 * Invariant: what is proved and imaged is the bundle's own bytes, booted by the sandbox's own code (boot.ts).
 */

import { writeFileSync } from "node:fs";
import path from "node:path";
import { nodeOptions } from "./python.mjs";
import { BuildError, CACHE, ensureFolder, say } from "./shared.mjs";

/** Starts Pyodide on the bundle; `extra` are further options of `bootPyodide`. */
export async function bootBundle(boot, files, preload, extra = {}) {
  const stdLib = path.join(ensureFolder(CACHE), "python_stdlib.zip");
  writeFileSync(stdLib, files.stdlib.data);
  const copy = (role) => new Uint8Array(files[role].data);
  return boot.bootPyodide({
    ...(await nodeOptions()),
    files: {
      site: copy("site"),
      core: copy("core"),
      native: boot.nativePackages(copy("native"), preload),
      lock: Buffer.from(files.lock.data).toString(),
      ...(files.extra ? { extra: copy("extra") } : {}),
      ...(extra.image ? { image: await boot.openImage(extra.image) } : {}),
    },
    stdLibURL: stdLib,
    output: (stream, text) => process.stderr.write(`  ${stream}: ${text}`),
    ...extra.options,
  });
}

/**
 * Serves one session over the bundle.
 * Returns the modules it loaded, and the native ones among them as paths in native.zip.
 */
export async function proveSession(boot, files, servers) {
  try {
    const pyodide = await bootBundle(boot, files, []);
    const session = await serveOnce(boot, pyodide, servers, false);
    const modules = loadedModules(pyodide);
    const preload = pyodide
      .runPython(
        `
[file.removeprefix("${boot.NATIVE}/") for file in
 (getattr(m, "__file__", None) or "" for m in list(sys.modules.values())) if file.startswith("${boot.NATIVE}/") and file.endswith(".so")]`,
      )
      .toJs();
    say(`it lists ${session.tools} tools of ${session.servers.map(({ name }) => name).join(", ")}`);
    return { modules, preload };
  } catch (error) {
    throw new BuildError(`the bundle does not serve: ${String(error.message ?? error).slice(-3000)}`);
  }
}

/** Boots the runtime, connects, lists and calls once. */
async function serveOnce(boot, pyodide, servers, restored) {
  const events = [];
  const texts = [];
  const waiters = new Set();
  const changed = () => {
    for (const waiter of waiters) waiter();
  };
  const until = (found, what) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${what} within 60 s`)), 60_000);
      const look = () => {
        const failed = events.find((event) => event.event === "failed" || event.ok === false);
        if (failed) {
          const printed = events.filter((event) => event.event === "log").map((event) => event.text);
          reject(new Error(`${failed.message ?? failed.error.message}\n${printed.join("")}`));
        }
        const value = found();
        if (value === undefined && !failed) return;
        clearTimeout(timer);
        waiters.delete(look);
        resolve(value);
      };
      waiters.add(look);
      look();
    });
  const runtime = pyodide.pyimport("sandport_runtime.boot");
  if (!restored) runtime.prepare(pyodide.toPy(servers));
  const deadline = boot.installDeadline(pyodide, null);
  const control = runtime.start(
    {
      post: (text) => {
        texts.push(JSON.parse(text));
        changed();
      },
      event: (text) => {
        events.push(JSON.parse(text));
        changed();
      },
      schedule: (callback, delay) => (delay > 0 ? setTimeout(callback, delay) : setImmediate(callback)),
      arm: (seconds) => deadline.arm(seconds),
      disarm: () => deadline.disarm(),
    },
    JSON.stringify({ timeLimit: 30, restored, boot: { mode: restored ? "snapshot" : "cold", ms: {} } }),
  );
  const ready = await until(() => events.find((event) => event.event === "ready"), "ready");
  const broken = ready.servers.find((server) => server.error);
  if (broken) throw new Error(`the server ${broken.name}: ${broken.error}`);
  let seq = 0;
  const ask = (request) => {
    const id = ++seq;
    control.control(JSON.stringify({ ...request, seq: id }));
    return until(() => events.find((event) => event.seq === id), `answer to ${request.op}`);
  };
  let id = 0;
  const call = async (method, params) => {
    const mine = ++id;
    control.receive(JSON.stringify({ jsonrpc: "2.0", id: mine, method, params }));
    const answer = await until(() => texts.find((text) => text.id === mine), `answer to ${method}`);
    if (answer.error) throw new Error(`${method}: ${answer.error.message}`);
    return answer.result;
  };
  await ask({ op: "declare", servers: ready.servers.map(({ name }) => ({ name, id: `build-${name}` })) });
  await ask({ op: "lane", prefix: "build." });
  let tools = 0;
  for (const { name } of ready.servers) {
    const { connectionId } = await call("mcp/connect", { acpId: `build-${name}` });
    const inner = (method, params) => call("mcp/message", { connectionId, method, params });
    await inner("initialize", {
      protocolVersion: "2025-11-25",
      capabilities: {},
      clientInfo: { name: "build", version: "1" },
    });
    await inner("notifications/initialized", {});
    tools += (await inner("tools/list", {})).tools.length;
    if (name === "workspace") await inner("tools/call", { name: "list_files", arguments: {} });
    await call("mcp/disconnect", { connectionId });
  }
  return { servers: ready.servers, tools };
}

/** Names of the modules that a served session loaded, for `takeImage`. */
export function loadedModules(pyodide) {
  return pyodide
    .runPython(
      `
import sys
[name for name in sorted(sys.modules) if name.partition(".")[0] not in
 ("__main__", "js", "pyodide_js", "_pyodide_core", "cryptography", "joserfc", "sandport_user")]`,
    )
    .toJs();
}

/** Starts a Python that an image is to be taken of. */
export function bootForImage(boot, files, preload) {
  return bootBundle(boot, files, preload, { options: { makeImage: true, env: boot.IMAGE_ENV } });
}

/**
 * Makes the memory image: Python booted, the servers made, all that a session loads imported. Serves a session from it
 * before it is handed out.
 */
export async function makeImage(boot, files, servers, preload, modules) {
  try {
    const pyodide = await bootForImage(boot, files, preload);
    pyodide.pyimport("sandport_runtime.boot").prepare(pyodide.toPy(servers));
    const image = boot.takeImage(pyodide, modules);
    say(`serving a session from the image (${(image.length / 1e6).toFixed(0)} MB)`);
    const began = performance.now();
    const restored = await bootBundle(boot, files, preload, { image });
    await serveOnce(boot, restored, servers, true);
    say(`it served ${Math.round(performance.now() - began)} ms after it was started`);
    return image;
  } catch (error) {
    throw new BuildError(
      `no memory image can be made (build with --no-image for a slower start): ${String(error.message ?? error).slice(-3000)}`,
    );
  }
}
