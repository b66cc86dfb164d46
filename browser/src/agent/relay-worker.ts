/**
 * The relay's worker: in a page, it alone has the network and the key, and it knows one endpoint.
 *
 * It is a file of its own because a worker has the policy that it is served with: the page's own policy stays closed.
 *
 * Invariant: the first message names the endpoint, for good; every later one is a request below its address, or stops
 * one.
 */

import { Carrier, type RelayPart } from "./carrier.ts";
import type { RelayRequest } from "./endpoint.ts";

/** The first message. */
export interface RelayStart {
  readonly address: string;
  readonly key?: string;
}

export type RelayMessage = RelayRequest | { readonly http: number; readonly stop: true };

const scope = self as unknown as {
  onmessage: ((event: MessageEvent) => void) | null;
  postMessage(part: RelayPart): void;
  readonly location: { readonly origin: string };
};

scope.onmessage = ({ data }: MessageEvent<RelayStart>) => {
  const carrier = new Carrier(data, (part) => scope.postMessage(part), unreachable);
  scope.onmessage = ({ data: message }: MessageEvent<RelayMessage>) => {
    if ("stop" in message) carrier.stop(message.http);
    else carrier.send(message);
  };
};

/** A browser does not tell a page why: the likely reasons, in the order in which to look. */
function unreachable(base: URL): string {
  const page = scope.location.origin;
  return (
    `${base.origin} gave no answer that this page may read. ` +
    `Either nothing runs there, or it does not allow pages of ${page} (CORS); ` +
    `for Ollama, start it with OLLAMA_ORIGINS=${page}`
  );
}
