import { expect, test } from "vitest";
import { type Image, openImage, packImage } from "../../../browser/src/sandbox/image.ts";

const PAGE = 65_536;
const HEAD = 24;

/** A snapshot as Pyodide makes it: its head, whose second word says where the memory begins, and the memory. */
function snapshotOf(memory: Uint8Array): Uint8Array {
  const snapshot = new Uint8Array(HEAD + memory.length).fill(7, 0, HEAD);
  new DataView(snapshot.buffer).setUint32(4, HEAD, true);
  snapshot.set(memory, HEAD);
  return snapshot;
}

/** Memory of the kinds that matter: bytes at both ends, long and short gaps, a single byte, much in a row. */
function someMemory(pages: number): Uint8Array {
  const memory = new Uint8Array(pages * PAGE);
  let seed = 1;
  const random = (below: number): number => {
    seed = (seed * 48_271) % 2_147_483_647;
    return seed % below;
  };
  for (let at = 0; at < memory.length; at += 1 + random(3000)) {
    const end = Math.min(memory.length, at + 1 + random(900));
    for (; at < end; at += 1) memory[at] = 1 + random(255);
  }
  memory[0] = 1;
  memory[memory.length - 1] = 2;
  return memory;
}

async function restored(image: Image): Promise<Uint8Array> {
  // Wherever the engine's own start wrote, the image has the last word.
  const heap = new Uint8Array(image.memory + PAGE).fill(0xee);
  await image.restore(() => heap);
  return heap;
}

const bytes = packImage(snapshotOf(someMemory(4)));

test.each(["bytes", "a file"])("memory comes back as it was, from %s", async (kind) => {
  const large = kind === "a file" ? 160 : 4;
  const memory = someMemory(large);
  const packed = packImage(snapshotOf(memory));
  const image = await openImage(kind === "a file" ? new Blob([packed]) : packed);
  expect(image.head).toEqual(snapshotOf(memory).slice(0, HEAD));
  expect(image.memory).toBe(memory.length);
  const heap = await restored(image);
  expect(Buffer.compare(heap.subarray(0, memory.length), memory)).toBe(0);
  expect(heap.subarray(memory.length).every((byte) => byte === 0)).toBe(true);
});

test("an image is restored once, and holds its bytes no longer", async () => {
  const image = await openImage(bytes.slice());
  await restored(image);
  await expect(restored(image)).rejects.toThrow("already");
});

test("a memory that could not grow is left as it was", async () => {
  const image = await openImage(bytes.slice());
  const heap = new Uint8Array(image.memory - PAGE).fill(0xee);
  await expect(image.restore(() => heap)).rejects.toThrow("no room");
  expect(heap.every((byte) => byte === 0xee)).toBe(true);
});

test("wherever it is cut off or has more behind it, it is refused before a byte is used", async () => {
  const lengths = [...Array(64).keys(), ...Array.from({ length: 200 }, (_, n) => (n * 7919) % bytes.length)];
  for (const length of [...lengths, bytes.length - 1]) {
    await expect(openImage(bytes.slice(0, length)), `${length} bytes`).rejects.toThrow("damaged");
    await expect(openImage(new Blob([bytes.slice(0, length)])), `${length} bytes`).rejects.toThrow("damaged");
  }
  await expect(openImage(new Uint8Array([...bytes, 0]))).rejects.toThrow("damaged");
});

test("a word of its head that is not true is refused; one of its table never leads outside the memory", async () => {
  const count = new DataView(bytes.buffer).getUint32(16, true);
  for (let word = 0; word < 5 + Math.min(count, 40) * 2; word += 1) {
    for (const value of [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xffff_fff8]) {
      const wrong = bytes.slice();
      new DataView(wrong.buffer).setUint32(word * 4, value, true);
      if (Buffer.compare(wrong, bytes) === 0) continue;
      const heap = new Uint8Array(4 * PAGE);
      const outcome = await openImage(wrong)
        .then((image) => image.restore(() => heap))
        .catch((error: unknown) => String(error));
      const what = `word ${word} is ${value}`;
      if (word < 5) expect(outcome, what).toMatch(/damaged|no room/);
      // A run that lies elsewhere between its neighbours is for the hash to find.
      else if (outcome !== undefined) expect(outcome, what).toMatch(/damaged/);
    }
  }
});
