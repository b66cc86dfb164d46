/** The vectors that hold both ports, Python's and this one, to the same behaviour. */

import { readdirSync, readFileSync } from "node:fs";
import { LocalError, PortCore, type PortLimits } from "sandport";
import { describe, expect, it } from "vitest";

const FOLDER = new URL("../vectors/port/", import.meta.url);

interface Expected {
  to: string;
  same?: boolean;
  message?: unknown;
  textHas?: string;
}

interface Step {
  attach?: string;
  declare?: string;
  withdraw?: string;
  stop?: string;
  suspend?: string;
  resume?: string;
  detach?: string;
  close?: boolean;
  /** A sandbox whose queue has no place for the text. */
  overflow?: string;
  limit?: string;
  prefix?: string;
  server?: string;
  reason?: string;
  from?: string;
  /** The raw spelling of the message, so that integers above 2^53 come out as they stand in the file. */
  message?: unknown;
  text?: string;
  now?: number;
  expect?: Expected[];
  refused?: boolean;
  dropped?: Record<string, number>;
  connections?: Record<string, unknown>;
  open?: number;
}

interface Scenario {
  name: string;
  limits?: Record<string, number>;
  steps: Step[];
}

/** Big integers as strings of their own kind, so that the comparison sees every digit. */
function exact(text: string): unknown {
  const marked = text.replace(
    /("(?:[^"\\]|\\.)*")|-?\d{16,}(?![\d.eE])/g,
    (all, string) => string ?? `"int:${all}"`,
  );
  return JSON.parse(marked);
}

function unmark(value: unknown): string {
  return JSON.stringify(value).replace(/"int:(-?\d+)"/g, "$1");
}

/** An error's message is for people and may differ between the two languages. */
function comparable(message: unknown): unknown {
  if (typeof message !== "object" || message === null || !("error" in message)) return message;
  const { error } = message;
  return typeof error === "object" && error !== null
    ? { ...message, error: { ...error, message: "" } }
    : message;
}

const camel = (name: string) => name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());

function play(core: PortCore, step: Step): { sent: string; out: readonly { to: string; text: string }[] } {
  const { prefix = "", reason = "", server = "" } = step;
  if (step.attach !== undefined) core.attach(step.attach, prefix);
  else if (step.declare !== undefined) core.declare(step.declare, server);
  else if (step.withdraw !== undefined) return { sent: "", out: core.withdraw(step.withdraw) };
  else if (step.stop !== undefined) return { sent: "", out: core.stop(step.stop) };
  else if (step.suspend !== undefined) return { sent: "", out: core.suspend(step.suspend, reason) };
  else if (step.resume !== undefined) return { sent: "", out: core.resume(step.resume, prefix) };
  else if (step.detach !== undefined) return { sent: "", out: core.detach(step.detach, reason) };
  else if (step.close) return { sent: "", out: core.close() };
  else if (step.from !== undefined || step.overflow !== undefined) {
    const sent = step.text ?? unmark(step.message);
    if (step.overflow !== undefined)
      return { sent, out: core.overflow(step.overflow, sent, step.limit ?? "", 10) };
    if (step.from === undefined) return { sent, out: [] };
    if (step.from === "channel") return { sent, out: core.fromChannel(sent) };
    if (step.from === "acp") return { sent, out: core.fromAcp(sent) };
    return { sent, out: core.fromSandbox(step.from.replace("sandbox:", ""), sent, step.now ?? 0) };
  }
  return { sent: "", out: [] };
}

const files = readdirSync(FOLDER).filter((name) => name.endsWith(".json"));

it("finds the vectors", () => {
  expect(files.length).toBeGreaterThan(3);
});

describe.each(files)("%s", (file) => {
  const scenarios = exact(readFileSync(new URL(file, FOLDER), "utf8")) as Scenario[];
  it.each(scenarios.map((scenario) => [scenario.name, scenario] as const))(
    "%s",
    (_, { limits = {}, steps }) => {
      const given = Object.fromEntries(Object.entries(limits).map(([name, value]) => [camel(name), value]));
      const core = new PortCore(given as Partial<PortLimits>);
      for (const [at, step] of steps.entries()) {
        const where = `step ${at}: ${JSON.stringify(step).slice(0, 300)}`;
        if (step.refused) {
          expect(() => play(core, step), where).toThrow(LocalError);
          continue;
        }
        const { sent, out } = play(core, step);
        const expected = step.expect ?? [];
        expect(
          out.map(({ to }) => to),
          where,
        ).toEqual(expected.map(({ to }) => to));
        for (const [n, want] of expected.entries()) {
          const text = out[n]?.text ?? "";
          if (want.same) expect(text, where).toBe(sent);
          if (want.textHas !== undefined) expect(text, where).toContain(want.textHas);
          if (want.message !== undefined)
            expect(comparable(exact(text)), where).toEqual(comparable(want.message));
        }
        if (step.dropped) expect(core.dropped, where).toEqual(step.dropped);
        if (step.open !== undefined) expect(core.openRequests, where).toBe(step.open);
        for (const [key, connections] of Object.entries(step.connections ?? {})) {
          const live = core.connections(key).map((one) => [one.connectionId, one.serverId, one.initialize]);
          expect(live, where).toEqual(connections);
        }
      }
    },
  );
});
