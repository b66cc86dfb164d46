/** Tools of one's own: a module written here, or a file with one or a package, loaded into the running sandbox. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import example from "../../tools/example_tools.py?raw";
import { useApp } from "../model/context.ts";
import { ACCEPTED, EDITOR, loadFile, loadText, ownTools, takeOut } from "../model/own-tools.ts";
import * as store from "../model/store.ts";

/** Tab indents in the editor; Escape lets the next Tab leave it, so that nobody is caught. */
function indent(event: KeyboardEvent & { currentTarget: HTMLTextAreaElement }): boolean {
  if (event.key !== "Tab" || event.shiftKey || event.altKey || event.ctrlKey) return false;
  const area = event.currentTarget;
  event.preventDefault();
  area.setRangeText("    ", area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new InputEvent("input", { bubbles: true }));
  return true;
}

/** The packages that are loaded, each with a way out. */
function Packages({ busy, onTakeOut }: { busy: boolean; onTakeOut(name: string): void }): VNode | null {
  const packages = ownTools.value.filter(({ file }) => file !== undefined);
  if (packages.length === 0) return null;
  return (
    <ul class="own-packages" aria-label="Loaded files">
      {packages.map(({ name, file, tools }) => (
        <li key={name}>
          <span>
            <strong>{file}</strong> <span class="muted">{tools.join(", ")}</span>
          </span>
          <button type="button" class="small" onClick={() => onTakeOut(name)} disabled={busy}>
            Take out<span class="sr-only"> {file}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}

export function AddPanel(): VNode {
  const app = useApp();
  const source = useSignal(example);
  const message = useSignal<{ tone: "info" | "error"; text: string } | undefined>(undefined);
  const busy = useSignal(false);
  const released = useSignal(false);
  const over = useSignal(false);
  const input = useRef<HTMLInputElement>(null);
  const loaded = ownTools.value.some(({ name, file }) => name === EDITOR && file === undefined);
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
      return told(await loadText(app, source.value));
    });
  const unload = (name: string) =>
    run(async () => {
      await takeOut(app, name);
      return "Your tools were taken out.";
    });
  const take = (files: FileList | undefined) => {
    const file = files?.[0];
    if (!file || busy.value) return;
    over.value = false;
    void run(async () => {
      if (!ready) throw new Error("The sandbox is not ready yet.");
      if (files.length > 1) throw new Error("Take one file at a time; a folder goes in as a zip.");
      if (/\.(whl|zip)$/i.test(file.name)) return told(await loadFile(app, file));
      if (!/\.py$/i.test(file.name))
        throw new Error(`${file.name} is none of ${ACCEPTED.join(", ")}; a folder goes in as a zip.`);
      // Where it can be read and changed.
      source.value = await file.text();
      return told(await loadText(app, source.value));
    });
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: dropping a file; the button does the same by keyboard
    <div
      class={`drop-area ${over.value ? "over" : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        over.value = true;
      }}
      onDragLeave={(event) => {
        if (!event.currentTarget.contains(event.relatedTarget as Node | null)) over.value = false;
      }}
      onDrop={(event) => {
        event.preventDefault();
        over.value = false;
        take(event.dataTransfer?.files);
      }}
    >
      <header class="panel-head">
        <h2>Add a tool</h2>
        <p>
          A Python module with a FastMCP server called <code>mcp</code>. It is loaded into the running
          sandbox; the agent sees the new tools at once.
        </p>
        <div class="panel-tools">
          <button
            type="button"
            aria-describedby="file-hint"
            onClick={() => input.current?.click()}
            disabled={busy.value || !ready}
          >
            Choose a file
          </button>
          <span class="muted small-text" id="file-hint">
            or drop it here: a <code>.py</code>, a wheel of pure Python, or a zipped folder with a package.
          </span>
        </div>
        <input
          ref={input}
          type="file"
          accept={ACCEPTED.join(",")}
          hidden
          aria-label="File with tools"
          onChange={(event) => {
            take(event.currentTarget.files ?? undefined);
            event.currentTarget.value = "";
          }}
        />
        <Packages busy={busy.value} onTakeOut={(name) => void unload(name)} />
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
        <button type="button" onClick={() => void unload(EDITOR)} disabled={busy.value || !loaded}>
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
    </div>
  );
}

function told(names: readonly string[]): string {
  return `Loaded: ${names.join(", ")}. The agent has been told; ask it to use them.`;
}
