/** Channels keep the order, report one close, and never lose what came before the reader. */

import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { MessageChannel as NodeMessageChannel } from "node:worker_threads";
import {
  ChannelClosedError,
  memoryChannelPair,
  messagePortChannel,
  type TextChannel,
  UTF8_PROTOCOL,
  webSocketChannel,
} from "sandport";
import { afterEach, describe, expect, it } from "vitest";
import WebSocketClient, { WebSocketServer } from "ws";

/** Reads a channel into an array whose growth can be awaited. */
function collect(channel: TextChannel) {
  const seen: string[] = [];
  const closes: number[] = [];
  let wake: () => void = () => {};
  channel.listen({
    text: (text) => {
      seen.push(text);
      wake();
    },
    close: ({ code }) => {
      closes.push(code);
      wake();
    },
  });
  const until = async (done: () => boolean) => {
    while (!done())
      await new Promise<void>((resolve) => {
        wake = resolve;
      });
  };
  return {
    seen,
    closes,
    texts: (n: number) => until(() => seen.length >= n),
    closed: () => until(() => closes.length > 0),
  };
}

describe("memoryChannelPair", () => {
  it("delivers in order, also what was sent before the reader came", async () => {
    const [left, right] = memoryChannelPair();
    left.send("1");
    left.send("2");
    await Promise.resolve();
    const got = collect(right);
    left.send("3");
    await got.texts(3);
    expect(got.seen).toEqual(["1", "2", "3"]);
  });

  it("reports one close at both ends and refuses to send afterwards", async () => {
    const [left, right] = memoryChannelPair();
    const [a, b] = [collect(left), collect(right)];
    left.close(4001, "done");
    right.close();
    left.close();
    await b.closed();
    expect(a.closes).toEqual([4001]);
    expect(b.closes).toEqual([1000]);
    expect(left.open).toBe(false);
    expect(() => left.send("x")).toThrow(ChannelClosedError);
  });

  it("tells a late reader that the channel ended", async () => {
    const [left, right] = memoryChannelPair();
    left.close(4002);
    await Promise.resolve();
    expect(collect(right).closes).toEqual([4002]);
  });

  it("has one reader", () => {
    const [left] = memoryChannelPair();
    collect(left);
    expect(() => collect(left)).toThrow("already has a reader");
  });
});

describe("messagePortChannel", () => {
  it("carries strings and hands objects to their own reader", async () => {
    const { port1, port2 } = new NodeMessageChannel();
    const others: unknown[] = [];
    const near = messagePortChannel(port1 as unknown as MessagePort, {
      onOther: (data) => others.push(data),
    });
    const far = messagePortChannel(port2 as unknown as MessagePort);
    const got = collect(near);
    port2.postMessage({ event: "ready" });
    far.send('{"id":9007199254740993}');
    await got.texts(1);
    expect(got.seen).toEqual(['{"id":9007199254740993}']);
    expect(others).toEqual([{ event: "ready" }]);
    near.close();
    await collect(far).closed();
    expect(got.closes).toEqual([1000]);
  });
});

