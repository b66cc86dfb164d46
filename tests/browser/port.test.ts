/** The port over channels: it moves texts, ends with its channel, and keeps a replaced sandbox out. */

import { BaseChannel, memoryChannelPair, Port, type TextChannel, type Traffic, type Utf8 } from "sandport";
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

/** A channel whose other end reads when it is told to. */
class SlowLane extends BaseChannel {
  texts: string[] = [];

  get pending(): number {
    return this.texts.reduce((sum, text) => sum + text.length, 0);
  }

  get pendingTexts(): number {
    return this.texts.length;
  }

  arrives(text: string): void {
    this.deliver(text);
  }

  read(): void {
    this.texts = [];
  }

  protected override transmit(text: string): void {
    this.texts.push(text);
  }

  protected override shut(): void {}
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

  it.each([
    ["texts", { maxQueued: 3 }, "max_queued"],
    ["characters", { maxQueuedChars: 3 * call.length }, "max_queued_chars"],
  ])(
    "refuses by name what a sandbox that does not read has no place for, in %s",
    async (_, limits, limit) => {
      const [near, agent] = memoryChannelPair();
      const fromPort = reader(agent);
      const port = new Port(near, { limits });
      const lanes = [new SlowLane(), new SlowLane()] as const;
      for (const [n, lane] of lanes.entries()) {
        port.attach(`s${n}`, lane, `sp${n}.`);
        port.declare(`s${n}`, `S${n}`);
      }
      const ask = (server: string, id: number) =>
        agent.send(
          `{"jsonrpc":"2.0","id":${id},"method":"mcp/message","params":{"serverId":"${server}","requestId":"r${id}","method":"x"}}`,
        );
      let id = 0;
      for (; id < 20; id += 1) ask("S0", id);
      const refused = JSON.parse(await fromPort.next());
      expect(refused.error.data).toEqual({ limit });
      const kept = lanes[0].texts.length;
      expect(kept).toBeLessThanOrEqual(3);
      expect(refused.id).toBe(kept);
      for (let n = kept + 1; n < 20; n += 1) expect(JSON.parse(await fromPort.next()).id).toBe(n);
      expect(port.stats.open).toBe(kept);
      // A notification has no place either; the other sandbox and, once it reads, this one go on.
      const cancel = {
        jsonrpc: "2.0",
        method: "$/cancel_request",
        params: { requestId: 0, why: "x".repeat(300) },
      };
      agent.send(JSON.stringify(cancel));
      ask("S1", 100);
      await vi.waitFor(() => expect(lanes[1].texts).toHaveLength(1));
      expect(port.stats.dropped).toEqual({ overflow: 1 });
      lanes[0].read();
      ask("S0", 200);
      await vi.waitFor(() => expect(lanes[0].texts).toHaveLength(1));
    },
  );

  it("lets nothing large pile up for an agent that does not read, and answers by the limit's name", async () => {
    const agent = new SlowLane();
    const onDropped = vi.fn();
    const port = new Port(agent, { limits: { maxQueuedChars: 500 }, onDropped });
    const [lane, sandbox] = memoryChannelPair();
    port.attach("a", lane, "sp0.");
    port.declare("a", "S");
    const inSandbox = reader(sandbox);
    agent.arrives(connect);
    await inSandbox.next();
    sandbox.send(connected);
    await vi.waitFor(() => expect(agent.texts).toEqual([connected]));
    for (const id of [7, 8, 9]) {
      agent.arrives(call.replace('"id":7', `"id":${id}`));
      await inSandbox.next();
    }
    sandbox.send(`{"jsonrpc":"2.0","id":7,"result":{"text":"${"x".repeat(600)}"}}`);
    await vi.waitFor(() => expect(agent.texts).toHaveLength(2));
    expect(JSON.parse(agent.texts[1] ?? "")).toMatchObject({
      id: 7,
      error: { code: -32603, data: { limit: "max_queued_chars" } },
    });
    sandbox.send(
      `{"jsonrpc":"2.0","method":"mcp/message","params":{"connectionId":"c","method":"n","x":"${"x".repeat(600)}"}}`,
    );
    await vi.waitFor(() => expect(port.stats.dropped).toEqual({ overflow: 1 }));
    expect(onDropped).toHaveBeenCalledTimes(1);
    sandbox.send(
      `{"jsonrpc":"2.0","id":"sp0.1","method":"mcp/message","params":{"connectionId":"c","x":"${"x".repeat(600)}"}}`,
    );
    expect(JSON.parse(await inSandbox.next())).toMatchObject({
      id: "sp0.1",
      error: { data: { limit: "max_queued_chars" } },
    });
    agent.read();
    const large = `{"jsonrpc":"2.0","id":8,"result":{"text":"${"x".repeat(600)}"}}`;
    sandbox.send(large);
    await vi.waitFor(() => expect(agent.texts).toEqual([large]));
    expect(port.stats.open).toBe(1);
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
