/**
 * The bundle's files: fetched once, checked, and kept.
 *
 * Invariant: bytes that came over the network are handed out only when their SHA-256 is the one that the manifest names.
 * A second start takes no network at all. A second visit takes the files from the page's own store where there is one,
 * else from the browser's cache: every name holds a hash of the contents.
 */

import type { BootParcel, Part } from "./protocol.ts";
import type { FileStore } from "./store.ts";

/** Files of a bundle, by the part they play. */
export type AssetRole = keyof BootParcel;

/** What `runtime/manifest.json` says, as far as the page needs it. */
export interface Manifest {
  readonly pyodide: string;
  readonly servers: Readonly<Record<string, string>>;
  readonly preload: readonly string[];
  readonly files: Readonly<Partial<Record<AssetRole, ManifestFile>>>;
}

export interface ManifestFile {
  readonly name: string;
  /** Bytes, uncompressed. */
  readonly size: number;
  /** SHA-256 in hexadecimal digits. */
  readonly sha256: string;
}

export interface Assets {
  readonly manifest: Manifest;
  readonly files: ReadonlyMap<AssetRole, Part>;
  /** Why the memory image could not be had, where the manifest names one. */
  readonly imageProblem?: string;
  /**
   * Puts what came over the network into the store, for the next visit.
   * @returns whether all is in it now.
   */
  keep?(): Promise<boolean>;
  /** Takes files out of the store that turned out to be of no use: the image, or all. */
  discard?(what: "image" | "all"): Promise<void>;
}

/** A bundle that cannot be used; `remedy` says what to do. */
export class AssetError extends Error {
  override readonly name = "AssetError";
  readonly remedy: string;

  constructor(message: string, remedy: string) {
    super(message);
    this.remedy = remedy;
  }
}

const BUILD = "Build the bundle (./build.sh build) and serve the whole dist folder.";
/** Bytes below which the build writes no compressed sibling. */
const MIN_PACKED = 2048;
const ROLES = [
  "pyodide",
  "asm",
  "wasm",
  "stdlib",
  "site",
  "core",
  "native",
  "lock",
] as const satisfies AssetRole[];

/** Settings of {@link loadAssets}. */
export interface LoadOptions {
  /** Get the memory image too, where there is one. Default true. */
  readonly withImage?: boolean;
  /** Where files are kept between visits, as soon as it is open. */
  readonly store?: Promise<FileStore | undefined>;
  /** Take the compressed files and unpack them here, for hosts that do not compress. Default false. */
  readonly packed?: boolean;
}

/**
 * Gets the manifest and all it names.
 * @param base address of the runtime folder, with a slash at its end.
 * @param onProgress told the part that is there, 0 to 1, and the file that came last.
 * @throws {AssetError} a file is missing, or is not what the manifest says.
 */
export async function loadAssets(
  base: string,
  onProgress: (fraction: number, file: string) => void,
  signal: AbortSignal,
  { withImage = true, store: opening, packed = false }: LoadOptions = {},
): Promise<Assets> {
  const [json, store] = await Promise.all([fetchJson(`${base}manifest.json`, signal), opening]);
  const manifest = readManifest(json);
  const wanted = (Object.entries(manifest.files) as [AssetRole, ManifestFile][]).filter(
    ([role]) => withImage || role !== "image",
  );
  const total = wanted.reduce((sum, [, { size }]) => sum + size, 0);
  const files = new Map<AssetRole, Part>();
  let done = 0;
  let imageProblem: string | undefined;
  await Promise.all(
    wanted.map(async ([role, file]) => {
      try {
        files.set(
          role,
          (await store?.get(file.name, file.size)) ?? (await fetchFile(base, file, signal, packed)),
        );
        done += file.size;
        onProgress(done / total, file.name);
      } catch (error) {
        // The image only makes the start quicker.
        if (role !== "image" || signal.aborted) throw error;
        imageProblem = error instanceof Error ? error.message : String(error);
      }
    }),
  );
  return {
    manifest,
    files,
    ...(imageProblem === undefined ? {} : { imageProblem }),
    ...(store ? keeping(store, wanted, files) : {}),
  };
}

function keeping(
  store: FileStore,
  wanted: readonly [AssetRole, ManifestFile][],
  files: Map<AssetRole, Part>,
): Required<Pick<Assets, "keep" | "discard">> {
  return {
    async keep() {
      try {
        let all = true;
        await store.keepOnly(new Set(wanted.map(([, { name }]) => name)));
        for (const [role, { name, size }] of wanted) {
          const part = files.get(role);
          if (!(part instanceof Blob) || part instanceof File) continue;
          await store.put(name, part);
          const stored = await store.get(name, size);
          if (stored) files.set(role, stored);
          else all = false;
        }
        return all && files.size === wanted.length;
      } catch {
        // No room: what is kept is kept, and the browser's cache has the rest.
        return false;
      }
    },
    async discard(what) {
      for (const [role, { name }] of wanted) if (what === "all" || role === what) await store.remove(name);
    },
  };
}

