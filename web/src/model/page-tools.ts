/**
 * The tools of the page itself: what no sandbox can do for the person who sits in front of it.
 *
 * Invariant: they run in the page and so ask before each call. They reach the clipboard, the person's disk (a download
 * that the browser shows) and their attention; none sends anything anywhere.
 */

import { defineTool, type Tool } from "sandport/tools";

/** Characters of a file to be saved: it travels through the agent, and a larger one has no business there. */
export const MAX_SAVED = 8 * 1024 * 1024;
/** Characters of the clipboard that an agent gets. */
export const MAX_CLIPBOARD = 100_000;

const text = (description: string, more: Record<string, unknown> = {}) => ({
  type: "string",
  description,
  ...more,
});

const personSettings = defineTool({
  name: "person_settings",
  title: "Time zone and language",
  description:
    "Tells the person's local time, time zone, languages, preferred colours and window size, as their browser reports them.",
  annotations: { readOnlyHint: true, openWorldHint: false },
  run: () => {
    const { timeZone, locale, calendar, numberingSystem } = new Intl.DateTimeFormat().resolvedOptions();
    const now = new Date();
    return {
      local_time: now.toLocaleString("sv-SE").replace(" ", "T"),
      utc_time: now.toISOString(),
      utc_offset_minutes: -now.getTimezoneOffset(),
      time_zone: timeZone,
      locale,
      languages: [...navigator.languages],
      calendar,
      numbering_system: numberingSystem,
      prefers_dark: matchMedia("(prefers-color-scheme: dark)").matches,
      window: { width: innerWidth, height: innerHeight },
      online: navigator.onLine,
    };
  },
});

const readClipboard = defineTool({
  name: "read_clipboard",
  title: "Read the clipboard",
  description: `Reads the text on the person's clipboard, at most ${MAX_CLIPBOARD} characters. Use it when they say that they copied something.`,
  annotations: { readOnlyHint: true, openWorldHint: false },
  // The browser may ask the person once more, in a dialog of its own.
  timeLimit: 120,
  run: async () => {
    const read = await clipboard().readText();
    if (read === "") return "The clipboard holds no text.";
    if (read.length <= MAX_CLIPBOARD) return read;
    return `${read.slice(0, MAX_CLIPBOARD)}\n[cut: ${read.length - MAX_CLIPBOARD} more characters]`;
  },
});

const writeClipboard = defineTool({
  name: "write_clipboard",
  title: "Put text on the clipboard",
  description: "Puts text on the person's clipboard, in place of what is there, so that they can paste it.",
  annotations: { readOnlyHint: false, destructiveHint: true, idempotentHint: true, openWorldHint: false },
  input: { properties: { text: text("What to put there.", { minLength: 1 }) }, required: ["text"] },
  run: async (args) => {
    const value = String(args["text"]);
    await clipboard().writeText(value);
    return `${value.length} characters are on the clipboard.`;
  },
});

const saveFile = defineTool({
  name: "save_file",
  title: "Save a file to the person's disk",
  description:
    "Gives the person a file, as a download of their browser. The workspace is a copy in memory: this is how a result leaves it.",
  annotations: { readOnlyHint: false, destructiveHint: false, openWorldHint: false },
  input: {
    properties: {
      name: text("Name of the file, without a folder.", { minLength: 1, maxLength: 200 }),
      content: text("What is in it.", { maxLength: MAX_SAVED }),
      encoding: {
        enum: ["text", "base64"],
        default: "text",
        description: "How `content` is written: as it is, or as base64 for binary files.",
      },
    },
    required: ["name", "content"],
  },
  run: (args) => {
    const name = fileName(String(args["name"]));
    const content = String(args["content"]);
    const data = args["encoding"] === "base64" ? fromBase64(content) : new TextEncoder().encode(content);
    // A type of its own would let the browser open it in this origin; this one is only ever saved.
    const url = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    link.click();
    // The download has its own hold on the data once it began.
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    return `${name} (${data.length} bytes) was handed to the browser, which saves it among the person's downloads.`;
  },
});

const notify = defineTool({
  name: "notify",
  title: "Notify the person",
  description:
    "Shows a notification of the system with a short text, for when something is done that took long and the person looks elsewhere.",
  annotations: { readOnlyHint: false, destructiveHint: false, openWorldHint: false },
  input: {
    properties: { text: text("One sentence.", { minLength: 1, maxLength: 300 }) },
    required: ["text"],
  },
  timeLimit: 120,
  run: async (args) => {
    if (typeof Notification === "undefined") throw new Error("This browser has no notifications.");
    if ((await Notification.requestPermission()) !== "granted") {
      throw new Error("The person's browser does not let this page show notifications.");
    }
    new Notification("Sandport", { body: String(args["text"]), tag: "sandport" });
    return "The notification was shown.";
  },
});

/** All of them. */
export const PAGE_TOOLS: readonly Tool[] = [personSettings, readClipboard, writeClipboard, saveFile, notify];

function clipboard(): Clipboard {
  // Absent where the page was not served over HTTPS or from this machine.
  if (!("clipboard" in navigator)) throw new Error("This browser gives this page no clipboard.");
  return navigator.clipboard;
}

/** A name that stays in the folder for downloads and shows its real ending. */
export function fileName(name: string): string {
  const plain = name
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "")
    .replace(/[/\\:*?"<>|]/g, "_")
    .replace(/^[\s.]+|[\s.]+$/g, "");
  if (plain === "") throw new Error(`'${name}' is no name for a file.`);
  return plain;
}

function fromBase64(content: string): Uint8Array<ArrayBuffer> {
  try {
    return Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
  } catch {
    throw new Error("`content` is no base64.");
  }
}
