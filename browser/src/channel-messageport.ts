/**
 * A channel over a MessagePort: strings are messages, all else is somebody else's.
 *
 * Invariant: the channel never hands out anything but a string. Objects on the same port (the sandbox's control
 * messages) go to `onOther`, unread.
 */

import { BaseChannel, CLOSE_ABNORMAL, type TextChannel } from "./channel.ts";

/** Settings of {@link messagePortChannel}. */
export interface MessagePortChannelOptions {
  /** Receives what is not a string. Without it such messages are dropped. */
  readonly onOther?: (data: unknown) => void;
}

class MessagePortChannel extends BaseChannel {
  readonly #port: MessagePort;

  constructor(port: MessagePort, onOther: ((data: unknown) => void) | undefined) {
    super();
    this.#port = port;
    port.addEventListener("message", ({ data }: MessageEvent<unknown>) => {
      if (typeof data === "string") this.deliver(data);
      else onOther?.(data);
    });
    // Only some engines tell that the other end is gone; where none does, the owner of the worker has to.
    port.addEventListener("close", () =>
      this.ended({ code: CLOSE_ABNORMAL, reason: "the other end is gone" }),
    );
    port.start();
  }

  protected override transmit(text: string): void {
    this.#port.postMessage(text);
  }

  protected override shut(): void {
    this.#port.close();
  }
}

/**
 * Wraps a MessagePort as a channel and starts it.
 *
 * Closing the channel closes the port; a port cannot carry a code to the other end.
 */
export function messagePortChannel(port: MessagePort, options: MessagePortChannelOptions = {}): TextChannel {
  return new MessagePortChannel(port, options.onOther);
}
