/**
 * A static server for tests: a bundle with its headers, and test pages beside it, on a loopback port of its own.
 *
 * Invariant: it answers GET for files below its roots and nothing else, and it ends with the process that made it.
 */

import { createReadStream, existsSync, readFileSync, statSync } from "node:fs";
import { createServer } from "node:http";
import path from "node:path";

const TYPES = {
  ".css": "text/css",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".json": "application/json",
  ".mjs": "text/javascript",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
};

/**
 * Serves `dist`, and `extra` (address prefix -> folder), under the headers of dist/headers.json.
 * @param {string} dist
 * @param {{extra?: Record<string, string>, bare?: boolean, instead?: Record<string, Buffer | null>}} options
 *   `bare` sends no policy at all, as a static host; `instead` gives other contents for addresses, null for none.
 */
export async function serveStatic(dist, { extra = {}, bare = false, instead = {} } = {}) {
  const policies = JSON.parse(readFileSync(path.join(dist, "headers.json"), "utf8"));
  const requests = [];
  const server = createServer((request, response) => {
    const name = decodeURIComponent(new URL(request.url ?? "/", "http://x").pathname);
    requests.push(name);
    const [prefix, folder] = Object.entries(extra).find(([start]) => name.startsWith(start)) ?? ["/", dist];
    const file = path.join(folder, path.normalize(name.slice(prefix.length) || "index.html"));
    if (name in instead) {
      const data = instead[name];
      if (data === null) response.writeHead(404).end();
      else
        response
          .writeHead(200, { "Content-Type": TYPES[path.extname(name)] ?? "application/octet-stream" })
          .end(data);
      return;
    }
    if (!file.startsWith(folder) || !existsSync(file) || !statSync(file).isFile()) {
      response.writeHead(404).end();
      return;
    }
    const headers = bare ? {} : { ...(policies[name] ?? policies["*"]) };
    const encoding = [
      ["br", ".br"],
      ["gzip", ".gz"],
    ].find(([token, end]) => request.headers["accept-encoding"]?.includes(token) && existsSync(file + end));
    if (encoding) headers["Content-Encoding"] = encoding[0];
    headers["Content-Type"] = TYPES[path.extname(file)] ?? "application/octet-stream";
    headers["Cache-Control"] = /\.[0-9a-f]{10}\./.test(name)
      ? "public, max-age=31536000, immutable"
      : "no-cache";
    const sent = Object.entries(headers).map(([key, value]) => [key, value.replaceAll("{origin}", origin)]);
    response.writeHead(200, Object.fromEntries(sent));
    createReadStream(encoding ? file + encoding[1] : file).pipe(response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const origin = `http://127.0.0.1:${server.address().port}`;
  return {
    origin,
    requests,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}
