/** What may be asked of an endpoint, and what the worker's claims are taken for. */

import { describe, expect, it } from "vitest";
import { EndpointError, endpointBase, endpointRequest } from "../../../browser/src/agent/endpoint.ts";
import { readRequest } from "../../../browser/src/agent/protocol.ts";
import { MAX_SESSION_LENGTH, memoryStore } from "../../../browser/src/agent/store.ts";

const base = endpointBase("https://models.example/v1");
const request = (change: object) => ({
  http: 1,
  method: "POST",
  path: "/chat/completions",
  headers: {},
  body: "{}",
  ...change,
});

describe("endpointBase", () => {
  it.each([
    ["http://localhost:11434/v1", "http://localhost:11434/v1/"],
    [" https://models.example ", "https://models.example/"],
    ["https://models.example/a/b/", "https://models.example/a/b/"],
  ])("takes %s", (address, href) => {
    expect(endpointBase(address).href).toBe(href);
  });

  it.each([
    "models.example/v1",
    "",
    "ftp://models.example",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "https://me:secret@models.example",
    "https://models.example/?key=1",
    "https://models.example/#x",
  ])("refuses %s", (address) => {
    expect(() => endpointBase(address)).toThrow(EndpointError);
  });
});

describe("endpointRequest", () => {
  it("goes below the address, with the key and nothing that identifies the page", () => {
    const { url, init } = endpointRequest(base, "sk", request({ path: "/chat/completions?a=b" }));
    expect(url.href).toBe("https://models.example/v1/chat/completions?a=b");
    expect(new Headers(init.headers).get("authorization")).toBe("Bearer sk");
    expect(init).toMatchObject({ redirect: "error", credentials: "omit", referrerPolicy: "no-referrer" });
  });

  it.each([
    "//evil.example/v1/chat",
    "/../admin",
    "/a/../../admin",
    "/%2e%2e/admin",
    "https://evil.example/",
    "@evil.example/",
    "chat",
    "",
    "\\\\evil.example/x",
  ])("does not leave the address by the path %s", (path) => {
    try {
      const { url } = endpointRequest(base, "sk", request({ path }));
      expect(url.href.startsWith(base.href), url.href).toBe(true);
    } catch (error) {
      expect(error).toBeInstanceOf(EndpointError);
    }
  });

  it.each(["PUT", "DELETE", "CONNECT", "post"])("refuses the method %s", (method) => {
    expect(() => endpointRequest(base, undefined, request({ method }))).toThrow(EndpointError);
  });

  it("takes of the headers only those that describe the body, and no key where there is none", () => {
    const headers = {
      "Content-Type": "application/json",
      Authorization: "Bearer mine",
      Cookie: "a=b",
      "X-A": "1",
    };
    const sent = new Headers(endpointRequest(base, undefined, request({ headers })).init.headers);
    expect([...sent.keys()]).toEqual(["content-type"]);
  });
});

describe("readRequest", () => {
  it("takes what the worker sends", () => {
    expect(readRequest({ event: "http", ...request({}) })).toEqual({ kind: "http", request: request({}) });
    expect(readRequest({ event: "httpStop", http: 3 })).toEqual({ kind: "httpStop", http: 3 });
    expect(readRequest({ event: "ask", ask: 1, what: "store.read", key: "a" })).toEqual({
      kind: "store",
      ask: 1,
      action: { what: "store.read", key: "a" },
    });
  });

  it.each([
    null,
    "text",
    7,
    [],
    { event: "http" },
    { event: "http", ...request({ path: 3 }) },
    { event: "http", ...request({ headers: null }) },
    { event: "http", ...request({ path: "/".repeat(5000) }) },
    { event: "ask", what: "store.list" },
    { event: "httpStop", http: "3" },
  ])("drops %j", (claim) => {
    expect(readRequest(claim)).toBeUndefined();
  });

  it.each([
    { what: "store.write", text: "x" },
    { what: "store.write", head: { sessionId: 1 }, text: "x" },
    { what: "store.write", head: {}, text: "x".repeat(MAX_SESSION_LENGTH + 1) },
    { what: "store.drop" },
  ])("answers a request that it does not take: %#", (claim) => {
    expect(readRequest({ event: "ask", ask: 1, ...claim })).toMatchObject({
      kind: "store",
      action: { what: "refused" },
    });
  });

  it("bounds a head", () => {
    const head = { sessionId: "a", cwd: "/", title: "t".repeat(10_000), updatedAt: "now", more: 1 };
    const read = readRequest({ event: "ask", ask: 1, what: "store.write", head, text: "x" });
    expect(read).toMatchObject({ action: { head: { title: "t".repeat(1000) } } });
    expect(JSON.stringify(read)).not.toContain("more");
  });
});

describe("memoryStore", () => {
  it("keeps, lists, replaces and forgets", async () => {
    const store = memoryStore();
    const head = { sessionId: "a", cwd: "/", title: null, updatedAt: "1" };
    await store.write(head, "one");
    await store.write({ ...head, updatedAt: "2" }, "two");
    expect(await store.list()).toEqual([{ ...head, updatedAt: "2" }]);
    expect(await store.read("a")).toBe("two");
    await store.delete("a");
    expect(await store.read("a")).toBeNull();
  });
});
