/** Which JavaScript host this is, and what it promises. */

/** The hosts that carry Sandport outside a page. */
export type HostName = "node" | "deno" | "bun";

/** The host that runs this code. */
export function hostName(): HostName {
  if ("Deno" in globalThis) return "deno";
  return "Bun" in globalThis ? "bun" : "node";
}

/**
 * What keeps tool code from the machine: `nothing`, or Deno's `permissions`, of which the worker has none.
 * docs/hosts.md has the measurements.
 */
export type Isolation = "nothing" | "permissions";

/** One sentence for people, to be shown wherever tools run outside a page. */
export function isolationNotice(isolation: Isolation): string {
  return isolation === "nothing"
    ? "Nothing isolates tools here: their code can run commands and read files as you. Load only tools that you trust."
    : "Tools have no Deno permissions: no files, network, environment or commands. They can end this process, read its input, write to its output and use its time and memory.";
}
