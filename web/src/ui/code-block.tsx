/** Blocks of code or data, with a button that copies them. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { readable } from "../lib/json-format.ts";
import { Icon } from "./icons.tsx";

export function CodeBlock({ text, label }: { text: string; label: string }): VNode {
  const copied = useSignal(false);
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
        <code>{text}</code>
      </pre>
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
