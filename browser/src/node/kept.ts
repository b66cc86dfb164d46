/**
 * Memory images that are made here and kept, for a bundle that came without them.
 *
 * Invariants: an image is used only when it is whole (its SHA-256 stands before it), was made from the same bundle by the
 * same engine (its name is a digest of both), and nobody else can have written or read it. It comes into place by a rename.
 * One process makes it, others that start meanwhile do not. What goes wrong here costs time and nothing else.
 */

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { lstat, mkdir, open, readdir, readFile, rm, stat, utimes } from "node:fs/promises";
import path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { writeWhole } from "./files.ts";
import { hostName } from "./host.ts";

/** What an image is of: the sandbox's Python, or the agent's. */
export type ImagePart = "runtime" | "agent";

/** Variable of the environment that names the folder, or is `off`. */
export const CACHE_VARIABLE = "SANDPORT_IMAGE_CACHE";

/** Part of each image's name: another number whenever images are made or kept in another way. */
const FORMAT = 1;
const ENDING = ".image";
/** Images that are kept: those of the sandbox and the agent, in two hosts. */
const MAX_KEPT = 4;
const DAY = 86_400_000;
/** Milliseconds after which an image that nobody used goes. */
const MAX_AGE = 30 * DAY;
/** Milliseconds that the making may take; then it counts as given up. */
export const MAKING_LIMIT = 300_000;
/** Bytes of a SHA-256, which stands before the image. */
const DIGEST = 32;
const MAKER = new URL(import.meta.url.replace(/kept\.([jt]s)$/, "maker.$1"));

/** What who starts Python here decides about kept images. */
export interface ImageCacheOptions {
  /**
   * Folder that keeps a memory image made here, where the bundle has none; false keeps none. By default what the
   * environment's `SANDPORT_IMAGE_CACHE` names (`off` for none), or `sandport` in the user's folder for caches.
   */
  readonly imageCache?: string | false;
  /** Told in a sentence that an image is being made for the next start, or why none can be kept. */
  readonly onImage?: (text: string) => void;
}

/**
 * The folder for images.
 * @param wish a folder, false for none; by default what the environment says, or the user's folder for caches.
 * @returns undefined where no image is to be kept.
 */
export function imageFolder(wish: string | false | undefined): string | undefined {
  if (wish !== undefined) return wish === false ? undefined : path.resolve(wish);
  if (!mayReadEnvironment()) return undefined;
  const { env } = process;
  const given = env[CACHE_VARIABLE];
  if (given) return given === "off" ? undefined : path.resolve(given);
  const { HOME: home, LOCALAPPDATA: local, XDG_CACHE_HOME: xdg } = env;
  // What is relative there is to be passed over, says the XDG specification.
  if (xdg && path.isAbsolute(xdg)) return path.join(xdg, "sandport");
  if (process.platform === "win32") return local && path.join(local, "sandport", "cache");
  return home && path.join(home, ".cache", "sandport");
}

/** The image of a part of a bundle, in the folder that {@link imageFolder} gives; undefined where none is kept. */
export function keptImage(
  bundle: string,
  part: ImagePart,
  wish: string | false | undefined,
): KeptImage | undefined {
  const folder = imageFolder(wish);
  return folder === undefined ? undefined : new KeptImage(path.resolve(bundle), part, folder);
}

/** What {@link KeptImage.read} found. */
export interface Found {
  readonly image?: ArrayBuffer;
  /** Why the image that is there cannot be used. */
  readonly problem?: string;
}

/** The image of one part of one bundle. */
export class KeptImage {
  readonly bundle: string;
  readonly part: ImagePart;
  readonly folder: string;
  #named: Promise<string> | undefined;
  #missed = false;

  constructor(bundle: string, part: ImagePart, folder: string) {
    this.bundle = bundle;
    this.part = part;
    this.folder = folder;
  }

  /** Where it is, or will be. */
  file(): Promise<string> {
    this.#named ??= nameOf(this.bundle, this.part).then((name) => path.join(this.folder, name + ENDING));
    return this.#named;
  }

  /** Gets the image, if there is one that can be used. One that cannot be is removed. */
  async read(): Promise<Found> {
    const found = await this.#read();
    this.#missed = found.image === undefined;
    return found;
  }

