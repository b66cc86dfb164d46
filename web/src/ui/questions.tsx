/**
 * Questions to the person, one at a time, shown in full: what would be done, its arguments as text, and every answer.
 *
 * Invariant: no answer happens by accident. A question takes the focus itself, not one of its buttons; its buttons work
 * only after it was there for a moment, so that a second click on the question before does not answer it; and who is
 * writing is not interrupted.
 */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { formatJson, readable } from "../lib/json-format.ts";
import { plain, plainLine } from "../lib/plain.ts";
import { withdrawQuestions } from "../model/questions.ts";
import { type Question, questions } from "../model/store.ts";
import { CodeBlock } from "./code-block.tsx";
import { Icon } from "./icons.tsx";

/** Milliseconds until a question can be answered: longer than between the clicks of a double click. */
const ARMING_MS = 400;
/** Characters of a description that are shown before it has to be opened. */
const SHORT_DESCRIPTION = 400;

const isWriting = () =>
  document.activeElement instanceof HTMLTextAreaElement && document.activeElement.value !== "";

function Description({ text }: { text: string }): VNode {
  if (text.length <= SHORT_DESCRIPTION) return <p class="question-description">{plain(text)}</p>;
  return (
    <details class="question-description">
      <summary>
        <Icon name="chevron" class="chevron" /> {plainLine(text, 160)}
      </summary>
      <p>{plain(text)}</p>
    </details>
  );
}

function QuestionCard({ question, waiting }: { question: Question; waiting: number }): VNode {
  const card = useRef<HTMLElement>(null);
  const armed = useSignal(false);
  useEffect(() => {
    const element = card.current;
    if (!isWriting()) element?.focus({ preventScroll: true });
    // What is too tall to be seen whole is read from its beginning.
    const tall = element && element.offsetHeight > window.innerHeight / 2;
    element?.scrollIntoView({ block: tall ? "start" : "nearest" });
    const timer = setTimeout(() => {
      armed.value = true;
    }, ARMING_MS);
    return () => clearTimeout(timer);
  }, [armed]);
  const { key, heading, title, facts, description, warning, input, details, options } = question;
  const answer = (id: string | undefined) => {
    if (armed.value) question.answer(id);
  };
  return (
    <section
      class="question"
      ref={card}
      tabIndex={-1}
      role="alertdialog"
      aria-labelledby={`${key}-heading`}
      aria-describedby={`${key}-what`}
    >
      <header>
        <Icon name="question" />
        <h3 id={`${key}-heading`}>{heading}</h3>
        {waiting > 0 ? <span class="waiting-count">{waiting} more</span> : null}
      </header>
      <div id={`${key}-what`}>
        <p class="question-title">
          <bdi>{plainLine(title, 300)}</bdi>
        </p>
        {facts.length > 0 ? (
          <dl class="facts">
            {facts.map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>
                  <bdi>{plainLine(value, 300)}</bdi>
                </dd>
              </div>
            ))}
          </dl>
        ) : null}
        {warning ? <p class="question-warning">{warning}</p> : null}
      </div>
      {description ? <Description text={description} /> : null}
      {input && input !== "{}" ? (
        <CodeBlock text={plain(formatJson(input))} label="arguments, in full" />
      ) : (
        <p class="muted small-text">No arguments.</p>
      )}
      {/* Once more as it will be read, for programs and the like; the JSON above stays the whole truth. */}
      {readable(input ?? "").texts.map(({ name, text }) => (
        <CodeBlock key={name} text={plain(text)} label={plainLine(name)} />
      ))}
      {details.map((detail) => (
        <CodeBlock key={detail} text={plain(detail)} label="details" />
      ))}
      <div class="actions">
        {options.map(({ id, name, role }) => (
          <button
            key={id}
            type="button"
            class={role === "primary" ? "primary" : ""}
            aria-disabled={!armed.value}
            onClick={() => answer(id)}
          >
            {plainLine(name, 60)}
          </button>
        ))}
        {options.some(({ role }) => role === "deny") ? null : (
          <button type="button" aria-disabled={!armed.value} onClick={() => answer(undefined)}>
            Do not answer
          </button>
        )}
        {waiting > 0 ? (
          <button type="button" class="quiet" onClick={withdrawQuestions}>
            Answer none of {waiting + 1}
          </button>
        ) : null}
      </div>
    </section>
  );
}

/** The question whose turn it is. */
export function Questions(): VNode | null {
  const [first, ...others] = questions.value;
  const asked = first !== undefined;
  useEffect(() => {
    if (!asked) return;
    return () => {
      // The focus went with the card: a keyboard would start over at the top of the page. A finger needs no focus, and
      // would only get a keyboard over half of the screen.
      if (document.activeElement === document.body && !matchMedia("(pointer: coarse)").matches) {
        document.getElementById("composer")?.focus();
      }
    };
  }, [asked]);
  return first ? <QuestionCard key={first.key} question={first} waiting={others.length} /> : null;
}
