/** Light, dark, or as the system says; a choice is remembered. */

import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEY = "sandport.theme";
const ORDER: readonly Theme[] = ["system", "light", "dark"];

function stored(): Theme {
  try {
    return ORDER.find((one) => one === localStorage.getItem(KEY)) ?? "system";
  } catch {
    return "system";
  }
}

export const theme = signal<Theme>(stored());

/** Goes on to the next choice. */
export function nextTheme(): void {
  theme.value = ORDER[(ORDER.indexOf(theme.value) + 1) % ORDER.length] ?? "system";
}

/** Keeps the document and the storage in step with the choice. */
export function applyTheme(): void {
  effect(() => {
    document.documentElement.dataset["theme"] = theme.value;
    try {
      localStorage.setItem(KEY, theme.value);
    } catch {
      // Storage may be off; then the choice lasts as long as the page.
    }
  });
}
