/** What the agent in this page works with: its model, and its earlier conversations. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { endpointBase } from "sandport";
import { useApp } from "../model/context.ts";
import { IN_PAGE, type InPageSettings, settings } from "../model/in-page.ts";
import * as store from "../model/store.ts";
import "./agent-settings.css";

/** The button in the header; there is none for an agent that is somewhere else. */
export function AgentSettings(): VNode | null {
  const open = useSignal(false);
  if (store.agents.value?.current !== IN_PAGE) return null;
  const { kind, model } = settings.value;
  return (
    <>
      <button
        type="button"
        class="quiet agent-settings-button"
        data-testid="agent-settings"
        onClick={() => {
          open.value = true;
        }}
      >
        <span class="sr-only">Agent settings, model: </span>
        {kind === "demo" ? "demo script" : model || "no model"}
      </button>
      <Dialog
        open={open.value}
        onClose={() => {
          open.value = false;
        }}
      />
    </>
  );
}

function Dialog({ open, onClose }: { open: boolean; onClose(): void }): VNode {
  const dialog = useRef<HTMLDialogElement>(null);
  const app = useApp();
  useEffect(() => {
    const element = dialog.current;
    if (open && !element?.open) {
      element?.showModal();
      void app.refreshConversations();
    } else if (!open && element?.open) element.close();
  }, [open, app]);
  return (
    <dialog ref={dialog} class="agent-settings" onClose={onClose} aria-labelledby="agent-settings-title">
      <h2 id="agent-settings-title">The agent in this page</h2>
      {open ? <Model onDone={onClose} /> : null}
      <Conversations onDone={onClose} />
    </dialog>
  );
}

/** The site that a browser speaks to; a person sees where the key would go. */
function originOf(address: string): string | undefined {
  try {
    return endpointBase(address).origin;
  } catch {
    return undefined;
  }
}

function Model({ onDone }: { onDone(): void }): VNode {
  const app = useApp();
  const draft = useSignal<InPageSettings>(settings.value);
  const problem = useSignal("");
  const { kind, address, model, key, remember, ask } = draft.value;
  const set = (change: Partial<InPageSettings>): void => {
    draft.value = { ...draft.value, ...change };
    problem.value = "";
  };
  const save = async (event: Event): Promise<void> => {
    event.preventDefault();
    try {
      await app.useModel(draft.value);
      onDone();
    } catch (error) {
      problem.value = error instanceof Error ? error.message : String(error);
    }
  };
  const origin = originOf(address);
  return (
    <form onSubmit={save}>
      <fieldset>
        <legend>Model</legend>
        <label class="choice">
          <input type="radio" name="kind" checked={kind === "demo"} onChange={() => set({ kind: "demo" })} />
          <span>
            Demo script: no key, no network. It understands a handful of requests and says that it is no
            language model.
          </span>
        </label>
        <label class="choice">
          <input
            type="radio"
            name="kind"
            checked={kind === "endpoint"}
            onChange={() => set({ kind: "endpoint" })}
          />
          <span>An endpoint that speaks OpenAI's chat API, on this machine or elsewhere</span>
        </label>
      </fieldset>
      {kind === "endpoint" ? (
        <>
          <label class="field">
            Address
            <input
              type="url"
              value={address}
              placeholder="http://localhost:11434/v1"
              onInput={(event) => set({ address: event.currentTarget.value })}
            />
          </label>
          <label class="field">
            Model
            <input
              value={model}
              placeholder="qwen3:8b"
              autocomplete="off"
              onInput={(event) => set({ model: event.currentTarget.value })}
            />
          </label>
          <label class="field">
            Key (none for most servers on this machine)
            <input
              type="password"
              value={key}
              autocomplete="off"
              onInput={(event) => set({ key: event.currentTarget.value })}
            />
          </label>
          <label class="choice">
            <input
              type="checkbox"
              checked={remember}
              onChange={(event) => set({ remember: event.currentTarget.checked })}
            />
            <span>Keep the key in this browser. Otherwise it is gone with this page.</span>
          </label>
          <p class="note">
            The conversation and the results of tools go to {origin ?? "the endpoint"}; the key goes there and
            nowhere else. The endpoint must allow pages of {location.origin} (CORS): Ollama does when it is
            started with <code>OLLAMA_ORIGINS={location.origin}</code>.
          </p>
        </>
      ) : null}
      <label class="choice">
        <input
          type="checkbox"
          checked={ask}
          onChange={(event) => set({ ask: event.currentTarget.checked })}
        />
        <span>Ask before a tool runs, unless it only reads</span>
      </label>
      {problem.value ? (
        <p class="field-problem" role="alert">
          {problem.value}
        </p>
      ) : null}
      <div class="dialog-actions">
        <button type="button" onClick={onDone}>
          Cancel
        </button>
        <button type="submit" class="primary">
          Use these settings
        </button>
      </div>
    </form>
  );
}

function Conversations({ onDone }: { onDone(): void }): VNode {
  const app = useApp();
  const all = store.conversations.value;
  return (
    <section aria-labelledby="conversations-title">
      <h3 id="conversations-title">Conversations</h3>
      <p class="note">They are kept in this browser.</p>
      <button
        type="button"
        onClick={() => {
          app.newConversation();
          onDone();
        }}
      >
        New conversation
      </button>
      <ul class="conversations">
        {all.map(({ sessionId, title, updatedAt }) => (
          <li key={sessionId}>
            <button
              type="button"
              class="quiet"
              onClick={() => {
                app.openConversation(sessionId);
                onDone();
              }}
            >
              <span>{title ?? "Without a title"}</span>
              {updatedAt ? <time dateTime={updatedAt}>{new Date(updatedAt).toLocaleString()}</time> : null}
            </button>
            <button
              type="button"
              class="quiet"
              aria-label={`Delete ${title ?? "this conversation"}`}
              onClick={() => void app.deleteConversation(sessionId)}
            >
              Delete
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
