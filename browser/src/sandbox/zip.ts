/**
 * Reads zip archives whose entries are stored, not compressed: views into the archive, no copies.
 *
 * Invariant: an archive that is anything else is refused; it was made by our build, so that is a damaged file.
 */

const END_OF_DIRECTORY = 0x06054b50;
const DIRECTORY_ENTRY = 0x02014b50;
const LOCAL_HEADER = 30;

/** The entries of `archive`, by path, in the order of the archive. Folders are left out. */
export function storedEntries(archive: Uint8Array): Map<string, Uint8Array> {
  const view = new DataView(archive.buffer, archive.byteOffset, archive.byteLength);
  const end = archive.byteLength - 22;
  if (end < 0 || view.getUint32(end, true) !== END_OF_DIRECTORY) throw new Error("not a stored zip archive");
  const entries = new Map<string, Uint8Array>();
  const decoder = new TextDecoder();
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    if (view.getUint32(at, true) !== DIRECTORY_ENTRY || view.getUint16(at + 10, true) !== 0) {
      throw new Error("not a stored zip archive: a damaged or compressed entry");
    }
    const size = view.getUint32(at + 24, true);
    const nameLength = view.getUint16(at + 28, true);
    const name = decoder.decode(archive.subarray(at + 46, at + 46 + nameLength));
    const header = view.getUint32(at + 42, true);
    const start =
      header + LOCAL_HEADER + view.getUint16(header + 26, true) + view.getUint16(header + 28, true);
    if (!name.endsWith("/")) entries.set(name, archive.subarray(start, start + size));
    at += 46 + nameLength + view.getUint16(at + 30, true) + view.getUint16(at + 32, true);
  }
  return entries;
}
