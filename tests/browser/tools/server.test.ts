/** JavaScript tools reach real callers of every family, ask first, and come and go live. */

import { toStandardJsonSchema } from "@valibot/to-json-schema";
import { memoryChannelPair, Port } from "sandport";
import {
  allowAll,
  ConsentError,
  createToolServer,
  defineTool,
  type ToolAnswer,
  type ToolQuestion,
  type ToolServer,
} from "sandport/tools";
import * as v from "valibot";
import { describe, expect, it } from "vitest";
import * as z from "zod";
import { deferred, pythonAgent, statelessAgent } from "./peers.ts";

const greet = defineTool({
  name: "greet",
  title: "Greeting",
  description: "Greets somebody.",
  input: z.object({ name: z.string() }),
  run: ({ name }) => `Hello, ${name}!`,
});
const count = defineTool({
  name: "count",
  description: "Counts.",
  input: { properties: { to: { type: "integer", minimum: 0 } }, required: ["to"] },
  output: z.object({ last: z.number() }),
  run: ({ to }, { progress }) => {
    for (let n = 1; n <= Number(to); n += 1) progress(n, Number(to));
    return { last: Number(to) };
  },
});
const forbidden = defineTool({ name: "forbidden", description: "Nobody may.", run: () => "ran" });

const ask = ({ tool }: ToolQuestion): ToolAnswer => (tool === "forbidden" ? "deny" : "once");

async function lent(server: ToolServer, port: Port): Promise<string> {
  await server.join(port);
  const [entry] = await server.declare();
  return entry?.serverId ?? "";
}

/** The result of a call, or the inner error. */
async function call(
  agent: ReturnType<typeof statelessAgent>,
  serverId: string,
  name: string,
  args: Record<string, unknown> = {},
  options: Parameters<ReturnType<typeof statelessAgent>["request"]>[3] = {},
) {
  const outcome = await agent.request(serverId, "tools/call", { name, arguments: args }, options);
  if ("error" in outcome) return { error: outcome.error.code };
  const result = outcome.result as {
    content: { text: string }[];
    isError?: boolean;
    structuredContent?: unknown;
  };
  return { text: result.content.map(({ text }) => text).join(""), failed: result.isError === true, result };
}

const DIALECTS = ["connect-serverId", "connect-acpId", "legacy", "stateless", "stateless+"];

describe("with Sandport's agent side as the caller", () => {
  it("lists, calls, reports progress, and is refused what the person denies, in every dialect", async () => {
    const server = createToolServer({ name: "page", tools: [greet, count, forbidden], ask });
    const report = await pythonAgent(DIALECTS, (port) => lent(server, port));
    const seen = {
      tools: ["count", "forbidden", "greet"],
      schema: { type: "object", properties: { name: { type: "string" } }, required: ["name"] },
      greeting: "Hello, Ada!",
      counted: { last: 3 },
      progress: [1, 2, 3],
      wrong: true,
      denied: [true, "The person at the page did not allow the tool forbidden to run."],
    };
    expect(report).toMatchObject(Object.fromEntries(DIALECTS.map((dialect) => [dialect, seen])));
  }, 60_000);
});

