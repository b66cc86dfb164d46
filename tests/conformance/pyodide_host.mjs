// The host inside Pyodide, in Node: the bundle of dist/ and the sandbox's own runtime, with the everything-server mounted.
// Lane texts pass as lines of stdin and stdout; a line that begins with {"control": is a request to the runtime, and its
// answer. Prints {"control":{"event":"ready"...}} when it serves.
import { readFileSync } from "node:fs";
import path from "node:path";
import { createInterface } from "node:readline";
import { bootBundle } from "../../browser/build/image.mjs";
import { bootModule } from "../../browser/build/python.mjs";
import { bytes, ROOT } from "../../browser/build/shared.mjs";

const CONTROL = '{"control":';
const HERE = import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname);
const runtimeFolder = path.join(ROOT, "dist", "runtime");
const line = (text) => process.stdout.write(`${text}\n`);

process.on("uncaughtException", (error) => {
  process.stderr.write(`${String(error?.message ?? error).slice(-4000)}\n`);
  process.exit(1);
});
setTimeout(() => process.exit(9), 600_000).unref();

const manifest = JSON.parse(readFileSync(path.join(runtimeFolder, "manifest.json"), "utf8"));
const files = Object.fromEntries(
  Object.entries(manifest.files).map(([role, { name }]) => [
    role,
    { data: bytes(path.join(runtimeFolder, name)) },
  ]),
);
const boot = await bootModule();
const pyodide = await bootBundle(boot, files, manifest.preload, {
  options: { output: (_stream, text) => process.stderr.write(text) },
});
pyodide.FS.mkdirTree("/fixtures");
pyodide.FS.writeFile("/fixtures/everything.py", bytes(path.join(HERE, "everything.py")));
pyodide.runPython("import sys; sys.path.append('/fixtures')");

const runtime = pyodide.pyimport("sandport_runtime.boot");
runtime.prepare(pyodide.toPy({ everything: "everything:mcp" }));
const deadline = boot.installDeadline(pyodide, null);
const control = runtime.start(
  {
    post: line,
    event: (text) => line(`${CONTROL}${text}}`),
    schedule: (callback, delay) => (delay > 0 ? setTimeout(callback, delay) : setImmediate(callback)),
    arm: (seconds) => deadline.arm(seconds),
    disarm: () => deadline.disarm(),
  },
  JSON.stringify({ timeLimit: 30, restored: false, boot: { mode: "cold", ms: {} } }),
);
// A tool that changes a list says so to the host, as an author's program would.
pyodide.globals.set("control", control);
pyodide.runPython(
  "import everything; everything.listen_for_changes(lambda kind: control._host.list_changed('everything', kind))",
);

createInterface({ input: process.stdin })
  .on("line", (text) => {
    if (text.startsWith(CONTROL)) control.control(text.slice(CONTROL.length, -1));
    else control.receive(text);
  })
  .on("close", () => process.exit(0));
