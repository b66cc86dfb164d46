/**
 * The page's side of the relay: passes the agent's requests to a worker that knows the endpoint, and the answers back.
 *
 * Invariant: the key goes to that worker and nowhere else. After `close` nothing is sent and no part comes.
 */

import { CHANGED, type EndpointRelay, type RelayPart } from "./carrier.ts";
import type { Endpoint, RelayRequest } from "./endpoint.ts";
import type { RelayMessage, RelayStart } from "./relay-worker.ts";

export class Relay implements EndpointRelay {
  readonly #worker: Worker;
  readonly #open = new Set<number>();
  readonly #onPart: (part: RelayPart) => void;

  /**
   * @param script address of `agent/relay.js`.
   * @param onPart told each part of each response.
   */
  constructor(script: string, endpoint: Endpoint, onPart: (part: RelayPart) => void) {
    this.#onPart = onPart;
    this.#worker = new Worker(script);
    this.#worker.onmessage = ({ data }: MessageEvent<RelayPart>) => this.#came(data);
    this.#worker.onerror = (event) =>
      this.#failAll(`the relay failed: ${event.message || "no reason given"}`);
    const start: RelayStart = { address: endpoint.address, ...(endpoint.key ? { key: endpoint.key } : {}) };
    this.#worker.postMessage(start);
  }

  send(request: RelayRequest): void {
    this.#open.add(request.http);
    this.#post(request);
  }

  stop(http: number): void {
    if (this.#open.delete(http)) this.#post({ http, stop: true });
  }

  close(reason = CHANGED): void {
    this.#worker.terminate();
    this.#failAll(reason);
  }

  #post(message: RelayMessage): void {
    this.#worker.postMessage(message);
  }

  #came(part: RelayPart): void {
    if (!this.#open.has(part.http)) return;
    if (part.kind === "end" || part.kind === "error") this.#open.delete(part.http);
    this.#onPart(part);
  }

  #failAll(message: string): void {
    for (const http of [...this.#open]) this.#came({ http, kind: "error", message });
  }
}