describe("with the TypeScript SDK as the caller", () => {
  it("answers discover, a call and the binding's own errors", async () => {
    const agent = statelessAgent();
    const server = createToolServer({
      name: "page",
      version: "2",
      instructions: "Be kind.",
      tools: [greet],
      ask,
    });
    const id = await lent(server, agent.port);
    expect(await agent.request(id, "server/discover")).toMatchObject({
      result: { supportedVersions: ["2026-07-28"], capabilities: { tools: { listChanged: true } } },
    });
    expect(await call(agent, id, "greet", { name: "Ada" })).toMatchObject({ text: "Hello, Ada!" });
    expect(await call(agent, id, "nobody")).toEqual({ error: -32602 });
    expect(await agent.request(id, "initialize")).toMatchObject({ error: { code: -32601 } });
    const wrongVersion = { _meta: { "io.modelcontextprotocol/protocolVersion": "2025-11-25" } };
    expect(await agent.request(id, "tools/list", wrongVersion)).toMatchObject({ error: { code: -32022 } });
    await expect(agent.request("nobody", "tools/list")).rejects.toMatchObject({ code: -33001 });
    await server.withdraw([id]);
    await expect(agent.request(id, "tools/list")).rejects.toMatchObject({ code: -33001 });
  });

  it("cancels a running tool: one answer, and the tool learns it", async () => {
    const agent = statelessAgent();
    const started = deferred();
    const aborted = deferred();
    const slow = defineTool({
      name: "slow",
      description: "Waits.",
      run: (_, { signal }) =>
        new Promise((_resolve, reject) => {
          signal.addEventListener("abort", () => {
            aborted.resolve();
            reject(signal.reason);
          });
          started.resolve();
        }),
    });
    const id = await lent(createToolServer({ name: "page", tools: [slow], ask: allowAll }), agent.port);
    const cancel = new AbortController();
    const answer = call(agent, id, "slow", {}, { signal: cancel.signal });
    await started.promise;
    cancel.abort();
    await expect(answer).rejects.toMatchObject({ code: -32800 });
    await aborted.promise;
    expect(agent.port.stats).toEqual({ dropped: {}, open: 0 });
  });

  it("tells of tools that come and go, to whoever listens", async () => {
    const agent = statelessAgent();
    const server = createToolServer({ name: "page", tools: [], ask: allowAll });
    const id = await lent(server, agent.port);
    expect(await agent.request(id, "tools/list")).toMatchObject({ result: { tools: [] } });
    const notes: string[] = [];
    let wake = () => {};
    const listen = new AbortController();
    const listening = agent.request(
      id,
      "subscriptions/listen",
      { notifications: { toolsListChanged: true } },
      {
        signal: listen.signal,
        onNotification: ({ method }) => {
          notes.push(method);
          wake();
        },
      },
    );
    const until = async (length: number) => {
      while (notes.length < length)
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
    };
    await until(1);
    server.add(greet);
    await until(2);
    expect(await call(agent, id, "greet", { name: "Ada" })).toMatchObject({ text: "Hello, Ada!" });
    server.remove("greet");
    await until(3);
    expect(notes).toEqual([
      "notifications/subscriptions/acknowledged",
      "notifications/tools/list_changed",
      "notifications/tools/list_changed",
    ]);
    expect(await call(agent, id, "greet", { name: "Ada" })).toEqual({ error: -32602 });
    listen.abort();
    await expect(listening).rejects.toMatchObject({ code: -32800 });
  });

  it("ends what runs too long, and says which limit", async () => {
    const agent = statelessAgent();
    const stuck = defineTool({
      name: "stuck",
      description: "Never ends.",
      timeLimit: 0.02,
      run: () => new Promise(() => {}),
    });
    const id = await lent(createToolServer({ name: "page", tools: [stuck], ask: allowAll }), agent.port);
    const { text, failed } = await call(agent, id, "stuck");
    expect([text, failed]).toEqual(["The tool stuck ran longer than its time limit of 0.02 s.", true]);
  });

  it("settles everything when the channel ends", async () => {
    const agent = statelessAgent();
    const started = deferred<AbortSignal>();
    const waiting = defineTool({
      name: "waiting",
      description: "Waits.",
      run: (_, { signal }) => {
        started.resolve(signal);
        return new Promise(() => {});
      },
    });
    const server = createToolServer({ name: "page", tools: [waiting], ask: allowAll });
    const id = await lent(server, agent.port);
    const answer = call(agent, id, "waiting").catch(() => "over");
    const signal = await started.promise;
    const aborted = new Promise((resolve) => signal.addEventListener("abort", resolve));
    agent.end();
    await aborted;
    expect(await answer).toBe("over");
    await expect(server.declare()).rejects.toThrow("has joined no port");
  });

  it("refuses more than 64 requests at once, as the binding does", async () => {
    const agent = statelessAgent();
    const release = deferred();
    const wait = defineTool({ name: "wait", description: "Waits.", run: () => release.promise });
    const id = await lent(createToolServer({ name: "page", tools: [wait], ask: allowAll }), agent.port);
    const calls = Array.from({ length: 65 }, () => call(agent, id, "wait").catch(({ code }) => ({ code })));
    expect(await Promise.race(calls)).toEqual({ code: -33000 });
    release.resolve();
    const answers = await Promise.all(calls);
    expect(answers.filter((answer) => "text" in answer)).toHaveLength(64);
  });
});

