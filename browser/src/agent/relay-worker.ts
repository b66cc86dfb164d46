/**
 * The relay's worker: it alone has the network and the key, and it knows one endpoint.
 *
 * It is a file of its own because a worker has the policy that it is served with: the page's own policy stays closed.
 *
 * Invariant: the first message names the endpoint, for good; every later one is a request below its address, or stops
 * one. Each request gets a head and an end, or an error.
 */

import { endpointBase, endpointRequest, type RelayRequest } from "./endpoint.ts";

/** The first message. */
export interface RelayStart {
  readonly address: string;
  readonly key?: string;
}

export type RelayMessage = RelayRequest | { readonly http: number; readonly stop: true };

/** What comes back. */
export type RelayPart =
  | {
      readonly http: number;
      readonly kind: "head";
      readonly status: number;
      readonly headers: Record<string, string>;
    }
  | { readonly http: number; readonly kind: "data"; readonly text: string }
  | { readonly http: number; readonly kind: "end" }
  | { readonly http: number; readonly kind: "error"; readonly message: string };

/** Characters of one response: far more than a model says in one turn, little enough for a page to hold. */
const MAX_RESPONSE = 64 * 1024 * 1024;

const scope = self as unknown as {
  onmessage: ((event: MessageEvent) => void) | null;
  postMessage(part: RelayPart): void;
  readonly location: { readonly origin: string };
};

scope.onmessage = ({ data }: MessageEvent<RelayStart>) => {
  const base = endpointBase(data.address);
  const running = new Map<number, AbortController>();
  scope.onmessage = ({ data: message }: MessageEvent<RelayMessage>) => {
    if ("stop" in message) {
      running.get(message.http)?.abort();
      return;
    }
    const abort = new AbortController();
    running.set(message.http, abort);
    void carry(base, data.key, message, abort.signal).finally(() => running.delete(message.http));
  };
};

async function carry(
  base: URL,
  key: string | undefined,
  request: RelayRequest,
  signal: AbortSignal,
): Promise<void> {
  const { http } = request;
  try {
    const { url, init } = endpointRequest(base, key, request);
    let response: Response;
    try {
      response = await fetch(url, { ...init, signal });
    } catch (error) {
      if (signal.aborted) throw error;
      throw new Error(unreachable(base));
    }
    const headers: Record<string, string> = {};
    for (const name of ["content-type", "retry-after"]) {
      const value = response.headers.get(name);
      if (value !== null) headers[name] = value;
    }
    scope.postMessage({ http, kind: "head", status: response.status, headers });
    await pour(http, response);
    scope.postMessage({ http, kind: "end" });
  } catch (error) {
    if (!signal.aborted)
      scope.postMessage({
        http,
        kind: "error",
        message: error instanceof Error ? error.message : String(error),
      });
  }
}

async function pour(http: number, response: Response): Promise<void> {
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let size = 0;
  for (let done = reader === undefined; !done; ) {
    const chunk = await (reader as ReadableStreamDefaultReader<Uint8Array>).read();
    done = chunk.done;
    const text = decoder.decode(chunk.value, { stream: !done });
    size += text.length;
    if (size > MAX_RESPONSE) throw new Error(`the response is longer than ${MAX_RESPONSE} characters`);
    if (text) scope.postMessage({ http, kind: "data", text });
  }
}

/** A browser does not tell a page why: the likely reasons, in the order in which to look. */
function unreachable(base: URL): string {
  const page = scope.location.origin;
  return (
    `${base.origin} gave no answer that this page may read. ` +
    `Either nothing runs there, or it does not allow pages of ${page} (CORS); ` +
    `for Ollama, start it with OLLAMA_ORIGINS=${page}`
  );
}
