/**
 * Python tools outside a page: the same bundle, the same core, the same restart after a crash.
 *
 * Invariant: who starts one learns from `isolation` what keeps tool code from the machine.
 */

import { readFile } from "node:fs/promises";
import path from "node:path";
import { Sandbox, type SandboxOptions } from "../sandbox/sandbox.ts";
import { ownBundle } from "./assets.ts";
import { hostGround, isolationOf } from "./ground.ts";
import type { Isolation } from "./host.ts";
import { zipFolder } from "./zip.ts";

/** Settings of {@link createHostSandbox}. */
export interface HostSandboxOptions
  extends Pick<SandboxOptions, "timeLimit" | "hangLimit" | "environ" | "useImage" | "on"> {
  /** Folder of the bundle; by default the one of this package. */
  readonly bundle?: string;
  /** In Deno: let tools have the permissions of the process. Default false. */
  readonly trusted?: boolean;
}

/** See {@link createHostSandbox}. */
export class HostSandbox extends Sandbox {
  /** What keeps tool code from the machine. */
  readonly isolation: Isolation;

  /** @internal use {@link createHostSandbox} */
  constructor(options: HostSandboxOptions) {
    const { bundle = ownBundle(), trusted = false } = options;
    super(options, hostGround({ bundle, trusted }));
    this.isolation = isolationOf({ trusted });
  }

  /**
   * Loads the FastMCP server `mcp` that a Python file defines, under the file's name.
   * @returns the names of its tools.
   */
  async loadFile(file: string): Promise<string[]> {
    const name = path.basename(file, ".py").replaceAll(/\W/g, "_");
    return this.loadTools(name, await readFile(file, "utf8"));
  }

  /** Copies a folder of this machine into /workspace, where the workspace tools look. Links are left out. */
  async mountFolder(folder: string): Promise<{ files: number; bytes: number }> {
    return this.mountZip("/workspace", await zipFolder(folder), { replace: true });
  }
}

/**
 * Starts Python with Sandport's servers in a thread of this process.
 *
 * ```ts
 * const sandbox = createHostSandbox();
 * await sandbox.loadFile("my_tools.py");
 * const { lane } = lend(stdioChannel("my-agent", ["--acp"]), [sandbox]);
 * ```
 *
 * In Node and Bun nothing isolates the tools; see docs/hosts.md.
 */
export function createHostSandbox(options: HostSandboxOptions = {}): HostSandbox {
  return new HostSandbox(options);
}
