/**
 * The process that makes a memory image aside: see `KeptImage.makeAside`.
 *
 *     maker.js BUNDLE PART FOLDER
 *
 * Invariant: it says nothing, as nobody would hear it; the claim that its starter made ends with it.
 */

import { constants, setPriority } from "node:os";
import process from "node:process";
import { Claim, KeptImage, MAKING_LIMIT } from "./kept.ts";
import { makeImage } from "./make-image.ts";

try {
  // Whoever caused it must not wait for it.
  setPriority(constants.priority.PRIORITY_LOW);
} catch {
  // Not every host can.
}
setTimeout(() => process.exit(1), MAKING_LIMIT).unref();

const [bundle = "", part, folder = ""] = process.argv.slice(2);
const kept = new KeptImage(bundle, part === "agent" ? part : "runtime", folder);
const made = kept.file().then((file) => makeImage(kept, Claim.inherited(file)));
process.exit(
  await made.then(
    () => 0,
    () => 1,
  ),
);
