// @vitest-environment happy-dom
// @vitest-environment-options { "url": "https://shop.example/" }
/** What a page registers with its model context reaches the agent, live, with its origin in the question. */

import { cleanupWebMCPPolyfill, initializeWebMCPPolyfill } from "@mcp-b/webmcp-polyfill";
import { lendWebMcp, type ToolQuestion, type WebMcpServer } from "sandport/tools";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { deferred, statelessAgent } from "./peers.ts";

interface Registration {
  name: string;
  title?: string;
  description: string;
  inputSchema?: unknown;
  annotations?: { readOnlyHint?: boolean };
  execute(args: Record<string, unknown>): unknown;
}

/** Registers a tool as a library on the page would; returns the way to take it back. */
async function register(tool: Registration): Promise<() => void> {
  const life = new AbortController();
  // happy-dom's `document` fails the polyfill's brand check; the example in Chromium goes through it.
  const context = (
    navigator as unknown as { modelContext: { registerTool(...args: unknown[]): Promise<void> } }
  ).modelContext;
  await context.registerTool(tool, { signal: life.signal });
  return () => life.abort();
}

const title: Registration = {
  name: "page-title",
  title: "Title of the page",
  description: "Tells the title.",
  inputSchema: { type: "object", properties: { upper: { type: "boolean" } } },
  annotations: { readOnlyHint: true },
  execute: ({ upper }) => ({ title: upper ? "SHOP" : "Shop" }),
};

/** Waits for the next change of what is offered. */
function nextChange({ server }: WebMcpServer): Promise<void> {
  const { promise, resolve } = deferred();
  const stop = server.onChange(() => {
    stop();
    resolve();
  });
  return promise;
}

async function lend(ask: (question: ToolQuestion) => "once" | "always" | "deny") {
  const agent = statelessAgent();
  const problems: string[] = [];
  const webmcp = lendWebMcp({ ask, onProblem: (message) => problems.push(message) });
  await webmcp.ready;
  await webmcp.server.join(agent.port);
  const [entry] = await webmcp.server.declare();
  const call = async (name: string, args: Record<string, unknown> = {}, signal?: AbortSignal) => {
    const outcome = await agent.request(
      entry?.serverId ?? "",
      "tools/call",
      { name, arguments: args },
      signal ? { signal } : {},
    );
    if ("error" in outcome) return outcome.error.code;
    const { content, isError } = outcome.result as { content: { text: string }[]; isError?: boolean };
    return [content[0]?.text, isError === true];
  };
  return { agent, webmcp, problems, call, name: entry?.name };
}

beforeEach(() => initializeWebMCPPolyfill());
afterEach(() => cleanupWebMCPPolyfill());

describe("lendWebMcp with the polyfill", () => {
  it("lends what is registered, asks with the origin, and runs it", async () => {
    await register(title);
    const questions: ToolQuestion[] = [];
    const { call, webmcp, name } = await lend((question) => {
      questions.push(question);
      return "once";
    });
    expect(name).toBe("webmcp");
    expect(webmcp.server.tools()).toMatchObject([
      { name: "page-title", title: "Title of the page", origin: location.origin },
    ]);
    expect(await call("page-title", { upper: true })).toEqual(['{"title":"SHOP"}', false]);
    expect(questions).toMatchObject([
      {
        server: "webmcp",
        tool: "page-title",
        origin: location.origin,
        readOnly: true,
        arguments: { upper: true },
      },
    ]);
    expect(await call("page-title", { upper: 7 })).toMatchObject({ 1: true });
    expect(questions).toHaveLength(1);
  });

  it("follows tools that come and go", async () => {
    const { call, webmcp } = await lend(() => "once");
    expect(await call("page-title")).toBe(-32602);
    let changed = nextChange(webmcp);
    const takeBack = await register(title);
    await changed;
    expect(await call("page-title")).toEqual(['{"title":"Shop"}', false]);
    changed = nextChange(webmcp);
    takeBack();
    await changed;
    expect(await call("page-title")).toBe(-32602);
  });

  it("asks anew, and runs nothing old, when a tool was replaced under its name", async () => {
    const takeBack = await register(title);
    const asked: string[] = [];
    const { call, webmcp } = await lend(({ description }) => {
      asked.push(description);
      return "always";
    });
    await call("page-title");
    await call("page-title");
    const replaced = (async () => {
      while (webmcp.server.tools()[0]?.description !== "Empties the basket.") await nextChange(webmcp);
    })();
    takeBack();
    await register({ ...title, description: "Empties the basket.", execute: () => "emptied" });
    await replaced;
    expect(await call("page-title")).toEqual(["emptied", false]);
    expect(asked).toEqual(["Tells the title.", "Empties the basket."]);
  });

  it("does not run a tool that was replaced while the person was asked", async () => {
    const takeBack = await register(title);
    let ran = 0;
    const { call } = await lend(() => {
      // Nobody has heard of the change yet: the list of the model context decides.
      takeBack();
      void register({
        ...title,
        description: "Another.",
        execute: () => {
          ran += 1;
        },
      });
      return "once";
    });
    const [text, failed] = (await call("page-title")) as [string, boolean];
    expect([failed, text]).toEqual([true, expect.stringContaining("is gone")]);
    expect(ran).toBe(0);
  });

  it("names a tool that cannot be lent, and lends the others", async () => {
    await register({ ...title, name: "broken", inputSchema: { type: "array" } });
    await register(title);
    const { problems, call } = await lend(() => "once");
    expect(await call("page-title")).toEqual(['{"title":"Shop"}', false]);
    expect(problems).toEqual([
      "the tool 'broken' cannot be lent: the input of the tool 'broken' is of type array: MCP passes objects only",
    ]);
  });

  it("hands errors of a tool to the agent", async () => {
    await register({
      ...title,
      execute: () => {
        throw new Error("out of stock");
      },
    });
    const { call } = await lend(() => "once");
    expect(await call("page-title")).toMatchObject({ 1: true });
  });

  it("stops with close", async () => {
    await register(title);
    const { call, webmcp } = await lend(() => "once");
    webmcp.close();
    await expect(call("page-title")).rejects.toMatchObject({ code: -33001 });
  });
});

describe("lendWebMcp without a model context", () => {
  it("says what to do", () => {
    cleanupWebMCPPolyfill();
    expect(() => lendWebMcp({ ask: () => "once" })).toThrow("install @mcp-b/webmcp-polyfill");
  });
});
