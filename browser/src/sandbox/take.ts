/**
 * Takes the memory image of a Python that was booted for one (`makeImage` of `bootPyodide`) and prepared.
 *
 * Invariant: the build and whoever makes an image later take it in the same way, so both are restored in the same way.
 */

import type { PyodideAPI } from "pyodide";
import { packImage } from "./image.ts";

/** Environment of such a Python. The hash seed is that of every sandbox from the image; a fixed one repeats. */
export const IMAGE_ENV: Readonly<Record<string, string>> = { PYTHONHASHSEED: "0" };

const IMPORT = `
import gc, importlib
for name in modules:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
del modules, name
gc.collect()
gc.freeze()
`;

/**
 * Takes the image, with modules imported first.
 * @param modules names of modules; what cannot be imported is left out.
 */
export function takeImage(pyodide: PyodideAPI, modules: readonly string[]): Uint8Array<ArrayBuffer> {
  pyodide.globals["set"]("modules", pyodide.toPy(["gc", ...modules]));
  pyodide.runPython(IMPORT);
  const { makeMemorySnapshot } = pyodide as unknown as { makeMemorySnapshot(): Uint8Array };
  return packImage(new Uint8Array(makeMemorySnapshot.call(pyodide)));
}
