/** Tools of one's own: a module with a FastMCP server, loaded into the running sandbox. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import example from "../../tools/example_tools.py?raw";
import { useApp } from "../model/context.ts";
import * as store from "../model/store.ts";

const NAME = "my_tools";

/** Tab indents in the editor; Escape lets the next Tab leave it, so that nobody is caught. */
function indent(event: KeyboardEvent & { currentTarget: HTMLTextAreaElement }): boolean {
  if (event.key !== "Tab" || event.shiftKey || event.altKey || event.ctrlKey) return false;
  const area = event.currentTarget;
  event.preventDefault();
  area.setRangeText("    ", area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new InputEvent("input", { bubbles: true }));
  return true;
}

export function AddPanel(): VNode {
  const app = useApp();
  const source = useSignal(example);
  const message = useSignal<{ tone: "info" | "error"; text: string } | undefined>(undefined);
  const busy = useSignal(false);
  const released = useSignal(false);
  const loaded = store.tools.value.some(({ server }) => server === "user");
  const ready = store.sandbox.value.phase === "ready";
  const run = async (work: () => Promise<string>) => {
    busy.value = true;
    message.value = undefined;
    try {
      message.value = { tone: "info", text: await work() };
    } catch (error) {
      message.value = { tone: "error", text: error instanceof Error ? error.message : String(error) };
    } finally {
      busy.value = false;
    }
  };
  const load = () =>
    run(async () => {
      const names = await app.loadTools(NAME, source.value);
      return `Loaded: ${names.join(", ")}. The agent has been told; ask it to use them.`;
    });
  const unload = () =>
    run(async () => {
      await app.unloadTools(NAME);
      return "Your tools were taken out.";
    });
  return (
    <>
      <header class="panel-head">
        <h2>Add a tool</h2>
        <p>
          A Python module with a FastMCP server called <code>mcp</code>. It is loaded into the running
          sandbox; the agent sees the new tools at once.
        </p>
      </header>
      <label class="sr-only" for="tool-source">
        Source of the module
      </label>
      <textarea
        id="tool-source"
        class="editor"
        spellcheck={false}
        autocomplete="off"
        autocapitalize="off"
        rows={24}
        aria-describedby="editor-hint"
        value={source.value}
        onInput={(event) => {
          source.value = event.currentTarget.value;
        }}
        onKeyDown={(event) => {
          if (event.key === "Escape") released.value = true;
          else if ((event.ctrlKey || event.metaKey) && event.key === "Enter") void load();
          else if (released.value || !indent(event)) released.value = false;
        }}
      />
      <p class="muted small-text" id="editor-hint">
        <kbd>Tab</kbd> indents; after <kbd>Esc</kbd> it leaves the editor. <kbd>Ctrl</kbd>+<kbd>Enter</kbd>{" "}
        loads.
      </p>
      <div class="panel-tools">
        <button type="button" class="primary" onClick={() => void load()} disabled={busy.value || !ready}>
          {busy.value ? "Loading…" : loaded ? "Load again" : "Load into the sandbox"}
        </button>
        <button type="button" onClick={() => void unload()} disabled={busy.value || !loaded}>
          Take out
        </button>
        <button
          type="button"
          class="quiet"
          onClick={() => {
            source.value = example;
          }}
          disabled={source.value === example}
        >
          Back to the example
        </button>
      </div>
      {message.value ? (
        <pre
          class={`notice ${message.value.tone}`}
          role={message.value.tone === "error" ? "alert" : "status"}
        >
          {message.value.text}
        </pre>
      ) : null}
    </>
  );
}
