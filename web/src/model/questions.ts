/**
 * Permission questions of the agent.
 *
 * Invariant: every question gets exactly one answer: the person's choice, or "cancelled" when the turn is stopped,
 * the connection ends, or the agent takes the question back. Nothing is ever allowed by the page itself.
 */

import type { RequestPermissionRequest, RequestPermissionResponse } from "@agentclientprotocol/sdk";
import * as store from "./store.ts";
import { blockText } from "./transcript.ts";

const CANCELLED: RequestPermissionResponse = { outcome: { outcome: "cancelled" } };
let serial = 0;

/** Shows a question and waits for the person. */
export function askPerson(
  { toolCall, options }: RequestPermissionRequest,
  inputText: string | undefined,
  signal: AbortSignal,
): Promise<RequestPermissionResponse> {
  return new Promise((resolve) => {
    if (signal.aborted) {
      resolve(CANCELLED);
      return;
    }
    const key = `q${++serial}`;
    const settle = (response: RequestPermissionResponse) => {
      store.questions.value = store.questions.value.filter((question) => question.key !== key);
      signal.removeEventListener("abort", withdraw);
      resolve(response);
    };
    const withdraw = () => settle(CANCELLED);
    signal.addEventListener("abort", withdraw);
    const question: store.Question = {
      key,
      title: toolCall.title ?? toolCall.name ?? "Use a tool",
      tool: toolCall.name ?? undefined,
      kind: toolCall.kind ?? undefined,
      input: inputText ?? (toolCall.rawInput == null ? undefined : JSON.stringify(toolCall.rawInput)),
      details: (toolCall.content ?? []).map((part) => {
        if (part.type === "content") return blockText(part.content);
        return part.type === "diff" ? `${part.path}\n${part.newText}` : part.type;
      }),
      options,
      answer: (optionId) =>
        settle(optionId === undefined ? CANCELLED : { outcome: { outcome: "selected", optionId } }),
    };
    store.questions.value = [...store.questions.value, question];
    store.announcement.value = `The agent asks: ${question.title}`;
    store.show("chat");
  });
}

/** Answers every open question with "cancelled". */
export function withdrawQuestions(): void {
  for (const question of store.questions.value) question.answer(undefined);
}
