/**
 * The frame's whole script. It is compiled into sandbox.html and allowed there by its hash.
 *
 * Invariant: it takes one message, from its own parent, and is deaf from then on but for one signal without content. It
 * never turns what it receives into script, HTML or an address: the worker's text is part of the same file, and the
 * bytes go to the worker unread. Whoever gets code to run here has channels that the worker has not (WebRTC in
 * Firefox, preconnect in WebKit), so it stays small enough to be read whole.
 */

import { type HandOver, transferOf, type WorkerStart } from "./protocol.ts";

const page = window.parent;
const text = document.getElementById("worker")?.textContent ?? "";
// At once: it is up when the message comes.
const worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
const failed = new MessageChannel();
worker.onerror = (error) => failed.port1.postMessage(String(error.message ?? "").slice(0, 500));

function take(event: MessageEvent<HandOver>): void {
  const [lane, wire] = event.ports;
  if (event.source !== page || !lane || !wire) return;
  window.removeEventListener("message", take);
  const signal = self.crossOriginIsolated ? new Int32Array(new SharedArrayBuffer(4)) : null;
  failed.port2.onmessage = (event) => wire.postMessage(event.data);
  wire.onmessage = () => {
    if (signal) Atomics.store(signal, 0, 2);
  };
  const { parcel, config } = event.data;
  const start: WorkerStart = { parcel, config, signal };
  worker.postMessage(start, [lane, ...transferOf(parcel)]);
}

window.addEventListener("message", take);
// Nothing secret in it, and the parent's origin is not known here.
page.postMessage("sandport:frame", "*");
