/** The peer of the start: a worker that loads Pyodide and nothing else. */
globalThis.started = new Promise((resolve, reject) => {
  const worker = new Worker(new URL("./bare-worker.mjs", document.baseURI), { type: "module" });
  worker.onmessage = ({ data }) => resolve({ total: performance.now(), answer: data });
  worker.onerror = (event) => reject(new Error(event.message || "the worker failed"));
});
globalThis.started.catch(() => {});
