/** What went in and out of the sandbox, call by call, as the port saw it. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import type { DropReason } from "sandport";
import { briefArguments } from "../lib/json-format.ts";
import { clock, duration } from "../lib/time.ts";
import {
  type CallEntry,
  type CallState,
  type LogEntry,
  type PrintEntry,
  resultTexts,
} from "../model/call-log.ts";
import { useApp } from "../model/context.ts";
import * as store from "../model/store.ts";
import type { ToolStatus } from "../model/transcript.ts";
import { DataBlocks } from "./code-block.tsx";
import { Icon } from "./icons.tsx";
import { StatusMark } from "./tool-card.tsx";

const MARKS: Record<CallState, ToolStatus> = {
  running: "in_progress",
  ok: "completed",
  failed: "failed",
  cancelled: "cancelled",
};

const REASONS: Record<DropReason, string> = {
  malformed: "no JSON-RPC message",
  "too-large": "over the size limit",
  "too-fast": "over the rate limit",
  "not-open": "an answer nobody waits for",
  "not-allowed": "a method a sandbox may not send",
  "unknown-connection": "for a connection that is not live",
  "bad-id": "an id without the sandbox's prefix",
  "duplicate-id": "an id that is still open",
  "unknown-sandbox": "from a sandbox that is gone",
  overflow: "too much held for a restarting sandbox",
};

function Call({ entry }: { entry: CallEntry }): VNode {
  const result = entry.result === undefined ? undefined : resultTexts(entry.result);
  return (
    <details class={`log-entry ${entry.state}`}>
      <summary>
        <StatusMark status={MARKS[entry.state]} />
        <span class="log-name">{entry.tool ?? entry.method}</span>
        <span class="log-time">{entry.duration === undefined ? "running" : duration(entry.duration)}</span>
        <Icon name="chevron" class="chevron" />
        <span class="log-brief">
          {clock(entry.at)} · {entry.server || "unknown server"}
          {entry.arguments && entry.arguments !== "{}" ? ` · ${briefArguments(entry.arguments)}` : ""}
        </span>
      </summary>
      <div class="log-body">
        {entry.arguments ? <DataBlocks text={entry.arguments} label="arguments" /> : null}
        {result ? <DataBlocks text={result.text} label="result" /> : null}
      </div>
    </details>
  );
}

function Print({ entry }: { entry: PrintEntry }): VNode {
  return (
    <div class={`log-print ${entry.stream}`}>
      <span class="log-brief">
        {clock(entry.at)} · {entry.source} · {entry.stream === "stderr" ? "error output" : "printed"}
      </span>
      <pre>{entry.text}</pre>
    </div>
  );
}

function Dropped(): VNode | null {
  const reasons = Object.entries(store.dropped.value) as [DropReason, number][];
  if (reasons.length === 0) return null;
  const total = reasons.reduce((sum, [, count]) => sum + count, 0);
  return (
    <details class="dropped">
      <summary>
        <Icon name="warning" />
        The port dropped {total} {total === 1 ? "message" : "messages"}
        <Icon name="chevron" class="chevron" />
      </summary>
      <ul>
        {reasons.map(([reason, count]) => (
          <li key={reason}>
            <strong>{count}</strong> {REASONS[reason]} <code>{reason}</code>
          </li>
        ))}
      </ul>
      <p class="muted">Code in the sandbox can write what it likes; only proper answers leave it.</p>
    </details>
  );
}

const isTool = (entry: LogEntry) => entry.kind === "print" || entry.tool !== undefined;

export function LogPanel(): VNode {
  const app = useApp();
  const all = useSignal(false);
  const entries = store.log.value;
  const shown = all.value ? entries : entries.filter(isTool);
  const hidden = entries.length - shown.length;
  return (
    <>
      <header class="panel-head">
        <h2>Log</h2>
        <p>What the agent called and what it got, newest first.</p>
        <div class="panel-tools">
          <label class="check">
            <input
              type="checkbox"
              checked={all.value}
              onChange={(event) => {
                all.value = event.currentTarget.checked;
              }}
            />
            Protocol messages too{hidden > 0 ? ` (${hidden})` : ""}
          </label>
          <button
            type="button"
            class="quiet small"
            onClick={() => app.clearLog()}
            disabled={entries.length === 0}
          >
            Clear
          </button>
        </div>
      </header>
      <Dropped />
      {shown.length === 0 ? (
        <p class="empty">
          No calls yet. As soon as the agent uses a tool, you see here what it asked and what it got.
        </p>
      ) : null}
      <div class="log-list">
        {shown
          .toReversed()
          .map((entry) =>
            entry.kind === "call" ? (
              <Call key={entry.key} entry={entry} />
            ) : (
              <Print key={entry.key} entry={entry} />
            ),
          )}
      </div>
    </>
  );
}
