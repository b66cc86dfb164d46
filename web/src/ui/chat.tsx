/** The conversation: what was said, what was called, what is asked, and where the next message is written. */

import { Component, type VNode } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { Markdown } from "../lib/markdown.tsx";
import { useApp } from "../model/context.ts";
import * as store from "../model/store.ts";
import type { Item, PlanItem } from "../model/transcript.ts";
import { Icon } from "./icons.tsx";
import { ProblemCard } from "./problem.tsx";
import { Questions } from "./questions.tsx";
import { AgentStatusLine, SandboxStatusLine } from "./status.tsx";
import { ToolCard } from "./tool-card.tsx";

/** What the demo agent understands, and any other agent too. */
const SAMPLES: readonly { readonly title: string; readonly prompt: string }[] = [
  {
    title: "Find and measure",
    prompt: "Find where ToolHost is defined, read that file and count its functions",
  },
  { title: "Search", prompt: "Search for class \\w+Error" },
  { title: "Read a table", prompt: "Summarise data/tides.csv" },
  { title: "Compute", prompt: "Run sum(n * n for n in range(1000))" },
];

function Plan({ item }: { item: PlanItem }): VNode {
  return (
    <section class="plan" aria-label="Plan">
      <ol>
        {item.entries.map((entry) => (
          <li key={entry.content} class={entry.status}>
            {entry.content}
            <span class="sr-only">, {entry.status.replace("_", " ")}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}

/** Items are never changed in place: one that is the same object looks the same, however long the conversation is. */
class Entry extends Component<{ item: Item }> {
  override shouldComponentUpdate(next: { item: Item }): boolean {
    return next.item !== this.props.item;
  }

  override render(): VNode {
    return renderItem(this.props.item);
  }
}

function renderItem(item: Item): VNode {
  switch (item.kind) {
    case "user":
      return (
        <article class="message user" aria-label="You">
          <p>{item.text}</p>
        </article>
      );
    case "agent":
      return (
        <article class="message agent" aria-label="Agent">
          <Markdown text={item.text} />
        </article>
      );
    case "thought":
      return (
        <details class="thought">
          <summary>
            <Icon name="chevron" class="chevron" /> Thoughts
          </summary>
          <Markdown text={item.text} />
        </details>
      );
    case "tool":
      return <ToolCard item={item} />;
    case "plan":
      return <Plan item={item} />;
    case "notice":
      return (
        <div class={`notice ${item.tone}`} role={item.tone === "info" ? undefined : "alert"}>
          <p>{item.text}</p>
          {item.remedy ? <p class="muted">{item.remedy}</p> : null}
        </div>
      );
  }
}

/** What keeps the conversation from going on, and what can be done about it. */
function Trouble(): VNode | null {
  const problem = useApp().problem.value;
  if (!problem) return null;
  return (
    <ProblemCard problem={problem.problem}>
      {problem.actions.map(({ label, run }) => (
        <button key={label} type="button" onClick={run}>
          {label}
        </button>
      ))}
    </ProblemCard>
  );
}

function Welcome(): VNode {
  const app = useApp();
  const blocked = app.problem.value !== undefined;
  return (
    <div class="welcome">
      <h2>{blocked ? "Not ready yet" : "Ask about this project"}</h2>
      <p class="lead">
        The agent's tools run here, in a sealed sandbox in this page: Python without network, working on a
        copy of a project. Every call can be followed in the log.
      </p>
      {blocked ? <Trouble /> : null}
      <ul class="samples" hidden={blocked}>
        {SAMPLES.map(({ title, prompt }) => (
          <li key={title}>
            <button
              type="button"
              onClick={() => app.send(prompt)}
              disabled={store.agent.value.phase !== "ready"}
            >
              <strong>{title}</strong>
              <span>{prompt}</span>
            </button>
          </li>
        ))}
      </ul>
      <div class="status-lines">
        <AgentStatusLine />
        <SandboxStatusLine />
      </div>
    </div>
  );
}

function Composer(): VNode {
  const app = useApp();
  const field = useRef<HTMLTextAreaElement>(null);
  const working = store.working.value;
  const ready = store.agent.value.phase === "ready";
  const text = store.draft.value;
  useLayoutEffect(() => {
    const area = field.current;
    if (!area) return;
    area.rows = 1;
    const line = Number.parseFloat(getComputedStyle(area).lineHeight);
    area.rows = Math.min(8, Math.max(1, Math.round((area.scrollHeight - 20) / line)));
  }, [text]);
  const submit = () => {
    if (!ready || !text.trim()) return;
    if (working) app.queue();
    else app.send(text.trim());
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <label class="sr-only" for="composer">
        Message to the agent
      </label>
      <textarea
        id="composer"
        ref={field}
        rows={1}
        value={text}
        placeholder={ready ? "Ask the agent…" : "The agent is not ready yet"}
        onInput={(event) => {
          store.draft.value = event.currentTarget.value;
          // A message that is being changed is not ready to go.
          store.queued.value = false;
        }}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            submit();
          } else if (event.key === "Escape" && working) {
            event.preventDefault();
            app.stop();
          }
        }}
      />
      {working ? (
        <button type="button" class="round stop" onClick={() => app.stop()} aria-label="Stop the agent">
          <Icon name="stop" />
        </button>
      ) : (
        <button type="submit" class="round primary" disabled={!ready || !text.trim()} aria-label="Send">
          <Icon name="send" />
        </button>
      )}
    </form>
  );
}

/** Keeps the end in view while the person is there, and leaves them alone when they scrolled up. */
function useFollow(list: { current: HTMLDivElement | null }, welcome: boolean): void {
  const follows = useRef(true);
  const begins = useRef(welcome);
  begins.current = welcome;
  useEffect(() => {
    const area = list.current;
    if (!area) return;
    const onScroll = () => {
      if (area.clientHeight === 0) return;
      follows.current = area.scrollHeight - area.scrollTop - area.clientHeight < 80;
    };
    // A window that is turned or a keyboard that opens moves the end out of view.
    const resized = new ResizeObserver(() => {
      if (follows.current && !begins.current) area.scrollTop = area.scrollHeight;
    });
    area.addEventListener("scroll", onScroll, { passive: true });
    resized.observe(area);
    return () => {
      area.removeEventListener("scroll", onScroll);
      resized.disconnect();
    };
  }, [list]);
  // Coming back to the chat counts too: a hidden list has no place to scroll to.
  const marker = `${store.items.value.length}/${store.questions.value.length}/${store.view.value}`;
  const last = store.items.value.at(-1);
  useLayoutEffect(() => {
    const area = list.current;
    if (!area) return;
    // A welcome is read from its beginning.
    if (welcome && store.questions.value.length === 0) area.scrollTop = 0;
    else if (follows.current || last?.kind === "user") area.scrollTop = area.scrollHeight;
  }, [marker, last, welcome]);
}

export function Chat(): VNode {
  const list = useRef<HTMLDivElement>(null);
  const items = store.items.value;
  const welcome = items.every(({ kind }) => kind === "notice");
  useFollow(list, welcome);
  const last = items.at(-1);
  const waiting = store.working.value && last?.kind !== "agent" && store.questions.value.length === 0;
  return (
    <section class="chat" id="chat" aria-label="Conversation" data-view="chat">
      <div
        class="messages"
        ref={list}
        role="log"
        aria-live="off"
        aria-busy={store.working.value}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a scroll area has to be reachable by keyboard
        tabIndex={0}
      >
        <div class="column">
          {welcome ? <Welcome /> : null}
          {items.map((item) => (
            <Entry key={item.key} item={item} />
          ))}
          {waiting ? (
            <p class="waiting">
              <span class="spinner" aria-hidden="true" /> Working
            </p>
          ) : null}
          <Questions />
          {welcome ? null : <Trouble />}
        </div>
      </div>
      <div class="dock">
        <div class="column">
          <Composer />
          {store.queued.value ? (
            <p class="hint queued">
              Waits until the agent has finished, then is sent. Change it to keep it
              <span class="wide-only">
                ; <kbd>Esc</kbd> stops the agent now
              </span>
              .
            </p>
          ) : (
            <p class="hint">
              <kbd>Enter</kbd> sends, <kbd>Shift</kbd>+<kbd>Enter</kbd> makes a new line, <kbd>Esc</kbd> stops
            </p>
          )}
        </div>
      </div>
    </section>
  );
}
