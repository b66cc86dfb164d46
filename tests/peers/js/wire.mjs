// What the agent and the provider share: where the messages go, and how a test drives the program.
import { createServer } from "node:http";
import { Readable, Writable } from "node:stream";
import { parseArgs } from "node:util";
import { WebSocket, WebSocketServer } from "ws";

/** The options both programs take. */
export function options() {
  const { values } = parseArgs({
    options: {
      sdk: { type: "string" }, // entry point of the SDK, an alias of package.json
      dialect: { type: "string" },
      acp: { type: "string", default: "1" },
      transport: { type: "string", default: "stdio" },
      url: { type: "string" },
      silent: { type: "boolean", default: false }, // an agent that does not advertise MCP over ACP
    },
  });
  // A peer never outlives its test, whatever happens to the runner.
  setTimeout(() => process.exit(9), 240_000).unref();
  process.stdin.on("end", () => process.exit(0));
  return values;
}

/** Newline-delimited JSON on stdin and stdout. */
export function stdio(sdk) {
  return sdk.ndJsonStream(Writable.toWeb(process.stdout), Readable.toWeb(process.stdin));
}

/** A WebSocket to an agent, by the SDK's own client transport. */
export async function socket(sdkName, url) {
  const { createWebSocketStream } = await import(`${sdkName}/experimental/ws-client`);
  return createWebSocketStream(url, { WebSocket });
}

/** Serve agents with the SDK's own server transport; prints the port as the only line on stdout. */
export async function serve(sdkName, createAgent) {
  const { AcpServer } = await import(`${sdkName}/experimental/server`);
  const { createNodeHttpHandler, createNodeWebSocketUpgradeHandler } = await import(
    `${sdkName}/experimental/node`
  );
  const acp = new AcpServer({ createAgent });
  const http = createServer(createNodeHttpHandler(acp));
  http.on("upgrade", createNodeWebSocketUpgradeHandler(acp, new WebSocketServer({ noServer: true })));
  http.listen(0, "127.0.0.1", () => process.stdout.write(`${http.address().port}\n`));
  process.stdin.resume();
}

/** A value that several can wait for: `wait(test)` resolves with the first item that passes. */
export class Log {
  items = [];
  #waiters = new Set();
  push(item) {
    this.items.push(item);
    for (const waiter of [...this.#waiters]) waiter();
  }
  wait(test) {
    return new Promise((resolve) => {
      const look = () => {
        const found = this.items.find(test);
        if (found === undefined) return false;
        this.#waiters.delete(look);
        resolve(found);
        return true;
      };
      if (!look()) this.#waiters.add(look);
    });
  }
}

/** An error as plain JSON. */
export function plain(error) {
  return { code: error.code ?? null, message: String(error.message), data: error.data ?? null };
}
