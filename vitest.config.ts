import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";

export default defineConfig({
  resolve: {
    alias: { sandport: fileURLToPath(new URL("browser/src/index.ts", import.meta.url)) },
  },
  test: {
    include: ["tests/browser/**/*.test.{ts,tsx}"],
    environment: "node",
    testTimeout: 10_000,
    pool: "threads",
  },
});
