/**
 * Markdown as elements.
 *
 * Invariant: agent and tool text can only ever become the elements named here. HTML stays visible text, images become
 * their description, links are web addresses that open apart and send no referrer. Nothing in it makes the page load
 * anything (case Z08): there is no HTML string anywhere on the way.
 */

import { Lexer, type Token, type Tokens } from "marked";
import type { ComponentChildren, VNode } from "preact";
import { CodeBlock } from "../ui/code-block.tsx";

const lexer = { gfm: true, breaks: true };

/** The address if it is one a person may follow, else undefined. */
export function safeLink(href: string): string | undefined {
  try {
    const { protocol } = new URL(href);
    return protocol === "https:" || protocol === "http:" || protocol === "mailto:" ? href : undefined;
  } catch {
    return undefined;
  }
}

/** marked escapes nothing in its tokens but leaves character references; the common ones are read here. */
const REFERENCES: Record<string, string> = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  "#39": "'",
  nbsp: "\u00a0",
};
function readReferences(text: string): string {
  return text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (all, name: string) => REFERENCES[name] ?? all);
}

function children(tokens: readonly Token[] | undefined): ComponentChildren[] {
  return (tokens ?? []).map((token, at) => element(token, at));
}

function heading(token: Tokens.Heading, key: number): VNode {
  // The page's own outline has h1 and h2: a message starts below.
  const content = children(token.tokens);
  if (token.depth === 1) return <h3 key={key}>{content}</h3>;
  if (token.depth === 2) return <h4 key={key}>{content}</h4>;
  return <h5 key={key}>{content}</h5>;
}

function list(token: Tokens.List, key: number): VNode {
  const items = token.items.map((item, at) => <li key={at}>{children(item.tokens)}</li>);
  if (!token.ordered) return <ul key={key}>{items}</ul>;
  return (
    <ol key={key} start={typeof token.start === "number" ? token.start : 1}>
      {items}
    </ol>
  );
}

function table(token: Tokens.Table, key: number): VNode {
  return (
    <div key={key} class="table-scroll">
      <table>
        <thead>
          <tr>
            {token.header.map((cell, at) => (
              <th key={at}>{children(cell.tokens)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, at) => (
            <tr key={at}>
              {row.map((cell, column) => (
                <td key={column}>{children(cell.tokens)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function element(token: Token, key: number): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return heading(token as Tokens.Heading, key);
    case "paragraph":
      return <p key={key}>{children(token.tokens)}</p>;
    case "text":
      return "tokens" in token && token.tokens ? children(token.tokens) : readReferences(token.text);
    case "escape":
      return readReferences(token.text);
    case "strong":
      return <strong key={key}>{children(token.tokens)}</strong>;
    case "em":
      return <em key={key}>{children(token.tokens)}</em>;
    case "del":
      return <del key={key}>{children(token.tokens)}</del>;
    case "br":
      return <br key={key} />;
    case "hr":
      return <hr key={key} />;
    case "codespan":
      return <code key={key}>{readReferences(token.text)}</code>;
    case "code":
      return <CodeBlock key={key} text={token.text} label={token.lang || "text"} />;
    case "blockquote":
      return <blockquote key={key}>{children(token.tokens)}</blockquote>;
    case "list":
      return list(token as Tokens.List, key);
    case "checkbox":
      return token.checked ? "☑ " : "☐ ";
    case "table":
      return table(token as Tokens.Table, key);
    case "link": {
      const href = safeLink(token.href);
      if (!href) return <span key={key}>{token.raw}</span>;
      return (
        <a key={key} href={href} target="_blank" rel="noopener noreferrer nofollow" title={href}>
          {children(token.tokens)}
        </a>
      );
    }
    case "image":
      return (
        <span key={key} class="image-text" title={token.href}>
          [image: {token.text || token.href}]
        </span>
      );
    default:
      // HTML and whatever a later version of the lexer may know: as it was written.
      return token.raw;
  }
}

/** Renders markdown; see the module's invariant. */
export function Markdown({ text }: { text: string }): VNode {
  return <div class="markdown">{children(new Lexer(lexer).lex(text))}</div>;
}
