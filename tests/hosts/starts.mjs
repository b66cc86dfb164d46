/**
 * Measures starts without and with a kept memory image, in each host: until an answer with a tool's result is printed, and until
 * the agent answers `initialize`. Medians of three, in milliseconds.
 *
 *     node tests/hosts/starts.mjs
 */

import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { promisify } from "node:util";
import { compile, imageMade, PACKAGE, ROOT, removeCompiled, withoutImages } from "./compiled.mjs";

const installed = (name) => path.join(ROOT, "tests/hosts/node_modules/.bin", name);
const HOSTS = {
  node: [process.execPath],
  deno: [installed("deno"), "run", "-A", "--unstable-worker-options"],
  bun: [installed("bun")],
};
const HELLO = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n';

const folder = mkdtempSync(path.join(tmpdir(), "sandport-starts-"));
const bundle = withoutImages(path.join(folder, "bundle"));
const cache = path.join(folder, "cache");
const options = ["--bundle", bundle, "--image-cache", cache];

/** Each takes the command of a host, and settles with milliseconds. */
const STARTS = {
  async chat([command, ...args]) {
    const began = performance.now();
    await promisify(execFile)(command, [
      ...[...args, path.join(PACKAGE, "bin/sandport.mjs"), ...options],
      ...["--tools", path.join(ROOT, "examples/04-terminal/tools.py"), "--yes"],
      ...["--prompt", 'call summary {"numbers": [1, 2, 3]}'],
      ...["--", process.execPath, path.join(ROOT, "examples/agent/agent.mjs")],
    ]);
    return performance.now() - began;
  },
  async agent([command, ...args]) {
    const began = performance.now();
    const all = [...args, path.join(PACKAGE, "bin/sandport.mjs"), "agent", ...options];
    const child = spawn(command, all, { stdio: ["pipe", "pipe", "ignore"] });
    child.stdin.write(HELLO);
    await once(child.stdout, "data");
    const took = performance.now() - began;
    child.stdin.end();
    await once(child, "exit");
    return took;
  },
};

const median = (values) => Math.round(values.sort((one, other) => one - other)[values.length >> 1]);

compile();
try {
  for (const [host, command] of Object.entries(HOSTS)) {
    if (!existsSync(command[0])) continue;
    for (const [what, start] of Object.entries(STARTS)) {
      const times = { first: [], made: [], next: [] };
      for (let round = 0; round < 3; round += 1) {
        rmSync(cache, { recursive: true, force: true });
        times.first.push(await start(command));
        const ended = performance.now();
        await imageMade(cache);
        times.made.push(performance.now() - ended);
        times.next.push(await start(command));
      }
      const [first, made, next] = Object.values(times).map(median);
      console.log(`${host} ${what}: first start ${first} ms, image ${made} ms later, next start ${next} ms`);
    }
  }
} finally {
  removeCompiled();
  rmSync(folder, { recursive: true, force: true });
}
