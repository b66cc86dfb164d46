/** Serves and builds the page examples: `sandport` from the sources, the sandbox's files from dist/. */

import { createReadStream, existsSync, statSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin } from "vite";

const here = (name: string) => fileURLToPath(new URL(name, import.meta.url));
const TYPES: Record<string, string> = {
  ".html": "text/html",
  ".json": "application/json",
  ".mjs": "text/javascript",
};

/** Serves dist/ as sandport/, as `npx sandport assets public/sandport` would have it. */
function sandboxFiles(): Plugin {
  return {
    name: "sandbox-files",
    configureServer(server) {
      server.middlewares.use("/sandport", (request, response, next) => {
        const file = path.join(here("../dist"), new URL(request.url ?? "/", "http://localhost").pathname);
        if (!file.startsWith(here("../dist")) || !existsSync(file) || !statSync(file).isFile()) return next();
        response.setHeader("content-type", TYPES[path.extname(file)] ?? "application/octet-stream");
        createReadStream(file).pipe(response);
      });
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [sandboxFiles()],
  resolve: {
    alias: [
      { find: /^sandport$/, replacement: here("../browser/src/index.ts") },
      { find: /^sandport\/tools$/, replacement: here("../browser/src/tools/index.ts") },
    ],
  },
  build: { target: "es2022" },
});
