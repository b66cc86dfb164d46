/**
 * The conversation as a list of items, made from ACP session updates.
 *
 * Invariant: items are only added at the end or replaced by a newer state of themselves; what is shown once is never
 * shown twice, also after a `session/load` that replays the history (case R02).
 */

import type { ContentBlock, PlanEntry, SessionUpdate, ToolCallContent } from "@agentclientprotocol/sdk";

export type ToolStatus = "pending" | "in_progress" | "completed" | "failed" | "cancelled";

export interface ToolItem {
  readonly kind: "tool";
  readonly key: string;
  readonly toolCallId: string;
  readonly title: string;
  readonly status: ToolStatus;
  /** The arguments as JSON text, in the agent's own spelling where it is known. */
  readonly input: string | undefined;
  readonly output: string | undefined;
  readonly startedAt: number;
  readonly endedAt: number | undefined;
}

export interface TextItem {
  readonly kind: "user" | "agent" | "thought";
  readonly key: string;
  readonly messageId: string | undefined;
  readonly text: string;
}

export interface NoticeItem {
  readonly kind: "notice";
  readonly key: string;
  readonly tone: "info" | "warning" | "error";
  readonly text: string;
  readonly remedy: string | undefined;
}

export interface PlanItem {
  readonly kind: "plan";
  readonly key: string;
  readonly entries: readonly PlanEntry[];
}

export type Item = ToolItem | TextItem | NoticeItem | PlanItem;

let serial = 0;
const nextKey = () => `i${++serial}`;

/** Text of a content block; what is not text is named, never loaded. */
export function blockText(block: ContentBlock): string {
  switch (block.type) {
    case "text":
      return block.text;
    case "resource_link":
      return `[${block.title ?? block.name}](${block.uri})`;
    case "resource":
      return "text" in block.resource ? block.resource.text : `[resource ${block.resource.uri}]`;
    default:
      return `[${block.type}]`;
  }
}

function toolOutput(
  content: readonly ToolCallContent[] | null | undefined,
  raw: unknown,
): string | undefined {
  const texts = (content ?? []).map((part) => {
    if (part.type === "content") return blockText(part.content);
    if (part.type === "diff") return `${part.path}\n${part.newText}`;
    return `[${part.type}]`;
  });
  if (texts.length > 0) return texts.join("\n");
  if (raw === undefined || raw === null) return undefined;
  return typeof raw === "string" ? raw : JSON.stringify(raw, null, 2);
}

function appendText(
  items: readonly Item[],
  kind: TextItem["kind"],
  text: string,
  messageId?: string,
): Item[] {
  const last = items.at(-1);
  if (last?.kind === kind && (messageId === undefined || last.messageId === messageId)) {
    return [...items.slice(0, -1), { ...last, text: last.text + text }];
  }
  return [...items, { kind, key: nextKey(), messageId, text }];
}

const ended = (status: ToolStatus) => status === "completed" || status === "failed" || status === "cancelled";

/** Adds a line of the page itself. */
export function addNotice(
  items: readonly Item[],
  tone: NoticeItem["tone"],
  text: string,
  remedy?: string,
): Item[] {
  return [...items, { kind: "notice", key: nextKey(), tone, text, remedy }];
}

/** Adds what the person wrote. */
export function addUser(items: readonly Item[], text: string): Item[] {
  return [...items, { kind: "user", key: nextKey(), messageId: undefined, text }];
}

/** Marks tool calls that nobody will report on any more. */
export function endTools(items: readonly Item[], status: "cancelled" | "failed", now: number): Item[] {
  return items.map((item) =>
    item.kind === "tool" && !ended(item.status) ? { ...item, status, endedAt: now } : item,
  );
}

/**
 * Applies one session update.
 *
 * @param inputText the raw JSON text of `rawInput`, when the caller has it: numbers above 2^53 are exact only there.
 */
export function applyUpdate(
  items: readonly Item[],
  update: SessionUpdate,
  now: number,
  inputText?: string,
): readonly Item[] {
  switch (update.sessionUpdate) {
    case "agent_message_chunk":
      return appendText(items, "agent", blockText(update.content), update.messageId ?? undefined);
    case "agent_thought_chunk":
      return appendText(items, "thought", blockText(update.content), update.messageId ?? undefined);
    case "user_message_chunk":
      return appendText(items, "user", blockText(update.content), update.messageId ?? undefined);
    case "plan": {
      const plan: PlanItem = { kind: "plan", key: nextKey(), entries: update.entries };
      const at = items.findLastIndex((item) => item.kind === "plan");
      // A new plan of the same turn replaces the old one where it stands.
      if (at > items.findLastIndex((item) => item.kind === "user")) return items.with(at, plan);
      return [...items, plan];
    }
    case "tool_call":
    case "tool_call_update": {
      const at = items.findLastIndex((item) => item.kind === "tool" && item.toolCallId === update.toolCallId);
      const found = items[at];
      const before = found?.kind === "tool" ? found : undefined;
      const input = inputText ?? (update.rawInput == null ? undefined : JSON.stringify(update.rawInput));
      const status = update.status ?? before?.status ?? "pending";
      const item: ToolItem = {
        kind: "tool",
        key: before?.key ?? nextKey(),
        toolCallId: update.toolCallId,
        title: update.title || before?.title || update.name || "tool",
        status,
        input: input ?? before?.input,
        output: toolOutput(update.content, update.rawOutput) ?? before?.output,
        startedAt: before?.startedAt ?? now,
        endedAt: ended(status) ? (before?.endedAt ?? now) : undefined,
      };
      return before ? items.with(at, item) : [...items, item];
    }
    default:
      return items;
  }
}
