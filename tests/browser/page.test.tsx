/** What the page makes of foreign text: markdown, JSON, zips and addresses. */

import { readFileSync } from "node:fs";
import { strToU8, unzipSync, zipSync } from "fflate";
import type { ComponentChildren, VNode } from "preact";
import { describe, expect, it } from "vitest";
import { briefArguments, formatJson, readable } from "../../web/src/lib/json-format.ts";
import { Markdown, safeLink } from "../../web/src/lib/markdown.tsx";
import { takeToken } from "../../web/src/lib/token.ts";
import {
  listZip,
  packForDownload,
  readZipFile,
  readZipText,
  WorkspaceError,
} from "../../web/src/model/workspace.ts";

/** The elements of a tree, with their properties, and its text. */
function flatten(node: ComponentChildren): { elements: VNode[]; text: string } {
  if (Array.isArray(node)) {
    const parts = node.map(flatten);
    return {
      elements: parts.flatMap((part) => part.elements),
      text: parts.map((part) => part.text).join(""),
    };
  }
  if (typeof node === "string" || typeof node === "number") return { elements: [], text: String(node) };
  if (typeof node !== "object" || node === null || !("type" in node)) return { elements: [], text: "" };
  const inner = flatten((node.props as { children?: ComponentChildren }).children);
  return { elements: [node, ...inner.elements], text: inner.text };
}

const render = (text: string) => flatten(Markdown({ text }));
const names = (text: string) =>
  render(text).elements.map(({ type }) => (typeof type === "string" ? type : type.name));

describe("Markdown", () => {
  it("Z08: HTML stays text and images load nothing", () => {
    const hostile = [
      "<script>alert(1)</script>",
      '<img src="http://evil.example/a.png" onerror="x()">',
      "![pixel](http://evil.example/b.png)",
      "text <b onclick=x()>bold</b> <iframe src=//evil.example></iframe>",
      "<style>*{background:url(http://evil.example/c)}</style>",
      "[click](javascript:alert(1)) [data](data:text/html,x)",
      "[ref]: http://evil.example/d",
      "![ref]",
    ].join("\n\n");
    const { elements, text } = render(hostile);
    const allowed = ["div", "p", "span", "br", "strong"];
    expect(elements.filter(({ type }) => !allowed.includes(String(type)))).toEqual([]);
    for (const { props } of elements) {
      expect(Object.keys(props).filter((name) => /^(on|src|href|style|dangerously)/i.test(name))).toEqual([]);
    }
    expect(text).toContain("<script>alert(1)</script>");
    expect(text).toContain("[image: pixel]");
    expect(text).toContain("[click](javascript:alert(1))");
  });

  it("knows the common forms", () => {
    expect(
      names("# A\n\n- b\n\n1. c\n\n> d\n\n`e` **f** *g* ~~h~~\n\n---\n\n|i|\n|-|\n|j|\n\n```py\nk\n```"),
    ).toEqual(
      expect.arrayContaining([
        "h3",
        "ul",
        "ol",
        "blockquote",
        "code",
        "strong",
        "em",
        "del",
        "hr",
        "table",
        "CodeBlock",
      ]),
    );
  });

  it("opens links apart and without a referrer", () => {
    const link = render("[docs](https://example.org/a)").elements.find(({ type }) => type === "a");
    expect(link?.props).toMatchObject({
      href: "https://example.org/a",
      target: "_blank",
      rel: expect.stringContaining("noreferrer"),
    });
  });

  it("reads character references as what they stand for", () => {
    expect(render("a &lt;b&gt; &amp; `x &lt; y`").text).toContain("a <b> &");
  });
});

it.each([
  ["https://example.org", true],
  ["mailto:a@example.org", true],
  ["javascript:alert(1)", false],
  ["JAVASCRIPT:alert(1)", false],
  ["data:text/html,x", false],
  ["//evil.example", false],
  ["file:///etc/passwd", false],
])("safeLink %s: %s", (href, safe) => {
  expect(safeLink(href) !== undefined).toBe(safe);
});

describe("formatJson", () => {
  it("keeps every digit, the order of keys and what is inside strings", () => {
    expect(formatJson('{"b":1915883588174806058,"a":[1.10,"x, {y}: \\""],"c":{},"d":[]}')).toBe(
      '{\n  "b": 1915883588174806058,\n  "a": [\n    1.10,\n    "x, {y}: \\""\n  ],\n  "c": {},\n  "d": []\n}',
    );
  });

  it.each(["plain text", "{broken", "", "12"])("leaves %j as it is", (text) => {
    expect(formatJson(text)).toBe(text);
  });

  it("has a short form for one line", () => {
    expect(briefArguments('{"path":"a.py","limit":5}')).toBe('path="a.py", limit=5');
    expect(briefArguments(JSON.stringify({ code: "x".repeat(500) }), 40)).toHaveLength(40);
  });
});