describe("consent", () => {
  it("shows what would run, and remembers `always` for this very tool only", async () => {
    const agent = statelessAgent();
    const questions: ToolQuestion[] = [];
    const server = createToolServer({
      name: "page",
      tools: [greet],
      ask: (question) => {
        questions.push(question);
        return "always";
      },
    });
    const id = await lent(server, agent.port);
    await call(agent, id, "greet", { name: "Ada" });
    await call(agent, id, "greet", { name: "Bob" });
    expect(questions).toHaveLength(1);
    expect(questions[0]).toMatchObject({
      server: "page",
      tool: "greet",
      title: "Greeting",
      description: "Greets somebody.",
      arguments: { name: "Ada" },
      readOnly: false,
    });
    server.remove("greet");
    server.add(defineTool({ name: "greet", description: "Sends your files away.", run: () => "gone" }));
    await call(agent, id, "greet");
    expect(questions).toHaveLength(2);
    server.revoke();
    await call(agent, id, "greet");
    expect(questions).toHaveLength(3);
  });

  it("does not run a tool whose question was cancelled, failed, or answered with nonsense", async () => {
    const agent = statelessAgent();
    let ran = 0;
    const tool = defineTool({
      name: "tool",
      description: "Counts its runs.",
      run: () => {
        ran += 1;
        return "ran";
      },
    });
    const asked = deferred<ToolQuestion>();
    const decision = deferred<ToolAnswer>();
    const answers: (() => ToolAnswer | Promise<ToolAnswer>)[] = [
      () => decision.promise,
      () => Promise.reject(new Error("the dialog broke")),
      () => "yes" as ToolAnswer,
    ];
    const server = createToolServer({
      name: "page",
      tools: [tool],
      ask: (question) => {
        asked.resolve(question);
        return answers.shift()?.() ?? "deny";
      },
    });
    const id = await lent(server, agent.port);
    const cancel = new AbortController();
    const answer = call(agent, id, "tool", {}, { signal: cancel.signal });
    const question = await asked.promise;
    const aborted = new Promise((resolve) => question.signal.addEventListener("abort", resolve));
    cancel.abort();
    await aborted;
    decision.resolve("always");
    await expect(answer).rejects.toMatchObject({ code: -32800 });
    expect(await call(agent, id, "tool")).toMatchObject({ failed: true });
    expect(await call(agent, id, "tool")).toMatchObject({ failed: true });
    expect(ran).toBe(0);
  });

  it("waits for an answer as long as was said, tells the agent, and closes the question", async () => {
    const agent = statelessAgent();
    const reasons: unknown[] = [];
    const server = createToolServer({
      name: "page",
      tools: [greet],
      questionLimit: 0.02,
      // Never answers, and does not listen to the signal either.
      ask: ({ signal }) => {
        signal.addEventListener("abort", () => reasons.push(signal.reason));
        return new Promise<ToolAnswer>(() => {});
      },
    });
    const id = await lent(server, agent.port);
    expect(await call(agent, id, "greet", { name: "Ada" })).toMatchObject({
      failed: true,
      text: "Nobody at the page answered within 0.02 s whether the tool greet may run, so it did not run.",
    });
    expect(reasons).toEqual([expect.any(ConsentError)]);
  });

  it("lets the page say why not", async () => {
    const agent = statelessAgent();
    const server = createToolServer({
      name: "page",
      tools: [greet],
      ask: () => Promise.reject(new ConsentError("The shop is closed.")),
    });
    const id = await lent(server, agent.port);
    expect(await call(agent, id, "greet", { name: "Ada" })).toMatchObject({
      failed: true,
      text: "The shop is closed.",
    });
  });

  it("is over when the tools are switched off: no list, no call, no question left", async () => {
    const agent = statelessAgent();
    const asked = deferred<ToolQuestion>();
    const server = createToolServer({
      name: "page",
      tools: [greet],
      lending: false,
      ask: (question) => {
        asked.resolve(question);
        return new Promise<ToolAnswer>(() => {});
      },
    });
    const id = await lent(server, agent.port);
    const names = async () => {
      const outcome = await agent.request(id, "tools/list");
      return "result" in outcome ? (outcome.result as { tools: { name: string }[] }).tools : outcome;
    };
    expect(await names()).toEqual([]);
    expect(await call(agent, id, "greet", { name: "Ada" })).toEqual({ error: -32602 });
    expect(server.tools()).toMatchObject([{ name: "greet" }]);
    server.setLending(true);
    expect(await names()).toMatchObject([{ name: "greet" }]);
    const answer = call(agent, id, "greet", { name: "Ada" });
    await asked.promise;
    server.setLending(false);
    expect(await answer).toMatchObject({
      failed: true,
      text: "The person at the page switched the tools of page off.",
    });
    expect(await names()).toEqual([]);
  });

  it("cannot be forgotten", () => {
    // @ts-expect-error `ask` is missing
    expect(() => createToolServer({ name: "page" })).toThrow("ask for permission");
  });
});

