/**
 * One life of a sandbox: a frame, its worker, and the port to it.
 *
 * Invariant: the frame gets one message, after it said that it listens; from then on only the ports are used. What the
 * worker says goes to the handlers; nothing of it is trusted here. After `destroy` no handler is called.
 */

import { FRAME_READY, type HandOver, transferOf } from "./protocol.ts";

/** Milliseconds until the frame must have said that it listens. */
const FRAME_TIMEOUT = 20_000;

/** A worker that was started, as its sandbox sees it. */
export interface Launched {
  /** Puts a text or a control object on the port. */
  send(data: unknown, transfer?: Transferable[]): void;
  /** Interrupts Python, where that is possible. */
  interrupt(): void;
  /** Ends the worker. No handler is called after it. */
  destroy(): void;
}

export interface InstanceHandlers<From extends Launched = Instance> {
  /** A text of the lane. */
  text(text: string): void;
  /** Anything else that came on the port. */
  other(data: unknown, from: From): void;
  /** The worker is gone, as far as the browser tells. */
  gone(reason: string, from: From): void;
  /** An error that nothing in the worker caught; the worker lives on. */
  error(message: string): void;
}

export interface FrameSource {
  /** Address of sandbox.html. */
  readonly url: string;
  /** Use the file's text as `srcdoc`: for hosts that send no headers. */
  readonly inline: boolean;
  /** Where the frame is put. */
  readonly container: HTMLElement;
}

export class Instance implements Launched {
  readonly #frame: HTMLIFrameElement;
  readonly #port: MessagePort;
  readonly #wire: MessagePort;
  #destroyed = false;

  /** Makes a frame, and hands everything over to it when both are there. */
  static async launch(
    source: FrameSource,
    handOver: HandOver | Promise<HandOver>,
    handlers: InstanceHandlers,
    signal: AbortSignal,
  ): Promise<Instance> {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts");
    frame.allow = "cross-origin-isolated";
    frame.title = "Sandport sandbox";
    frame.setAttribute("aria-hidden", "true");
    frame.tabIndex = -1;
    // Not display:none: some engines put such frames to sleep.
    Object.assign(frame.style, {
      position: "absolute",
      width: "0",
      height: "0",
      border: "0",
      visibility: "hidden",
    });
    const text = source.inline ? await fetchText(source.url, signal) : undefined;
    const listening = frameListens(frame, source.url, signal);
    if (text === undefined) frame.src = source.url;
    else frame.srcdoc = text;
    source.container.append(frame);
    try {
      const [given] = await Promise.all([handOver, listening]);
      return new Instance(frame, given, handlers);
    } catch (error) {
      frame.remove();
      throw error;
    }
  }

  private constructor(frame: HTMLIFrameElement, handOver: HandOver, handlers: InstanceHandlers) {
    this.#frame = frame;
    const lane = new MessageChannel();
    const wire = new MessageChannel();
    this.#port = lane.port1;
    this.#wire = wire.port1;
    this.#port.onmessage = ({ data }: MessageEvent<unknown>) => {
      if (this.#destroyed) return;
      if (typeof data === "string") handlers.text(data);
      else handlers.other(data, this);
    };
    // Told by Chromium only; elsewhere the owner's pings find out.
    this.#port.addEventListener("close", () => {
      if (!this.#destroyed) handlers.gone("the worker is gone", this);
    });
    this.#wire.onmessage = ({ data }: MessageEvent<unknown>) => {
      if (!this.#destroyed) handlers.error(typeof data === "string" ? data.slice(0, 500) : "");
    };
    frame.contentWindow?.postMessage(handOver, "*", [lane.port2, wire.port2, ...transferOf(handOver.parcel)]);
  }

  /** Puts a text or a control object on the port. */
  send(data: unknown, transfer: Transferable[] = []): void {
    this.#port.postMessage(data, transfer);
  }

  /** Asks the frame to interrupt Python. Does nothing where memory cannot be shared. */
  interrupt(): void {
    this.#wire.postMessage(null);
  }

  /** Ends frame and worker. Endless code keeps a core busy for about 2 s in Chromium, and in WebKit until the tab closes. */
  destroy(): void {
    this.#destroyed = true;
    this.#port.close();
    this.#wire.close();
    this.#frame.remove();
  }
}

async function fetchText(url: string, signal: AbortSignal): Promise<string> {
  const response = await fetch(url, { cache: "no-cache", signal });
  if (!response.ok) throw new Error(`${url}: HTTP ${response.status}`);
  return response.text();
}

function frameListens(frame: HTMLIFrameElement, url: string, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const settle = (error?: Error): void => {
      clearTimeout(timer);
      window.removeEventListener("message", heard);
      signal.removeEventListener("abort", aborted);
      if (error) reject(error);
      else resolve();
    };
    const heard = (event: MessageEvent<unknown>): void => {
      if (event.source !== null && event.source === frame.contentWindow && event.data === FRAME_READY)
        settle();
    };
    const aborted = (): void => settle(new Error("the sandbox was terminated"));
    const timer = setTimeout(
      () =>
        settle(new Error(`the frame ${url} does not answer; the page's policy must allow it (frame-src)`)),
      FRAME_TIMEOUT,
    );
    window.addEventListener("message", heard);
    signal.addEventListener("abort", aborted);
  });
}
