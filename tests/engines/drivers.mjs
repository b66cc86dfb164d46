/**
 * Three engines behind one small interface: open a page, call its global async function, close.
 *
 * Invariant: what a driver started it ends, by process id. A missing browser is said by the package that brings it.
 */

import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import puppeteer from "puppeteer-core";

const CALL_TIMEOUT = 300_000;

const CHROMIUM = [
  process.env.SANDPORT_CHROMIUM,
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
];
const FIREFOX = [process.env.SANDPORT_FIREFOX, "/usr/bin/firefox-esr", "/usr/bin/firefox"];
const WEBKIT = ["/usr/bin/WebKitWebDriver"];
const MINIBROWSER = [
  "/usr/lib/x86_64-linux-gnu/webkit2gtk-4.1/MiniBrowser",
  "/usr/lib/aarch64-linux-gnu/webkit2gtk-4.1/MiniBrowser",
];

function find(paths, packageName) {
  const found = paths.find((file) => file && existsSync(file));
  if (!found) throw new Error(`not installed: apt-get install ${packageName}`);
  return found;
}

async function withPuppeteer(options) {
  const browser = await puppeteer.launch({ headless: true, protocolTimeout: CALL_TIMEOUT, ...options });
  return {
    async call(url, name, ...args) {
      const page = await browser.newPage();
      const errors = [];
      page.on("pageerror", (error) => errors.push(String(error).slice(0, 500)));
      page.on("console", (message) => {
        if (process.env.SANDPORT_VERBOSE) console.error(`  [console] ${message.text().slice(0, 500)}`);
      });
      await page.goto(url);
      try {
        return await page.evaluate((name, args) => globalThis[name](...args), name, args);
      } catch (error) {
        throw new Error(`${error.message}${errors.length > 0 ? `; page: ${errors.join("; ")}` : ""}`);
      } finally {
        await page.close();
      }
    },
    close: () => browser.close(),
  };
}

export const ENGINES = {
  chromium: () =>
    withPuppeteer({
      executablePath: find(CHROMIUM, "chromium"),
      args: [
        ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []),
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
      ],
    }),

  firefox: () =>
    withPuppeteer({
      browser: "firefox",
      executablePath: find(FIREFOX, "firefox-esr"),
      extraPrefsFirefox: { "app.update.enabled": false, "network.captive-portal-service.enabled": false },
    }),

  async webkit() {
    const driver = find(WEBKIT, "webkit2gtk-driver");
    const binary = find(MINIBROWSER, "webkit2gtk-driver");
    const children = [];
    const start = (command, args, env = {}) => {
      const child = spawn(command, args, {
        stdio: ["ignore", "pipe", "ignore"],
        env: { ...process.env, ...env },
      });
      children.push(child);
      return child;
    };
    const end = () => {
      for (const child of children.reverse()) child.kill();
    };
    let env = {};
    if (!process.env.DISPLAY) {
      // -displayfd: Xvfb picks a free display and writes its number when it is ready.
      const screen = start(find(["/usr/bin/Xvfb"], "xvfb"), [
        "-displayfd",
        "1",
        "-screen",
        "0",
        "1280x900x24",
        "-nolisten",
        "tcp",
      ]);
      const display = await new Promise((resolve, reject) => {
        screen.stdout.once("data", (data) => resolve(String(data).trim()));
        screen.once("exit", () => reject(new Error("Xvfb ended")));
      });
      env = { DISPLAY: `:${display}` };
    }
    const port = await freePort();
    start(driver, ["-p", String(port)], env);
    const base = `http://127.0.0.1:${port}`;
    const ask = async (method, address, body) => {
      const response = await fetch(base + address, {
        method,
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
        signal: AbortSignal.timeout(CALL_TIMEOUT),
      });
      const { value } = await response.json();
      if (!response.ok) throw new Error(`${value.error}: ${value.message}`);
      return value;
    };
    try {
      await answering(base);
      const { sessionId } = await ask("POST", "/session", {
        capabilities: { alwaysMatch: { "webkitgtk:browserOptions": { binary, args: ["--automation"] } } },
      });
      const session = `/session/${sessionId}`;
      await ask("POST", `${session}/timeouts`, { script: CALL_TIMEOUT, pageLoad: 60_000 });
      return {
        async call(url, name, ...args) {
          await ask("POST", `${session}/url`, { url });
          const script = `const done = arguments[arguments.length - 1];
            globalThis[arguments[0]](...arguments[1]).then((value) => done({ value }), (error) => done({ error: String(error && error.message || error) }));`;
          const result = await ask("POST", `${session}/execute/async`, { script, args: [name, args] });
          if (result.error !== undefined) throw new Error(result.error);
          return result.value;
        },
        async close() {
          await ask("DELETE", session).catch(() => {});
          end();
        },
      };
    } catch (error) {
      end();
      throw error;
    }
  },
};

function freePort() {
  return new Promise((resolve) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

async function answering(base) {
  for (let left = 100; ; left--) {
    try {
      await fetch(`${base}/status`);
      return;
    } catch (error) {
      if (left === 0) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

/**
 * Whether WebKit failed in the way it does about once in fifty starts from a memory image: its WebAssembly reads out of
 * bounds in the first calls. The sandbox recovers by itself; a check that met it tells nothing and is run once more.
 */
export const metTornImage = (engine, detail) =>
  engine === "webkit" && /Out of bounds memory access/.test(detail ?? "");
