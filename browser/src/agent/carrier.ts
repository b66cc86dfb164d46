/**
 * Carries requests to one endpoint and its responses back in parts. In a page it lives in the relay's worker, in a program
 * in the program itself.
 *
 * Invariant: nothing is asked of any other address than the endpoint's, and the key goes nowhere else. Each request gets a
 * head and an end, or an error; one that was stopped gets nothing more.
 */

import { type Endpoint, endpointBase, endpointRequest, type RelayRequest } from "./endpoint.ts";

/** What comes back of a request. */
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

/** Whoever carries requests to an endpoint. */
export interface EndpointRelay {
  send(request: RelayRequest): void;
  /** Stops a request; nothing more comes of it. */
  stop(http: number): void;
  /** Stops all, and fails them with the reason. */
  close(reason?: string): void;
}

/** Why requests fail whose endpoint was changed or taken away. */
export const CHANGED = "the endpoint was changed";
/** Characters of one response: far more than a model says in one turn, little enough to hold. */
const MAX_RESPONSE = 64 * 1024 * 1024;

/** See the module comment. */
export class Carrier implements EndpointRelay {
  readonly #base: URL;
  readonly #key: string | undefined;
  readonly #onPart: (part: RelayPart) => void;
  readonly #unreachable: (base: URL, error: unknown) => string;
  readonly #running = new Map<number, AbortController>();

  /**
   * @param onPart told each part of each response.
   * @param unreachable says why there was no response, as far as the host can know.
   */
  constructor(
    { address, key }: Pick<Endpoint, "address" | "key">,
    onPart: (part: RelayPart) => void,
    unreachable: (base: URL, error: unknown) => string,
  ) {
    this.#base = endpointBase(address);
    this.#key = key;
    this.#onPart = onPart;
    this.#unreachable = unreachable;
  }

  send(request: RelayRequest): void {
    const abort = new AbortController();
    this.#running.set(request.http, abort);
    void this.#carry(request, abort.signal);
  }

  stop(http: number): void {
    this.#running.get(http)?.abort();
    this.#running.delete(http);
  }

  close(reason = CHANGED): void {
    for (const http of [...this.#running.keys()]) {
      this.stop(http);
      this.#onPart({ http, kind: "error", message: reason });
    }
  }

  async #carry(request: RelayRequest, signal: AbortSignal): Promise<void> {
    const { http } = request;
    const tell = (part: RelayPart): void => {
      if (signal.aborted) return;
      if (part.kind === "end" || part.kind === "error") this.#running.delete(http);
      this.#onPart(part);
    };
    try {
      const { url, init } = endpointRequest(this.#base, this.#key, request);
      let response: Response;
      try {
        response = await fetch(url, { ...init, signal });
      } catch (error) {
        throw new Error(this.#unreachable(this.#base, error));
      }
      const headers: Record<string, string> = {};
      for (const name of ["content-type", "retry-after"]) {
        const value = response.headers.get(name);
        if (value !== null) headers[name] = value;
      }
      tell({ http, kind: "head", status: response.status, headers });
      await pour(response, (text) => tell({ http, kind: "data", text }));
      tell({ http, kind: "end" });
    } catch (error) {
      tell({ http, kind: "error", message: error instanceof Error ? error.message : String(error) });
    }
  }
}

async function pour(response: Response, say: (text: string) => void): Promise<void> {
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let size = 0;
  for (let done = reader === undefined; !done; ) {
    const chunk = await (reader as ReadableStreamDefaultReader<Uint8Array>).read();
    done = chunk.done;
    const text = decoder.decode(chunk.value, { stream: !done });
    size += text.length;
    if (size > MAX_RESPONSE) throw new Error(`the response is longer than ${MAX_RESPONSE} characters`);
    if (text) say(text);
  }
}
