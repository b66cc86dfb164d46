/**
 * An editor, as far as an agent sees one: the official TypeScript SDK's client on the agent's standard streams, with JavaScript
 * tools lent over the same connection. It keeps what it hears, and every byte of the agent's streams.
 */

import { spawn } from "node:child_process";
import { once } from "node:events";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { client, methods, PROTOCOL_VERSION } from "@agentclientprotocol/sdk";
import { PACKAGE, ROOT } from "./compiled.mjs";

export const CLI = path.join(PACKAGE, "bin/sandport.mjs");

/** Tools whose calls are seen: `add` and `wait`, which never returns. */
async function toolsOf(calls, waiting) {
  const { createToolServer, defineTool } = await import(pathToFileURL(`${PACKAGE}/dist/tools/index.js`).href);
  const number = { type: "number" };
  return createToolServer({
    name: "editor",
    ask: () => "always",
    tools: [
      defineTool({
        name: "add",
        description: "Adds.",
        input: { properties: { a: number, b: number } },
        run: ({ a, b }) => {
          calls.push(["add", a, b]);
          return a + b;
        },
      }),
      defineTool({
        name: "wait",
        description: "Does not return.",
        input: { properties: {} },
        run: (_, { signal }) =>
          new Promise((_resolve, reject) => {
            calls.push(["wait"]);
            waiting();
            signal.addEventListener("abort", () => {
              calls.push(["stopped"]);
              reject(new Error("stopped"));
            });
          }),
      }),
    ],
  });
}

export class Editor {
  updates = [];
  questions = [];
  calls = [];
  /** Kind of the option to answer questions with. */
  answer = "allow_once";
  stdout = "";
  stderr = "";
  #watchers = [];
  #waiting;

  /** Starts `command args` and says hello. */
  static async start(args, { command = process.execPath, env = {} } = {}) {
    const editor = new Editor();
    const { lend } = await import(pathToFileURL(`${PACKAGE}/dist/index.js`).href);
    const child = spawn(command, args, { cwd: ROOT, env: { ...process.env, ...env } });
    editor.child = child;
    editor.exited = once(child, "close").then(([status, signal]) => ({ status, signal }));
    child.stdout.setEncoding("utf8").on("data", (text) => {
      editor.stdout += text;
    });
    child.stderr.setEncoding("utf8").on("data", (text) => {
      editor.stderr += text;
    });
    const { BaseChannel } = await import(pathToFileURL(`${PACKAGE}/dist/index.js`).href);
    class Streams extends BaseChannel {
      rest = "";
      constructor() {
        super();
        child.stdout.on("data", (text) => {
          const lines = (this.rest + text).split("\n");
          this.rest = lines.pop();
          for (const line of lines) this.deliver(line);
        });
        child.stdin.on("error", () => {});
        child.on("close", () => this.ended({ code: 1006, reason: editor.stderr }));
      }
      transmit(text) {
        child.stdin.write(`${text}\n`);
      }
      shut() {
        child.stdin.end();
      }
    }
    const { lane } = lend(new Streams(), [await toolsOf(editor.calls, () => editor.#waiting?.())]);
    editor.agent = client({ name: "editor" })
      .onNotification(methods.client.session.update, ({ params }) => editor.#heard(params.update))
      .onRequest(methods.client.session.requestPermission, ({ params }) => editor.#asked(params))
      .connect({
        readable: new ReadableStream({
          start: (controller) =>
            lane.listen({
              text: (text) => controller.enqueue(JSON.parse(text)),
              close: () => controller.close(),
            }),
        }),
        writable: new WritableStream({ write: (message) => lane.send(JSON.stringify(message)) }),
      }).agent;
    editor.hello = await editor.agent.request(methods.agent.initialize, {
      protocolVersion: PROTOCOL_VERSION,
      clientCapabilities: {},
    });
    return editor;
  }

  async session(cwd = "/") {
    const { sessionId } = await this.agent.request(methods.agent.session.new, { cwd, mcpServers: [] });
    return sessionId;
  }

  async prompt(sessionId, text) {
    this.clear();
    const prompt = [{ type: "text", text }];
    const { stopReason } = await this.agent.request(methods.agent.session.prompt, { sessionId, prompt });
    return stopReason;
  }

  /** What the agent said since the last prompt, or since `clear`. */
  get said() {
    return this.updates
      .filter(({ sessionUpdate }) => sessionUpdate === "agent_message_chunk")
      .map(({ content }) => content.text)
      .join("");
  }

  clear() {
    this.updates = [];
    this.questions = [];
  }

  /** The next update that `wanted` accepts. */
  next(wanted) {
    return new Promise((found) => this.#watchers.push({ wanted, found }));
  }

  /** Settles when the tool `wait` runs next. */
  waits() {
    return new Promise((resolve) => {
      this.#waiting = resolve;
    });
  }

  /** Closes the agent's input; resolves to how it ended. */
  leave() {
    this.child.stdin.end();
    return this.exited;
  }

  #heard(update) {
    this.updates.push(update);
    for (const watcher of [...this.#watchers]) {
      if (!watcher.wanted(update)) continue;
      this.#watchers.splice(this.#watchers.indexOf(watcher), 1);
      watcher.found(update);
    }
  }

  #asked({ toolCall, options }) {
    this.questions.push(toolCall.title);
    const option = options.find(({ kind }) => kind === this.answer);
    return {
      outcome: option ? { outcome: "selected", optionId: option.optionId } : { outcome: "cancelled" },
    };
  }
}
