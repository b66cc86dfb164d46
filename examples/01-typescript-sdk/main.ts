/**
 * A page with an ACP client on the official TypeScript SDK. What Sandport adds is `lend`: the client gets its lane in place of
 * the socket, the agent gets three servers: Python in the sandbox, a JavaScript tool, and what the page registers with WebMCP.
 */

import { type AnyMessage, client, methods, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";
import { initializeWebMCPPolyfill } from "@mcp-b/webmcp-polyfill";
import { createSandbox, lend, webSocketChannel } from "sandport";
import { type Ask, createToolServer, defineTool, lendWebMcp } from "sandport/tools";
import * as z from "zod";

const element = <Kind extends HTMLElement>(id: string) => document.getElementById(id) as Kind;
const log = (text: string) => element("log").append(`${text}\n`);
const counter = element<HTMLOutputElement>("counter");

// -- tools ----------------------------------------------------------------------------------------------------

const ask: Ask = ({ tool, arguments: args, origin }) =>
  confirm(`May the agent run ${tool}(${JSON.stringify(args)})${origin ? ` of ${origin}` : ""}?`)
    ? "once"
    : "deny";

const page = createToolServer({
  name: "page",
  ask,
  tools: [
    defineTool({
      name: "count_up",
      description: "Counts up the number that the page shows.",
      input: z.object({ by: z.number().int().default(1) }),
      run: ({ by }) => {
        counter.value = String(Number(counter.value) + by);
        return counter.value;
      },
    }),
  ],
});

// A library would do this; the browser does it itself one day.
initializeWebMCPPolyfill();
const { modelContext } = document as unknown as {
  modelContext: { registerTool(tool: object): Promise<void> };
};
await modelContext.registerTool({
  name: "page_title",
  description: "Tells the page's title.",
  execute: () => document.title,
});
const webmcp = lendWebMcp({ ask });

// `base` is where the files of the package's assets/ are served.
const sandbox = createSandbox({ base: "sandport/" });
sandbox.loadTools(
  "example",
  `from fastmcp import FastMCP
mcp = FastMCP("example")

@mcp.tool
def primes(below: int) -> list[int]:
    "The prime numbers below a limit."
    return [n for n in range(2, below) if all(n % d for d in range(2, int(n**0.5) + 1))]
`,
);

// -- the ACP client, as it was before -------------------------------------------------------------------------

const address = new URLSearchParams(location.search).get("agent") ?? "ws://127.0.0.1:8400/acp";
const { lane } = lend(await webSocketChannel(address), [sandbox, page, webmcp.server], { onProblem: log });

const connection = client({ name: "example" })
  .onNotification(methods.client.session.update, ({ params: { update } }) => {
    if (update.sessionUpdate === "agent_message_chunk" && update.content.type === "text") {
      log(update.content.text);
    }
  })
  .connect({
    readable: new ReadableStream<AnyMessage>({
      start: (controller) =>
        lane.listen({
          text: (text) => controller.enqueue(JSON.parse(text)),
          close: () => controller.close(),
        }),
    }),
    writable: new WritableStream<AnyMessage>({ write: (message) => lane.send(JSON.stringify(message)) }),
  });
await connection.agent.request(methods.agent.initialize, { protocolVersion: PROTOCOL_VERSION });
const { sessionId } = await connection.agent.request(methods.agent.session.new, { cwd: "/", mcpServers: [] });
log("Ready.");

element<HTMLFormElement>("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { value } = element<HTMLInputElement>("text");
  log(`> ${value}`);
  await connection.agent.request(methods.agent.session.prompt, {
    sessionId,
    prompt: [{ type: "text", text: value }],
  });
});
