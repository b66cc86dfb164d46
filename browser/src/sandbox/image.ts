/**
 * The memory image as a file: what is not zero of a Python that was booted, and where it belongs.
 *
 * Layout, little-endian 32-bit words: magic, bytes before the data, bytes of Pyodide's own head, bytes of the whole
 * memory, number of runs, then (address, length) of each run; then Pyodide's head (its magic, build id and the state of
 * its JavaScript side), then the runs' bytes one after the other, from {@link DATA_ALIGN} on.
 *
 * Invariant: runs are in order, do not overlap and lie within the memory, and the file has exactly their bytes; a file
 * of which that is not so is refused before a byte of it is used.
 */

/** `SPI1`. */
const MAGIC = 0x31495053;
const FIXED = 20;
const DATA_ALIGN = 16;
/** Zero bytes that end a run: an entry of the table takes 8, and copying a run costs more than copying 512 bytes. */
const GAP = 512;
/** Bytes that are read at once from a file; the first are read apart, as the table is in them. */
const PIECE = 8 << 20;
const FIRST = 256 << 10;
/** Bytes of a page of WebAssembly: a memory is a whole number of them. */
const PAGE = 65_536;
/** Word of a Pyodide snapshot that holds the offset of the memory in it. */
const SNAPSHOT_MEMORY = 1;

/** An image, opened: its head is there, its bytes may still be read. */
export interface Image {
  /** What Pyodide restores its JavaScript side from: a snapshot of no memory at all. */
  readonly head: Uint8Array<ArrayBuffer>;
  /** Bytes of memory that are needed. */
  readonly memory: number;
  /**
   * Puts the image into a memory of at least that many bytes, once: what was copied is let go of.
   * @param heap gives a view of the memory.
   * @throws {Error} the memory is too small, or this image was restored before.
   */
  restore(heap: () => Uint8Array): Promise<void>;
}

/** Makes an image of a snapshot that `makeMemorySnapshot` gave. */
export function packImage(snapshot: Uint8Array): Uint8Array<ArrayBuffer> {
  const start = new DataView(snapshot.buffer, snapshot.byteOffset).getUint32(SNAPSHOT_MEMORY * 4, true);
  const head = snapshot.subarray(0, start);
  const memory = snapshot.subarray(start);
  const runs = runsOf(memory);
  const data = dataAt(runs.length, head.length);
  const image = new Uint8Array(data + runs.reduce((sum, [, length]) => sum + length, 0));
  const words = new DataView(image.buffer);
  [MAGIC, data, head.length, memory.length, runs.length, ...runs.flat()].forEach((word, index) => {
    words.setUint32(index * 4, word, true);
  });
  image.set(head, FIXED + runs.length * 8);
  let at = data;
  for (const [address, length] of runs) {
    image.set(memory.subarray(address, address + length), at);
    at += length;
  }
  return image;
}

/** Where the data begins. */
function dataAt(runs: number, head: number): number {
  return Math.ceil((FIXED + runs * 8 + head) / DATA_ALIGN) * DATA_ALIGN;
}

function runsOf(memory: Uint8Array): [number, number][] {
  const words = new BigUint64Array(memory.slice().buffer, 0, memory.length >> 3);
  const runs: [number, number][] = [];
  let begin = -1;
  let end = -1;
  for (let index = 0; index < words.length; index += 1) {
    if (words[index] === 0n) continue;
    const at = index * 8;
    if (begin >= 0 && at - end > GAP) {
      runs.push([begin, end - begin]);
      begin = at;
    } else if (begin < 0) begin = at;
    end = at + 8;
  }
  if (begin >= 0) runs.push([begin, end - begin]);
  return runs;
}

/**
 * Opens an image.
 * @param after a file's bytes, but for the first, are read from then on: what is needed sooner is read before them.
 * @throws {Error} it is none.
 */
