/**
 * sandbox.html and headers.json: the frame, its policy, and the policy of the page around it.
 *
 * Invariant: sandbox.html holds one inline script, and the policy allows exactly that one, by its hash. The policy is
 * in the file too (as a meta element), so it holds on a host that sends no headers.
 */

import { createHash } from "node:crypto";
import path from "node:path";
import { build } from "esbuild";
import { ROOT } from "./shared.mjs";

const SANDBOX = path.join(ROOT, "browser", "src", "sandbox");

async function script(name) {
  const result = await build({
    entryPoints: [path.join(SANDBOX, name)],
    bundle: true,
    format: "iife",
    target: "es2022",
    minify: true,
    legalComments: "none",
    write: false,
    logLevel: "silent",
  });
  const text = result.outputFiles[0].text.trim();
  if (/<\/script|<!--/i.test(text))
    throw new Error(`${name} cannot be put inline: it holds "</script" or "<!--"`);
  return text;
}

/** Features no tool needs; named because a frame without the header inherits some of them. */
const FEATURES = [
  "accelerometer",
  "autoplay",
  "camera",
  "clipboard-read",
  "clipboard-write",
  "display-capture",
  "encrypted-media",
  "fullscreen",
  "geolocation",
  "gyroscope",
  "hid",
  "identity-credentials-get",
  "idle-detection",
  "local-fonts",
  "magnetometer",
  "microphone",
  "midi",
  "payment",
  "picture-in-picture",
  "publickey-credentials-get",
  "screen-wake-lock",
  "serial",
  "storage-access",
  "usb",
  "window-management",
  "xr-spatial-tracking",
];

/** { html, headers }: the text of sandbox.html and the contents of headers.json. */
export async function frameFiles() {
  const [frame, worker] = await Promise.all([script("frame.ts"), script("worker.ts")]);
  const hash = createHash("sha256").update(frame).digest("base64");
  const core = [
    "default-src 'none'",
    `script-src blob: 'sha256-${hash}' 'wasm-unsafe-eval'`,
    "worker-src blob:",
    "connect-src 'none'",
    "form-action 'none'",
    "base-uri 'none'",
    "frame-src 'none'",
  ];
  const html = [
    "<!doctype html>",
    '<html lang="en">',
    '<meta charset="utf-8">',
    `<meta http-equiv="Content-Security-Policy" content="${core.join("; ")}">`,
    "<title>Sandport sandbox</title>",
    // Not run here: the frame's script makes the worker of it. It needs no hash.
    `<script type="text/plain" id="worker">${worker}</script>`,
    `<script>${frame}</script>`,
    "</html>",
    "",
  ].join("\n");
  const common = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Embedder-Policy": "credentialless",
  };
  const none = FEATURES.map((feature) => `${feature}=()`);
  const headers = {
    "*": {
      "Content-Security-Policy": [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        // 'self' covers the WebSocket of the same host and port.
        "connect-src 'self'",
        // The exact address: this is what keeps the frame from navigating away.
        "frame-src {origin}/sandbox.html",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
      ].join("; "),
      "Cross-Origin-Opener-Policy": "same-origin",
      "Cross-Origin-Resource-Policy": "same-origin",
      "Permissions-Policy": [
        // The page copies for the person, and lends the clipboard to an agent that the person allows it.
        ...none.filter((entry) => !entry.startsWith("clipboard-")),
        "cross-origin-isolated=*",
      ].join(", "),
      ...common,
    },
    // A worker has the policy it is served with, not the page's: this one carries the in-page agent's requests.
    "/agent/relay.js": {
      "Content-Security-Policy": "default-src 'none'; connect-src http: https:",
      "Cross-Origin-Resource-Policy": "same-origin",
      ...common,
    },
    "/sandbox.html": {
      "Content-Security-Policy": ["sandbox allow-scripts", ...core, "frame-ancestors 'self'"].join("; "),
      "Connection-Allowlist": "();webrtc=block",
      "Cross-Origin-Resource-Policy": "cross-origin",
      "X-DNS-Prefetch-Control": "off",
      "Permissions-Policy": none.join(", "),
      ...common,
    },
  };
  return { html, headers };
}
