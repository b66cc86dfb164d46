/**
 * What the page shows, as signals. Only the controllers in this folder write them; components read.
 */

import { signal } from "@preact/signals";
import type { ConnectionState, DropReason, SandboxTool, SessionHead } from "sandport";
import type { Problem } from "../lib/problem.ts";
import type { LogEntry } from "./call-log.ts";
import type { Item } from "./transcript.ts";
import type { FileInfo } from "./workspace.ts";

export type AgentState =
  | { readonly phase: "offline" }
  | { readonly phase: "starting"; readonly since: number }
  | { readonly phase: "opening"; readonly title: string }
  | { readonly phase: "ready"; readonly title: string; readonly takesTools: boolean }
  | { readonly phase: "failed"; readonly problem: Problem };

export type SandboxState =
  | {
      readonly phase: "booting";
      readonly stage: string;
      readonly detail: string;
      readonly fraction: number;
      readonly again: boolean;
    }
  | {
      readonly phase: "ready";
      readonly seconds: number;
      readonly mode: string;
      readonly broken: readonly { name: string; error: string }[];
    }
  | { readonly phase: "failed"; readonly problem: Problem };

/** One of the answers to a question. */
export interface Answer {
  readonly id: string;
  readonly name: string;
  readonly role: "primary" | "other" | "deny";
}

/** A question that waits for the person. All texts but the heading and the warning are foreign. */
export interface Question {
  readonly key: string;
  readonly heading: string;
  readonly title: string;
  /** What is known about it, by name. */
  readonly facts: readonly (readonly [name: string, value: string])[];
  readonly description: string | undefined;
  /** What the person should bear in mind. */
  readonly warning: string | undefined;
  /** The arguments in full, as JSON text. */
  readonly input: string | undefined;
  readonly details: readonly string[];
  readonly options: readonly Answer[];
  /** Answers it; undefined for no answer. */
  answer(id: string | undefined): void;
}

export type View = "chat" | "tools" | "log" | "workspace" | "add";

export const connection = signal<ConnectionState | { readonly kind: "no-token" }>({
  kind: "connecting",
  attempt: 1,
});
export const agent = signal<AgentState>({ phase: "offline" });
export const sandbox = signal<SandboxState>({
  phase: "booting",
  stage: "fetch",
  detail: "",
  fraction: 0,
  again: false,
});
export const items = signal<readonly Item[]>([]);
export const questions = signal<readonly Question[]>([]);
/** Set while the agent works on a message. */
export const working = signal(false);
export const draft = signal("");
/** The draft goes to the agent when its turn ends. */
export const queued = signal(false);
export const tools = signal<readonly SandboxTool[]>([]);
export const log = signal<readonly LogEntry[]>([]);
export const dropped = signal<Readonly<Partial<Record<DropReason, number>>>>({});
export const files = signal<readonly FileInfo[]>([]);
export const workspaceName = signal("Sandport's own sources");
export const workspaceBusy = signal(false);
export const workspaceProblem = signal<string | undefined>(undefined);
/** A line across the page: the sandbox was restarted, or the like. */
export const banner = signal<{ readonly text: string; readonly detail: string } | undefined>(undefined);
/** What a screen reader is told. */
export const announcement = signal("");
/** The panel beside the chat, and on a narrow screen the only thing shown. */
export const view = signal<View>("chat");
export const panel = signal<Exclude<View, "chat">>("tools");
/** Earlier conversations with an agent that keeps them. */
export const conversations = signal<readonly SessionHead[]>([]);
export const agents = signal<{ readonly names: readonly string[]; readonly current: string } | undefined>(
  undefined,
);

/** Shows a view: the panel beside the chat where there is room, else the view alone. */
export function show(next: View): void {
  view.value = next;
  if (next !== "chat") panel.value = next;
}
