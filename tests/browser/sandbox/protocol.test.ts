import { expect, test } from "vitest";
import {
  readAnswer,
  readEvent,
  readNames,
  readTools,
  transferOf,
} from "../../../browser/src/sandbox/protocol.ts";

test.each([
  undefined,
  null,
  1,
  "progress",
  [],
  {},
  { event: "no such" },
  { event: { toString: (): string => "ready" } },
  { event: "progress", stage: "no such" },
  { event: "progress" },
])("what is no event is none: %j", (data) => {
  expect(readEvent(data)).toBeUndefined();
});

test("events are copied, typed and bounded", () => {
  expect(readEvent({ event: "progress", stage: "fetch", fraction: 7, detail: 3, more: "x" })).toEqual({
    event: "progress",
    stage: "fetch",
    fraction: 1,
  });
  const log = readEvent({ event: "log", stream: "nowhere", text: "x".repeat(1_000_000), tool: {} });
  expect(log).toMatchObject({ event: "log", stream: "stdout" });
  expect(log?.event === "log" && log.text.length).toBe(65_536);
  expect(log).not.toHaveProperty("tool");
});

test("ready is read whatever the worker claims", () => {
  expect(readEvent({ event: "ready" })).toEqual({ event: "ready", servers: [], mode: "cold", ms: {} });
  const ready = readEvent({
    event: "ready",
    servers: [{ name: "a", tools: -1 }, null, { name: 7, tools: Number.NaN, error: "why" }],
    boot: { mode: "snapshot", ms: { runtime: 5, bad: "x" } },
  });
  expect(ready).toEqual({
    event: "ready",
    servers: [
      { name: "a", tools: 0 },
      { name: "", tools: 0 },
      { name: "", tools: 0, error: "why" },
    ],
    mode: "snapshot",
    ms: { runtime: 5, bad: 0 },
  });
  const many = readEvent({ event: "ready", servers: Array.from({ length: 5000 }, () => ({})) });
  expect(many?.event === "ready" && many.servers.length).toBe(100);
});

test("answers need a number and a verdict", () => {
  expect(readAnswer({ seq: 1, ok: true, value: [1] })).toEqual({ seq: 1, ok: true, value: [1], message: "" });
  expect(readAnswer({ seq: 2, ok: false, error: { message: "no" } })?.message).toBe("no");
  for (const bad of [null, "x", { seq: "1", ok: true }, { seq: 1 }, { ok: true }])
    expect(readAnswer(bad)).toBeUndefined();
});

test("tools that are none are left out", () => {
  const tools = readTools([
    null,
    {},
    { name: "x" },
    { name: "x", server: "s", inputSchema: {}, description: 5 },
  ]);
  expect(tools).toEqual([{ name: "x", server: "s", inputSchema: {} }]);
  expect(readTools("x")).toEqual([]);
});

test("names of loaded tools are texts, and bounded", () => {
  expect(readNames({ tools: ["a", 1, null, "b"] })).toEqual(["a", "b"]);
  for (const bad of [undefined, null, [], "x", {}, { tools: "x" }, { tools: { 0: "a" } }])
    expect(readNames(bad)).toEqual([]);
  const many = readNames({ tools: Array.from({ length: 5000 }, () => "x".repeat(10_000)) });
  expect([many.length, many[0]?.length]).toEqual([1000, 4000]);
});

test("buffers are transferred, files are not", () => {
  const buffer = new ArrayBuffer(1);
  const parcel = { core: buffer, image: new Blob(["x"]) };
  expect(transferOf(parcel as unknown as Parameters<typeof transferOf>[0])).toEqual([buffer]);
});
