/** Permission questions of the agent, shown in full: tool, arguments as text, and every answer the agent offers. */

import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { formatJson, readable } from "../lib/json-format.ts";
import { type Question, questions } from "../model/store.ts";
import { CodeBlock } from "./code-block.tsx";
import { Icon } from "./icons.tsx";

function QuestionCard({ question }: { question: Question }): VNode {
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    // Focus the card, not a button: a key that is already on its way must not answer.
    card.current?.focus();
    card.current?.scrollIntoView({ block: "nearest" });
  }, []);
  const title = `question-${question.key}`;
  return (
    <section class="question" ref={card} tabIndex={-1} role="alertdialog" aria-labelledby={title}>
      <header>
        <Icon name="question" />
        <h3 id={title}>The agent asks: may it do this?</h3>
      </header>
      <p class="question-title">{question.title}</p>
      {question.tool && question.tool !== question.title ? <p class="muted">Tool: {question.tool}</p> : null}
      {question.input ? <CodeBlock text={formatJson(question.input)} label="arguments, in full" /> : null}
      {/* Once more as it will be read, for programs and the like; the JSON above stays the whole truth. */}
      {readable(question.input ?? "").texts.map(({ name, text }) => (
        <CodeBlock key={name} text={text} label={name} />
      ))}
      {question.details.map((detail) => (
        <CodeBlock key={detail} text={detail} label="details" />
      ))}
      <div class="actions">
        {question.options.map((option) => (
          <button
            key={option.optionId}
            type="button"
            class={option.kind.startsWith("allow") ? "primary" : ""}
            onClick={() => question.answer(option.optionId)}
          >
            {option.name}
          </button>
        ))}
        {question.options.some(({ kind }) => kind.startsWith("reject")) ? null : (
          <button type="button" onClick={() => question.answer(undefined)}>
            Do not answer
          </button>
        )}
      </div>
    </section>
  );
}

export function Questions(): VNode {
  return (
    <>
      {questions.value.map((question) => (
        <QuestionCard key={question.key} question={question} />
      ))}
    </>
  );
}