/** Fetches a manifest.
 * @throws {AssetError} it is not there.
 */
export async function fetchJson(address: string, signal: AbortSignal): Promise<unknown> {
  let response: Response;
  try {
    // Always asked for anew: it is the one name that stays when the bundle changes.
    response = await fetch(address, { cache: "no-cache", signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new AssetError(
      `${address} cannot be fetched (${String(error)})`,
      "Check the connection, then reload.",
    );
  }
  if (!response.ok) throw new AssetError(`${address}: HTTP ${response.status}`, BUILD);
  return response.json();
}

/** Checks a manifest.
 * @throws {AssetError} it is none, or of another version.
 */
export function readManifest(value: unknown): Manifest {
  const claim = value as { format?: unknown; files?: Record<string, unknown> } | null;
  if (typeof claim !== "object" || claim === null || claim.format !== 1 || typeof claim.files !== "object") {
    throw new AssetError("the bundle's manifest is of another version", BUILD);
  }
  for (const role of ROLES) {
    const file = claim.files[role] as Partial<ManifestFile> | undefined;
    if (!file || !/^[\w.-]+$/.test(file.name ?? "") || !/^[0-9a-f]{64}$/.test(file.sha256 ?? "")) {
      throw new AssetError(`the bundle's manifest lacks ${role}`, BUILD);
    }
  }
  return value as Manifest;
}

/** Fetches a file of a manifest.
 * @param packed take the compressed file beside it and unpack it here, for hosts that do not compress.
 * @throws {AssetError} it is not there, or is not what the manifest says.
 */
export async function fetchFile(
  base: string,
  file: ManifestFile,
  signal: AbortSignal,
  packed = false,
): Promise<Blob> {
  const unpacked = packed && file.size >= MIN_PACKED ? await fetchPacked(base, file, signal) : undefined;
  if (unpacked) return new Blob([unpacked]);
  let response: Response;
  let bytes: ArrayBuffer;
  try {
    response = await fetch(base + file.name, { signal });
    bytes = await response.arrayBuffer();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new AssetError(
      `${file.name} cannot be fetched (${String(error)})`,
      "Check the connection, then reload.",
    );
  }
  if (!response.ok) throw new AssetError(`${file.name}: HTTP ${response.status}`, BUILD);
  if (!(await isWhole(bytes, file))) {
    throw new AssetError(
      `${file.name} is not what the manifest says`,
      "Reload the page; when it stays, build the bundle again (./build.sh build).",
    );
  }
  // The browser keeps it, outside this page's memory; every start and the store take it from there.
  return new Blob([bytes]);
}

/** The file, from its .gz sibling; undefined where a host lacks it, or unpacks it by itself. */
async function fetchPacked(
  base: string,
  file: ManifestFile,
  signal: AbortSignal,
): Promise<ArrayBuffer | undefined> {
  try {
    const response = await fetch(`${base}${file.name}.gz`, { signal });
    if (!response.ok || !response.body) return undefined;
    const bytes = await new Response(
      response.body.pipeThrough(new DecompressionStream("gzip")),
    ).arrayBuffer();
    return (await isWhole(bytes, file)) ? bytes : undefined;
  } catch (error) {
    if (signal.aborted) throw error;
    return undefined;
  }
}

/**
 * Whether bytes are a manifest's file. Not by `integrity` of fetch: Chromium then hashes on the page's own thread, which
 * takes four times as long for an image.
 */
async function isWhole(bytes: ArrayBuffer, { size, sha256 }: ManifestFile): Promise<boolean> {
  if (bytes.byteLength !== size) return false;
  // Absent in a page that is neither HTTPS nor on this machine; then the size must do.
  if (!globalThis.crypto?.subtle) return true;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === sha256;
}

/** The files, for one boot. What is in memory is handed away, so these are copies; a file is handed out as it is. */
export function parcelOf(assets: Assets, withImage: boolean): BootParcel {
  const parcel: Partial<Record<AssetRole, Part>> = {};
  for (const [role, part] of assets.files) {
    if (role !== "image" || withImage) parcel[role] = part instanceof ArrayBuffer ? part.slice(0) : part;
  }
  return parcel as BootParcel;
}
