/**
 * What the page, the frame and the worker say to one another.
 *
 * Invariant: after the hand-over the page and the worker share one MessagePort. A string on it is a text of the lane;
 * an object is control. The page treats every object that comes from the worker as a claim: {@link readEvent} gives a
 * value of a known shape and bounded size, or nothing.
 */

/** Stages of a boot, in their order. */
export const STAGES = ["fetch", "runtime", "packages", "modules", "servers"] as const;
export type BootStage = (typeof STAGES)[number];

/** A file: in memory, or in the page's store, from where the worker reads it itself. */
export type Part = ArrayBuffer | Blob;

/** What the frame hands to its worker. Every buffer is transferred. */
export interface BootParcel {
  readonly pyodide: Part;
  readonly asm: Part;
  readonly wasm: Part;
  readonly stdlib: Part;
  readonly site: Part;
  readonly core: Part;
  readonly native: Part;
  readonly lock: Part;
  /** Wheels on top of the bundle's: the in-page agent's. */
  readonly extra?: Part;
  readonly image?: Part;
}

/** The buffers of a parcel, which are transferred with it. */
export function transferOf(parcel: BootParcel): ArrayBuffer[] {
  return Object.values(parcel).filter((part) => part instanceof ArrayBuffer);
}

/** Settings of one boot. */
export interface BootConfig {
  /** Seconds for one tools/call; null for no limit. */
  readonly timeLimit: number | null;
  /** Name of a server -> `module:attribute`. */
  readonly servers: Record<string, string>;
  /** Paths of native modules that are loaded before Python starts. */
  readonly preload: readonly string[];
  /** Environment of Python. */
  readonly environ: Record<string, string>;
  /** The Python module that serves the port; by default the sandbox's own. */
  readonly module?: string;
}

/** The one message from the page to the frame; the ports travel beside it. */
export interface HandOver {
  readonly parcel: BootParcel;
  readonly config: BootConfig;
}

/** The one message from the frame to its worker; the lane's port travels beside it. */
export interface WorkerStart extends HandOver {
  /** Shared with the frame, which writes 2 into element 0 to interrupt; null where memory cannot be shared. */
  readonly signal: Int32Array | null;
}

/** What the frame says once, when it listens. */
export const FRAME_READY = "sandport:frame";

/** A tool as the sandbox describes it, for the page's own display. */
export interface SandboxTool {
  readonly server: string;
  readonly name: string;
  readonly description?: string;
  readonly inputSchema: unknown;
  readonly outputSchema?: unknown;
  readonly annotations?: unknown;
}

export interface ServerStatus {
  readonly name: string;
  /** Number of tools. */
  readonly tools: number;
  /** Why the server is not available. */
  readonly error?: string;
}

export type BootMode = "cold" | "snapshot";

export type WorkerEvent =
  | {
      readonly event: "progress";
      readonly stage: BootStage;
      readonly detail?: string;
      readonly fraction?: number;
    }
  | {
      readonly event: "ready";
      readonly servers: readonly ServerStatus[];
      readonly mode: BootMode;
      /** Milliseconds by stage. */
      readonly ms: Readonly<Record<string, number>>;
    }
  | { readonly event: "failed"; readonly stage: string; readonly message: string; readonly remedy: string }
  | {
      readonly event: "log";
      readonly server?: string;
      readonly tool?: string;
      readonly call?: string;
      readonly stream: "stdout" | "stderr";
      readonly text: string;
    }
  | { readonly event: "tools" }
  /** It took so many more texts of the lane from the port. */
  | { readonly event: "taken"; readonly texts: number }
  | { readonly event: "fatal"; readonly message: string };

/** An answer to a control request. */
export interface WorkerAnswer {
  readonly seq: number;
  readonly ok: boolean;
  readonly value: unknown;
  readonly message: string;
}

/** Characters of a short text (a name, a message) that the page takes from the worker. */
const MAX_SHORT = 4_000;
/** Characters of a log text; the sandbox's own chunks are four times smaller. */
const MAX_LOG = 65_536;
/** Servers that the page takes from the worker. */
const MAX_SERVERS = 100;
/** Tools that the page takes from the worker. */
const MAX_TOOLS = 1000;

/** Characters of a tool's schema that the page takes, about. */
const MAX_SCHEMA = 262_144;
/** Levels of a schema that the page takes. */
const MAX_DEPTH = 100;

function short(value: unknown): string {
  return typeof value === "string" ? value.slice(0, MAX_SHORT) : "";
}

/** A plain object: a buffer of a million elements, say, has as many entries to go through. */
function record(value: unknown): Record<string, unknown> | undefined {
  return typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype
    ? (value as Record<string, unknown>)
    : undefined;
}

