// @vitest-environment happy-dom
// @vitest-environment-options { "url": "http://127.0.0.1:8000/?agent=in-page" }
/** What our own page makes of questions: who is asked, what is remembered, and for how long. */

import { ConsentError, createToolServer, defineTool, type ToolQuestion } from "sandport/tools";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { plain, plainLine } from "../../../web/src/lib/plain.ts";
import { keepAgent, wantedAgent } from "../../../web/src/model/agent-choice.ts";
import { endSession, grants, revoke } from "../../../web/src/model/grants.ts";
import { IN_PAGE } from "../../../web/src/model/in-page.ts";
import { fileName, PAGE_TOOLS } from "../../../web/src/model/page-tools.ts";
import { askForTool, askPerson, withdrawQuestions } from "../../../web/src/model/questions.ts";
import { lastSession, noteSession, noteTurn, takeTurn } from "../../../web/src/model/sessions.ts";
import * as store from "../../../web/src/model/store.ts";
import { statelessAgent } from "./peers.ts";

function question(change: Partial<ToolQuestion> = {}): ToolQuestion {
  return {
    server: "page",
    tool: "look",
    description: "Looks.",
    arguments: {},
    readOnly: true,
    definition: "look, as it is",
    signal: new AbortController().signal,
    ...change,
  };
}

const asked = () => store.questions.value;
const answer = (id: string | undefined) => asked()[0]?.answer(id);

beforeEach(() => {
  localStorage.clear();
  sessionStorage.clear();
  grants.value = [];
  store.questions.value = [];
  store.items.value = [];
});
afterEach(() => vi.useRealTimers());

describe("a question of a tool", () => {
  it.each([
    ["once", "once", 0],
    ["session", "once", 1],
    ["always", "once", 1],
    ["deny", "deny", 0],
    [undefined, "deny", 0],
  ])("answered with %s is %s", async (id, outcome, kept) => {
    const waiting = askForTool(question(), { mayKeep: true });
    answer(id);
    expect(await waiting).toBe(outcome);
    expect(grants.value).toHaveLength(kept);
    expect(asked()).toEqual([]);
  });

  it("is not put again for what was allowed, and is for anything that differs", async () => {
    const first = askForTool(question(), { mayKeep: true });
    answer("session");
    await first;
    expect(await askForTool(question(), { mayKeep: true })).toBe("once");
    for (const other of [{ definition: "another" }, { tool: "peek" }, { server: "webmcp" }]) {
      const waiting = askForTool(question(other), { mayKeep: true });
      expect(asked()).toHaveLength(1);
      answer("deny");
      await waiting;
    }
    revoke("page", "look");
    void askForTool(question(), { mayKeep: true });
    expect(asked()).toHaveLength(1);
  });

  it("keeps in this browser only what is always allowed, and ends the rest with the conversation", async () => {
    for (const [tool, id] of [
      ["a", "session"],
      ["b", "always"],
    ] as const) {
      const waiting = askForTool(question({ tool }), { mayKeep: true });
      answer(id);
      await waiting;
    }
    expect(JSON.parse(localStorage.getItem("sandport.grants") ?? "")).toMatchObject([{ tool: "b" }]);
    endSession();
    expect(grants.value.map(({ tool }) => tool)).toEqual(["b"]);
  });

  it("offers nothing for good where code cannot be seen", () => {
    void askForTool(question(), { mayKeep: false });
    expect(asked()[0]?.options.map(({ id }) => id)).toEqual(["once", "session", "deny"]);
  });

  it("that nobody answers in time is gone, and both sides learn why", async () => {
    const agent = statelessAgent();
    const server = createToolServer({
      name: "page",
      tools: [defineTool({ name: "look", description: "Looks.", run: () => "seen" })],
      questionLimit: 0.05,
      ask: (one) => askForTool(one, { mayKeep: true }),
    });
    await server.join(agent.port);
    const [entry] = await server.declare();
    const outcome = await agent.request(entry?.serverId ?? "", "tools/call", { name: "look", arguments: {} });
    expect(outcome).toMatchObject({
      result: { isError: true, content: [{ text: expect.stringContaining("Nobody at the page answered") }] },
    });
    expect(asked()).toEqual([]);
    await vi.waitFor(() => {
      expect(store.items.value).toMatchObject([
        { kind: "notice", text: "A question went unanswered for too long, so the tool look did not run." },
      ]);
    });
  });

  it("is gone when whoever asked no longer waits, without a word in the conversation", async () => {
    const over = new AbortController();
    const waiting = askForTool(question({ signal: over.signal }), { mayKeep: true });
    over.abort(new ConsentError("switched off"));
    expect(await waiting).toBe("deny");
    expect(asked()).toEqual([]);
    expect(store.items.value).toEqual([]);
    expect(await askForTool(question({ signal: over.signal }), { mayKeep: true })).toBe("deny");
  });

  it("stands in line with those of the agent; stopping answers none", async () => {
    const tool = askForTool(question(), { mayKeep: true });
    const permission = askPerson(
      {
        sessionId: "s",
        toolCall: { toolCallId: "t", title: "Delete" },
        options: [{ optionId: "yes", name: "Yes", kind: "allow_once" }],
      },
      undefined,
      new AbortController().signal,
    );
    expect(asked().map(({ title }) => title)).toEqual(["look", "Delete"]);
    withdrawQuestions();
    expect(await tool).toBe("deny");
    expect(await permission).toEqual({ outcome: { outcome: "cancelled" } });
  });
});

