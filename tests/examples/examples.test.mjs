/**
 * The page examples in Chromium, served by Vite, against the example agent over a real WebSocket.
 *
 *     node --test tests/examples/examples.test.mjs
 */

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import path from "node:path";
import { createInterface } from "node:readline";
import { after, before, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { createServer } from "vite";
import { launchChromium } from "./chromium.mjs";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const BOOT = { timeout: 180_000 };
let agent;
let address;
let browser;

before(async () => {
  assert.ok(existsSync(path.join(ROOT, "dist/sandbox.html")), "build the bundle first: ./build.sh build");
  agent = spawn(process.execPath, [path.join(ROOT, "examples/agent/agent.mjs"), "--port", "0"], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  address = await new Promise((resolve) => createInterface({ input: agent.stdout }).once("line", resolve));
  browser = await launchChromium();
});

after(async () => {
  await browser?.close();
  agent?.kill();
});

/** Opens an example; `dialogs` collects the questions, which `answer` decides. */
async function open(name, answer, run) {
  const vite = await createServer({
    root: path.join(ROOT, "examples", name),
    configFile: path.join(ROOT, "examples/vite.config.ts"),
    logLevel: "error",
    server: { host: "127.0.0.1", port: 0 },
    cacheDir: path.join(ROOT, ".cache/vite", name),
  });
  await vite.listen();
  const page = await browser.newPage();
  const dialogs = [];
  const errors = [];
  page.on("dialog", async (dialog) => {
    dialogs.push(dialog.message());
    await (answer(dialog.message()) ? dialog.accept() : dialog.dismiss());
  });
  page.on("pageerror", (error) => errors.push(String(error)));
  try {
    const { port } = vite.httpServer.address();
    await page.goto(`http://127.0.0.1:${port}/?agent=${encodeURIComponent(address)}`);
    await page.getByText("Ready.").waitFor(BOOT);
    const say = async (text, expected) => {
      await page.getByLabel("Say").fill(text);
      await page.getByRole("button", { name: "Send" }).click();
      await page.getByText(expected).first().waitFor({ timeout: 60_000 });
    };
    await run(page, say, dialogs);
    assert.deepEqual(errors, []);
  } catch (error) {
    throw new Error(`${error.message}\n${await page.locator("pre").textContent()}\n${errors.join("\n")}`);
  } finally {
    await page.close();
    await vite.close();
  }
}

describe("examples", () => {
  it("01-typescript-sdk: Python, JavaScript and WebMCP tools on one port", BOOT, async () => {
    const answer = (question) => !question.includes('"by":5');
    await open("01-typescript-sdk", answer, async (page, say, dialogs) => {
      await say("tools", /webmcp\/page_title: Tells the page's title/);
      await say('call primes {"below": 20}', /primes says: .*19/s);
      assert.deepEqual(dialogs, []);
      await say('call count_up {"by": 2}', "count_up says: 2");
      assert.equal(await page.locator("#counter").textContent(), "2");
      await say('call count_up {"by": 5}', /count_up failed: The person at the page did not allow/);
      assert.equal(await page.locator("#counter").textContent(), "2");
      await say("call page_title", "page_title says: Sandport with the TypeScript SDK");
      const origin = new URL(page.url()).origin;
      assert.equal(dialogs.at(-1), `May the agent run page_title({}) of ${origin}?`);
      assert.equal(dialogs.length, 3);
    });
  });

  it("02-react-use-acp: a client that opens its own WebSocket", BOOT, async () => {
    await open(
      "02-react-use-acp",
      () => true,
      async (_, say, dialogs) => {
        await say("tools", /page\/window_size: Tells the size of the page/);
        await say('call run_python {"code": "6 * 7"}', /run_python says: .*42/s);
        await say("call window_size", /window_size says: \{"width":1280,"height":720\}/);
        assert.deepEqual(dialogs, ["May the agent run window_size?"]);
      },
    );
  });
});
