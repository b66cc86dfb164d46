import { loadPyodide } from "./pyodide.mjs";

const pyodide = await loadPyodide({ indexURL: new URL("./", self.location.href).href });
self.postMessage(pyodide.runPython("6 * 7"));