describe("foreign text", () => {
  it.each([
    ["a\u202egpj.exe", "a\\u{202e}gpj.exe"],
    ["zero\u200bwidth", "zero\\u{200b}width"],
    ["tag\u{e0041}", "tag\\u{e0041}"],
    ["bell\u0007", "bell\\u{7}"],
    ["two\nlines\tand a tab", "two\nlines\tand a tab"],
    ["नमस्ते 👩‍👩‍👧 مرحبا שלום", "नमस्ते 👩‍👩‍👧 مرحبا שלום"],
  ])("%j is shown as %j", (text, shown) => {
    expect(plain(text)).toBe(shown);
  });

  it("is one line where there is one, and not longer than that", () => {
    expect(plainLine("a\n\n  b\u2028c")).toBe("a b c");
    expect(plainLine("x".repeat(500), 100)).toHaveLength(100);
  });
});

it.each([
  ["report.csv", "report.csv"],
  ["../../etc/passwd", "_.._etc_passwd"],
  ["C:\\x\\y.txt", "C__x_y.txt"],
  ["cv\u202efdp.exe", "cvfdp.exe"],
  [".bashrc", "bashrc"],
])("a file to save named %j is saved as %j", (name, saved) => {
  expect(fileName(name)).toBe(saved);
});

it.each(["", "..", " / ".trim().replace("/", "."), "\u200b"])("%j is no name for a file", (name) => {
  expect(() => fileName(name)).toThrow("is no name for a file");
});

it("the page's tools can be served as they are", () => {
  const server = createToolServer({ name: "page", tools: PAGE_TOOLS, ask: () => "deny" });
  expect(server.tools().map(({ name }) => name)).toEqual([
    "person_settings",
    "read_clipboard",
    "write_clipboard",
    "save_file",
    "notify",
  ]);
});

describe("what a tab and a browser remember", () => {
  it("one session an agent, and a turn that was cut off, once", () => {
    noteSession("ada", "1");
    noteSession("bob", "2");
    noteSession("ada", undefined);
    expect([lastSession("ada"), lastSession("bob"), lastSession("toString")]).toEqual([
      undefined,
      "2",
      undefined,
    ]);
    sessionStorage.setItem("sandport.sessions", "broken");
    expect(lastSession("bob")).toBeUndefined();
    noteTurn("do it");
    expect([takeTurn(), takeTurn()]).toEqual(["do it", undefined]);
  });

  it("the agent of the address before the one of last time", () => {
    expect(wantedAgent()).toEqual({ name: IN_PAGE, named: true });
    keepAgent("bob");
    expect(new URL(location.href).searchParams.get("agent")).toBe("bob");
    expect(localStorage.getItem("sandport.agent")).toBe("bob");
  });
});
