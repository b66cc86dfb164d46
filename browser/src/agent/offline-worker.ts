/**
 * The service worker of a static site: after one visit the page works without a network.
 *
 * Invariant: it answers only for files of the site itself. Names that hold a hash of the contents are answered from the
 * cache; all others are asked for anew, and answered from the cache only when the network does not answer. Nothing needs
 * it: without it the page works as long as the host does.
 */

const CACHE = "sandport-site-1";
/** A hash in a file's name, as the bundle's and the page's builds write it. */
const HASHED = /\.[0-9a-f]{10}(?:\.\w+){1,2}$|-[\w-]{8}\.(?:js|css|woff2|svg)$/;

interface Waiting extends Event {
  waitUntil(work: Promise<unknown>): void;
}

const scope = self as unknown as {
  readonly caches: CacheStorage;
  readonly registration: { readonly scope: string };
  readonly clients: { claim(): Promise<void> };
  skipWaiting(): Promise<void>;
  addEventListener(type: "install" | "activate", listener: (event: Waiting) => void): void;
  addEventListener(
    type: "fetch",
    listener: (event: { readonly request: Request; respondWith(answer: Promise<Response>): void }) => void,
  ): void;
  addEventListener(
    type: "message",
    listener: (event: Waiting & { readonly data: unknown; readonly ports: readonly MessagePort[] }) => void,
  ): void;
};

scope.addEventListener("install", (event) => event.waitUntil(scope.skipWaiting()));
scope.addEventListener("activate", (event) => event.waitUntil(scope.clients.claim()));

scope.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(scope.registration.scope)) return;
  event.respondWith(HASHED.test(new URL(request.url).pathname) ? fromCache(request) : fromNetwork(request));
});

/**
 * The page says what it has loaded, and what else belongs to this build; the answer says when the former is kept. A file
 * that the page took from a store of its own is not loaded, and stays if it is here.
 */
scope.addEventListener("message", (event) => {
  const { keep, valid } = event.data as { keep?: unknown; valid?: unknown };
  const [port] = event.ports;
  if (!port) return;
  const work = keepAll(addresses(keep), addresses(valid)).then(
    () => port.postMessage({ ok: true }),
    (error: unknown) => port.postMessage({ ok: false, message: String(error) }),
  );
  event.waitUntil(work);
});

async function fromCache(request: Request): Promise<Response> {
  const cache = await scope.caches.open(CACHE);
  return (await cache.match(request.url)) ?? kept(cache, request.url, await fetch(request));
}

async function fromNetwork(request: Request): Promise<Response> {
  const cache = await scope.caches.open(CACHE);
  try {
    return await kept(cache, addressOf(request.url), await fetch(request));
  } catch (error) {
    const answer = await cache.match(addressOf(request.url));
    if (answer) return answer;
    throw error;
  }
}

async function kept(cache: Cache, address: string, answer: Response): Promise<Response> {
  // A cache that is full or gone must not take the answer away.
  if (answer.ok) await cache.put(address, answer.clone()).catch(() => {});
  return answer;
}

/** Addresses of this site in a message, without what makes no other file. */
function addresses(value: unknown): Set<string> {
  const texts = Array.isArray(value) ? value.filter((entry) => typeof entry === "string") : [];
  return new Set(texts.map(addressOf).filter((address) => address.startsWith(scope.registration.scope)));
}

async function keepAll(wanted: ReadonlySet<string>, valid: ReadonlySet<string>): Promise<void> {
  const cache = await scope.caches.open(CACHE);
  for (const { url } of await cache.keys()) {
    // Of an earlier build.
    if (!wanted.has(url) && !valid.has(url) && HASHED.test(new URL(url).pathname)) await cache.delete(url);
  }
  for (const address of wanted) {
    if (await cache.match(address)) continue;
    const answer = await fetch(address);
    if (answer.ok) await cache.put(address, answer);
  }
}

/** Without query and fragment: they make no other file. */
function addressOf(url: string): string {
  const address = new URL(url);
  address.search = "";
  address.hash = "";
  return address.href;
}
