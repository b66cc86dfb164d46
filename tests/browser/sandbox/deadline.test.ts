import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Deadline } from "../../../browser/src/sandbox/deadline.ts";

beforeEach(() => vi.useFakeTimers({ toFake: ["performance"] }));
afterEach(() => vi.useRealTimers());

test("it interrupts only between arm and disarm, and only when the time is over", () => {
  const deadline = new Deadline(null);
  expect(deadline[0]).toBe(0);
  deadline.arm(2);
  vi.advanceTimersByTime(1999);
  expect(deadline[0]).toBe(0);
  vi.advanceTimersByTime(2);
  expect(deadline[0]).toBe(2);
  deadline.disarm();
  expect(deadline[0]).toBe(0);
});

test("reading it does not use it up; Python takes it by writing", () => {
  const deadline = new Deadline(null);
  deadline.arm(1);
  vi.advanceTimersByTime(1001);
  expect([deadline[0], deadline[0]]).toEqual([2, 2]);
  deadline[0] = 0;
  expect(deadline[0]).toBe(0);
});

test("code that goes on after an interrupt gets the next one", () => {
  const deadline = new Deadline(null);
  deadline.arm(1);
  vi.advanceTimersByTime(1001);
  deadline[0] = 0;
  vi.advanceTimersByTime(501);
  expect(deadline[0]).toBe(2);
});

test("the page's interrupt counts while a handle is armed, and never for a later one", () => {
  const signal = new Int32Array(new SharedArrayBuffer(4));
  const deadline = new Deadline(signal);
  Atomics.store(signal, 0, 2);
  expect(deadline[0]).toBe(0);
  deadline.arm(60);
  expect(deadline[0]).toBe(0);
  Atomics.store(signal, 0, 2);
  expect(deadline[0]).toBe(2);
  deadline[0] = 0;
  expect(deadline[0]).toBe(0);
  expect(Atomics.load(signal, 0)).toBe(0);
});
