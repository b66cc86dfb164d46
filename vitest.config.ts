import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

const source = (path: string) => fileURLToPath(new URL(`browser/src/${path}`, import.meta.url));

export default defineConfig({
  resolve: {
    alias: [
      { find: /^sandport$/, replacement: source("index.ts") },
      { find: /^sandport\/tools$/, replacement: source("tools/index.ts") },
    ],
  },
  test: {
    include: ["tests/browser/**/*.test.{ts,tsx}"],
    environment: "node",
    testTimeout: 10_000,
    pool: "threads",
  },
});
