/**
 * Runs in Node, Deno or Bun: starts a host sandbox, and prints how it started and what was said as one line of JSON.
 *
 *     start.mjs PACKAGE OPTIONS-AS-JSON
 */

import process from "node:process";
import { pathToFileURL } from "node:url";

const [folder, json] = process.argv.slice(2);
const { createHostSandbox } = await import(pathToFileURL(`${folder}/dist/node/index.js`).href);

const said = [];
const sandbox = createHostSandbox({
  ...JSON.parse(json),
  onImage: (text) => said.push(text),
  on: {
    progress: ({ stage, detail }) => {
      if (stage === "runtime" && detail) said.push(detail);
    },
  },
});
const { mode } = await sandbox.ready;
const tools = (await sandbox.listTools()).length;
sandbox.terminate();
// The end of the program, which nothing here forces: what is said of the image comes after the start.
process.on("exit", () => console.log(JSON.stringify({ mode, tools, said })));
