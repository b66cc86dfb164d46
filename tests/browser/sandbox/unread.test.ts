/** The page's count of what a worker has not taken: never less than what waits, whatever the worker claims. */

import { describe, expect, it } from "vitest";
import { TAKEN_CHARS, TAKEN_TEXTS, Taken, Unread } from "../../../browser/src/sandbox/unread.ts";

describe("Unread", () => {
  it("counts down in the order of sending", () => {
    const unread = new Unread();
    for (const size of [5, 7, 11]) unread.sent(size);
    expect([unread.texts, unread.chars]).toEqual([3, 23]);
    unread.taken(2);
    expect([unread.texts, unread.chars]).toEqual([1, 11]);
    unread.sent(1);
    unread.taken(1);
    expect([unread.texts, unread.chars]).toEqual([1, 1]);
  });

  it.each([-1, 0, 0.5, 1e9, Number.MAX_VALUE])("takes no harm from a claim of %d", (claim) => {
    const unread = new Unread();
    for (let n = 0; n < 5000; n += 1) unread.sent(2);
    unread.taken(claim);
    expect([unread.texts, unread.chars]).toEqual(claim > 1 ? [0, 0] : [5000, 10_000]);
    unread.sent(3);
    expect([unread.texts, unread.chars]).toEqual(claim > 1 ? [1, 3] : [5001, 10_003]);
  });
});

describe("Taken", () => {
  it("says what it took after so many texts or characters", () => {
    const said: number[] = [];
    const taken = new Taken((texts) => said.push(texts));
    for (let n = 0; n < TAKEN_TEXTS - 1; n += 1) taken.add(1);
    expect(said).toEqual([]);
    taken.add(1);
    expect(said).toEqual([TAKEN_TEXTS]);
    taken.add(TAKEN_CHARS);
    expect(said).toEqual([TAKEN_TEXTS, 1]);
  });
});
