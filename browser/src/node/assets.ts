/**
 * The bundle from a folder.
 *
 * Invariant: as in a page, bytes are handed out only when their SHA-256 is the one that the manifest names.
 */

import { createHash } from "node:crypto";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { agentConfig, readAgentManifest } from "../agent/ground.ts";
import {
  AssetError,
  type AssetRole,
  type Assets,
  type ManifestFile,
  readManifest,
} from "../sandbox/assets.ts";
import type { BootParcel, HandOver } from "../sandbox/protocol.ts";

/** Where a bundle may lie, seen from this module: in the package, and in the repository that builds it. */
const PLACES = ["../../assets", "../../../dist"];

/**
 * The bundle that came with this package.
 * @throws {AssetError} there is none.
 */
export function ownBundle(): string {
  for (const place of PLACES) {
    const folder = fileURLToPath(new URL(place, import.meta.url));
    if (existsSync(path.join(folder, "runtime", "manifest.json"))) return folder;
  }
  throw new AssetError("there is no bundle beside this module", "Build it: ./build.sh build");
}

/**
 * Reads a bundle.
 * @param folder holds `runtime/`.
 * @throws {AssetError} a file is missing, or is not what the manifest says.
 */
export async function readAssets(
  folder: string,
  onProgress: (fraction: number, file: string) => void,
  withImage = true,
): Promise<Assets> {
  const runtime = path.join(folder, "runtime");
  const manifest = readManifest(await readJson(path.join(runtime, "manifest.json")));
  const wanted = Object.entries(manifest.files) as [AssetRole, ManifestFile][];
  let imageProblem: string | undefined;
  let done = 0;
  const files = new Map<AssetRole, ArrayBuffer>();
  await Promise.all(
    wanted.map(async ([role, file]) => {
      if (role === "image" && !withImage) return;
      try {
        files.set(role, await readAsset(runtime, file));
      } catch (error) {
        // The image only makes the start quicker.
        if (role !== "image") throw error;
        imageProblem = String(error);
      }
      done += 1;
      onProgress(done / wanted.length, file.name);
    }),
  );
  return { manifest, files, ...(imageProblem === undefined ? {} : { imageProblem }) };
}

/** What {@link readAgent} gives. */
export interface AgentBytes extends HandOver {
  /** Whether the bundle came with a memory image, be it usable or not. */
  readonly hasImage: boolean;
}

/**
 * Reads the runtime without its image, and the agent on top of it.
 * @param folder holds `runtime/` and `agent/`.
 * @throws {AssetError} a file is missing, or is not what its manifest says.
 */
export async function readAgent(
  folder: string,
  withImage: boolean,
  onProgress: (fraction: number, file: string) => void,
): Promise<AgentBytes> {
  const own = path.join(folder, "agent");
  const manifest = readAgentManifest(await readJson(path.join(own, "manifest.json")));
  const [runtime, core, extra, image] = await Promise.all([
    readAssets(folder, onProgress, false),
    readAsset(own, manifest.core),
    readAsset(own, manifest.extra),
    // It only makes the start quicker.
    withImage && manifest.image ? readAsset(own, manifest.image).catch(() => undefined) : undefined,
  ]);
  const files = Object.fromEntries(runtime.files) as unknown as BootParcel;
  return {
    parcel: { ...files, core, extra, ...(image ? { image } : {}) },
    config: agentConfig(runtime.manifest.preload, manifest.module),
    hasImage: manifest.image !== undefined,
  };
}

/** Whether a part of a bundle came with a memory image. */
export async function hasImage(folder: string, part: "runtime" | "agent"): Promise<boolean> {
  const json = await readJson(path.join(folder, part, "manifest.json"));
  const { image } = part === "agent" ? readAgentManifest(json) : readManifest(json).files;
  return image !== undefined;
}

async function readJson(file: string): Promise<unknown> {
  return JSON.parse((await read(file)).toString());
}

async function readAsset(folder: string, { name, sha256 }: ManifestFile): Promise<ArrayBuffer> {
  const bytes = await read(path.join(folder, name));
  if (createHash("sha256").update(bytes).digest("hex") !== sha256) {
    throw new AssetError(
      `${name} is not what the manifest says`,
      "Build the bundle again, or install it anew.",
    );
  }
  return copyOf(bytes);
}

async function read(file: string): Promise<Buffer> {
  try {
    return await readFile(file);
  } catch (error) {
    const remedy = "Give the folder of a bundle (it holds runtime/), or build one: ./build.sh build";
    throw new AssetError(
      `${file} cannot be read (${error instanceof Error ? error.message : error})`,
      remedy,
    );
  }
}

/** A buffer of its own: a Node Buffer may share its memory with others. */
function copyOf(bytes: Buffer): ArrayBuffer {
  const copy = new ArrayBuffer(bytes.byteLength);
  new Uint8Array(copy).set(bytes);
  return copy;
}
