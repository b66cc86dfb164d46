/** The conversation as the page keeps it. */

import type { SessionUpdate } from "@agentclientprotocol/sdk";
import { describe, expect, it } from "vitest";
import { addUser, applyUpdate, endTools, type Item } from "../../web/src/model/transcript.ts";

const said = (text: string, messageId?: string): SessionUpdate => ({
  sessionUpdate: "agent_message_chunk",
  content: { type: "text", text },
  ...(messageId === undefined ? {} : { messageId }),
});

const play = (updates: readonly SessionUpdate[], start: readonly Item[] = []) =>
  updates.reduce<readonly Item[]>((items, update, at) => applyUpdate(items, update, at), start);

const brief = (items: readonly Item[]) =>
  items.map((item) =>
    item.kind === "tool" ? `${item.kind} ${item.status}` : "text" in item ? item.text : item.kind,
  );

describe("applyUpdate", () => {
  it("joins the chunks of one message and parts those of two", () => {
    expect(brief(play([said("a", "1"), said("b", "1"), said("c", "2"), said("d")]))).toEqual(["ab", "cd"]);
  });

  it("starts a new message after a tool call", () => {
    const tool: SessionUpdate = { sessionUpdate: "tool_call", toolCallId: "t", title: "search" };
    expect(brief(play([said("a"), tool, said("b")]))).toEqual(["a", "tool pending", "b"]);
  });

  it("follows a tool call through its states and keeps its time", () => {
    const items = play([
      { sessionUpdate: "tool_call", toolCallId: "t", title: "search", rawInput: { a: 1 } },
      { sessionUpdate: "tool_call_update", toolCallId: "t", status: "in_progress" },
      { sessionUpdate: "tool_call_update", toolCallId: "t", status: "completed", rawOutput: { n: 2 } },
      { sessionUpdate: "tool_call_update", toolCallId: "t", title: "searched" },
    ]);
    expect(items).toHaveLength(1);
    expect(items[0]).toMatchObject({
      title: "searched",
      status: "completed",
      input: '{"a":1}',
      startedAt: 0,
      endedAt: 2,
    });
  });

  it("takes the raw text of arguments before the parsed value, which has lost digits", () => {
    const update: SessionUpdate = {
      sessionUpdate: "tool_call",
      toolCallId: "t",
      title: "x",
      rawInput: JSON.parse('{"n":1915883588174806058}'),
    };
    expect(applyUpdate([], update, 0, '{"n":1915883588174806058}')[0]).toMatchObject({
      input: '{"n":1915883588174806058}',
    });
  });

  it("shows an update for a call that was never announced", () => {
    expect(brief(play([{ sessionUpdate: "tool_call_update", toolCallId: "t", status: "failed" }]))).toEqual([
      "tool failed",
    ]);
  });

  it("replaces the plan of a turn, and keeps that of an earlier one", () => {
    const plan: SessionUpdate = { sessionUpdate: "plan", entries: [] };
    const first = play([plan, plan]);
    expect(brief(first)).toEqual(["plan"]);
    expect(brief(play([plan], addUser(first, "next")))).toEqual(["plan", "next", "plan"]);
  });

  it("leaves alone what it does not know", () => {
    const before = addUser([], "x");
    expect(applyUpdate(before, { sessionUpdate: "current_mode_update", currentModeId: "m" }, 0)).toBe(before);
  });
});

it("endTools ends what still runs, and nothing else", () => {
  const items = play([
    { sessionUpdate: "tool_call", toolCallId: "a", title: "a", status: "completed" },
    { sessionUpdate: "tool_call", toolCallId: "b", title: "b", status: "in_progress" },
  ]);
  expect(brief(endTools(items, "cancelled", 9))).toEqual(["tool completed", "tool cancelled"]);
});
