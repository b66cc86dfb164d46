/** A tool call in the conversation: one line that opens to the arguments and the result. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { briefArguments } from "../lib/json-format.ts";
import { duration } from "../lib/time.ts";
import type { ToolItem, ToolStatus } from "../model/transcript.ts";
import { DataBlocks } from "./code-block.tsx";
import { Icon, type IconName } from "./icons.tsx";

const STATUS: Record<ToolStatus, { label: string; icon: IconName | undefined }> = {
  pending: { label: "waiting", icon: undefined },
  in_progress: { label: "running", icon: undefined },
  completed: { label: "done", icon: "check" },
  failed: { label: "failed", icon: "cross" },
  cancelled: { label: "stopped", icon: "minus" },
};

export function StatusMark({ status }: { status: ToolStatus }): VNode {
  const { label, icon } = STATUS[status];
  return (
    <span class={`mark ${status}`}>
      {icon ? <Icon name={icon} /> : <span class="spinner" aria-hidden="true" />}
      <span class="sr-only">{label}</span>
    </span>
  );
}

export function ToolCard({ item }: { item: ToolItem }): VNode {
  // What nobody opened is not laid out: results may have megabytes.
  const open = useSignal(false);
  const took = item.endedAt === undefined ? "" : duration(item.endedAt - item.startedAt);
  return (
    <details
      class={`tool-card ${item.status}`}
      onToggle={(event) => {
        open.value = event.currentTarget.open;
      }}
    >
      <summary>
        <StatusMark status={item.status} />
        <span class="tool-title">{item.title}</span>
        <span class="tool-brief">{item.input ? briefArguments(item.input) : ""}</span>
        <span class="tool-time">{took || STATUS[item.status].label}</span>
        <Icon name="chevron" class="chevron" />
      </summary>
      {open.value ? (
        <div class="tool-body">
          {item.input ? <DataBlocks text={item.input} label="arguments" /> : null}
          {item.output ? <DataBlocks text={item.output} label="result" /> : null}
          {!item.input && !item.output ? <p class="muted">The agent gave no details.</p> : null}
        </div>
      ) : null}
    </details>
  );
}
