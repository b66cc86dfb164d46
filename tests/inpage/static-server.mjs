#!/usr/bin/env node
/**
 * A plain file server: what the simplest static host is. No special headers, no compression, no fallbacks.
 *
 *     node tests/inpage/static-server.mjs [FOLDER] [--below /some/folder/] [--port N]
 *
 * Invariant: it answers GET and HEAD for files below its roots, on loopback, and ends with its process.
 */

import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const DIST = path.join(path.dirname(fileURLToPath(import.meta.url)), "../../dist");
const TYPES = {
  ".css": "text/css",
  ".html": "text/html",
  ".js": "text/javascript",
  ".json": "application/json",
  ".mjs": "text/javascript",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
};

/**
 * Serves a folder below an address prefix.
 * @param {string} dist the folder.
 * @param {object} options
 * @param {string} [options.below] address prefix, with slashes at both ends.
 * @param {Record<string, string>} [options.extra] further prefixes and their folders.
 * @param {number} [options.port] 0 picks a free one.
 * @returns {Promise<{origin: string, address: string, requests: string[], close(): void}>} `requests` grows with each
 *   request: method, path and query, and every header, as one text.
 */
export async function plainServer(dist = DIST, { below = "/", extra = {}, port = 0 } = {}) {
  const requests = [];
  const roots = Object.entries({ ...extra, [below]: dist });
  const server = createServer((request, response) => {
    requests.push(`${request.method} ${request.url} ${JSON.stringify(request.headers)}`);
    const name = decodeURIComponent(new URL(request.url ?? "/", "http://x").pathname);
    const root = roots.find(([prefix]) => name.startsWith(prefix));
    const file = root && path.join(root[1], name.slice(root[0].length) || "index.html");
    const found = file?.startsWith(root[1]) && statSync(file, { throwIfNoEntry: false });
    if (!found?.isFile() || !["GET", "HEAD"].includes(request.method ?? "")) {
      response.writeHead(404, { "Content-Type": "text/html" }).end("<h1>404</h1>");
      return;
    }
    const etag = `"${found.mtimeMs}-${found.size}"`;
    const headers = { "Content-Type": TYPES[path.extname(file)] ?? "application/octet-stream", ETag: etag };
    if (request.headers["if-none-match"] === etag) {
      response.writeHead(304, headers).end();
      return;
    }
    response.writeHead(200, { ...headers, "Content-Length": found.size });
    if (request.method === "HEAD") response.end();
    else createReadStream(file).pipe(response);
  });
  await new Promise((resolve) => server.listen(port, "127.0.0.1", resolve));
  const origin = `http://127.0.0.1:${server.address().port}`;
  return {
    origin,
    address: origin + below,
    requests,
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { below: { type: "string", default: "/" }, port: { type: "string", default: "0" } },
  });
  const { address } = await plainServer(path.resolve(positionals[0] ?? DIST), {
    below: values.below,
    port: Number(values.port),
  });
  console.log(`Serving at ${address}`);
}
