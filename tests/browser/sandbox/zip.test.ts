import { expect, test } from "vitest";
import { storedEntries } from "../../../browser/src/sandbox/zip.ts";

/** `python -m zipfile`'s bytes of an archive with one stored entry `a/b` that holds `hi`. */
function archive(method = 0): Uint8Array {
  const name = new TextEncoder().encode("a/b");
  const bytes = new Uint8Array(30 + 3 + 2 + 46 + 3 + 22);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, 0x04034b50, true);
  view.setUint16(8, method, true);
  view.setUint32(18, 2, true);
  view.setUint32(22, 2, true);
  view.setUint16(26, 3, true);
  bytes.set(name, 30);
  bytes.set([104, 105], 33);
  view.setUint32(35, 0x02014b50, true);
  view.setUint16(35 + 10, method, true);
  view.setUint32(35 + 20, 2, true);
  view.setUint32(35 + 24, 2, true);
  view.setUint16(35 + 28, 3, true);
  bytes.set(name, 35 + 46);
  view.setUint32(84, 0x06054b50, true);
  view.setUint16(84 + 10, 1, true);
  view.setUint32(84 + 16, 35, true);
  return bytes;
}

test("entries are views into the archive", () => {
  const bytes = archive();
  const entry = storedEntries(bytes).get("a/b");
  expect(new TextDecoder().decode(entry)).toBe("hi");
  expect(entry?.buffer).toBe(bytes.buffer);
});

test("an archive inside a larger buffer", () => {
  const outer = new Uint8Array(500);
  outer.set(archive(), 100);
  const inner = outer.subarray(100, 100 + archive().length);
  expect([...storedEntries(inner).keys()]).toEqual(["a/b"]);
});

test.each([
  ["compressed", archive(8)],
  ["cut", archive().subarray(0, 60)],
  ["empty", new Uint8Array()],
  ["text", new TextEncoder().encode("this is no archive at all, however long it is")],
])("what is %s is refused", (_, bytes) => {
  expect(() => storedEntries(bytes)).toThrow("not a stored zip archive");
});
