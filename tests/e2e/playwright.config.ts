import { existsSync } from "node:fs";
import { defineConfig } from "@playwright/test";

const root = process.getuid?.() === 0;
// The system's browser where there is one; else whatever Playwright has.
const executablePath = [process.env["CHROMIUM"], "/usr/bin/chromium", "/usr/bin/google-chrome"].find(
  (path) => path !== undefined && existsSync(path),
);

export default defineConfig({
  testDir: ".",
  outputDir: "../../test-results/e2e",
  // As many as the smallest machine has cores; the tests of a file share one page and stay in order.
  workers: 2,
  timeout: 240_000,
  expect: { timeout: 30_000 },
  forbidOnly: Boolean(process.env["CI"]),
  reporter: [["list"]],
  use: {
    viewport: { width: 1280, height: 800 },
    // Without a graphics card every frame of an animation costs processor time that the sandbox needs.
    contextOptions: { reducedMotion: "reduce" },
    trace: "retain-on-failure",
    launchOptions: {
      ...(executablePath ? { executablePath } : {}),
      // Chromium's own sandbox refuses to run as root.
      args: ["--disable-gpu", ...(root ? ["--no-sandbox"] : [])],
    },
  },
});
