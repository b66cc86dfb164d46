/**
 * Makes the memory image of a bundle that came without one, and keeps it.
 *
 * Invariant: what is kept has been started from, and has answered.
 */

import { InPageAgent } from "../agent/inpage-agent.ts";
import { memoryStore } from "../agent/store.ts";
import { parcelOf } from "../sandbox/assets.ts";
import type { HandOver } from "../sandbox/protocol.ts";
import { Sandbox } from "../sandbox/sandbox.ts";
import { readAgent, readAssets } from "./assets.ts";
import { launchThread } from "./ground.ts";
import { type Claim, type KeptImage, modulesOf } from "./kept.ts";
import type { Taken } from "./take-image.ts";

const quietly = (): void => {};

/** Makes the image and keeps it; ends the claim. */
export async function makeImage(kept: KeptImage, claim: Claim): Promise<void> {
  try {
    const image = await takenFrom(kept);
    await (kept.part === "agent" ? proveAgent : proveSandbox)(kept.bundle, image);
    await claim.keep(new Uint8Array(image));
  } catch (error) {
    await claim.failed(String(error));
    throw error;
  } finally {
    await claim.end();
  }
}

async function takenFrom({ bundle, part }: KeptImage): Promise<ArrayBuffer> {
  const handOver = part === "agent" ? await readAgent(bundle, false, quietly) : await sandboxParcel(bundle);
  const modules = await modulesOf(bundle, part);
  return new Promise((resolve, reject) => {
    const launched = launchThread(
      handOver,
      {
        text: quietly,
        other: (data, thread) => {
          const taken = data as Taken;
          thread.destroy();
          if ("image" in taken) resolve(taken.image);
          else reject(new Error(taken.error));
        },
        gone: (reason) => reject(new Error(reason)),
        error: (message) => reject(new Error(message)),
      },
      new AbortController().signal,
      { isolated: true, quiet: true, modules },
    );
    launched.catch(reject);
  });
}

async function sandboxParcel(bundle: string): Promise<HandOver> {
  const assets = await readAssets(bundle, quietly, false);
  const { preload, servers } = assets.manifest;
  return { parcel: parcelOf(assets, false), config: { timeLimit: null, servers, preload, environ: {} } };
}

async function proveSandbox(bundle: string, image: ArrayBuffer): Promise<void> {
  const sandbox = new Sandbox(
    {},
    {
      async load() {
        const assets = await readAssets(bundle, quietly, false);
        return { ...assets, files: new Map([...assets.files, ["image", image] as const]) };
      },
      launch: (handOver, handlers, signal) => launchThread(handOver, handlers, signal, { isolated: true }),
    },
  );
  try {
    const { mode, servers } = await sandbox.ready;
    const broken = servers.find(({ error }) => error !== undefined);
    if (broken) throw new Error(`${broken.name}: ${broken.error}`);
    if (mode !== "snapshot") throw new Error("Python does not start from the image that was made");
    await sandbox.listTools();
  } finally {
    sandbox.terminate();
  }
}

async function proveAgent(bundle: string, image: ArrayBuffer): Promise<void> {
  const agent = new InPageAgent(
    {},
    {
      place: "program",
      async load(withImage) {
        if (!withImage) throw new Error("the agent does not start from the image that was made");
        const { parcel, config } = await readAgent(bundle, false, quietly);
        return { parcel: { ...parcel, image: image.slice(0) }, config };
      },
      launch: (handOver, handlers, signal) =>
        launchThread(handOver, handlers, signal, { isolated: true, quiet: true }),
      relay: () => {
        throw new Error("no endpoint is chosen");
      },
      store: async () => memoryStore(),
    },
  );
  try {
    await agent.open();
  } finally {
    agent.terminate();
  }
}
