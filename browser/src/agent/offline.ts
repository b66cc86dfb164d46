/**
 * Keeps a static site for use without a network.
 *
 * Invariant: the page never waits for it, and works the same where there is no service worker.
 */

/**
 * Installs the service worker and lets it keep all files that this page has loaded so far. Call it when everything is
 * up, so that nothing is missing.
 * @param base address of the folder that holds `sw.js`.
 * @returns whether the page now works offline; a browser may have no service worker for it.
 */
export async function keepOffline(base: string | URL = document.baseURI): Promise<boolean> {
  if (!("serviceWorker" in navigator)) return false;
  const folder = new URL(".", base).href;
  try {
    const registration = await navigator.serviceWorker.register(new URL("sw.js", folder));
    const worker = registration.active ?? (await navigator.serviceWorker.ready).active;
    if (!worker) return false;
    const keep = new Set([location.href.replace(/[?#].*$/, ""), new URL("agent/relay.js", folder).href]);
    for (const { name } of performance.getEntriesByType("resource")) {
      if (name.startsWith(folder)) keep.add(name);
    }
    const valid = (await Promise.all(["runtime/", "agent/"].map((part) => filesOf(folder + part)))).flat();
    const { port1, port2 } = new MessageChannel();
    const answer = new Promise<boolean>((resolve) => {
      port1.onmessage = ({ data }: MessageEvent<{ ok?: boolean }>) => resolve(data.ok === true);
    });
    worker.postMessage({ keep: [...keep], valid }, [port2]);
    return await answer;
  } catch {
    return false;
  }
}

/** Addresses of all files that a folder's manifest names, and of their compressed siblings. */
async function filesOf(folder: string): Promise<string[]> {
  const manifest = (await (await fetch(`${folder}manifest.json`)).json()) as {
    files: Record<string, { name: string }>;
  };
  return Object.values(manifest.files).flatMap(({ name }) => [folder + name, `${folder}${name}.gz`]);
}

/** Takes back what {@link keepOffline} did: a gateway's page must come from the gateway. */
export async function forgetOffline(): Promise<void> {
  if (!("serviceWorker" in navigator)) return;
  const registration = await navigator.serviceWorker.getRegistration().catch(() => undefined);
  if (registration?.active?.scriptURL === new URL("sw.js", document.baseURI).href)
    await registration.unregister();
}