/** What JSON can say of a value, within {@link MAX_SCHEMA}; undefined for what holds circles or is larger. */
function plain(value: unknown): unknown {
  let room = MAX_SCHEMA;
  const copy = (part: unknown, depth: number): unknown => {
    // Parts that hang together more than once count as often: written out they are as large.
    room -= typeof part === "string" ? part.length : Array.isArray(part) ? 8 + part.length : 8;
    if (room < 0 || depth > MAX_DEPTH) throw new RangeError("too large");
    if (Array.isArray(part)) return part.map((inner) => copy(inner, depth + 1));
    const claim = record(part);
    if (!claim) return ["string", "number", "boolean"].includes(typeof part) ? part : null;
    return Object.fromEntries(
      Object.entries(claim).map(([key, inner]) => [copy(key, depth), copy(inner, depth + 1)]),
    );
  };
  try {
    return copy(value, 0);
  } catch {
    return undefined;
  }
}

function count(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) && value >= 0 ? value : 0;
}

/** An event of the worker, checked and copied; undefined for anything that is none. */
export function readEvent(data: unknown): WorkerEvent | undefined {
  const claim = record(data);
  if (!claim) return undefined;
  switch (claim["event"]) {
    case "progress": {
      const stage = STAGES.find((known) => known === claim["stage"]);
      if (!stage) return undefined;
      return {
        event: "progress",
        stage,
        ...(typeof claim["detail"] === "string" ? { detail: short(claim["detail"]) } : {}),
        ...(typeof claim["fraction"] === "number" ? { fraction: Math.min(count(claim["fraction"]), 1) } : {}),
      };
    }
    case "ready": {
      const boot = record(claim["boot"]) ?? {};
      const ms: Record<string, number> = {};
      for (const [stage, value] of Object.entries(record(boot["ms"]) ?? {}).slice(0, 20))
        ms[short(stage)] = count(value);
      const servers = Array.isArray(claim["servers"]) ? claim["servers"].slice(0, MAX_SERVERS) : [];
      return {
        event: "ready",
        servers: servers.map(readServer),
        mode: boot["mode"] === "snapshot" ? "snapshot" : "cold",
        ms,
      };
    }
    case "failed":
      return {
        event: "failed",
        stage: short(claim["stage"]),
        message: short(claim["message"]),
        remedy: short(claim["remedy"]),
      };
    case "log": {
      const stream = claim["stream"] === "stderr" ? "stderr" : "stdout";
      const text = typeof claim["text"] === "string" ? claim["text"].slice(0, MAX_LOG) : "";
      return {
        event: "log",
        stream,
        text,
        ...(typeof claim["server"] === "string" ? { server: short(claim["server"]) } : {}),
        ...(typeof claim["tool"] === "string" ? { tool: short(claim["tool"]) } : {}),
        ...(typeof claim["call"] === "string" ? { call: short(claim["call"]) } : {}),
      };
    }
    case "tools":
      return { event: "tools" };
    case "taken":
      return { event: "taken", texts: count(claim["texts"]) };
    case "fatal":
      return { event: "fatal", message: short(claim["message"]) };
    default:
      return undefined;
  }
}

function readServer(value: unknown): ServerStatus {
  const claim = record(value) ?? {};
  return {
    name: short(claim["name"]),
    tools: count(claim["tools"]),
    ...(typeof claim["error"] === "string" ? { error: short(claim["error"]) } : {}),
  };
}

/** An answer of the worker; undefined for anything that is none. */
export function readAnswer(data: unknown): WorkerAnswer | undefined {
  const claim = record(data);
  if (!claim || typeof claim["seq"] !== "number" || typeof claim["ok"] !== "boolean") return undefined;
  return {
    seq: claim["seq"],
    ok: claim["ok"],
    value: claim["data"] instanceof ArrayBuffer ? claim["data"] : claim["value"],
    message: short(record(claim["error"])?.["message"]),
  };
}

/** The tools of a `listTools` answer; entries that are none are left out. */
export function readTools(value: unknown): SandboxTool[] {
  if (!Array.isArray(value)) return [];
  const tools: SandboxTool[] = [];
  for (const entry of value.slice(0, MAX_TOOLS)) {
    const claim = record(entry);
    if (!claim || typeof claim["name"] !== "string" || typeof claim["server"] !== "string") continue;
    tools.push({
      server: short(claim["server"]),
      name: short(claim["name"]),
      ...(typeof claim["description"] === "string"
        ? { description: claim["description"].slice(0, MAX_LOG) }
        : {}),
      inputSchema: plain(claim["inputSchema"] ?? {}),
      ...(claim["outputSchema"] === undefined ? {} : { outputSchema: plain(claim["outputSchema"]) }),
      ...(claim["annotations"] === undefined ? {} : { annotations: plain(claim["annotations"]) }),
    });
  }
  return tools;
}

/** The names in the answer to a load of tools. */
export function readNames(value: unknown): string[] {
  const names = record(value)?.["tools"];
  if (!Array.isArray(names)) return [];
  return names.slice(0, MAX_TOOLS).flatMap((name) => (typeof name === "string" ? [short(name)] : []));
}

/** The archive in the answer to `zipFolder`; undefined where there is none. */
export function readArchive(value: unknown): Uint8Array<ArrayBuffer> | undefined {
  return value instanceof ArrayBuffer ? new Uint8Array(value) : undefined;
}

/** What the answer to `mountZip` counts. */
export function readCounts(value: unknown): { files: number; bytes: number } {
  const claim = record(value) ?? {};
  return { files: count(claim["files"]), bytes: count(claim["bytes"]) };
}
