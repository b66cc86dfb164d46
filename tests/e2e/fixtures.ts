/** A real gateway with a real agent behind it, and the real page in front. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { type Browser, test as base, expect, type Page } from "@playwright/test";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));

/** The bundle under test. */
const DIST = process.env["SANDPORT_DIST"] ?? path.join(ROOT, "dist");

/** A running `sandport serve`. */
export interface Gateway {
  /** The address that it printed, token included. */
  readonly url: string;
  readonly origin: string;
  readonly token: string;
  /** What it logged so far. */
  log(): string;
  stop(): Promise<void>;
}

/** Starts a gateway; `args` go to `sandport serve`. */
export async function startGateway(args: readonly string[] = []): Promise<Gateway> {
  const child: ChildProcess = spawn(
    path.join(ROOT, ".venv/bin/sandport"),
    ["serve", "--dist", DIST, ...args],
    {
      cwd: ROOT,
      env: {
        ...process.env,
        SANDPORT_AGENTPOOL: path.join(ROOT, ".venv-agentpool/bin/sandport"),
        LOGFIRE_IGNORE_NO_CONFIG: "1",
      },
      stdio: ["ignore", "pipe", "pipe"],
    },
  );
  let log = "";
  child.stderr?.on("data", (data) => {
    log += data;
  });
  const url = await new Promise<string>((resolve, reject) => {
    let out = "";
    child.stdout?.on("data", (data) => {
      out += data;
      const found = /http:\/\/\S+#token=\S+/.exec(out);
      if (found) resolve(found[0]);
    });
    child.once("exit", (code) => reject(new Error(`sandport serve ended with ${code}: ${log}`)));
  });
  return {
    url,
    origin: new URL(url).origin,
    token: url.split("#token=")[1] ?? "",
    log: () => log,
    async stop() {
      if (child.exitCode !== null) return;
      const exited = once(child, "exit");
      child.kill("SIGTERM");
      await exited;
    },
  };
}

/** The command line of the scripted agent. */
export function scripted(...options: string[]): string[] {
  const agent = fileURLToPath(new URL("agents/scripted.mjs", import.meta.url));
  return ["--agent", [process.execPath, agent, ...options].join(" ")];
}

/** What a person does with the page. */
export class PageDriver {
  readonly page: Page;

  constructor(page: Page) {
    this.page = page;
  }

  async open(url: string): Promise<this> {
    await this.page.goto(url);
    return this;
  }

  /** Waits until one can write to the agent and the sandbox serves. */
  async ready(): Promise<this> {
    await expect(this.page.getByTestId("sandbox-chip")).toContainText("Sandbox ready", { timeout: 180_000 });
    await this.agentReady();
    return this;
  }

  async agentReady(): Promise<this> {
    await expect(this.page.getByPlaceholder("Ask the agent…")).toBeVisible({ timeout: 90_000 });
    return this;
  }

  /** Sends a message, as soon as the turn before has ended, without waiting for its answer. */
  async send(text: string): Promise<void> {
    await expect(this.page.getByRole("button", { name: "Send" })).toBeVisible({ timeout: 90_000 });
    await this.page.getByLabel("Message to the agent").fill(text);
    await this.page.getByLabel("Message to the agent").press("Enter");
  }

  /** Sends a message and returns the agent's last message of the turn. */
  async ask(text: string): Promise<string> {
    await this.send(text);
    await expect(this.page.getByRole("button", { name: "Send" })).toBeVisible({ timeout: 90_000 });
    return (await this.page.getByLabel("Agent", { exact: true }).last().innerText()).trim();
  }

  messages(of: "You" | "Agent") {
    return this.page.getByLabel(of, { exact: true });
  }

  async panel(name: "Tools" | "Log" | "Files" | "Add"): Promise<void> {
    await this.page
      .getByRole("navigation", { name: "Panels" })
      .getByRole("button", { name, exact: true })
      .click();
  }
}

/** A page that stays open over several tests: starting Python takes most of the time of a test. */
export interface Booted {
  readonly gateway: Gateway;
  readonly page: Page;
  readonly driver: PageDriver;
  /** Requests to other places than the gateway. */
  readonly foreign: readonly string[];
  readonly errors: readonly string[];
  close(): Promise<void>;
}

/** Starts a gateway and a page on it, up to a serving sandbox and an agent that is ready. */
export async function boot(browser: Browser, args: readonly string[] = []): Promise<Booted> {
  const gateway = await startGateway(args);
  const context = await browser.newContext({
    viewport: { width: 1280, height: 800 },
    reducedMotion: "reduce",
  });
  const page = await context.newPage();
  const foreign = await onlyLoopback(page, gateway.origin);
  const errors = complaints(page);
  const driver = new PageDriver(page);
  await driver.open(gateway.url);
  await driver.ready();
  return {
    gateway,
    page,
    driver,
    foreign,
    errors,
    async close() {
      await context.close();
      await gateway.stop();
    },
  };
}

/** Keeps the sandbox from starting, for tests that only talk to the agent. The page works without it. */
export async function withoutSandbox(page: Page): Promise<void> {
  await page.route("**/runtime/**", (route) => route.abort());
}

/** Cuts the network off: every request to another place than the gateway fails the test, and does not leave. */
export async function onlyLoopback(page: Page, origin: string): Promise<string[]> {
  const foreign: string[] = [];
  await page.context().route("**/*", (route) => {
    const url = route.request().url();
    if (url.startsWith(`${origin}/`) || url.startsWith("blob:") || url.startsWith("data:"))
      return route.continue();
    foreign.push(url);
    return route.abort();
  });
  return foreign;
}

/** Console errors and uncaught errors of the page. */
export function complaints(page: Page): string[] {
  const found: string[] = [];
  page.on("console", (message) => {
    if (message.type() === "error") found.push(message.text());
  });
  page.on("pageerror", (error) => found.push(String(error)));
  return found;
}

interface Fixtures {
  /** Starts gateways that end with the test. */
  gateway(args?: readonly string[]): Promise<Gateway>;
  driver: PageDriver;
}

export const test = base.extend<Fixtures>({
  // biome-ignore lint/correctness/noEmptyPattern: Playwright reads the names from the pattern
  gateway: async ({}, use) => {
    if (!existsSync(path.join(DIST, "runtime/manifest.json"))) {
      throw new Error("there is no bundle in dist/: run ./build.sh build first");
    }
    const started: Gateway[] = [];
    await use(async (args) => {
      const gateway = await startGateway(args);
      started.push(gateway);
      return gateway;
    });
    for (const gateway of started) await gateway.stop();
  },
  driver: async ({ page }, use) => {
    await use(new PageDriver(page));
  },
});

export { expect };