describe("webSocketChannel", () => {
  let server: WebSocketServer | undefined;
  afterEach(() => {
    for (const client of server?.clients ?? []) client.terminate();
    server?.close();
    server = undefined;
  });

  async function listen(options: ConstructorParameters<typeof WebSocketServer>[0] = {}) {
    server = new WebSocketServer({ host: "127.0.0.1", port: 0, ...options });
    await once(server, "listening");
    return { server, url: `ws://127.0.0.1:${(server.address() as AddressInfo).port}/acp` };
  }
  const browserLike = { WebSocket: WebSocketClient as unknown as typeof WebSocket };

  it("offers the protocols and carries one message in each text frame", async () => {
    const { server, url } = await listen({ handleProtocols: (offered) => [...offered][0] ?? false });
    const connected = once(server, "connection");
    const channel = await webSocketChannel(url, {
      ...browserLike,
      protocols: ["acp.v1", "sandport.token.T"],
    });
    const [peer, request] = (await connected) as [WebSocketClient, { headers: Record<string, string> }];
    expect(request.headers["sec-websocket-protocol"]).toBe("acp.v1,sandport.token.T");
    const arrived = once(peer, "message");
    channel.send('{"a":1}');
    const [data, binary] = (await arrived) as [Buffer, boolean];
    expect([data.toString(), binary]).toEqual(['{"a":1}', false]);
    const got = collect(channel);
    peer.send('{"b":9007199254740993}\n');
    peer.send('{"c":2}');
    await got.texts(2);
    expect(got.seen).toEqual(['{"b":9007199254740993}\n', '{"c":2}']);
  });

  it("takes and sends UTF-8 in binary frames where the server chose that", async () => {
    const { server, url } = await listen({
      handleProtocols: (offered) => [...offered].find((name) => name === UTF8_PROTOCOL) ?? false,
    });
    for (const offered of [["acp.v1", "sandport.token.T", UTF8_PROTOCOL], []]) {
      const connected = once(server, "connection");
      const channel = await webSocketChannel(url, { ...browserLike, protocols: offered });
      const [peer] = (await connected) as [WebSocketClient];
      const utf8 = new TextEncoder().encode('{"a":"é漢😀"}');
      const arrived = once(peer, "message");
      channel.send('{"a":"é漢😀"}', utf8);
      const [data, binary] = (await arrived) as [Buffer, boolean];
      expect([data.toString(), binary]).toEqual(['{"a":"é漢😀"}', offered.length > 0]);
      const again = once(peer, "message");
      channel.send("{}");
      expect(((await again) as [Buffer, boolean])[1]).toBe(false);
      const got = collect(channel);
      peer.send(utf8);
      if (offered.length > 0) {
        await got.texts(1);
        expect(got.seen).toEqual(['{"a":"é漢😀"}']);
        channel.close();
      } else {
        await got.closed();
        expect(got.closes).toEqual([1003]);
      }
    }
  });

  it.each([
    ["no UTF-8", Buffer.from([0x22, 0xff, 0x22]), 1007],
    ["a surrogate in UTF-8", Buffer.from([0xed, 0xa0, 0x80]), 1007],
    ["a cut character", Buffer.from([0xe6, 0xbc]), 1007],
    ["more bytes than any text may have", Buffer.alloc(31, "x"), 1009],
    ["more characters than a text may have", Buffer.alloc(11, "x"), 1009],
  ])("closes on a binary frame with %s", async (_, frame, code) => {
    const { server, url } = await listen({ handleProtocols: () => UTF8_PROTOCOL });
    const connected = once(server, "connection");
    const channel = await webSocketChannel(url, {
      ...browserLike,
      protocols: [UTF8_PROTOCOL],
      maxTextLength: 10,
    });
    const [peer] = (await connected) as [WebSocketClient];
    const got = collect(channel);
    peer.send(frame);
    await got.closed();
    expect([got.seen, got.closes]).toEqual([[], [code]]);
  });

  it("ends a frame with a newline when asked to", async () => {
    const { server, url } = await listen();
    const connected = once(server, "connection");
    const channel = await webSocketChannel(url, { ...browserLike, newline: true });
    const [peer] = (await connected) as [WebSocketClient];
    const arrived = once(peer, "message");
    channel.send("{}");
    expect(String((await arrived)[0])).toBe("{}\n");
  });

  it.each([1001, 1008, 1011])("passes close code %i and its reason on", async (code) => {
    const { server, url } = await listen();
    const connected = once(server, "connection");
    const channel = await webSocketChannel(url, browserLike);
    const [peer] = (await connected) as [WebSocketClient];
    const closing = new Promise((resolve) => channel.listen({ text: () => {}, close: resolve }));
    peer.close(code, "because");
    expect(await closing).toEqual({ code, reason: "because" });
  });

  it("closes on a binary frame and on a text that is too long, and says why", async () => {
    const { server, url } = await listen();
    for (const [frame, code] of [
      [Buffer.from([1]), 1003],
      ["x".repeat(11), 1009],
    ] as const) {
      const connected = once(server, "connection");
      const channel = await webSocketChannel(url, { ...browserLike, maxTextLength: 10 });
      const [peer] = (await connected) as [WebSocketClient];
      const gone = once(peer, "close");
      const got = collect(channel);
      peer.send(frame);
      await got.closed();
      expect(got.closes).toEqual([code]);
      expect(got.seen).toEqual([]);
      // A page may only send 1000 and 3000-4999 itself.
      expect((await gone)[0]).toBe(4000 + (code % 1000));
    }
  });

  it("rejects when it is refused, when nobody listens and when it is given up", async () => {
    const { url } = await listen({ verifyClient: () => false });
    await expect(webSocketChannel(url, browserLike)).rejects.toThrow(ChannelClosedError);
    const gone = url.replace(/:\d+/, ":1");
    await expect(webSocketChannel(gone, browserLike)).rejects.toMatchObject({ code: 1006 });
    await expect(webSocketChannel(url, { ...browserLike, signal: AbortSignal.abort() })).rejects.toThrow(
      "closed",
    );
  });
});
