/** Blocks of code or data, with a button that copies them. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { readable } from "../lib/json-format.ts";
import { Icon } from "./icons.tsx";

/** Characters that are shown at first: laying out megabytes holds the whole page up. */
const MAX_SHOWN = 60_000;

export function CodeBlock({ text, label }: { text: string; label: string }): VNode {
  const copied = useSignal(false);
  const all = useSignal(false);
  const cut = !all.value && text.length > MAX_SHOWN;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      copied.value = true;
      setTimeout(() => {
        copied.value = false;
      }, 1500);
    } catch {
      // No permission for the clipboard: the text can still be selected.
    }
  };
  return (
    <div class="code-block">
      <div class="code-head">
        <span>{label}</span>
        <button type="button" class="quiet small" onClick={copy} aria-label={`Copy ${label}`}>
          <Icon name={copied.value ? "check" : "copy"} />
          {copied.value ? "Copied" : "Copy"}
        </button>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scroll area has to be reachable by keyboard */}
      <pre tabIndex={0}>
        <code>{cut ? `${text.slice(0, MAX_SHOWN)}…` : text}</code>
      </pre>
      {cut ? (
        <button
          type="button"
          class="small code-more"
          onClick={() => {
            all.value = true;
          }}
        >
          Show all {text.length.toLocaleString("en")} characters
        </button>
      ) : null}
    </div>
  );
}

/** JSON data; texts of several lines in it, such as a program, get a block of their own. */
export function DataBlocks({ text, label }: { text: string; label: string }): VNode {
  const { json, texts } = readable(text);
  return (
    <>
      {texts.map((one) => (
        <CodeBlock key={one.name} text={one.text} label={`${label}: ${one.name}`} />
      ))}
      {json === undefined ? null : (
        <CodeBlock text={json} label={texts.length > 0 ? `${label}: the rest` : label} />
      )}
    </>
  );
}
