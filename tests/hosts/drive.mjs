/**
 * Runs in Node, Deno or Bun: a host sandbox behind a port, with the SDK's caller as the agent. Prints one JSON report.
 *
 *     drive.mjs SCENARIO PACKAGE JSON
 */

import process from "node:process";
import { fileURLToPath, pathToFileURL } from "node:url";
import { agent, McpOverAcpCaller, methods } from "@agentclientprotocol/sdk/unstable";

const [scenario, folder, json = "{}"] = process.argv.slice(2);
const { memoryChannelPair, Port } = await import(pathToFileURL(`${folder}/dist/index.js`).href);
const { createHostSandbox, hostName } = await import(pathToFileURL(`${folder}/dist/node/index.js`).href);
const given = JSON.parse(json);

const [ours, theirs] = memoryChannelPair();
const caller = new McpOverAcpCaller();
const connection = agent({ name: "test" })
  .onNotification(methods.agent.mcp.message, caller.handleNotification)
  .connect({
    readable: new ReadableStream({
      start: (controller) =>
        theirs.listen({
          text: (text) => controller.enqueue(JSON.parse(text)),
          close: () => controller.close(),
        }),
    }),
    writable: new WritableStream({ write: (message) => theirs.send(JSON.stringify(message)) }),
  });
const port = new Port(ours);
const restarted = [];
const sandbox = createHostSandbox({
  trusted: given.trusted === true,
  timeLimit: given.timeLimit ?? 60,
  ...(given.hangLimit ? { hangLimit: given.hangLimit } : {}),
  on: { crashed: ({ reason }) => restarted.push(reason) },
});
const ready = await sandbox.ready;
await sandbox.join(port);
const tools = await sandbox.loadFile(fileURLToPath(new URL("attack.py", import.meta.url)));
const servers = await sandbox.declare();
const { serverId } = servers.find(({ name }) => name === "user");

async function call(name, args) {
  const outcome = await caller.request(connection.client, serverId, "tools/call", { name, arguments: args });
  if (outcome.error) throw new Error(outcome.error.message);
  return outcome.result;
}

const report = { host: hostName(), isolation: sandbox.isolation, mode: ready.mode, tools };
if (scenario === "serve") {
  report.sum = (await call("add", { a: 2, b: 3 })).content[0].text;
  report.mounted = await sandbox.mountFolder(fileURLToPath(new URL(".", import.meta.url)));
  const listing = await caller.request(
    connection.client,
    servers.find(({ name }) => name === "workspace").serverId,
    "tools/call",
    { name: "list_files", arguments: { pattern: "*.py" } },
  );
  report.files = listing.result.structuredContent.files.map(({ path }) => path);
  report.found = (await call("attack", given.attack)).structuredContent;
} else {
  report.answer = await call("stubborn", {}).catch((error) => error.message);
  report.sum = (await call("add", { a: 2, b: 3 })).content[0].text;
  report.restarted = restarted;
}
process.stdout.write(`${JSON.stringify(report)}\n`);
sandbox.terminate();
port.close();
// Handles that an attack opened must not keep the process.
process.exit(0);