describe("readable", () => {
  it("parts programs from the rest, and keeps the rest exact", () => {
    expect(readable('{"n":1915883588174806058,"code":"a\\nb","s":"one line\\n"}')).toEqual({
      json: '{\n  "n": 1915883588174806058,\n  "s": "one line\\n"\n}',
      texts: [{ name: "code", text: "a\nb" }],
    });
    expect(readable('{"code":"a\\nb"}').json).toBeUndefined();
  });

  it.each(["[]", "text", '"a\\nb"', "{}"])("leaves %j whole", (text) => {
    expect(readable(text)).toEqual({ json: text, texts: [] });
  });
});

describe("workspace zips", () => {
  it("lists files, sorted, without those that would leave the folder", () => {
    const zip = zipSync({
      "b/c.txt": strToU8("hi"),
      "a.txt": strToU8("a"),
      "../x": strToU8("x"),
      "/y": strToU8("y"),
      "..\\z": strToU8("z"),
    });
    expect(listZip(zip)).toEqual([
      { path: "a.txt", size: 1 },
      { path: "b/c.txt", size: 2 },
    ]);
    expect(readZipText(zip, "b/c.txt")).toBe("hi");
    // What a person saves holds what was listed and nothing else.
    const saved = packForDownload(zip);
    expect(Object.keys(unzipSync(saved)).sort()).toEqual(["a.txt", "b/c.txt"]);
    expect(readZipFile(saved, "b/c.txt")).toEqual(strToU8("hi"));
    expect(readZipFile(saved, "../x")).toBeUndefined();
  });

  it("shows no binary file and says what is no zip", () => {
    expect(readZipText(zipSync({ x: new Uint8Array([1, 0, 2]) }), "x")).toBeUndefined();
    expect(() => listZip(strToU8("not a zip at all, but long enough"))).toThrow(WorkspaceError);
  });
});

describe("takeToken", () => {
  function page(hash: string, stored?: string) {
    const values = new Map<string, string>(stored ? [["sandport.token", stored]] : []);
    const storage = {
      getItem: (key: string) => values.get(key) ?? null,
      setItem: (key: string, value: string) => values.set(key, value),
    } as unknown as Storage;
    const shown: string[] = [];
    globalThis.history = {
      state: null,
      replaceState: (_state: unknown, _title: string, url: string) => shown.push(url),
    } as unknown as History;
    return { location: { hash, pathname: "/", search: "" } as Location, storage, shown, values };
  }

  it("takes it from the address, clears the address and keeps it for a reload", () => {
    const it = page("#token=abc");
    expect(takeToken(it.location, it.storage)).toBe("abc");
    expect(it.shown).toEqual(["/"]);
    expect(it.values.get("sandport.token")).toBe("abc");
  });

  it("falls back to what the tab knows, and to nothing", () => {
    const known = page("", "kept");
    expect(takeToken(known.location, known.storage)).toBe("kept");
    const unknown = page("#other=1");
    expect(takeToken(unknown.location, unknown.storage)).toBeUndefined();
  });
});

describe("colours", () => {
  const css = readFileSync(new URL("../../web/src/style.css", import.meta.url), "utf8");
  const tokens = new Map(
    [...css.matchAll(/--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)/g)].map(
      ([, name, light, dark]) => [name ?? "", { light: light ?? "", dark: dark ?? "" }] as const,
    ),
  );

  /** Relative luminance, WCAG 2.2. */
  function luminance(hex: string): number {
    const [red = 0, green = 0, blue = 0] = [1, 3, 5].map((at) => {
      const part = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  function contrast(one: string, other: string): number {
    const [lighter = 0, darker = 0] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (lighter + 0.05) / (darker + 0.05);
  }

  const TEXT = 4.5;
  const EDGE = 3;
  const grounds = ["paper", "raised", "sunk", "user", "sea-wash", "bad-wash", "warn-wash"];
  const pairs: [string, string, number][] = [
    ...["ink", "ink-soft"].flatMap((ink) =>
      grounds.map((ground): [string, string, number] => [ink, ground, TEXT]),
    ),
    ...["paper", "raised", "sea-wash"].map((ground): [string, string, number] => ["sea", ground, TEXT]),
    ["on-sea", "sea", TEXT],
    ["on-sea", "sea-strong", TEXT],
    ["bad", "bad-wash", TEXT],
    ["warn", "warn-wash", TEXT],
    ["warn", "sea-wash", TEXT],
    ["field", "paper", EDGE],
    ["field", "raised", EDGE],
    ["sea", "sunk", EDGE],
  ];

  it.each(pairs)("%s on %s has a contrast of %d, by day and by night", (front, back, least) => {
    for (const scheme of ["light", "dark"] as const) {
      const [one, other] = [tokens.get(front)?.[scheme], tokens.get(back)?.[scheme]];
      expect(contrast(one ?? "", other ?? "")).toBeGreaterThanOrEqual(least);
    }
  });
});
