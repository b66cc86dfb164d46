/**
 * Where a sandbox lives: in a page it is a confined frame; other hosts bring a ground of their own.
 *
 * Invariant: a ground only fetches bytes and starts workers. What the worker says, when it is ended and what a new life
 * gets are the sandbox's business, and the same everywhere.
 */

import { type Assets, loadAssets } from "./assets.ts";
import { Instance, type InstanceHandlers, type Launched } from "./instance.ts";
import type { HandOver } from "./protocol.ts";
import { openStore } from "./store.ts";

/** See the module comment. */
export interface Ground {
  /**
   * Gets the bundle's bytes.
   * @throws {AssetError} a file is missing, or is not what the manifest says.
   */
  load(onProgress: (fraction: number, file: string) => void, signal: AbortSignal): Promise<Assets>;
  /**
   * Starts a worker, at once, and hands everything over to it when it is there; the parcel's buffers are given away.
   * Rejects with the reason when the hand-over does.
   */
  launch(
    handOver: HandOver | Promise<HandOver>,
    handlers: InstanceHandlers<Launched>,
    signal: AbortSignal,
  ): Promise<Launched>;
}

/** What a page decides about the frame; see `SandboxOptions`. */
export interface FrameOptions {
  readonly base?: string | URL;
  readonly container?: HTMLElement;
  readonly inlineFrame?: boolean;
}

/** The ground in a page. */
export function frameGround(options: FrameOptions): Ground {
  const address = new URL(options.base ?? ".", document.baseURI).href;
  const base = address.endsWith("/") ? address : `${address}/`;
  return {
    load: (onProgress, signal) =>
      loadAssets(`${base}runtime/`, onProgress, signal, {
        store: openStore(),
        // A host that sends no headers may not compress either.
        packed: options.inlineFrame ?? false,
      }),
    launch: (handOver, handlers, signal) =>
      Instance.launch(
        {
          url: `${base}sandbox.html`,
          inline: options.inlineFrame ?? false,
          container: options.container ?? document.body,
        },
        handOver,
        handlers,
        signal,
      ),
  };
}
