/**
 * The page's sandbox: starts it, shows how it is, and lends it to one port at a time.
 *
 * Invariant: server ids of a connection that ended are taken back before the next connection gets its own, so that
 * nothing of the old one runs on in the sandbox.
 */

import { createSandbox, type Port, type Sandbox, type ServerDeclaration } from "sandport";
import * as store from "./store.ts";

const WORKSPACE = "/workspace";

/** Settings of {@link SandboxHost}. */
export interface SandboxHostOptions {
  /** The zip that is in place when the sandbox starts. */
  workspace(): Uint8Array<ArrayBuffer> | undefined;
  /** Something was printed inside. */
  onPrint(stream: "stdout" | "stderr", source: string, text: string): void;
}

export class SandboxHost {
  readonly #options: SandboxHostOptions;
  #sandbox: Sandbox | undefined;
  #began: PromiseWithResolvers<Sandbox> = withResolvers();
  #declared: readonly string[] = [];
  #withdrawn: Promise<unknown> = Promise.resolve();
  /** The workspace that the sandbox starts with is in place. */
  #mounted: Promise<unknown> = Promise.resolve();
  #refreshing = false;
  /** The list may have changed since it was asked for. */
  #stale = false;

  constructor(options: SandboxHostOptions) {
    this.#options = options;
  }

  /**
   * Boots the sandbox and puts the workspace in place.
   * @param inlineFrame for hosts that send no headers.
   */
  start(inlineFrame = false): void {
    let again = false;
    const sandbox = createSandbox({
      inlineFrame,
      on: {
        progress: ({ stage, detail = "", fraction = 0 }) => {
          // Mounting files into a sandbox that serves is no boot.
          if (this.#sandbox?.state === "ready") return;
          store.sandbox.value = { phase: "booting", stage, detail, fraction, again };
        },
        ready: ({ servers, mode, ms }) => {
          again = true;
          const broken = servers.flatMap(({ name, error }) => (error === undefined ? [] : [{ name, error }]));
          store.sandbox.value = { phase: "ready", seconds: (ms["total"] ?? 0) / 1000, mode, broken };
          store.announcement.value = "The sandbox is ready.";
          void this.#refreshTools();
        },
        failed: ({ stage, message, remedy }) => {
          store.sandbox.value = {
            phase: "failed",
            problem: { title: "The sandbox cannot run", cause: `${message} (stage: ${stage})`, remedy },
          };
          store.tools.value = [];
        },
        tools: () => void this.#refreshTools(),
        log: ({ stream, text, server, tool }) => {
          const source = tool ?? server ?? "sandbox";
          this.#options.onPrint(stream, source, text);
        },
        crashed: ({ reason, restarting }) => {
          store.banner.value = {
            text: "The sandbox ended.",
            detail: `${reason.charAt(0).toUpperCase()}${reason.slice(1)}. ${restarting ? "It is being started again." : ""}`,
          };
        },
        restarted: () => {
          const why = store.banner.value?.detail ?? "";
          store.banner.value = {
            text: "The sandbox was restarted.",
            detail: `${why.replace(" It is being started again.", "")} Files that tools had written are gone; the workspace and your own tools are back.`,
          };
        },
      },
    });
    this.#sandbox = sandbox;
    this.#began.resolve(sandbox);
    const zip = this.#options.workspace();
    if (zip) {
      const mounting = sandbox.mountZip(WORKSPACE, zip, { replace: true });
      this.#mounted = mounting.catch(() => {});
      mounting.catch((error: unknown) => {
        // A sandbox that cannot run says so itself.
        if (sandbox.state === "failed") return;
        store.workspaceProblem.value = `The workspace could not be put in place: ${message(error)}`;
      });
    }
  }

  /** Lends the sandbox to the agent behind `port`; returns the declarations of its servers, under fresh ids. */
  async join(port: Port): Promise<ServerDeclaration[]> {
    const sandbox = await this.#began.promise;
    await this.#withdrawn;
    await sandbox.join(port);
    const servers = await sandbox.declare();
    this.#declared = servers.map(({ id }) => id);
    return servers;
  }

  /** The port's connection ended. */
  leave(): void {
    const ids = this.#declared;
    this.#declared = [];
    // A sandbox that is down has nothing left to take back.
    if (ids.length > 0) this.#withdrawn = this.#sandbox?.withdraw(ids).catch(() => {}) ?? Promise.resolve();
  }

  /** Starts the sandbox anew. */
  async restart(reason: string): Promise<void> {
    store.banner.value = undefined;
    await this.#sandbox?.restart(reason);
  }

  /** Replaces the workspace by what is in a zip. */
  async mountWorkspace(zip: Uint8Array<ArrayBuffer>): Promise<void> {
    const sandbox = await this.#began.promise;
    await sandbox.mountZip(WORKSPACE, zip, { replace: true });
  }

  /** The workspace as it is now, with what tools wrote; a zip that the sandbox made. */
  async takeWorkspace(): Promise<Uint8Array<ArrayBuffer>> {
    const sandbox = await this.#began.promise;
    await this.#mounted;
    return sandbox.zipFolder(WORKSPACE);
  }

  async loadTools(name: string, source: string): Promise<readonly string[]> {
    const sandbox = await this.#began.promise;
    return sandbox.loadTools(name, source);
  }

  async loadPackage(name: string, archive: Blob): Promise<readonly string[]> {
    const sandbox = await this.#began.promise;
    return sandbox.loadPackage(name, archive);
  }

  async unloadTools(name: string): Promise<void> {
    const sandbox = await this.#began.promise;
    await sandbox.unloadTools(name);
  }

  /** One question at a time, however often the sandbox says that its tools changed. */
  async #refreshTools(): Promise<void> {
    this.#stale = true;
    if (this.#refreshing) return;
    this.#refreshing = true;
    while (this.#stale) {
      this.#stale = false;
      try {
        store.tools.value = (await this.#sandbox?.listTools()) ?? [];
      } catch {
        // It died meanwhile; the next life says what it has.
      }
    }
    this.#refreshing = false;
  }
}

function message(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Promise.withResolvers, which WebKit's older engines lack. */
function withResolvers<T>(): PromiseWithResolvers<T> {
  let [resolve, reject]: [PromiseWithResolvers<T>["resolve"], PromiseWithResolvers<T>["reject"]] = [
    () => {},
    () => {},
  ];
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}
