/**
 * Where the agent lives: in a page it is a confined frame; other hosts bring a ground of their own.
 *
 * Invariant: a ground fetches bytes, starts workers, carries requests to an endpoint and keeps sessions. What the agent
 * may ask of it, and when it is ended, is the same everywhere.
 */

import {
  AssetError,
  type AssetRole,
  fetchFile,
  fetchJson,
  loadAssets,
  type ManifestFile,
  parcelOf,
} from "../sandbox/assets.ts";
import { type FrameOptions, frameGround } from "../sandbox/ground.ts";
import type { InstanceHandlers, Launched } from "../sandbox/instance.ts";
import type { BootConfig, HandOver, Part } from "../sandbox/protocol.ts";
import type { EndpointRelay, RelayPart } from "./carrier.ts";
import type { Endpoint } from "./endpoint.ts";
import { Relay } from "./relay.ts";
import { browserStore, memoryStore, type SessionStore } from "./store.ts";

/** See the module comment. */
export interface AgentGround {
  /** What the agent says of where it runs. */
  readonly place: "page" | "program";
  /**
   * Gets the bytes of the runtime and of the agent, to be given away, and says how to boot them.
   * @throws {AssetError} a file is missing, or is not what its manifest says.
   */
  load(
    withImage: boolean,
    onProgress: (fraction: number, file: string) => void,
    signal: AbortSignal,
  ): Promise<HandOver>;
  /** Starts a worker and hands everything over to it; the parcel's buffers are given away. */
  launch(handOver: HandOver, handlers: InstanceHandlers<Launched>, signal: AbortSignal): Promise<Launched>;
  relay(endpoint: Endpoint, onPart: (part: RelayPart) => void): EndpointRelay;
  /** Where sessions are kept when nobody says otherwise. */
  store(): Promise<SessionStore>;
}

/** What `agent/manifest.json` says. */
export interface AgentManifest {
  readonly module: string;
  readonly core: ManifestFile;
  readonly extra: ManifestFile;
  readonly image?: ManifestFile;
}

/** Checks a manifest.
 * @throws {AssetError} it is none, or of another version.
 */
export function readAgentManifest(value: unknown): AgentManifest {
  const claim = value as {
    format?: unknown;
    module?: unknown;
    files?: Record<string, ManifestFile | undefined>;
  };
  const { core, extra, image } = claim?.files ?? {};
  const isFile = (file: ManifestFile | undefined): file is ManifestFile =>
    /^[\w.-]+$/.test(file?.name ?? "") && /^[0-9a-f]{64}$/.test(file?.sha256 ?? "");
  if (claim?.format !== 1 || typeof claim.module !== "string" || !isFile(core) || !isFile(extra)) {
    throw new AssetError(
      "the in-page agent's manifest is of another version",
      "Build the bundle (./build.sh build) and serve the whole dist folder.",
    );
  }
  return { module: claim.module, core, extra, ...(isFile(image) ? { image } : {}) };
}

/** How the agent's Python is booted on a runtime. */
export function agentConfig(preload: readonly string[], module: string): BootConfig {
  return { timeLimit: null, servers: {}, preload, environ: {}, module };
}

/** The ground in a page. */
export function pageGround(options: FrameOptions): AgentGround {
  const address = new URL(options.base ?? ".", document.baseURI).href;
  const base = address.endsWith("/") ? address : `${address}/`;
  const folder = `${base}agent/`;
  const packed = options.inlineFrame ?? false;
  const fetchAll = async (tell: (fraction: number, file: string) => void, signal: AbortSignal) => {
    tell(0, "");
    const manifest = readAgentManifest(await fetchJson(`${folder}manifest.json`, signal));
    // The sandbox has most of it already: what is fetched twice comes from the browser's cache.
    const [runtime, core, extra, image] = await Promise.all([
      loadAssets(`${base}runtime/`, (part, file) => tell(part * 0.7, file), signal, {
        withImage: false,
        packed,
      }),
      fetchFile(folder, manifest.core, signal, packed),
      fetchFile(folder, manifest.extra, signal, packed),
      // It only makes the start quicker.
      manifest.image ? fetchFile(folder, manifest.image, signal, packed).catch(() => undefined) : undefined,
    ]);
    tell(1, "");
    const files = new Map<AssetRole, Part>([...runtime.files, ["core", core], ["extra", extra]]);
    if (image) files.set("image", image);
    return {
      assets: { manifest: runtime.manifest, files },
      config: agentConfig(runtime.manifest.preload, manifest.module),
    };
  };
  let fetched: ReturnType<typeof fetchAll> | undefined;
  return {
    place: "page",
    async load(withImage, tell, signal) {
      fetched ??= fetchAll(tell, signal);
      // A failed fetch is tried again by the next start.
      fetched.catch(() => {
        fetched = undefined;
      });
      const { assets, config } = await fetched;
      return { parcel: parcelOf(assets, withImage), config };
    },
    launch: frameGround(options).launch,
    relay: (endpoint, onPart) => new Relay(`${folder}relay.js`, endpoint, onPart),
    store: () => browserStore().catch(() => memoryStore()),
  };
}
