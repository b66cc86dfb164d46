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
import {
  AssetError,
  type AssetRole,
  type Assets,
  type ManifestFile,
  readManifest,
} from "../sandbox/assets.ts";

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
): Promise<Assets> {
  const runtime = path.join(folder, "runtime");
  const manifest = readManifest(JSON.parse((await read(path.join(runtime, "manifest.json"))).toString()));
  const wanted = Object.entries(manifest.files) as [AssetRole, ManifestFile][];
  let imageProblem: string | undefined;
  let done = 0;
  const files = new Map<AssetRole, ArrayBuffer>();
  await Promise.all(
    wanted.map(async ([role, { name, sha256 }]) => {
      try {
        const bytes = await read(path.join(runtime, name));
        if (createHash("sha256").update(bytes).digest("hex") !== sha256) {
          throw new AssetError(
            `${name} is not what the manifest says`,
            "Build the bundle again, or install it anew.",
          );
        }
        files.set(role, copyOf(bytes));
      } catch (error) {
        // The image only makes the start quicker.
        if (role !== "image") throw error;
        imageProblem = String(error);
      }
      done += 1;
      onProgress(done / wanted.length, name);
    }),
  );
  return { manifest, files, ...(imageProblem === undefined ? {} : { imageProblem }) };
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
