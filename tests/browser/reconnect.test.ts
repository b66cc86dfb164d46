/** Cases R01 and R04: when the page connects again, and when it must not. */

import {
  type ConnectionState,
  keepConnected,
  memoryChannelPair,
  PROBE_METHOD,
  type ProbeTimes,
  ReconnectPolicy,
  type TextChannel,
} from "sandport";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

const lost = { code: 1006, reason: "" };

describe("ReconnectPolicy", () => {
  it("never retries 1008 and 1000", () => {
    const policy = new ReconnectPolicy();
    expect(policy.closed(0, { code: 1008, reason: "" })).toEqual({ retry: false, why: "refused" });
    expect(policy.closed(0, { code: 1000, reason: "" })).toEqual({ retry: false, why: "closed" });
  });

  it.each([1001, 1006, 1011])("retries %i with a growing, capped wait", (code) => {
    const policy = new ReconnectPolicy({ first: 100, cap: 1000, stable: 5000 });
    const waits = Array.from({ length: 6 }, () => policy.closed(0, { code, reason: "" }));
    expect(waits.map((wait) => wait.retry && wait.delay)).toEqual([100, 200, 400, 800, 1000, 1000]);
  });

  it("does not start the waits again after a short open", () => {
    const policy = new ReconnectPolicy({ first: 100, cap: 1000, stable: 5000 });
    policy.closed(0, lost);
    policy.opened(10);
    expect(policy.closed(4000, lost)).toEqual({ retry: true, delay: 200 });
  });

  it("starts the waits again after a connection that lasted", () => {
    const policy = new ReconnectPolicy({ first: 100, cap: 1000, stable: 5000 });
    policy.closed(0, lost);
    policy.closed(0, lost);
    policy.opened(10);
    expect(policy.closed(5010, lost)).toEqual({ retry: true, delay: 100 });
  });
});

