/** Cases R01 and R04: when the page connects again, and when it must not. */

import {
  type ConnectionState,
  keepConnected,
  memoryChannelPair,
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

  function setUp(fail: () => number | undefined = () => undefined, isRefusal?: () => Promise<boolean>) {
    const peers: TextChannel[] = [];
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
        return near;
      },
      onChannel: (channel) => channel.listen({ text: () => {}, close: () => {} }),
      onState: (state) => states.push(state),
      ...(isRefusal ? { isRefusal } : {}),
      times: { first: 1000, cap: 8000, stable: 10_000 },
      window,
      document,
    });
    const settle = () => vi.advanceTimersByTimeAsync(0);
    return {
      kept,
      peers,
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
