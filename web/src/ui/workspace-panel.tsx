/** The files that the tools work on; a person can look at them and put others in their place. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useRef } from "preact/hooks";
import { plain } from "../lib/plain.ts";
import { bytes } from "../lib/time.ts";
import { useApp } from "../model/context.ts";
import * as store from "../model/store.ts";
import type { FileInfo } from "../model/workspace.ts";
import { CodeBlock } from "./code-block.tsx";
import { Icon } from "./icons.tsx";

interface Folder {
  readonly name: string;
  readonly path: string;
  readonly folders: Map<string, Folder>;
  readonly files: FileInfo[];
}

function tree(files: readonly FileInfo[]): Folder {
  const root: Folder = { name: "", path: "", folders: new Map(), files: [] };
  for (const file of files) {
    let here = root;
    for (const name of file.path.split("/").slice(0, -1)) {
      let next = here.folders.get(name);
      if (!next) {
        next = { name, path: `${here.path}${name}/`, folders: new Map(), files: [] };
        here.folders.set(name, next);
      }
      here = next;
    }
    here.files.push(file);
  }
  return root;
}

function count(folder: Folder): number {
  let total = folder.files.length;
  for (const child of folder.folders.values()) total += count(child);
  return total;
}

function FileRow({ file, onOpen }: { file: FileInfo; onOpen(path: string): void }): VNode {
  return (
    <li>
      <button type="button" class="file-row" onClick={() => onOpen(file.path)}>
        <Icon name="file" />
        <span class="file-name">{plain(file.path.split("/").at(-1) ?? "")}</span>
        <span class="muted">{bytes(file.size)}</span>
      </button>
    </li>
  );
}

function FolderRows({ folder, onOpen }: { folder: Folder; onOpen(path: string): void }): VNode {
  return (
    <ul class="tree">
      {[...folder.folders.values()].map((child) => (
        <li key={child.path}>
          <FolderRow folder={child} onOpen={onOpen} />
        </li>
      ))}
      {folder.files.map((file) => (
        <FileRow key={file.path} file={file} onOpen={onOpen} />
      ))}
    </ul>
  );
}

function FolderRow({ folder, onOpen }: { folder: Folder; onOpen(path: string): void }): VNode {
  // Rows of a closed folder are not made: a project may have thousands.
  const open = useSignal(false);
  return (
    <details
      onToggle={(event) => {
        open.value = event.currentTarget.open;
      }}
    >
      <summary class="file-row">
        <Icon name="chevron" class="chevron" />
        <span class="file-name">{plain(folder.name)}</span>
        <span class="muted">{count(folder)}</span>
      </summary>
      {open.value ? <FolderRows folder={folder} onOpen={onOpen} /> : null}
    </details>
  );
}

function Viewer({ path, onClose }: { path: string; onClose(): void }): VNode {
  const app = useApp();
  const text = app.fileText(path);
  return (
    <section class="viewer" aria-label={path}>
      <header>
        <button type="button" class="quiet small" onClick={onClose}>
          ← All files
        </button>
        <code>{plain(path)}</code>
        <button type="button" class="small" onClick={() => void app.download(path)}>
          <Icon name="download" /> Download
        </button>
      </header>
      {text === undefined ? (
        <p class="empty">This is a binary file.</p>
      ) : (
        <CodeBlock text={text} label={`${text.split("\n").length} lines`} />
      )}
    </section>
  );
}

export function WorkspacePanel(): VNode {
  const app = useApp();
  const opened = useSignal<string | undefined>(undefined);
  const over = useSignal(false);
  const zipInput = useRef<HTMLInputElement>(null);
  const folderInput = useRef<HTMLInputElement>(null);
  const busy = store.workspaceBusy.value;
  const files = store.files.value;
  const total = files.reduce((sum, file) => sum + file.size, 0);
  const choose = (input: HTMLInputElement | null) => {
    if (input?.files?.length) void app.replaceWorkspace({ files: input.files });
    if (input) input.value = "";
    opened.value = undefined;
  };
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: dropping files; the buttons do the same by keyboard
    <div
      class={`drop-area ${over.value ? "over" : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        over.value = true;
      }}
      onDragLeave={(event) => {
        if (event.target === event.currentTarget) over.value = false;
      }}
      onDrop={(event) => {
        event.preventDefault();
        over.value = false;
        opened.value = undefined;
        if (event.dataTransfer) void app.replaceWorkspace({ drop: event.dataTransfer });
      }}
    >
      <header class="panel-head">
        <h2>Workspace</h2>
        <p>
          The tools work on this copy, in the sandbox's memory. Your own files are never changed; download
          what tools made.
        </p>
        <p class="drop-hint">
          <strong>{store.workspaceName.value}</strong>
          {files.length > 0 ? `, ${files.length} files, ${bytes(total)}` : ""}
        </p>
        <div class="panel-tools">
          <button type="button" onClick={() => folderInput.current?.click()} disabled={busy}>
            Choose a folder
          </button>
          <button type="button" onClick={() => zipInput.current?.click()} disabled={busy}>
            Choose a zip
          </button>
          <button
            type="button"
            onClick={() => void app.download()}
            disabled={busy || files.length === 0}
            title="All files as they are now, with what tools wrote, as a zip"
          >
            <Icon name="download" /> Download all
          </button>
          <button type="button" class="quiet" onClick={() => void app.resetWorkspace()} disabled={busy}>
            Reset
          </button>
        </div>
        <p class="muted small-text">Or drop a folder or a zip anywhere here.</p>
        <input ref={zipInput} type="file" accept=".zip" hidden onChange={() => choose(zipInput.current)} />
        <input
          ref={folderInput}
          type="file"
          hidden
          multiple
          {...{ webkitdirectory: true }}
          onChange={() => choose(folderInput.current)}
        />
      </header>
      {store.workspaceProblem.value ? (
        <p class="notice error" role="alert">
          {store.workspaceProblem.value}
        </p>
      ) : null}
      {busy ? (
        <p class="waiting">
          <span class="spinner" aria-hidden="true" /> Putting the files in place
        </p>
      ) : null}
      {opened.value === undefined || !files.some(({ path }) => path === opened.value) ? (
        <FolderRows
          folder={tree(files)}
          onOpen={(path) => {
            opened.value = path;
          }}
        />
      ) : (
        <Viewer
          path={opened.value}
          onClose={() => {
            opened.value = undefined;
          }}
        />
      )}
    </div>
  );
}
