/**
 * The question in front of a host sandbox's tools: what passes, what waits, and that each call has one answer. And forms and
 * answers of the chat, without a terminal.
 *
 *     node --test tests/hosts/gate.test.mjs
 */

import assert from "node:assert/strict";
import path from "node:path";
import { after, before, describe, it } from "node:test";
import { pathToFileURL } from "node:url";
import { compile, PACKAGE, removeCompiled } from "./compiled.mjs";

const load = (name) => import(pathToFileURL(path.join(PACKAGE, "dist", name)).href);
const TOOLS = [
  { server: "mine", name: "write", inputSchema: {} },
  { server: "other", name: "write", inputSchema: {}, description: "another" },
];
let memoryChannelPair;
let GatedLane;
let Gate;

before(async () => {
  compile();
  ({ memoryChannelPair } = await load("channel.js"));
  ({ GatedLane } = await load("node/gate.js"));
  ({ Gate } = await load("tools/consent.js"));
});
after(removeCompiled);

/** A gate between a port's end and a sandbox's end, both of which keep what they hear. */
function world(ask = () => "once", tools = TOOLS) {
  const [lane, sandbox] = memoryChannelPair();
  const questions = [];
  const gate = new Gate((question) => {
    questions.push(question);
    return ask(question);
  }, null);
  const asked = {
    nameOf: (id) => (id === "id-1" ? "mine" : undefined),
    listTools: async () => tools,
  };
  const port = new GatedLane(lane, asked, gate, new Map());
  const [toSandbox, toPort] = [[], []];
  sandbox.listen({ text: (text) => toSandbox.push(JSON.parse(text)), close: () => {} });
  port.listen({ text: (text) => toPort.push(JSON.parse(text)), close: () => {} });
  return {
    questions,
    toSandbox,
    toPort,
    sandbox,
    port,
    say: (message) => port.send(JSON.stringify({ jsonrpc: "2.0", ...message })),
    answer: (message) => sandbox.send(JSON.stringify({ jsonrpc: "2.0", ...message })),
  };
}

/** Until all that is under way has come to rest. */
const settled = () => new Promise((resolve) => setImmediate(resolve));
const call = { name: "write", arguments: { a: 1 } };

/** How each dialect opens a server and calls its tool: [what opens, what the sandbox answers, the call]. */
const DIALECTS = {
  "connect-serverId": [
    { method: "mcp/connect", params: { serverId: "id-1" } },
    { connectionId: "c" },
    { method: "mcp/message", params: { connectionId: "c", method: "tools/call", params: call } },
  ],
  "connect-acpId": [
    { method: "mcp/connect", params: { acpId: "id-1" } },
    { connectionId: "c" },
    { method: "mcp/message", params: { connectionId: "c", method: "tools/call", params: call } },
  ],
  legacy: [
    { method: "_mcp/connect", params: { acp_id: "id-1" } },
    { connection_id: "c" },
    { method: "_mcp/message", params: { connectionId: "c", method: "tools/call", params: call } },
  ],
  stateless: [
    undefined,
    undefined,
    {
      method: "mcp/message",
      params: { serverId: "id-1", requestId: "r", method: "tools/call", params: call },
    },
  ],
};

describe("a gated lane", () => {
  for (const [dialect, [open, opened, message]] of Object.entries(DIALECTS)) {
    const start = async (ask) => {
      const one = world(ask);
      if (open) {
        one.say({ id: 1, ...open });
        await settled();
        one.answer({ id: 1, result: opened });
        await settled();
      }
      one.toPort.length = 0;
      one.toSandbox.length = 0;
      return one;
    };

    it(`${dialect}: a call waits for the answer, and passes as it came`, async () => {
      let allow;
      const one = await start(
        () =>
          new Promise((resolve) => {
            allow = resolve;
          }),
      );
      one.say({ id: 7, ...message });
      await settled();
      assert.deepEqual(one.toSandbox, []);
      assert.equal(one.questions[0].server, "mine");
      assert.deepEqual(one.questions[0].arguments, { a: 1 });
      allow("once");
      await settled();
      assert.deepEqual(one.toSandbox, [{ jsonrpc: "2.0", id: 7, ...message }]);
      assert.deepEqual(one.toPort, []);
    });

    it(`${dialect}: a refused call has a tool's error, and does not run`, async () => {
      const one = await start(() => "deny");
      one.say({ id: 7, ...message });
      await settled();
      assert.deepEqual(one.toSandbox, []);
      const [{ id, result }] = one.toPort;
      const inner = dialect === "stateless" ? result.result : result;
      assert.deepEqual([id, inner.isError, one.toPort.length], [7, true, 1]);
      assert.match(inner.content[0].text, /did not allow the tool write/);
    });

    it(`${dialect}: a call that is cancelled while it waits is answered, and its question withdrawn`, async () => {
      const one = await start(() => new Promise(() => {}));
      one.say({ id: "x", ...message });
      await settled();
      one.say({ method: "$/cancel_request", params: { requestId: "x" } });
      await settled();
      assert.ok(one.questions[0].signal.aborted);
      assert.deepEqual(one.toSandbox, []);
      assert.deepEqual(
        one.toPort.map(({ id, error }) => [id, error.code]),
        [["x", -32800]],
      );
    });
  }

  it("asks where it cannot tell the server, and not where there is no such tool", async () => {
    const one = world(() => "deny");
    const unknown = { connectionId: "never seen", method: "tools/call", params: call };
    one.say({ id: 1, method: "mcp/message", params: unknown });
    await settled();
    assert.equal(one.questions.length, 1);
    assert.deepEqual(one.toSandbox, []);
    one.say({ id: 2, method: "mcp/message", params: { ...unknown, params: { name: "none" } } });
    await settled();
    assert.deepEqual([one.questions.length, one.toSandbox.length], [1, 1]);
  });

  it("lets no call through that has no id, and everything that is no call at once", async () => {
    const one = world(() => "deny");
    const params = { serverId: "id-1", requestId: "r", method: "tools/call", params: call };
    one.say({ method: "mcp/message", params });
    const others = [
      { id: 1, method: "mcp/message", params: { ...params, method: "tools/list" } },
      { id: 2, method: "mcp/connect", params: {} },
      { method: "$/cancel_request", params: { requestId: 9 } },
      { id: "s.1", result: {} },
    ];
    for (const other of others) one.say(other);
    await settled();
    assert.deepEqual(
      one.toSandbox,
      others.map((other) => ({ jsonrpc: "2.0", ...other })),
    );
    assert.deepEqual(one.questions, []);
  });

  it("remembers a tool that is always allowed until its definition changes", async () => {
    const tools = [{ ...TOOLS[0] }];
    const one = world(() => "always", tools);
    const params = (requestId) => ({ serverId: "id-1", requestId, method: "tools/call", params: call });
    for (const id of ["a", "b"]) one.say({ id, method: "mcp/message", params: params(id) });
    await settled();
    one.say({ id: "c", method: "mcp/message", params: params("c") });
    await settled();
    const before = one.questions.length;
    tools[0].description = "something else";
    one.say({ id: "d", method: "mcp/message", params: params("d") });
    await settled();
    assert.deepEqual([one.questions.length - before, one.toSandbox.length], [1, 4]);
  });

  it("answers calls that wait when their connection ends", async () => {
    const one = world(() => new Promise(() => {}));
    one.say({ id: 1, method: "mcp/connect", params: { serverId: "id-1" } });
    await settled();
    one.answer({ id: 1, result: { connectionId: "c" } });
    await settled();
    one.say({
      id: 2,
      method: "mcp/message",
      params: { connectionId: "c", method: "tools/call", params: call },
    });
    await settled();
    one.say({ id: 3, method: "mcp/disconnect", params: { connectionId: "c" } });
    await settled();
    assert.deepEqual(
      one.toPort.map(({ id }) => id),
      [1, 2],
    );
  });
});

