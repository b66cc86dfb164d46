/**
 * The bundle's files, fetched once and kept in the page's memory.
 *
 * Invariant: bytes are handed out only when their SHA-256 is the one that the manifest names; the browser checks it. A
 * second start takes no network at all, and a second visit fetches nothing that the browser's cache still has: every
 * name holds a hash of the contents.
 */

import type { BootParcel } from "./protocol.ts";

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
  readonly files: ReadonlyMap<AssetRole, ArrayBuffer>;
  /** Why the memory image could not be had, where the manifest names one. */
  readonly imageProblem?: string;
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

/**
 * Fetches the manifest and all it names.
 * @param base address of the runtime folder, with a slash at its end.
 * @param onProgress told the part that is there, 0 to 1, and the file that came last.
 * @param options.withImage fetch the memory image too, where there is one.
 * @throws {AssetError} a file is missing, or is not what the manifest says.
 */
export async function loadAssets(
  base: string,
  onProgress: (fraction: number, file: string) => void,
  signal: AbortSignal,
  { withImage = true }: { readonly withImage?: boolean } = {},
): Promise<Assets> {
  const manifest = readManifest(await fetchJson(`${base}manifest.json`, signal));
  const wanted = (Object.entries(manifest.files) as [AssetRole, ManifestFile][]).filter(
    ([role]) => withImage || role !== "image",
  );
  const total = wanted.reduce((sum, [, { size }]) => sum + size, 0);
  let done = 0;
  let imageProblem: string | undefined;
  const fetched = await Promise.all(
    wanted.map(async ([role, file]): Promise<[AssetRole, ArrayBuffer] | undefined> => {
      try {
        const bytes = await fetchFile(base, file, signal);
        done += file.size;
        onProgress(done / total, file.name);
        return [role, bytes];
      } catch (error) {
        // The image only makes the start quicker.
        if (role !== "image" || signal.aborted) throw error;
        imageProblem = error instanceof Error ? error.message : String(error);
        return undefined;
      }
    }),
  );
  const files = new Map(fetched.filter((entry) => entry !== undefined));
  return imageProblem === undefined ? { manifest, files } : { manifest, files, imageProblem };
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

function readManifest(value: unknown): Manifest {
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
 * @throws {AssetError} it is not there, or is not what the manifest says.
 */
export async function fetchFile(base: string, file: ManifestFile, signal: AbortSignal): Promise<ArrayBuffer> {
  const pairs = file.sha256.match(/../g) ?? [];
  const digest = btoa(String.fromCharCode(...pairs.map((pair) => Number.parseInt(pair, 16))));
  let response: Response;
  try {
    response = await fetch(base + file.name, { integrity: `sha256-${digest}`, signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new AssetError(
      `${file.name} cannot be fetched, or is not what the manifest says (${String(error)})`,
      "Reload the page; when it stays, build the bundle again (./build.sh build).",
    );
  }
  if (!response.ok) throw new AssetError(`${file.name}: HTTP ${response.status}`, BUILD);
  return response.arrayBuffer();
}

/** Copies of the files, for one boot: they are handed away. */
export function parcelOf(assets: Assets, withImage: boolean): BootParcel {
  const parcel: Partial<Record<AssetRole, ArrayBuffer>> = {};
  for (const [role, bytes] of assets.files) {
    if (role !== "image" || withImage) parcel[role] = bytes.slice(0);
  }
  return parcel as BootParcel;
}
