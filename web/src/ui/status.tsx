/** Where the agent and the sandbox stand, as a chip in the header and as a line in the welcome. */

import { useSignal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";
import { duration } from "../lib/time.ts";
import { IN_PAGE, progress } from "../model/in-page.ts";
import * as store from "../model/store.ts";

type Tone = "good" | "busy" | "bad" | "warn";

interface Status {
  readonly tone: Tone;
  readonly short: string;
  readonly long: string;
  readonly fraction?: number;
}

const STAGES: Record<string, string> = {
  fetch: "fetching files",
  runtime: "starting Python",
  packages: "unpacking packages",
  modules: "loading modules",
  servers: "starting the tools",
};

/** The share of a cold start that is done at the beginning of each stage, and of the next one. */
const SHARES: Record<string, readonly [number, number]> = {
  fetch: [0, 0.3],
  runtime: [0.3, 0.55],
  packages: [0.55, 0.6],
  modules: [0.6, 0.9],
  servers: [0.9, 1],
};

function progressOf(stage: string, fraction: number): number {
  const [from, to] = SHARES[stage] ?? [0, 0];
  return from + (to - from) * fraction;
}

/** Seconds until `at`, counted down while it is in the future. */
function useCountdown(at: number | undefined): number {
  const left = useSignal(0);
  useEffect(() => {
    if (at === undefined) return;
    const tick = () => {
      left.value = Math.max(0, Math.ceil((at - Date.now()) / 1000));
    };
    tick();
    const timer = setInterval(tick, 500);
    return () => clearInterval(timer);
  }, [at, left]);
  return left.value;
}

export function agentStatus(countdown: number): Status {
  const connection = store.connection.value;
  switch (connection.kind) {
    case "no-token":
      return { tone: "bad", short: "No token", long: "Not connected: the address has no token" };
    case "connecting":
      if (store.agents.value?.current === IN_PAGE) {
        const stage = progress.value ? `: ${progress.value}` : "";
        return { tone: "busy", short: "Agent starting", long: `The agent in this page is starting${stage}` };
      }
      return { tone: "busy", short: "Connecting", long: "Connecting to the gateway" };
    case "waiting":
      return {
        tone: "warn",
        short: `Offline, retry in ${countdown} s`,
        long: `No connection; next attempt in ${countdown} s`,
      };
    case "stopped":
      return { tone: "bad", short: "Disconnected", long: "Not connected" };
  }
  const agent = store.agent.value;
  switch (agent.phase) {
    case "offline":
    case "starting":
      return {
        tone: "busy",
        short: "Agent starting",
        long: "The agent is initialising; this can take some seconds",
      };
    case "opening":
      return { tone: "busy", short: `${agent.title}: opening`, long: `${agent.title} is opening a session` };
    case "failed":
      return { tone: "bad", short: "Agent failed", long: agent.problem.title };
    case "ready":
      return agent.takesTools
        ? {
            tone: "good",
            short: agent.title,
            long:
              store.sandbox.value.phase === "failed"
                ? `${agent.title} is ready, without the sandbox's tools`
                : `${agent.title} is ready and has the tools of this page`,
          }
        : {
            tone: "warn",
            short: `${agent.title}, no tools`,
            long: `${agent.title} is ready, but takes no tools over ACP`,
          };
  }
}

export function sandboxStatus(): Status {
  const sandbox = store.sandbox.value;
  switch (sandbox.phase) {
    case "booting": {
      const stage = STAGES[sandbox.stage] ?? sandbox.stage;
      const what = sandbox.again ? "Restarting" : "Starting";
      const percent = `${Math.round(sandbox.fraction * 100)} %`;
      // While files are fetched the detail is the name of the last one: the part that is there says more.
      const detail = sandbox.stage === "fetch" ? percent : sandbox.detail;
      return {
        tone: "busy",
        short: `Sandbox: ${stage}`,
        long: `${what} the sandbox: ${stage}${detail ? ` (${detail})` : ""}`,
        fraction: progressOf(sandbox.stage, sandbox.fraction),
      };
    }
    case "failed":
      return { tone: "bad", short: "Sandbox failed", long: sandbox.problem.title };
    case "ready":
      return sandbox.broken.length > 0
        ? {
            tone: "warn",
            short: "Sandbox: tools missing",
            long: `${sandbox.broken.map(({ name }) => name).join(", ")} could not start`,
          }
        : {
            tone: "good",
            short: "Sandbox ready",
            long: `The sandbox was ready after ${duration(sandbox.seconds * 1000)}${sandbox.mode === "snapshot" ? ", from its memory image" : ""}`,
          };
  }
}

function Chip({ name, status }: { name: string; status: Status }): VNode {
  return (
    <span class={`chip ${status.tone}`} title={status.long} data-testid={`${name}-chip`}>
      <span class="dot" aria-hidden="true" />
      <span class="chip-text">{status.short}</span>
      <span class="sr-only">: {status.long}</span>
    </span>
  );
}

function Line({ status }: { status: Status }): VNode {
  return (
    <div class={`status-line ${status.tone}`}>
      <span class="dot" aria-hidden="true" />
      <span>{status.long}</span>
      {status.fraction === undefined ? null : (
        <progress max={1} value={status.fraction} aria-label="Progress of the sandbox" />
      )}
    </div>
  );
}

function useAgentStatus(): Status {
  const connection = store.connection.value;
  return agentStatus(useCountdown(connection.kind === "waiting" ? connection.retryAt : undefined));
}

export function AgentChip(): VNode {
  return <Chip name="agent" status={useAgentStatus()} />;
}

export function SandboxChip(): VNode {
  return <Chip name="sandbox" status={sandboxStatus()} />;
}

export function AgentStatusLine(): VNode {
  return <Line status={useAgentStatus()} />;
}

export function SandboxStatusLine(): VNode {
  return <Line status={sandboxStatus()} />;
}