  async #read(): Promise<Found> {
    try {
      const file = await this.file();
      const state = await lstat(file);
      if (!state.isFile() || isOpen(await stat(this.folder), 0o022) || isOpen(state, 0o077))
        return { problem: `others than you can change or read ${file}, or it is no file of yours` };
      const bytes = await readFile(file);
      const image = bytes.subarray(DIGEST);
      if (image.length === 0 || !digestOf(image).equals(bytes.subarray(0, DIGEST))) {
        await rm(file, { force: true });
        return { problem: `${file} is damaged` };
      }
      // The time of its last use decides what goes first.
      const now = new Date();
      await utimes(file, now, now).catch(() => {});
      const copy = new ArrayBuffer(image.length);
      new Uint8Array(copy).set(image);
      return { image: copy };
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      // A folder that cannot be made is told when an image is to be kept in it.
      return code === "ENOENT" || code === "ENOTDIR" ? {} : { problem: messageOf(error) };
    }
  }

  /** Takes an image away that Python did not start from; for a day no other is made. */
  async refuse(why: string): Promise<void> {
    try {
      const file = await this.file();
      await rm(file, { force: true });
      await writeWhole(refusalOf(file), why);
    } catch {
      // It is tried again, and refused again.
    }
  }

  /**
   * Begins to make the image, unless another process does.
   * @param again though it failed not long ago.
   * @returns what ends it, or undefined: it is there, another makes it, or its making failed within a day.
   * @throws {Error} the folder cannot be used.
   */
  async claim(again = false): Promise<Claim | undefined> {
    const file = await this.file();
    await mkdir(this.folder, { recursive: true, mode: 0o700 });
    if (isOpen(await stat(this.folder), 0o022))
      throw new Error(`others than you can write to ${this.folder}`);
    if ((await ageOf(file)) !== undefined) {
      if ((await this.#read()).image) return undefined;
      await rm(file, { force: true });
    }
    if (!again && ((await ageOf(refusalOf(file))) ?? DAY) < DAY) return undefined;
    const lock = `${file}.making`;
    if (((await ageOf(lock)) ?? 0) > MAKING_LIMIT) await rm(lock, { force: true });
    try {
      await (await open(lock, "wx", 0o600)).close();
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "EEXIST") return undefined;
      throw error;
    }
    return new Claim(file, lock);
  }

  /** After a start: has the image made if there was none, and says so. */
  async makeMissing(say: (text: string) => void = () => {}): Promise<void> {
    if (!this.#missed) return;
    this.#missed = false;
    try {
      if (await this.makeAside())
        say(`The next start will be quicker: a memory image is being made aside, in ${this.folder}.`);
    } catch (error) {
      say(`No memory image can be kept in ${this.folder}, so the next start is as slow: ${messageOf(error)}`);
    }
  }

  /**
   * Has the image made by a process of its own, of the lowest priority, which goes on when this one ends.
   * @returns whether it is being made now because of this.
   * @throws {Error} it cannot be; the message says why.
   */
  async makeAside(): Promise<boolean> {
    if (!(await mayRun(this.folder))) return false;
    const claim = await this.claim();
    if (!claim) return false;
    try {
      const words = [fileURLToPath(MAKER), this.bundle, this.part, this.folder];
      const child = spawn(process.execPath, [...flags(this.folder), ...words], {
        cwd: this.folder,
        detached: true,
        stdio: "ignore",
        windowsHide: true,
        env: makerEnvironment(),
      });
      await new Promise((resolve, reject) => {
        child.once("spawn", resolve);
        child.once("error", reject);
      });
      child.unref();
      return true;
    } catch (error) {
      await claim.end();
      throw error;
    }
  }
}

/** The right to make an image. */
export class Claim {
  readonly file: string;
  readonly #lock: string;

  constructor(file: string, lock: string) {
    this.file = file;
    this.#lock = lock;
  }

  /** For a process that was started by the one that claimed. */
  static inherited(file: string): Claim {
    return new Claim(file, `${file}.making`);
  }

  /** Keeps the image, and removes old ones. */
  async keep(image: Uint8Array): Promise<void> {
    await writeWhole(this.file, digestOf(image), image);
    await rm(refusalOf(this.file), { force: true });
    await prune(path.dirname(this.file));
  }

  /** It could not be made: for a day it is not tried again. */
  async failed(why: string): Promise<void> {
    await writeWhole(refusalOf(this.file), why).catch(() => {});
  }

  async end(): Promise<void> {
    await rm(this.#lock, { force: true });
  }
}

/** What an image depends on: the bundle's bytes, the engine, and how it is kept. */
async function nameOf(bundle: string, part: ImagePart): Promise<string> {
  const hash = createHash("sha256");
  const { versions } = process;
  const engine = [hostName(), versions[hostName()] ?? process.version, versions["v8"] ?? ""];
  hash.update(JSON.stringify([FORMAT, part, engine]));
  // A manifest names Pyodide, the package's version, and each file with its digest.
  for (const folder of part === "agent" ? ["runtime", "agent"] : ["runtime"]) {
    hash.update(await readFile(path.join(bundle, folder, "manifest.json")));
    hash.update(JSON.stringify(await modulesOf(bundle, folder)));
  }
  return `${part}-${hash.digest("hex").slice(0, 32)}`;
}

/** Names of the modules that a served session loads, as the build found them; none in a bundle without the list. */
export async function modulesOf(bundle: string, part: string): Promise<string[]> {
  const text = await readFile(path.join(bundle, part, "modules.json"), "utf8").catch(() => "[]");
  const names: unknown = JSON.parse(text);
  return Array.isArray(names) ? names.filter((name): name is string => typeof name === "string") : [];
}

/** Removes images beyond {@link MAX_KEPT}, those of long ago, and what was left half done. */
async function prune(folder: string): Promise<void> {
  const images: { file: string; age: number }[] = [];
  for (const name of await readdir(folder)) {
    if (!/^(runtime|agent)-[0-9a-f]{32}\.image/.test(name)) continue;
    const file = path.join(folder, name);
    const age = (await ageOf(file)) ?? 0;
    if (name.endsWith(ENDING)) images.push({ file, age });
    else if (age > DAY) await rm(file, { force: true });
  }
  images.sort((one, other) => one.age - other.age);
  for (const [index, { file, age }] of images.entries())
    if (index >= MAX_KEPT || age > MAX_AGE) await rm(file, { force: true });
}

const refusalOf = (file: string): string => `${file}.refused`;

async function ageOf(file: string): Promise<number | undefined> {
  const state = await lstat(file).catch(() => undefined);
  return state && Date.now() - state.mtimeMs;
}

function digestOf(bytes: Uint8Array): Buffer {
  return createHash("sha256").update(bytes).digest();
}

/** Whether it is another's, or others have these rights to it. Windows keeps such folders to their user by itself. */
function isOpen({ uid, mode }: { uid: number; mode: number }, rights: number): boolean {
  const me = process.getuid?.();
  return me !== undefined && process.platform !== "win32" && (uid !== me || (mode & rights) !== 0);
}

// -- starting a process -----------------------------------------------------------------------------------------

interface DenoPermissions {
  querySync(descriptor: { name: string; command?: string; path?: string; kind?: string }): { state: string };
}

/** Deno would ask the person at the terminal, who has not wished for anything. */
function granted(descriptor: Parameters<DenoPermissions["querySync"]>[0]): boolean {
  const { Deno } = globalThis as { Deno?: { permissions: DenoPermissions } };
  return !Deno || Deno.permissions.querySync(descriptor).state === "granted";
}

function mayReadEnvironment(): boolean {
  return granted({ name: "env" });
}

/** Whether a process of this host may be started; a program of its own with a host built in would start itself. */
async function mayRun(folder: string): Promise<boolean> {
  return (
    /^(node|nodejs|deno|bun)(\.exe)?$/i.test(path.basename(process.execPath)) &&
    granted({ name: "run", command: process.execPath }) &&
    granted({ name: "write", path: folder }) &&
    granted({ name: "read" })
  );
}

function flags(folder: string): string[] {
  if (hostName() !== "deno") return [];
  return [
    ...["run", "--quiet", "--no-prompt", "--unstable-worker-options"],
    ...["--allow-read", `--allow-write=${folder}`, "--allow-env", "--allow-sys"],
  ];
}

/** No more of the environment than a host needs to start: keys are no business of the maker's. */
function makerEnvironment(): NodeJS.ProcessEnv {
  const names = ["PATH", "HOME", "USERPROFILE", "SYSTEMROOT", "TMPDIR", "TEMP", "DENO_DIR", "LOCALAPPDATA"];
  return Object.fromEntries(names.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])));
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