export async function openImage(
  part: Uint8Array<ArrayBuffer> | Blob,
  after: Promise<unknown> = Promise.resolve(),
): Promise<Image> {
  const pieces = part instanceof Blob ? piecesOf(part, after) : [{ at: 0, bytes: Promise.resolve(part) }];
  const size = part instanceof Blob ? part.size : part.byteLength;
  let first = (await pieces[0]?.bytes) ?? new Uint8Array();
  const words = (): DataView => new DataView(first.buffer, first.byteOffset, first.byteLength);
  if (first.byteLength < FIXED || words().getUint32(0, true) !== MAGIC) throw damaged();
  const data = words().getUint32(4, true);
  if (data > size) throw damaged();
  if (part instanceof Blob && data > first.byteLength) {
    first = new Uint8Array(await part.slice(0, data).arrayBuffer());
  }
  const headLength = words().getUint32(8, true);
  const memory = words().getUint32(12, true);
  const count = words().getUint32(16, true);
  if (data !== dataAt(count, headLength) || memory % PAGE !== 0) throw damaged();
  const runs = new Uint32Array(first.slice(FIXED, FIXED + count * 8).buffer);
  check(runs, memory, size - data);
  const headAt = FIXED + count * 8;
  return {
    head: first.slice(headAt, headAt + headLength),
    memory,
    async restore(heap) {
      if (pieces.length === 0) throw new Error("this image was restored already");
      if (heap().byteLength < memory) throw new Error("there is no room for the memory image");
      clearBetween(heap(), runs);
      // In order of the file: an engine that reads them one after the other is done with the first meanwhile. Whoever
      // has the image has it as long as Python lives; it must not hold all of the memory a second time.
      for (let piece = pieces.shift(); piece; piece = pieces.shift()) {
        place(heap(), await piece.bytes, piece.at - data, runs);
      }
    },
  };
}

interface Piece {
  /** Offset in the file. */
  readonly at: number;
  readonly bytes: Promise<Uint8Array>;
}

function piecesOf(file: Blob, after: Promise<unknown>): Piece[] {
  const pieces: Piece[] = [];
  for (let at = 0; at < file.size; ) {
    const end = Math.min(file.size, at + (at === 0 ? FIRST : PIECE));
    const slice = file.slice(at, end);
    const read = at === 0 ? slice.arrayBuffer() : after.then(() => slice.arrayBuffer());
    const bytes = read.then((buffer) => new Uint8Array(buffer));
    // Whoever opens the image waits for the first, and whoever restores it for the others.
    bytes.catch(() => {});
    pieces.push({ at, bytes });
    at = end;
  }
  return pieces;
}

function check(runs: Uint32Array, memory: number, bytes: number): void {
  let end = 0;
  let sum = 0;
  for (let index = 0; index < runs.length; index += 2) {
    const [address = 0, length = 0] = runs.subarray(index, index + 2);
    if (address < end || address + length > memory) throw damaged();
    end = address + length;
    sum += length;
  }
  if (sum !== bytes) throw damaged();
}

/** What the engine's own start wrote between the runs, which was zero when the image was made. */
function clearBetween(heap: Uint8Array, runs: Uint32Array): void {
  let end = 0;
  for (let index = 0; index < runs.length; index += 2) {
    const [address = 0, length = 0] = runs.subarray(index, index + 2);
    heap.fill(0, end, address);
    end = address + length;
  }
  heap.fill(0, end);
}

/** Copies the part of the runs' bytes that `bytes`, at offset `at` among them, holds. */
function place(heap: Uint8Array, bytes: Uint8Array, at: number, runs: Uint32Array): void {
  const last = at + bytes.byteLength;
  let offset = 0;
  for (let index = 0; index < runs.length && offset < last; index += 2) {
    const [address = 0, length = 0] = [runs[index], runs[index + 1]];
    const from = Math.max(offset, at);
    const to = Math.min(offset + length, last);
    if (to > from) heap.set(bytes.subarray(from - at, to - at), address + from - offset);
    offset += length;
  }
}

function damaged(): Error {
  return new Error("the memory image is damaged");
}
