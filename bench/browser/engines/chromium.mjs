import { spawn } from "node:child_process";
import { once } from "node:events";

/**
 * Chromium, by its debugging pipe and nothing more. A test library would switch on the network events, and with them
 * every WebSocket frame would be copied to the driver: a third of the time of a call, which no user pays.
 */
export async function openChromium(profile) {
  const child = spawn(
    process.env.CHROMIUM ?? "chromium",
    [
      "--headless",
      "--remote-debugging-pipe",
      `--user-data-dir=${profile}`,
      "--no-first-run",
      "--no-default-browser-check",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-renderer-backgrounding",
      "--disable-background-timer-throttling",
      "--disable-backgrounding-occluded-windows",
      ...(process.getuid?.() === 0 ? ["--no-sandbox"] : []),
      "about:blank",
    ],
    { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] },
  );
  const pipe = new Pipe(child.stdio[3], child.stdio[4]);
  const { product } = await pipe.send("Browser.getVersion");
  const { targetId } = await pipe.send("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await pipe.send("Target.attachToTarget", { targetId, flatten: true });
  const page = (method, params) => pipe.send(method, params, sessionId);

  async function evaluate(code) {
    const { result, exceptionDetails } = await page("Runtime.evaluate", {
      expression: `(async () => { ${code} })()`,
      awaitPromise: true,
      returnByValue: true,
    });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  async function open(url) {
    const loaded = pipe.next("Page.loadEventFired", sessionId);
    await page("Page.enable");
    const { errorText } = await page("Page.navigate", { url });
    if (errorText) throw new Error(`${url}: ${errorText}`);
    await loaded;
    // Nothing of the driver watches while something is measured.
    await page("Page.disable");
  }

  return {
    version: product,
    async open({ url }) {
      await open("about:blank");
      await open(url);
    },
    run: ({ code }) => evaluate(code),
    /** Samples the page and the workers below it while the code runs; answers with seconds by function. */
    async profile({ code, interval = 200 }) {
      const page = { sessionId, targetInfo: { url: "the page" } };
      const workers = [page, ...(await attachWorkers(pipe, sessionId))];
      for (const worker of workers) {
        await pipe.send("Profiler.enable", {}, worker.sessionId);
        await pipe.send("Profiler.setSamplingInterval", { interval }, worker.sessionId);
        await pipe.send("Profiler.start", {}, worker.sessionId);
      }
      const value = await evaluate(code);
      const found = [];
      for (const worker of workers) {
        const { profile: samples } = await pipe.send("Profiler.stop", {}, worker.sessionId);
        found.push({ url: worker.targetInfo.url, ...summary(samples) });
      }
      return { value, workers: found };
    },
    async close() {
      pipe.send("Browser.close").catch(() => {});
      const timer = setTimeout(() => child.kill("SIGKILL"), 10_000);
      if (child.exitCode === null) await once(child, "exit");
      clearTimeout(timer);
    },
  };
}

/** The DevTools protocol over a pair of pipes: JSON, each message ended by a NUL. */
class Pipe {
  #next = 0;
  #waiting = new Map();
  #listeners = new Set();
  #out;

  constructor(out, input) {
    this.#out = out;
    let parts = [];
    input.on("data", (data) => {
      let start = 0;
      for (let end = data.indexOf(0); end >= 0; end = data.indexOf(0, start)) {
        this.#receive(Buffer.concat([...parts, data.subarray(start, end)]).toString());
        parts = [];
        start = end + 1;
      }
      if (start < data.length) parts.push(data.subarray(start));
    });
    input.on("close", () => {
      for (const { reject } of this.#waiting.values()) reject(new Error("Chromium ended"));
    });
    out.on("error", () => {});
  }

  send(method, params = {}, sessionId = undefined) {
    this.#next += 1;
    const id = this.#next;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#out.write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    });
  }

  /** Hears events until the function that it returns is called. */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  next(method, sessionId) {
    return new Promise((resolve) => {
      const stop = this.listen((event) => {
        if (event.method !== method || event.sessionId !== sessionId) return;
        stop();
        resolve(event.params);
      });
    });
  }

  #receive(text) {
    const message = JSON.parse(text);
    if (message.id === undefined) {
      for (const listener of [...this.#listeners]) listener(message);
      return;
    }
    const waiting = this.#waiting.get(message.id);
    this.#waiting.delete(message.id);
    if (message.error) waiting?.reject(new Error(message.error.message));
    else waiting?.resolve(message.result);
  }
}

/** Attaches to the workers below a page; the sandbox's hangs below a frame that has a process of its own. */
async function attachWorkers(pipe, sessionId) {
  const workers = [];
  const options = { autoAttach: true, waitForDebuggerOnStart: false, flatten: true };
  const stop = pipe.listen(({ method, params }) => {
    if (method !== "Target.attachedToTarget") return;
    if (params.targetInfo.type === "worker") workers.push(params);
    pipe.send("Target.setAutoAttach", options, params.sessionId).catch(() => {});
  });
  await pipe.send("Target.setAutoAttach", options, sessionId);
  for (let tries = 0; workers.length === 0; tries++) {
    if (tries > 100) throw new Error("no worker to attach to");
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  stop();
  return workers;
}

function summary({ nodes, samples, timeDeltas }) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const seconds = {};
  samples.forEach((id, index) => {
    const { functionName, url, lineNumber } = byId.get(id).callFrame;
    const name = functionName || `(anonymous ${url.slice(-24)}:${lineNumber})`;
    seconds[name] = (seconds[name] ?? 0) + timeDeltas[index] / 1e6;
  });
  const sorted = Object.entries(seconds).sort(([, a], [, b]) => b - a);
  return { total: sorted.reduce((sum, [, s]) => sum + s, 0), functions: sorted.slice(0, 60) };
}
