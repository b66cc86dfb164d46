/**
 * A person at the page, as a script inside it: switches tools on, registers one, asks the agent, answers its questions.
 *
 * Invariant: it touches what a person can touch and reads what a person can read; it waits for changes of the page, never
 * for time. Loaded before the page's own script, by tests/web_tools/engines.mjs.
 */

/** Waits until `look` gives something; looks again at each change of the page. */
function until(what, look) {
  return new Promise((resolve, reject) => {
    const seen = () => {
      const found = look();
      if (!found) return;
      watcher.disconnect();
      document.removeEventListener("focusin", seen);
      clearTimeout(timer);
      resolve(found);
    };
    const watcher = new MutationObserver(seen);
    const timer = setTimeout(() => {
      watcher.disconnect();
      document.removeEventListener("focusin", seen);
      reject(new Error(`never came: ${what}; the page shows: ${document.body.innerText.slice(0, 1500)}`));
    }, 60_000);
    watcher.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
    document.addEventListener("focusin", seen);
    seen();
  });
}

const one = (selector) => document.querySelector(selector);
const question = () => one("[role=alertdialog]");
const ready = () =>
  until(
    "an agent that is ready",
    () => one("#composer")?.placeholder === "Ask the agent…" && one("[aria-label=Send]"),
  );

/** Sends a message; returns what the agent said last when `done` is satisfied with it. */
async function say(text, done = () => true) {
  await ready();
  const before = document.querySelectorAll("article.message.user").length;
  const field = one("#composer");
  field.value = text;
  field.dispatchEvent(new InputEvent("input", { bubbles: true }));
  await until("a message that can be sent", () => one("[aria-label=Send]:not(:disabled)"));
  field.form.requestSubmit();
  await until("the message", () => document.querySelectorAll("article.message.user").length > before);
  return () =>
    until(`an answer to ${text}`, () => {
      const all = [...document.querySelectorAll("article.message")];
      const said = all.at(-1)?.classList.contains("agent") ? all.at(-1).textContent : "";
      return one("[aria-label=Send]") && done(said) && said;
    });
}

async function answer(name) {
  const button = await until(`the answer ${name}`, () =>
    [...(question()?.querySelectorAll("button[aria-disabled=false]") ?? [])].find(
      (candidate) => candidate.textContent === name,
    ),
  );
  button.click();
}

async function switchOn(server, on = true) {
  const button = await until(`the switch of ${server}`, () => one(`[data-testid=lend-${server}]`));
  if (button.checked !== on) button.click();
  await until("the switch", () => button.checked === on && button.closest("[aria-busy=false]"));
  await ready();
}

function check(condition, what) {
  if (!condition) throw new Error(what);
}

const steps = {
  async "nothing is lent before it is switched on"() {
    const said = await (await say("tools page"))();
    check(said.includes("there are: none"), said);
    one("[aria-label=Views] button:nth-child(2), [aria-label=Panels] button")?.click();
    await switchOn("page");
    await switchOn("webmcp");
    // This agent keeps no sessions, so the person begins a new one.
    const again = await until("the way to a new conversation", () =>
      [...document.querySelectorAll("button.link")].find((candidate) =>
        candidate.textContent.includes("new conversation"),
      ),
    );
    again.click();
    await until("the new conversation", () => !one("article.message"));
    const tools = await (await say("tools page"))();
    check(tools.includes("person_settings"), tools);
  },

  async "no is no, once is once"() {
    const refused = await say("call page person_settings {}");
    await until("a question", question);
    await until("a question that has the focus", () => question() === document.activeElement);
    await answer("Do not allow");
    const no = await refused();
    check(no.includes("did not allow"), no);
    const allowed = await say("call page person_settings {}");
    await answer("Allow once");
    const yes = await allowed();
    check(yes.includes(Intl.DateTimeFormat().resolvedOptions().timeZone), yes);
    await until("the focus back in the message field", () => document.activeElement?.id === "composer");
  },

  async "a tool of a script comes, asks with its origin, runs, and goes"() {
    const life = new AbortController();
    await document.modelContext.registerTool(
      {
        name: "add",
        description: "Adds two numbers.",
        inputSchema: {
          type: "object",
          properties: { a: { type: "number" }, b: { type: "number" } },
          required: ["a", "b"],
        },
        execute: ({ a, b }) => ({ sum: a + b }),
      },
      { signal: life.signal },
    );
    const listed = () =>
      [...document.querySelectorAll(".tool-name")].some((candidate) => candidate.textContent === "add");
    await until("the tool in the panel", listed);
    const sum = await say('call webmcp add {"a": 2, "b": 3}');
    await until("a question", question);
    check(question().textContent.includes(location.origin), "the question does not say the origin");
    await answer("Allow in this conversation");
    const said = await sum();
    check(said.includes('"sum":5'), said);
    const more = await (await say('call webmcp add {"a": 4, "b": 5}'))();
    check(more.includes('"sum":9'), more);
    const wrong = await (await say('call webmcp add {"a": "two"}'))();
    check(wrong.includes("error"), wrong);
    life.abort();
    await until("the tool gone from the panel", () => !listed());
    const none = await (await say("tools webmcp"))();
    check(none.includes("tools: none"), none);
  },

  async "a question closes when the agent takes its call back, and when the tools are switched off"() {
    const hasty = await say("hasty page person_settings {}");
    await until("a question", question);
    const said = await hasty();
    check(said.includes("-32800"), said);
    await until("no question", () => !question());
    const call = await say("call page person_settings {}");
    await until("a question", question);
    one("[data-testid=lend-page]").click();
    const over = await call();
    check(over.includes("switched the tools of page off"), over);
    check(!question(), "the question is still there");
    const none = await (await say("tools page"))();
    check(none.includes("tools: none"), none);
  },
};

globalThis.drive = async () => {
  const outcomes = [];
  for (const [name, run] of Object.entries(steps)) {
    const began = performance.now();
    try {
      await run();
      outcomes.push({ name, ok: true, detail: "", ms: performance.now() - began });
    } catch (error) {
      outcomes.push({ name, ok: false, detail: String(error), ms: performance.now() - began });
      // What follows builds on it.
      break;
    }
  }
  return outcomes;
};
