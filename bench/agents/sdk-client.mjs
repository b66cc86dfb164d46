/** Lends a JavaScript server to bench/agents/sdk.mjs in a process below; JSON lines: `{calls: n}` in, times out. */

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { Readable, Writable } from "node:stream";
import { ndJsonStream } from "@agentclientprotocol/sdk/unstable";
import { lendBySdk } from "../browser/sdk-provider.mjs";

const child = spawn(process.execPath, [new URL("sdk.mjs", import.meta.url).pathname], {
  stdio: ["pipe", "pipe", "inherit"],
});
const calls = await lendBySdk(ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout)));
const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
say({ ok: true, value: null });
for await (const line of createInterface({ input: process.stdin })) {
  say({ ok: true, value: await calls(JSON.parse(line).calls) });
}
child.stdin.end();
