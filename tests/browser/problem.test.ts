/** What a person reads when the gateway lets the page not in: its own words, each in its place. */

import { expect, test } from "vitest";
import { closeProblem } from "../../web/src/lib/problem.ts";

const TOKEN = "Open the address that sandport printed in the terminal at its last start.";

test.each([
  ["foreign Origin: start it with --allow-origin", "Foreign Origin.", "Start it with --allow-origin."],
  // A remedy may hold a colon of its own.
  ["the Host is lost: see nginx: Host $http_host", "The Host is lost.", "See nginx: Host $http_host."],
  ["all in one sentence.", "All in one sentence.", TOKEN],
  ["", "The token in the address is missing, wrong, or of an earlier start.", TOKEN],
])("a refusal says its cause and its remedy: %s", (reason, cause, remedy) => {
  expect(closeProblem(1008, reason)).toEqual({ title: "The gateway refuses this page", cause, remedy });
});

test("a gateway that is full is no refusal, and says so", () => {
  const problem = closeProblem(1013, "as many pages are open as it allows (2): raise --max-sockets");
  expect(problem.cause).toBe("As many pages are open as it allows (2).");
  expect(problem.remedy).toBe("Raise --max-sockets. This page tries again by itself.");
});

test("what an agent said is its cause, colons and all", () => {
  expect(closeProblem(1011, "The agent ended (exit status 1): no key: set one").cause).toBe(
    "The agent ended (exit status 1): no key: set one",
  );
});
