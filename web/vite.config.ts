import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin } from "vite";
import { packWorkspace } from "./pack-workspace.mjs";

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));
const DIST = process.env["SANDPORT_DIST"] ?? here("../dist");

/** dist/ is shared with the sandbox's build: only the page's own, earlier assets are removed. */
function cleanOwnAssets(): Plugin {
  return {
    name: "clean-own-assets",
    apply: "build",
    buildStart() {
      mkdirSync(DIST, { recursive: true });
      for (const name of readdirSync(DIST, { withFileTypes: true }).map((entry) => entry.name)) {
        if (name === "assets" || name === "index.html") rmSync(`${DIST}/${name}`, { recursive: true });
      }
    },
  };
}

export default defineConfig({
  root: here("."),
  // Relative, so that a static host may serve the bundle from any folder.
  base: "./",
  resolve: {
    alias: [
      { find: /^sandport$/, replacement: here("../browser/src/index.ts") },
      { find: /^sandport\/tools$/, replacement: here("../browser/src/tools/index.ts") },
    ],
  },
  plugins: [cleanOwnAssets(), { name: "pack-workspace", apply: "build", closeBundle: () => packWorkspace() }],
  build: {
    outDir: DIST,
    emptyOutDir: false,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 1000,
  },
});
