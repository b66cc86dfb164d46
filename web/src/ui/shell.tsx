/** The page: header, banner, chat and the panel beside it; on a narrow screen one view at a time. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { nextTheme, theme } from "../lib/theme.ts";
import { useApp } from "../model/context.ts";
import { IN_PAGE } from "../model/in-page.ts";
import * as store from "../model/store.ts";
import { AddPanel } from "./add-panel.tsx";
import { AgentSettings } from "./agent-settings.tsx";
import { Chat } from "./chat.tsx";
import { Icon, type IconName } from "./icons.tsx";
import { LogPanel } from "./log-panel.tsx";
import { AgentChip, SandboxChip } from "./status.tsx";
import { ToolsPanel } from "./tools-panel.tsx";
import { WorkspacePanel } from "./workspace-panel.tsx";

const VIEWS: readonly { readonly id: store.View; readonly label: string; readonly icon: IconName }[] = [
  { id: "chat", label: "Chat", icon: "chat" },
  { id: "tools", label: "Tools", icon: "tools" },
  { id: "log", label: "Log", icon: "log" },
  { id: "workspace", label: "Files", icon: "workspace" },
  { id: "add", label: "Add", icon: "add" },
];

const PANELS = [
  ["tools", ToolsPanel],
  ["log", LogPanel],
  ["workspace", WorkspacePanel],
  ["add", AddPanel],
] as const;

const THEME_ICON = { system: "auto", light: "sun", dark: "moon" } as const;

function ThemeButton(): VNode {
  const { value } = theme;
  return (
    <button
      type="button"
      class="quiet square"
      onClick={nextTheme}
      aria-label={`Colours: ${value}. Change`}
      title={`Colours: ${value}`}
    >
      <Icon name={THEME_ICON[value]} />
    </button>
  );
}

function AgentChoice(): VNode | null {
  const app = useApp();
  const agents = store.agents.value;
  if (!agents || agents.names.length < 2) return null;
  // The name of a gateway's only agent tells nobody anything; where it is does.
  const only = agents.names.length === 2;
  return (
    <label class="agent-choice">
      <span class="sr-only">Agent to talk to</span>
      <select value={agents.current} onChange={(event) => app.chooseAgent(event.currentTarget.value)}>
        {agents.names.map((name) => (
          <option key={name} value={name}>
            {only && name !== IN_PAGE ? "at the gateway" : name}
          </option>
        ))}
      </select>
    </label>
  );
}

function Header({ onHelp }: { onHelp(): void }): VNode {
  return (
    <header class="top">
      <a class="skip" href="#composer">
        Skip to the message field
      </a>
      <h1>
        <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
          <rect class="logo-ground" width="32" height="32" rx="8" />
          <path
            class="logo-wave"
            d="M6 21.5c3.3 0 3.3 3 6.7 3s3.3-3 6.6-3 3.4 3 6.7 3"
            fill="none"
            stroke-width="2.6"
            stroke-linecap="round"
          />
          <rect class="logo-box" x="8" y="7" width="7" height="7" rx="1.6" />
          <rect class="logo-sand" x="17" y="10" width="7" height="7" rx="1.6" />
        </svg>
        Sandport
      </h1>
      <div class="chips">
        <AgentChip />
        <SandboxChip />
      </div>
      <AgentChoice />
      <AgentSettings />
      <button
        type="button"
        class="quiet square wide-only"
        onClick={onHelp}
        aria-label="Keyboard shortcuts"
        title="Keyboard shortcuts (?)"
      >
        <kbd>?</kbd>
      </button>
      <ThemeButton />
    </header>
  );
}

function Banner(): VNode | null {
  const banner = store.banner.value;
  if (!banner) return null;
  return (
    <div class="banner" role="alert">
      <Icon name="refresh" />
      <p>
        <strong>{banner.text}</strong> {banner.detail}
      </p>
      <button
        type="button"
        class="quiet square"
        aria-label="Close this message"
        onClick={() => {
          store.banner.value = undefined;
        }}
      >
        <Icon name="cross" />
      </button>
    </div>
  );
}

function Tabs({ narrow }: { narrow: boolean }): VNode {
  const current = narrow ? store.view.value : store.panel.value;
  const running = store.log.value.some((entry) => entry.kind === "call" && entry.state === "running");
  return (
    <nav class={narrow ? "bottom-tabs" : "tabs"} aria-label={narrow ? "Views" : "Panels"}>
      {VIEWS.filter(({ id }) => narrow || id !== "chat").map(({ id, label, icon }) => (
        <button
          key={id}
          type="button"
          aria-current={current === id ? "page" : undefined}
          onClick={() => store.show(id)}
        >
          <Icon name={icon} />
          <span>{label}</span>
          {id === "log" && running ? <span class="live-dot" aria-hidden="true" /> : null}
          {id === "chat" && store.questions.value.length > 0 ? (
            <span class="live-dot" aria-hidden="true" />
          ) : null}
        </button>
      ))}
    </nav>
  );
}

const SHORTCUTS = [
  ["/", "write a message"],
  ["Enter", "send"],
  ["Shift + Enter", "new line"],
  ["Esc", "stop the agent"],
  ["Alt + 1 … 5", "chat, tools, log, files, add"],
  ["?", "this list"],
] as const;

function Help({ open, onClose }: { open: boolean; onClose(): void }): VNode {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    if (open && !element?.open) element?.showModal();
    else if (!open && element?.open) element.close();
  }, [open]);
  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="help-title">
      <h2 id="help-title">Keyboard shortcuts</h2>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button type="submit" class="primary">
          Close
        </button>
      </form>
    </dialog>
  );
}

const isTyping = (target: EventTarget | null) =>
  target instanceof HTMLElement &&
  (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

/** Shortcuts that work everywhere; single keys only where nobody types. */
function useShortcuts(help: { value: boolean }): void {
  const app = useApp();
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.altKey && !event.ctrlKey && !event.metaKey && /^Digit[1-5]$/.test(event.code)) {
        event.preventDefault();
        const next = VIEWS[Number(event.code.slice(5)) - 1];
        if (!next) return;
        store.show(next.id);
        // After the view is there.
        queueMicrotask(() =>
          document.getElementById(next.id === "chat" ? "composer" : `panel-${next.id}`)?.focus(),
        );
        return;
      }
      if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") {
        event.preventDefault();
        store.show("chat");
        document.getElementById("composer")?.focus();
      } else if (event.key === "?") {
        help.value = true;
      } else if (event.key === "Escape" && store.working.value && !help.value) {
        app.stop();
      }
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [app, help]);
}

/** A question is seen from another tab, too. */
function useTitle(): void {
  const asked = store.questions.value.length > 0;
  useEffect(() => {
    document.title = asked ? "❓ Sandport asks" : "Sandport";
  }, [asked]);
}

export function Shell(): VNode {
  const help = useSignal(false);
  useShortcuts(help);
  useTitle();
  const { value: panel } = store.panel;
  return (
    <div class="shell" data-view={store.view.value === "chat" ? "chat" : "panel"}>
      <Header
        onHelp={() => {
          help.value = true;
        }}
      />
      <Banner />
      <main>
        <Chat />
        <aside class="side" aria-label="Sandbox">
          <Tabs narrow={false} />
          {/* All panels stay: what a person has open in one is still there when they come back. */}
          {PANELS.map(([id, Panel]) => (
            <div key={id} class="panel" id={`panel-${id}`} tabIndex={-1} hidden={panel !== id}>
              <Panel />
            </div>
          ))}
        </aside>
      </main>
      <Tabs narrow />
      <div class="sr-only" role="status" aria-live="polite">
        {store.announcement.value}
      </div>
      <Help
        open={help.value}
        onClose={() => {
          help.value = false;
        }}
      />
    </div>
  );
}
