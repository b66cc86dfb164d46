/**
 * Python tools outside a page: the same bundle, the same core, the same restart after a crash.
 *
 * Invariant: who starts one learns from `isolation` what keeps tool code from the machine.
 */

import { readFile, stat } from "node:fs/promises";
import path from "node:path";
import type { TextChannel } from "../channel.ts";
import { Sandbox, type SandboxOptions } from "../sandbox/sandbox.ts";
import { type Ask, Gate } from "../tools/consent.ts";
import type { ServerDeclaration } from "../wire.ts";
import { ownBundle } from "./assets.ts";
import { GatedLane } from "./gate.ts";
import { hostGround, isolationOf } from "./ground.ts";
import type { Isolation } from "./host.ts";
import { type ImageCacheOptions, keptImage } from "./kept.ts";
import { zipFolder } from "./zip.ts";

/** Settings of {@link createHostSandbox}. */
export interface HostSandboxOptions
  extends Pick<SandboxOptions, "timeLimit" | "hangLimit" | "environ" | "useImage" | "on">,
    ImageCacheOptions {
  /** Folder of the bundle; by default the one of this package. */
  readonly bundle?: string;
  /** In Deno: let tools have the permissions of the process. Default false. */
  readonly trusted?: boolean;
  /**
   * Asked before each call of a tool, of whatever dialect; "always" holds while the tool stays as it is. By default
   * calls run without a question. The agent reads the text of a `ConsentError` (`sandport/tools`) that it throws.
   */
  readonly ask?: Ask;
  /** Seconds that a question waits for its answer, null for ever. Default {@link QUESTION_LIMIT}. */
  readonly askLimit?: number | null;
}

/** See {@link createHostSandbox}. */
export class HostSandbox extends Sandbox {
  /** What keeps tool code from the machine. */
  readonly isolation: Isolation;
  readonly #gate: Gate | undefined;
  readonly #names = new Map<string, string>();
  readonly #connections = new Map<string, string>();

  /** @internal use {@link createHostSandbox} */
  constructor(options: HostSandboxOptions) {
    const { bundle = ownBundle(), trusted = false, useImage = true } = options;
    const kept = useImage ? keptImage(bundle, "runtime", options.imageCache) : undefined;
    super(options, hostGround({ bundle, trusted, kept }));
    // When it serves: the next start is quicker by it, this one is not.
    void this.ready.then(() => kept?.makeMissing(options.onImage)).catch(() => {});
    this.isolation = isolationOf({ trusted });
    const { ask, askLimit } = options;
    this.#gate = ask && new Gate(ask, askLimit, "at the terminal");
  }

  /** As `Sandbox.openLane`; calls on the lane wait for whoever is asked. */
  override async openLane(prefix: string): Promise<TextChannel> {
    const lane = await super.openLane(prefix);
    if (!this.#gate) return lane;
    const asked = { nameOf: (id: string) => this.#names.get(id), listTools: () => this.listTools() };
    return new GatedLane(lane, asked, this.#gate, this.#connections);
  }

  override async declare(names?: readonly string[]): Promise<ServerDeclaration[]> {
    const declared = await super.declare(names);
    for (const { name, serverId } of declared) this.#names.set(serverId, name);
    return declared;
  }

  override async withdraw(ids: readonly string[]): Promise<void> {
    for (const id of ids) this.#names.delete(id);
    await super.withdraw(ids);
  }

  /**
   * Loads tools from this machine, under the file's name: a Python file that defines a FastMCP server `mcp`, a wheel, a zip, or
   * a folder with a package or modules.
   * @param options.server of a wheel, zip or folder: `module` or `module:attribute` of the server; by default it is looked for.
   * @returns the names of its tools.
   */
  async loadFile(file: string, options: { readonly server?: string } = {}): Promise<string[]> {
    const { name, ext } = path.parse(path.resolve(file));
    const isFolder = (await stat(file)).isDirectory();
    const isArchive = /^\.(whl|zip)$/i.test(ext);
    // A wheel's name goes on with its version and tags.
    const title = isFolder ? path.basename(path.resolve(file)) : isArchive ? name.replace(/-\d.*/, "") : name;
    const module = title.replaceAll(/\W/g, "_");
    if (isFolder) return this.loadPackage(module, await zipFolder(file), options);
    if (isArchive) return this.loadPackage(module, new Uint8Array(await readFile(file)), options);
    if (options.server !== undefined)
      throw new Error(`${file} is one module: it has no other server to name`);
    return this.loadTools(module, await readFile(file, "utf8"));
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