describe("answers to the agent count for the sandbox", () => {
  it("once for the same call, always for the tool", async () => {
    const { Consents } = await load("node/consents.js");
    const consents = new Consents();
    consents.granted("write", { b: 1, a: [{ d: 2, c: 3 }] }, false);
    assert.equal(consents.take("mine", "write", { b: 1, a: [{ d: 2, c: 4 }] }), undefined);
    assert.equal(consents.take("mine", "erase", { b: 1, a: [{ d: 2, c: 3 }] }), undefined);
    assert.equal(consents.take("mine", "write", { a: [{ c: 3, d: 2 }], b: 1 }), "once");
    assert.equal(consents.take("mine", "write", { a: [{ c: 3, d: 2 }], b: 1 }), undefined);
    consents.granted("write", {}, false);
    consents.endTurn();
    assert.equal(consents.take("mine", "write", {}), undefined);
    consents.granted("mine/write", {}, true);
    assert.equal(consents.take("other", "write", {}), undefined);
    assert.equal(consents.take("mine", "write", { any: 1 }), "always");
    assert.equal(consents.take("mine", "write", { any: 1 }), undefined);
  });
});

describe("lines of a form", () => {
  const form = (properties, required = []) => ({
    mode: "form",
    message: "?",
    sessionId: "s",
    requestedSchema: { type: "object", properties, required },
  });

  it("are read by their kind", async () => {
    const { fieldsOf, readField } = await load("node/form.js");
    const read = (schema, line, required) => {
      const [field] = fieldsOf(form({ x: schema }, required ? ["x"] : []));
      const { value, problem } = readField(field, line);
      return problem ?? value;
    };
    assert.equal(read({ type: "integer" }, "12"), 12);
    assert.match(read({ type: "integer" }, "1.5"), /whole number/);
    assert.match(read({ type: "number", maximum: 2 }, "3"), /At most 2/);
    assert.equal(read({ type: "boolean" }, "Yes"), true);
    assert.match(read({ type: "boolean" }, "perhaps"), /y or n/);
    assert.equal(read({ type: "string" }, "  a b "), "a b");
    assert.match(read({ type: "string", minLength: 3 }, "ab"), /At least 3/);
    assert.equal(read({ type: "string", enum: ["red", "blue"] }, "RED"), "red");
    assert.equal(read({ type: "string", oneOf: [{ const: "r", title: "Red" }] }, "red"), "r");
    assert.match(read({ type: "string", enum: ["red"] }, "green"), /one of the choices/);
    const many = { type: "array", items: { enum: ["a", "b", "c"] }, maxItems: 2 };
    assert.deepEqual(read(many, "a, c"), ["a", "c"]);
    assert.match(read(many, "a,b,c"), /At most 2/);
    assert.equal(read({ type: "string" }, ""), undefined);
    assert.match(read({ type: "string" }, "", true), /needed/);
    assert.equal(read({ type: "string", default: "d" }, "", true), "d");
  });

  it("of another kind are not made up", async () => {
    const { fieldsOf } = await load("node/form.js");
    assert.equal(fieldsOf({ mode: "_odd", message: "?", sessionId: "s" }), undefined);
    const [address] = fieldsOf({ mode: "url", message: "?", sessionId: "s", url: "https://x.invalid/" });
    assert.match(address.label, /https:\/\/x\.invalid\//);
  });
});
