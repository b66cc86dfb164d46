/**
 * Questions to the person: of the agent, and of tools that run in this page.
 *
 * Invariant: every question gets exactly one answer: the person's choice, or none when the turn is stopped, the
 * connection ends, or whoever asked no longer waits. Nothing is ever allowed by the page itself, but what the person
 * allowed before for this very tool.
 */

import type { RequestPermissionRequest, RequestPermissionResponse } from "@agentclientprotocol/sdk";
import type { ConsentError, ToolAnswer, ToolQuestion } from "sandport/tools";
import { plainLine } from "../lib/plain.ts";
import { grant, isGranted } from "./grants.ts";
import * as store from "./store.ts";
import { addNotice, blockText } from "./transcript.ts";

const CANCELLED: RequestPermissionResponse = { outcome: { outcome: "cancelled" } };
let serial = 0;

/** Shows a question until it is answered or `signal` ends it; undefined when there is no answer. */
function put(
  question: Omit<store.Question, "key" | "answer">,
  signal: AbortSignal,
): Promise<string | undefined> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve(undefined);
      return;
    }
    const key = `q${++serial}`;
    const answer = (id: string | undefined) => {
      store.questions.value = store.questions.value.filter((one) => one.key !== key);
      signal.removeEventListener("abort", withdraw);
      resolve(id);
    };
    const withdraw = () => {
      answer(undefined);
      store.announcement.value = "The question is gone: nobody waits for an answer any more.";
    };
    signal.addEventListener("abort", withdraw);
    store.questions.value = [...store.questions.value, { ...question, key, answer }];
    store.announcement.value = `A question: ${plainLine(question.title)}`;
    store.show("chat");
  });
}

/** Asks what an agent wants to know. */
export async function askPerson(
  { toolCall, options }: RequestPermissionRequest,
  inputText: string | undefined,
  signal: AbortSignal,
): Promise<RequestPermissionResponse> {
  const title = toolCall.title ?? toolCall.name ?? "Use a tool";
  const optionId = await put(
    {
      heading: "The agent asks: may it do this?",
      title,
      facts: toolCall.name && toolCall.name !== title ? [["Tool", toolCall.name]] : [],
      description: undefined,
      warning: undefined,
      input: inputText ?? (toolCall.rawInput == null ? undefined : JSON.stringify(toolCall.rawInput)),
      details: (toolCall.content ?? []).map((part) => {
        if (part.type === "content") return blockText(part.content);
        return part.type === "diff" ? `${part.path}\n${part.newText}` : part.type;
      }),
      options: options.map(({ optionId: id, name, kind }) => ({
        id,
        name,
        role: kind === "allow_once" ? "primary" : kind.startsWith("reject") ? "deny" : "other",
      })),
    },
    signal,
  );
  return optionId === undefined ? CANCELLED : { outcome: { outcome: "selected", optionId } };
}

/**
 * Asks before a tool runs in this page.
 * @param mayKeep whether the person may allow it for good.
 */
export async function askForTool(
  question: ToolQuestion,
  { mayKeep }: { readonly mayKeep: boolean },
): Promise<ToolAnswer> {
  const { server, tool, definition, signal } = question;
  if (isGranted(server, tool, definition)) return "once";
  const title = question.title ?? tool;
  const choice = await put(
    {
      heading: "A tool wants to run in this page, outside the sandbox",
      title,
      facts: [
        ["Tool", tool],
        ["Server", server],
        ["Registered by", question.origin ?? "this page itself"],
        ...(question.readOnly ? ([["It says", "that it changes nothing"]] as const) : []),
      ],
      description: question.description,
      warning:
        server === "webmcp"
          ? "It was registered by a script in this page. It can do whatever this page can do."
          : undefined,
      input: JSON.stringify(question.arguments ?? {}),
      details: [],
      options: [
        { id: "once", name: "Allow once", role: "primary" },
        { id: "session", name: "Allow in this conversation", role: "other" },
        ...(mayKeep ? ([{ id: "always", name: "Always allow", role: "other" }] as const) : []),
        { id: "deny", name: "Do not allow", role: "deny" },
      ],
    },
    signal,
  );
  if (choice === undefined && (signal.reason as Partial<ConsentError> | undefined)?.unanswered) {
    // For a person who comes back to the page and wonders.
    store.items.value = addNotice(
      store.items.value,
      "info",
      `A question went unanswered for too long, so the tool ${plainLine(tool)} did not run.`,
    );
  }
  if (choice === "session" || choice === "always") grant({ server, tool, definition, scope: choice });
  return choice === undefined || choice === "deny" ? "deny" : "once";
}

/** Ends every open question without an answer. */
export function withdrawQuestions(): void {
  for (const question of store.questions.value) question.answer(undefined);
}
