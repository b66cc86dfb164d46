/** The port over channels: it moves texts, ends with its channel, and keeps a replaced sandbox out. */

import { memoryChannelPair, Port, type TextChannel, type Traffic, type Utf8 } from "sandport";
import { describe, expect, it, vi } from "vitest";

/** Reads a channel; `next` waits for the next text. */
function reader(channel: TextChannel) {
  const queue: string[] = [];
  const waiting: ((text: string) => void)[] = [];
  const bytes: (Utf8 | undefined)[] = [];
  let closed = 0;
  channel.listen({
    text: (text, utf8) => {
      bytes.push(utf8);
      const wake = waiting.shift();
      if (wake) wake(text);
      else queue.push(text);
    },
    close: () => {
      closed += 1;
    },
  });
  return {
    next: () => {
      const text = queue.shift();
      return text === undefined
        ? new Promise<string>((resolve) => waiting.push(resolve))
        : Promise.resolve(text);
    },
    queue,
    bytes,
    closed: () => closed,
  };
}

function setUp() {
  const [near, far] = memoryChannelPair();
  const traffic: Traffic[] = [];
  const onDropped = vi.fn();
  const port = new Port(near, { onTraffic: (one) => traffic.push(one), onDropped });
  const [lane, sandbox] = memoryChannelPair();
  port.attach("a", lane, "sp0.");
  port.declare("a", "S");
  return { port, agent: far, fromPort: reader(far), sandbox, inSandbox: reader(sandbox), traffic, onDropped };
}

const connect = '{"jsonrpc":"2.0","id":9007199254740993,"method":"mcp/connect","params":{"acpId":"S"}}';
const connected = '{"jsonrpc":"2.0","id":9007199254740993,"result":{"connectionId":"c"}}';
const call =
  '{"jsonrpc":"2.0","id":7,"method":"mcp/message","params":{"connectionId":"c","method":"tools/call"}}';

async function open(it: ReturnType<typeof setUp>) {
  it.agent.send(connect);
  expect(await it.inSandbox.next()).toBe(connect);
  it.sandbox.send(connected);
  expect(await it.fromPort.next()).toBe(connected);
}

describe("Port", () => {
  it("passes a text's UTF-8 on with it, and with no other text", async () => {
    const it = setUp();
    await open(it);
    const seen: [string, Utf8 | undefined][] = [];
    const { agent, sandbox, port } = it;
    const utf8 = (text: string): Utf8 => new TextEncoder().encode(text);
    const [lane, other] = memoryChannelPair();
    port.attach("b", lane, "sp1.");
    port.declare("b", "T");
    const arrived = new Promise<void>((resolve) => {
      other.listen({
        text: (text, bytes) => {
          seen.push([text, bytes]);
          if (seen.length === 2) resolve();
        },
        close() {},
      });
    });
    const toOther = connect.replace('"S"', '"T"').replace("9007199254740993", "11");
    agent.send(toOther, utf8(toOther));
    agent.send(toOther.replace("11", "12"));
    await arrived;
    expect(seen).toEqual([
      [toOther, utf8(toOther)],
      [toOther.replace("11", "12"), undefined],
    ]);
    // An answer that the port refuses: what goes out is the port's own text.
    agent.send(call);
    await it.inSandbox.next();
    const bad = '{"jsonrpc":"2.0","id":7,"result":1,"error":2}';
    sandbox.send(bad, utf8(bad));
    expect(JSON.parse(await it.fromPort.next())).toMatchObject({ id: 7, error: { data: null } });
    expect(it.fromPort.bytes.at(-1)).toBeUndefined();
  });

  it("carries both lanes and shows only the mcp lane to a log", async () => {
    const it = setUp();
    const client = reader(it.port.acp);
    await open(it);
    it.agent.send('{"jsonrpc":"2.0","id":1,"method":"fs/read_text_file"}');
    await client.next();
    it.port.acp.send('{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}');
    expect(JSON.parse(await it.fromPort.next()).error.data).toBeNull();
    expect(it.traffic.map(({ from, to }) => `${from} ${to}`)).toEqual([
      "channel sandbox:a",
      "sandbox:a channel",
    ]);
  });

  it("counts and reports what it drops", async () => {
    const it = setUp();
    it.sandbox.send('{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{}}');
    expect(JSON.parse(await it.inSandbox.next()).error.code).toBe(-32600);
    expect(it.onDropped).toHaveBeenCalledOnce();
    expect(it.port.stats).toEqual({ dropped: { "not-allowed": 1 }, open: 0 });
  });

  it("R07: answers a call of a sandbox that dies, and goes on with the next one", async () => {
    const it = setUp();
    await open(it);
    it.agent.send(call);
    await it.inSandbox.next();
    it.port.suspend("a", "The worker ended");
    const answer = JSON.parse(await it.fromPort.next());
    expect(answer).toMatchObject({ id: 7, error: { code: -32603, message: "The worker ended", data: null } });
    it.agent.send(call);
    // Whatever the dead one still had to say is not heard.
    it.sandbox.send('{"jsonrpc":"2.0","id":7,"result":{"late":true}}');
    const [lane, second] = memoryChannelPair();
    const inSecond = reader(second);
    await Promise.resolve();
    await Promise.resolve();
    it.port.resume("a", lane, "sp1.");
    expect(await inSecond.next()).toBe(call);
    second.send('{"jsonrpc":"2.0","id":7,"result":{}}');
    expect(JSON.parse(await it.fromPort.next())).toEqual({ jsonrpc: "2.0", id: 7, result: {} });
  });

  it("detaches a sandbox whose lane closes", async () => {
    const it = setUp();
    await open(it);
    it.agent.send(call);
    await it.inSandbox.next();
    it.sandbox.close();
    expect(JSON.parse(await it.fromPort.next())).toMatchObject({ id: 7, error: { code: -32603 } });
    it.agent.send(connect);
    expect(JSON.parse(await it.fromPort.next())).toMatchObject({ error: { code: -32602 } });
  });

  it("R09: ends with its channel: the acp lane closes, the sandbox's own requests are answered", async () => {
    const it = setUp();
    const client = reader(it.port.acp);
    await open(it);
    it.sandbox.send(
      '{"jsonrpc":"2.0","id":"sp0.1","method":"mcp/message","params":{"connectionId":"c","method":"roots/list"}}',
    );
    await it.fromPort.next();
    it.agent.close(1011, "agent ended");
    expect(await it.port.closed).toEqual({ code: 1011, reason: "agent ended" });
    expect(JSON.parse(await it.inSandbox.next())).toMatchObject({ id: "sp0.1", error: { code: -32603 } });
    expect(client.closed()).toBe(1);
    expect(it.port.stats.open).toBe(0);
  });
});
