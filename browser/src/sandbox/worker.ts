/**
 * The sandbox's worker in a page: takes its start and serves.
 *
 * Invariant: it takes one message. Nothing here is a boundary: the policy that the frame was served with is what holds
 * tool code.
 */

import type { WorkerStart } from "./protocol.ts";
import { serve } from "./serve.ts";

const scope = self as unknown as {
  onmessage: ((event: MessageEvent<WorkerStart>) => void) | null;
  fetch: typeof fetch;
  close(): void;
};

scope.onmessage = (event) => {
  scope.onmessage = null;
  const [port] = event.ports;
  if (!port) return;
  hardenScope(port);
  void serve(event.data, port);
};

/** Hygiene, not a boundary: what the policy leaves open in some engine, and a worker that ends itself says so. */
function hardenScope(port: MessagePort): void {
  // WebKit lets an opaque origin open caches.
  Reflect.deleteProperty(self, "caches");
  if ("CacheStorage" in self) Reflect.deleteProperty(self, "CacheStorage");
  for (let owner: object | null = self; owner !== null; owner = Object.getPrototypeOf(owner)) {
    Reflect.deleteProperty(owner, "caches");
  }
  // The policy refuses every fetch, and in WebKit one may never settle: this fails at once, and says why.
  scope.fetch = async (input) => {
    throw new TypeError(
      `there is no network in the sandbox: ${input instanceof Request ? input.url : input}`,
    );
  };
  const close = scope.close.bind(self);
  scope.close = () => {
    port.postMessage({ event: "fatal", message: "the worker closed itself" });
    close();
  };
}
