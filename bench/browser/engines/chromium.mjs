import { chromium } from "@playwright/test";

/** Chromium by Playwright, with a profile on disk, so that its HTTP cache is the one that people have. */
export async function openChromium(profile) {
  const context = await chromium.launchPersistentContext(profile, {
    headless: true,
    ...(process.env.CHROMIUM ? { executablePath: process.env.CHROMIUM } : {}),
    args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
  });
  const page = context.pages()[0] ?? (await context.newPage());
  page.setDefaultTimeout(180_000);
  return {
    version: context.browser()?.version() ?? "",
    async open({ url }) {
      await page.goto("about:blank");
      await page.goto(url);
    },
    run: ({ code }) => page.evaluate(`(async () => { ${code} })()`),
    /** Samples the worker that runs Python while the code runs; answers with seconds by function. */
    async profile({ code, interval = 200 }) {
      const session = await context.newCDPSession(page);
      const samples = await profileWorkers(session, interval, () =>
        page.evaluate(`(async () => { ${code} })()`),
      );
      await session.detach();
      return samples;
    },
    close: () => context.close(),
  };
}

/** Runs `work` with the profiler on in every worker below the page. */
async function profileWorkers(root, interval, work) {
  const workers = [];
  const nested = new Nested(root, (child) => {
    if (child.info.type === "worker") workers.push(child);
  });
  await nested.attach();
  // The worker hangs below the frame, which has a process of its own.
  for (let tries = 0; workers.length === 0; tries++) {
    if (tries > 100) throw new Error("no worker to attach to");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  for (const worker of workers) {
    await worker.send("Profiler.enable");
    await worker.send("Profiler.setSamplingInterval", { interval });
    await worker.send("Profiler.start");
  }
  const value = await work();
  const found = [];
  for (const worker of workers) {
    const { profile } = await worker.send("Profiler.stop");
    found.push({ url: worker.info.url, ...summary(profile) });
  }
  return { value, workers: found };
}

/** A debugging session and those of the targets below it, each reached through its parent. */
class Nested {
  #next = 0;
  #waiting = new Map();
  #children = new Map();
  #onChild;
  #write;

  constructor(session, onChild, info) {
    this.info = info;
    this.#onChild = onChild;
    if (typeof session === "function") {
      this.#write = session;
    } else {
      this.send = (method, params = {}) => session.send(method, params);
      for (const method of ["Target.attachedToTarget", "Target.receivedMessageFromTarget"]) {
        session.on(method, (params) => this.#event(method, params));
      }
    }
  }

  attach() {
    return this.send("Target.setAutoAttach", {
      autoAttach: true,
      waitForDebuggerOnStart: false,
      flatten: false,
    });
  }

  send(method, params = {}) {
    this.#next += 1;
    const id = this.#next;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#write(JSON.stringify({ id, method, params })).catch(reject);
    });
  }

  #receive(text) {
    const { id, result, error, method, params } = JSON.parse(text);
    if (id === undefined) {
      this.#event(method, params);
      return;
    }
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error) waiting?.reject(new Error(error.message));
    else waiting?.resolve(result);
  }

  #event(method, params) {
    if (method === "Target.receivedMessageFromTarget") {
      this.#children.get(params.sessionId)?.#receive(params.message);
    } else if (method === "Target.attachedToTarget") {
      const { sessionId, targetInfo } = params;
      const write = (message) => this.send("Target.sendMessageToTarget", { sessionId, message });
      const child = new Nested(write, this.#onChild, targetInfo);
      this.#children.set(sessionId, child);
      this.#onChild(child);
      child.attach().catch(() => {});
    }
  }
}

function summary({ nodes, samples, timeDeltas }) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const seconds = {};
  samples.forEach((id, index) => {
    const { functionName, url, lineNumber } = byId.get(id).callFrame;
    const name = `${functionName || `(anonymous ${url.slice(-24)}:${lineNumber})`}`;
    seconds[name] = (seconds[name] ?? 0) + timeDeltas[index] / 1e6;
  });
  const sorted = Object.entries(seconds).sort(([, a], [, b]) => b - a);
  return { total: sorted.reduce((sum, [, s]) => sum + s, 0), functions: sorted.slice(0, 60) };
}
