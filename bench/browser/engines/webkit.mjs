import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { createServer } from "node:net";

/** WebKitGTK by its own WebDriver, on a display of its own. */
export async function openWebkit() {
  const display = await startDisplay();
  const port = await freePort();
  const driver = spawn("WebKitWebDriver", ["-p", String(port)], {
    env: {
      ...process.env,
      DISPLAY: display.name,
      ...(process.getuid?.() === 0 ? { WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS: "1" } : {}),
    },
    stdio: "ignore",
  });
  const ask = async (method, path, body) => {
    const answer = await fetch(`http://127.0.0.1:${port}${path}`, {
      method,
      ...(body ? { body: JSON.stringify(body) } : {}),
    });
    const { value } = await answer.json();
    if (!answer.ok) throw new Error(`${path}: ${value.error}: ${value.message}`);
    return value;
  };
  await until(() => ask("GET", "/status"));
  const binary = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/libexec"]
    .flatMap((folder) =>
      ["webkit2gtk-4.1", "webkit2gtk-4.0", "webkitgtk-6.0"].map((name) => `${folder}/${name}/MiniBrowser`),
    )
    .find((path) => existsSync(path));
  const { sessionId, capabilities } = await ask("POST", "/session", {
    capabilities: { alwaysMatch: { "webkitgtk:browserOptions": { binary, args: ["--automation"] } } },
  });
  const session = `/session/${sessionId}`;
  await ask("POST", `${session}/timeouts`, { script: 300_000, pageLoad: 120_000 });
  return {
    version: capabilities.browserVersion,
    async open({ url }) {
      await ask("POST", `${session}/url`, { url: "about:blank" });
      await ask("POST", `${session}/url`, { url });
    },
    async run({ code }) {
      const script = `const done = arguments[0]; (async () => { ${code} })().then((value) => done({ value }), (error) => done({ error: String(error) }));`;
      const { value, error } = await ask("POST", `${session}/execute/async`, { script, args: [] });
      if (error) throw new Error(error);
      return value;
    },
    async close() {
      await ask("DELETE", session).catch(() => {});
      driver.kill();
      display.stop();
    },
  };
}

async function startDisplay() {
  // Xvfb takes a free display itself and writes its number to descriptor 3.
  const server = spawn("Xvfb", ["-displayfd", "3", "-screen", "0", "1280x900x24", "-nolisten", "tcp"], {
    stdio: ["ignore", "ignore", "ignore", "pipe"],
  });
  const [number] = await once(server.stdio[3], "data");
  return { name: `:${String(number).trim()}`, stop: () => server.kill() };
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  return port;
}

async function until(attempt) {
  for (let tries = 0; ; tries++) {
    try {
      return await attempt();
    } catch (error) {
      if (tries >= 100) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}
