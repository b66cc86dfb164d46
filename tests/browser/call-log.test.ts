/** The log of the mcp lane, fed with what the port shows it. */

import type { Traffic } from "sandport";
import { describe, expect, it } from "vitest";
import { type CallEntry, CallLog, MAX_ENTRIES, MAX_KEPT, resultTexts } from "../../web/src/model/call-log.ts";

function session() {
  const log = new CallLog();
  log.name("S", "workspace");
  let now = 0;
  const send = (from: Traffic["from"], to: Traffic["to"], text: string) =>
    log.see({ from, to, text }, ++now, 1000 + now);
  return {
    log,
    ask: (text: string) => send("channel", "sandbox:a", `{"jsonrpc":"2.0",${text}}`),
    answer: (text: string) => send("sandbox:a", "channel", `{"jsonrpc":"2.0",${text}}`),
    refuse: (text: string) => send("port", "channel", `{"jsonrpc":"2.0",${text}}`),
    last: () => log.entries.at(-1) as CallEntry,
  };
}

describe("CallLog", () => {
  it("follows a call over a connection, with server, tool, exact arguments, result and time", () => {
    const it = session();
    it.ask('"id":1,"method":"mcp/connect","params":{"acpId":"S"}');
    it.answer('"id":1,"result":{"connectionId":"c"}');
    it.ask(
      '"id":2,"method":"mcp/message","params":{"connectionId":"c","method":"tools/call","params":{"name":"search","arguments":{"n":9007199254740993}}}',
    );
    expect(it.last()).toMatchObject({
      server: "workspace",
      tool: "search",
      arguments: '{"n":9007199254740993}',
      state: "running",
    });
    it.answer('"id":2,"result":{"content":[{"type":"text","text":"found"}],"isError":false}');
    expect(it.last()).toMatchObject({ state: "ok", duration: 1 });
    expect(resultTexts(it.last().result ?? "")).toEqual({ text: "found", json: false });
  });

  it("marks tool errors, protocol errors and cancelled calls", () => {
    const it = session();
    const call = (id: number) =>
      it.ask(
        `"id":${id},"method":"mcp/message","params":{"serverId":"S","requestId":"r${id}","method":"tools/call","params":{"name":"t"}}`,
      );
    call(1);
    it.answer('"id":1,"result":{"result":{"isError":true,"content":[]}}');
    expect(it.last().state).toBe("failed");
    call(2);
    it.answer('"id":2,"result":{"error":{"code":-32601,"message":"x"}}');
    expect(it.last()).toMatchObject({ state: "failed", result: '{"code":-32601,"message":"x"}' });
    call(3);
    it.refuse('"id":3,"error":{"code":-33002,"message":"The worker ended","data":null}');
    expect(it.last().state).toBe("failed");
    call(4);
    it.answer('"id":4,"error":{"code":-32800,"message":"x","data":null}');
    expect(it.last().state).toBe("cancelled");
  });

  it("keeps ids apart that differ in type or in the last digit", () => {
    const it = session();
    for (const id of ['"1"', "1", "9007199254740992", "9007199254740993"]) {
      it.ask(`"id":${id},"method":"mcp/message","params":{"connectionId":"c","method":"ping"}`);
    }
    it.answer('"id":9007199254740993,"result":{}');
    it.answer('"id":"1","result":{}');
    expect(it.log.entries.map((entry) => entry.kind === "call" && entry.state)).toEqual([
      "ok",
      "running",
      "running",
      "ok",
    ]);
  });

  it("ends what runs when the connection ends", () => {
    const it = session();
    it.ask('"id":1,"method":"mcp/message","params":{"connectionId":"c","method":"ping"}');
    it.log.end(5);
    expect(it.last().state).toBe("failed");
    it.answer('"id":1,"result":{}');
    expect(it.last().state).toBe("failed");
  });

  it("is bounded, whatever tools print", () => {
    const it = session();
    for (let n = 0; n < MAX_ENTRIES + 50; n += 1) it.log.print("stdout", `tool ${n}`, "x", n);
    expect(it.log.entries).toHaveLength(MAX_ENTRIES);
    for (let n = 0; n < 5; n += 1) it.log.print("stderr", "loud", "y".repeat(MAX_KEPT), n);
    const last = it.log.entries.at(-1);
    expect(last?.kind === "print" && last.text.length).toBeLessThan(MAX_KEPT + 100);
  });

  it("looks at anything without harm", () => {
    const it = session();
    it.log.see({ from: "sandbox:a", to: "channel", text: "no json" }, 0, 0);
    it.ask('"id":1,"method":"mcp/message","params":null');
    it.answer('"id":1,"result":null');
    it.answer('"id":99,"result":{}');
    expect(it.log.entries.length).toBeLessThanOrEqual(1);
  });
});
