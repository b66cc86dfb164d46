/**
 * An endpoint that speaks OpenAI's chat API: its address, its key, and what may be asked of it.
 *
 * Invariant: a request goes to the endpoint's own origin, below the path of its address, or nowhere. Redirects are not
 * followed: they could carry the key elsewhere.
 */

/** Where a model is, as a person types it. */
export interface Endpoint {
  /** Address of the API, such as `http://localhost:11434/v1`. */
  readonly address: string;
  /** Name of the model there. */
  readonly model: string;
  /** Sent as a bearer token; none for a server that wants none. */
  readonly key?: string;
}

/** An address that cannot be used; the message says why and what would do. */
export class EndpointError extends Error {
  override readonly name = "EndpointError";
}

/** Methods and headers that a request may have; nothing else leaves. */
const METHODS = new Set(["GET", "POST"]);
const HEADERS = new Set(["accept", "content-type"]);

/**
 * The address in the form that requests are resolved against, with a slash at its end.
 * @throws {EndpointError} it is no http or https address, or carries a user name, query or fragment.
 */
export function endpointBase(address: string): URL {
  let url: URL;
  try {
    url = new URL(address.trim());
  } catch {
    throw new EndpointError(`"${address}" is no address: write it whole, such as http://localhost:11434/v1`);
  }
  if (url.protocol !== "http:" && url.protocol !== "https:")
    throw new EndpointError("the address must begin with http:// or https://");
  if (url.username || url.password || url.search || url.hash)
    throw new EndpointError("the address must not hold a name, a password, a query or a fragment");
  if (!url.pathname.endsWith("/")) url.pathname += "/";
  return url;
}

/** One request, as the agent's worker asks for it. */
export interface RelayRequest {
  readonly http: number;
  readonly method: string;
  /** Below the endpoint's address, with a slash at its start. */
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

/**
 * The request to send.
 * @throws {EndpointError} it would leave the endpoint's address, or is of another kind.
 */
export function endpointRequest(
  base: URL,
  key: string | undefined,
  request: RelayRequest,
): { url: URL; init: RequestInit } {
  const url = new URL(`.${request.path}`, base);
  if (!request.path.startsWith("/") || url.origin !== base.origin || !url.pathname.startsWith(base.pathname))
    throw new EndpointError(`a request to ${request.path} would leave the endpoint's address`);
  if (!METHODS.has(request.method)) throw new EndpointError(`the method ${request.method} is not allowed`);
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers)) {
    if (HEADERS.has(name.toLowerCase())) headers.set(name, value);
  }
  if (key) headers.set("Authorization", `Bearer ${key}`);
  return {
    url,
    init: {
      method: request.method,
      headers,
      ...(request.method === "GET" ? {} : { body: request.body }),
      mode: "cors",
      redirect: "error",
      credentials: "omit",
      cache: "no-store",
      referrerPolicy: "no-referrer",
    },
  };
}