describe("schemas", () => {
  it("takes valibot through Standard JSON Schema, and says so where it is missing", async () => {
    const agent = statelessAgent();
    const schema = v.object({ side: v.pipe(v.number(), v.minValue(1)) });
    const area = defineTool({
      name: "area",
      description: "The area of a square.",
      input: toStandardJsonSchema(schema),
      run: ({ side }) => side * side,
    });
    const id = await lent(createToolServer({ name: "page", tools: [area], ask: allowAll }), agent.port);
    expect(await call(agent, id, "area", { side: 3 })).toMatchObject({ text: "9", failed: false });
    expect(await call(agent, id, "area", { side: 0 })).toMatchObject({ failed: true });
    const bare = { name: "bare", description: "", input: schema as never, run: () => "" };
    expect(() => createToolServer({ name: "page", tools: [bare], ask: allowAll })).toThrow(
      "the schema of the tool 'bare' (valibot) cannot say its JSON Schema: wrap it: toStandardJsonSchema(schema)",
    );
  });

  it("refuses names that are taken or that MCP does not know", () => {
    const twice = () => createToolServer({ name: "page", tools: [greet, greet], ask: allowAll });
    expect(twice).toThrow("there is a tool 'greet' already");
    const odd = { name: "a b", description: "", run: () => "" };
    expect(() => createToolServer({ name: "page", tools: [odd], ask: allowAll })).toThrow(
      "'a b' is no tool name",
    );
  });

  it("sends what tools return and what they throw", async () => {
    const agent = statelessAgent();
    const values: Record<string, () => unknown> = {
      text: () => "plain",
      nothing: () => undefined,
      list: () => [1, 2],
      object: () => ({ a: 1 }),
      whole: () => ({ content: [{ type: "text", text: "mine" }], isError: true }),
      thrown: () => {
        throw new Error("it broke");
      },
    };
    const tools = Object.entries(values).map(([name, run]) => defineTool({ name, description: name, run }));
    const id = await lent(createToolServer({ name: "page", tools, ask: allowAll }), agent.port);
    const seen: Record<string, unknown> = {};
    for (const name of Object.keys(values)) {
      const { text, failed, result } = await call(agent, id, name);
      seen[name] = [text, failed, result?.structuredContent];
    }
    expect(seen).toEqual({
      text: ["plain", false, undefined],
      nothing: ["", false, undefined],
      list: ["[1,2]", false, undefined],
      object: ['{"a":1}', false, { a: 1 }],
      whole: ["mine", true, undefined],
      thrown: ["it broke", true, undefined],
    });
  });
});

describe("two servers on one port", () => {
  it("stay apart", async () => {
    const agent = statelessAgent();
    const [one, two] = ["one", "two"].map((name) =>
      createToolServer({
        name,
        tools: [defineTool({ name: "who", description: "Who.", run: () => name })],
        ask: allowAll,
      }),
    ) as [ToolServer, ToolServer];
    const [first, second] = [await lent(one, agent.port), await lent(two, agent.port)];
    one.leave();
    await expect(call(agent, first, "who")).rejects.toMatchObject({ code: -33001 });
    expect(await call(agent, second, "who")).toMatchObject({ text: "two" });
    const [other] = memoryChannelPair();
    await two.join(new Port(other));
    await expect(call(agent, second, "who")).rejects.toMatchObject({ code: -33001 });
  });
});
