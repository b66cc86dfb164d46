import { expect, test } from "vitest";
import {
  readAnswer,
  readArchive,
  readCounts,
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

test("an archive is a buffer beside the answer, and nothing else is", () => {
  const data = new Uint8Array([80, 75]).buffer;
  expect(readArchive(readAnswer({ seq: 1, ok: true, data })?.value)).toEqual(new Uint8Array([80, 75]));
  for (const bad of [undefined, null, "PK", [80, 75], { byteLength: 2 }, new Uint8Array(2)])
    expect(readArchive(readAnswer({ seq: 1, ok: true, value: bad, data: bad })?.value)).toBeUndefined();
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

test("schemas are what JSON can say, and bounded", () => {
  const schema = { type: "object", properties: { a: { default: [1, true, null, "x"] } } };
  const circle: Record<string, unknown> = {};
  circle["self"] = circle;
  // Small in memory, and 2 to the 60 parts when written out.
  let shared: unknown = "x";
  for (let level = 0; level < 60; level += 1) shared = [shared, shared];
  let deep: unknown = {};
  for (let level = 0; level < 5000; level += 1) deep = { deep };
  const read = (inputSchema: unknown) =>
    readTools(structuredClone([{ name: "x", server: "s", inputSchema }]))[0]?.inputSchema;
  expect(read(schema)).toEqual(schema);
  expect(read(undefined)).toEqual({});
  for (const hostile of [circle, shared, deep, new Array(2 ** 32 - 1), "x".repeat(1_000_000)])
    expect(read(hostile)).toBeUndefined();
  expect(read({ a: 1n, b: new Map([[1, 2]]), c: new Uint8Array(10), d: undefined })).toEqual({
    a: null,
    b: null,
    c: null,
    d: null,
  });
  const odd = read(JSON.parse('{"__proto__": {"polluted": true}}')) as object;
  expect(Object.getPrototypeOf(odd)).toBe(Object.prototype);
  expect(Object.keys(odd)).toEqual(["__proto__"]);
});

test("a claim that is a buffer is none", () => {
  const ready = readEvent({
    event: "ready",
    boot: { ms: new Uint8Array(100) },
    servers: new Uint8Array(100),
  });
  expect(ready).toEqual({ event: "ready", servers: [], mode: "cold", ms: {} });
  expect(readEvent(Object.assign(new Map(), { event: "tools" }))).toBeUndefined();
});

test("counts are numbers", () => {
  expect(readCounts({ files: 2, bytes: 10 })).toEqual({ files: 2, bytes: 10 });
  for (const bad of [undefined, null, 5, [], { files: "2", bytes: Number.NaN }, { files: -1, bytes: [7] }])
    expect(readCounts(bad)).toEqual({ files: 0, bytes: 0 });
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