describe("keepConnected", () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  function setUp(
    fail: () => number | undefined = () => undefined,
    isRefusal?: () => Promise<boolean | string>,
    probe?: ProbeTimes,
  ) {
    const peers: TextChannel[] = [];
    const heard: string[] = [];
    const pending: { bytes?: number } = {};
    const states: ConnectionState[] = [];
    const window = new EventTarget();
    const document = Object.assign(new EventTarget(), {
      visibilityState: "hidden" as DocumentVisibilityState,
    });
    let attempts = 0;
    const kept = keepConnected({
      connect: async () => {
        attempts += 1;
        const code = fail();
        if (code !== undefined)
          throw Object.assign(new (await import("sandport")).ChannelClosedError({ code, reason: "" }));
        const [near, far] = memoryChannelPair();
        peers.push(far);
        return Object.defineProperty(near, "pending", { get: () => pending.bytes });
      },
      onChannel: (channel) => channel.listen({ text: (text) => heard.push(text), close: () => {} }),
      onState: (state) => states.push(state),
      ...(isRefusal ? { isRefusal } : {}),
      times: { first: 1000, cap: 8000, stable: 10_000 },
      probe,
      window,
      document,
    });
    const settle = () => vi.advanceTimersByTimeAsync(0);
    return {
      kept,
      peers,
      heard,
      pending,
      states,
      window,
      document,
      settle,
      attempts: () => attempts,
      last: () => states.at(-1)?.kind,
    };
  }

  it("R01: connects at once when the page becomes visible, is shown again or comes online", async () => {
    const it = setUp();
    await it.settle();
    for (const event of ["visibilitychange", "pageshow", "online"] as const) {
      it.peers.at(-1)?.close(1006);
      await it.settle();
      expect(it.last()).toBe("waiting");
      const before = it.attempts();
      if (event === "visibilitychange") {
        it.document.dispatchEvent(new Event(event));
        await it.settle();
        expect(it.attempts()).toBe(before);
        it.document.visibilityState = "visible";
        it.document.dispatchEvent(new Event(event));
      } else {
        it.window.dispatchEvent(new Event(event));
      }
      await it.settle();
      expect(it.last()).toBe("open");
      expect(it.attempts()).toBe(before + 1);
    }
    it.kept.stop();
  });

  it("R04: stays stopped after 1008, whatever the page does, until a person retries", async () => {
    const it = setUp();
    await it.settle();
    it.peers[0]?.close(1008, "wrong token");
    await it.settle();
    expect(it.states.at(-1)).toMatchObject({
      kind: "stopped",
      why: "refused",
      last: { reason: "wrong token" },
    });
    it.window.dispatchEvent(new Event("online"));
    await vi.advanceTimersByTimeAsync(100_000);
    expect(it.attempts()).toBe(1);
    it.kept.retry();
    await it.settle();
    expect(it.last()).toBe("open");
    it.kept.stop();
  });

  it("R04: waits longer and longer while a server opens and closes at once", async () => {
    const it = setUp();
    await it.settle();
    const waits: number[] = [];
    for (let n = 0; n < 5; n += 1) {
      it.peers.at(-1)?.close(1001);
      await it.settle();
      const state = it.states.at(-1);
      if (state?.kind !== "waiting") throw new Error(`unexpected state ${state?.kind}`);
      waits.push(state.retryAt - Date.now());
      await vi.advanceTimersByTimeAsync(state.retryAt - Date.now());
    }
    expect(waits).toEqual([1000, 2000, 4000, 8000, 8000]);
    it.kept.stop();
  });

  it("makes one attempt at a time", async () => {
    const it = setUp();
    it.window.dispatchEvent(new Event("online"));
    it.kept.retry();
    await it.settle();
    it.window.dispatchEvent(new Event("pageshow"));
    await it.settle();
    expect(it.attempts()).toBe(1);
    it.kept.stop();
  });

  it("takes a refusal before the socket opens as final when the server is there", async () => {
    const refused = setUp(
      () => 1006,
      async () => true,
    );
    await refused.settle();
    expect(refused.states.at(-1)).toMatchObject({ kind: "stopped", why: "refused" });
    const explained = setUp(
      () => 1006,
      async () => "unknown agent",
    );
    await explained.settle();
    expect(explained.states.at(-1)).toMatchObject({
      kind: "stopped",
      last: { code: 1008, reason: "unknown agent" },
    });
    const absent = setUp(
      () => 1006,
      async () => {
        throw new TypeError("no answer");
      },
    );
    await absent.settle();
    expect(absent.last()).toBe("waiting");
    absent.kept.stop();
  });

  describe("a socket that is open and may be dead", () => {
    const times: ProbeTimes = { silence: 30_000, answer: 10_000 };

    /** A connection and what its peer hears; the peer says nothing by itself. */
    async function silent() {
      const it = setUp(undefined, undefined, times);
      await it.settle();
      const asked: { id: string; method: string }[] = [];
      it.peers[0]?.listen({ text: (text) => asked.push(JSON.parse(text)), close: () => {} });
      const say = async (text: string) => {
        it.peers[0]?.send(text);
        await it.settle();
      };
      return { ...it, asked, say };
    }

    it.each(["visibilitychange", "pageshow", "online", "resume"])(
      "is asked at once at %s, and given up",
      async (event) => {
        const it = await silent();
        it.document.visibilityState = "visible";
        const target = event === "visibilitychange" || event === "resume" ? it.document : it.window;
        target.dispatchEvent(new Event(event));
        await it.settle();
        expect(it.asked).toHaveLength(1);
        expect(it.asked[0]).toMatchObject({ jsonrpc: "2.0", method: PROBE_METHOD });
        await vi.advanceTimersByTimeAsync(9_999);
        expect(it.last()).toBe("open");
        await vi.advanceTimersByTimeAsync(1);
        expect(it.states.at(-1)).toMatchObject({
          kind: "waiting",
          last: { code: 1006, reason: "no sign of life within 10000 ms" },
        });
        await vi.advanceTimersByTimeAsync(1000);
        expect(it.last()).toBe("open");
        expect(it.attempts()).toBe(2);
        it.kept.stop();
      },
    );

    it("is asked after a while of silence, hidden or not, and again as long as it answers", async () => {
      const it = await silent();
      for (let n = 1; n <= 3; n += 1) {
        await vi.advanceTimersByTimeAsync(30_000);
        expect(it.asked).toHaveLength(n);
        await it.say(`{"jsonrpc":"2.0","id":"${it.asked[n - 1]?.id}","result":{}}`);
      }
      await vi.advanceTimersByTimeAsync(15_000);
      expect(it.last()).toBe("open");
      expect(new Set(it.asked.map(({ id }) => id)).size).toBe(3);
      expect(it.heard).toEqual([]);
      await vi.advanceTimersByTimeAsync(30_000); // it no longer answers
      expect(it.attempts()).toBe(2);
      it.kept.stop();
    });

    it("is not asked while it talks", async () => {
      const it = await silent();
      for (let n = 0; n < 10; n += 1) {
        await vi.advanceTimersByTimeAsync(20_000);
        await it.say(`{"jsonrpc":"2.0","method":"session/update","params":{"n":${n}}}`);
      }
      expect(it.asked).toHaveLength(0);
      expect(it.heard).toHaveLength(10);
      it.kept.stop();
    });

    it("lives by any text, and only the answer itself is kept back", async () => {
      const it = await silent();
      it.window.dispatchEvent(new Event("online"));
      await it.settle();
      const id = it.asked[0]?.id ?? "";
      const texts = [
        '{"jsonrpc":"2.0","method":"session/update","params":{}}',
        `{"jsonrpc":"2.0","id":"${id}","method":"mcp/message"}`,
        `{"jsonrpc":"2.0","id":1,"result":{"said":"${id}"}}`,
        `not JSON ${id}`,
      ];
      for (const text of texts) await it.say(text);
      expect(it.heard).toEqual(texts);
      await vi.advanceTimersByTimeAsync(15_000);
      expect(it.last()).toBe("open");
      // Late, and an error, as from a peer that does not know the method; the same once more is nobody's answer.
      const answer = `{"jsonrpc":"2.0","id":"${id}","error":{"code":-32601,"message":"Method not found"}}`;
      await it.say(answer);
      expect(it.heard).toEqual(texts);
      await it.say(answer);
      expect(it.heard).toEqual([...texts, answer]);
      it.kept.stop();
    });

    it("is asked once, however many events come", async () => {
      const it = await silent();
      for (let n = 0; n < 5; n += 1) it.window.dispatchEvent(new Event("online"));
      await it.settle();
      expect(it.asked).toHaveLength(1);
      it.kept.stop();
    });

    it("has its time again after the page was frozen, for what came meanwhile is read after the timer", async () => {
      const it = await silent();
      it.window.dispatchEvent(new Event("online"));
      await it.settle();
      vi.setSystemTime(Date.now() + 3_600_000);
      await vi.advanceTimersByTimeAsync(10_000);
      expect(it.last()).toBe("open");
      await it.say(`{"jsonrpc":"2.0","id":"${it.asked[0]?.id}","result":{}}`);
      await vi.advanceTimersByTimeAsync(12_000);
      expect(it.last()).toBe("open");
      it.kept.stop();
    });

    it("has its time again while a large message still goes out before the question", async () => {
      const it = await silent();
      it.pending.bytes = 30_000_000;
      it.window.dispatchEvent(new Event("online"));
      await it.settle();
      for (const bytes of [20_000_000, 5_000_000, 0]) {
        it.pending.bytes = bytes;
        await vi.advanceTimersByTimeAsync(10_000);
        expect(it.last()).toBe("open");
      }
      await vi.advanceTimersByTimeAsync(10_000);
      expect(it.last()).toBe("waiting");
      it.kept.stop();
    });

    it("is never asked without leave", async () => {
      const it = setUp();
      await it.settle();
      const asked: string[] = [];
      it.peers[0]?.listen({ text: (text) => asked.push(text), close: () => {} });
      it.window.dispatchEvent(new Event("online"));
      await vi.advanceTimersByTimeAsync(600_000);
      expect(asked).toEqual([]);
      expect(it.last()).toBe("open");
      it.kept.stop();
    });

    it("asks nothing more after stop", async () => {
      const it = await silent();
      it.window.dispatchEvent(new Event("online"));
      await it.settle();
      it.kept.stop();
      await vi.advanceTimersByTimeAsync(600_000);
      expect(it.asked).toHaveLength(1);
      expect(it.attempts()).toBe(1);
      expect(vi.getTimerCount()).toBe(0);
    });
  });

  it("stop ends the channel, the timers and the listening", async () => {
    const it = setUp();
    await it.settle();
    let closed = 0;
    it.peers[0]?.listen({
      text: () => {},
      close: () => {
        closed += 1;
      },
    });
    it.kept.stop();
    await it.settle();
    expect(closed).toBe(1);
    expect(it.last()).toBe("stopped");
    it.window.dispatchEvent(new Event("online"));
    await vi.advanceTimersByTimeAsync(60_000);
    expect(it.attempts()).toBe(1);
  });
});
