/** Files with tools that a person gives to the page. */

import { beforeEach, expect, it } from "vitest";
import {
  EDITOR,
  type Loader,
  loadFile,
  loadText,
  MAX_FILE_BYTES,
  moduleName,
  ownTools,
  takeOut,
} from "../../web/src/model/own-tools.ts";

/** A sandbox that says what it was asked for. */
function loader(tools: readonly string[] = ["one"]): Loader & { asked: string[] } {
  const asked: string[] = [];
  return {
    asked,
    async loadTools(name, source) {
      asked.push(`text ${name} ${source}`);
      return tools;
    },
    async loadPackage(name, archive) {
      asked.push(`package ${name} ${archive.size}`);
      return tools;
    },
    async unloadTools(name) {
      asked.push(`unload ${name}`);
    },
  };
}

beforeEach(() => {
  ownTools.value = [];
});

it.each([
  ["acme_tools-1.0-py3-none-any.whl", "acme_tools"],
  ["my-tools.zip", "my_tools"],
  ["acme-main.zip", "acme_main"],
  ["acme-2.1.zip", "acme"],
  ["Grüße (1).zip", "Grüße__1_"],
  ["3d.zip", "_3d"],
  [".zip", "_"],
])("%s becomes %s", (file, name) => {
  expect(moduleName(file)).toBe(name);
});

it("lists what is loaded, once a name, and what was taken out no more", async () => {
  const sandbox = loader();
  await loadText(sandbox, "x");
  await loadFile(sandbox, new File(["abc"], "acme-1.0-py3-none-any.whl"));
  await loadFile(sandbox, new File(["abcd"], "acme-1.1-py3-none-any.whl"));
  expect(sandbox.asked).toEqual([`text ${EDITOR} x`, "package acme 3", "package acme 4"]);
  expect(ownTools.value).toEqual([
    { name: EDITOR, file: undefined, tools: ["one"] },
    { name: "acme", file: "acme-1.1-py3-none-any.whl", tools: ["one"] },
  ]);
  await takeOut(sandbox, "acme");
  expect(ownTools.value.map(({ name }) => name)).toEqual([EDITOR]);
});

it("keeps the list when a file is refused or too large", async () => {
  const sandbox = loader();
  await loadFile(sandbox, new File([""], "acme.zip"));
  const refusing: Loader = { ...sandbox, loadPackage: () => Promise.reject(new Error("no server")) };
  await expect(loadFile(refusing, new File([""], "acme.zip"))).rejects.toThrow("no server");
  const large = Object.defineProperty(new File([""], "large.zip"), "size", { value: MAX_FILE_BYTES + 1 });
  await expect(loadFile(sandbox, large)).rejects.toThrow(/large\.zip has 100 MB; the limit is 100 MB/);
  expect(ownTools.value).toEqual([{ name: "acme", file: "acme.zip", tools: ["one"] }]);
});
