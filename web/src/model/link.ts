/**
 * The link to the agent: a kept WebSocket, a port on it, and an ACP session over that.
 *
 * Invariants: each connection has a port of its own; server ids are minted anew for each and never used again; the
 * agent hears of the sandbox's servers only after both the port and the sandbox know their ids.
 */

import {
  type ChannelClose,
  ChannelClosedError,
  type ConnectionState,
  type KeptConnection,
  keepConnected,
  Port,
  type ProbeTimes,
  type ServerDeclaration,
  type SessionHead,
  type TextChannel,
  UTF8_PROTOCOL,
  webSocketChannel,
} from "sandport";
import { CLOSE_REFUSED, CLOSE_TRY_LATER, type Problem, sessionProblem, turnProblem } from "../lib/problem.ts";
import { Agent } from "./agent.ts";
import type { CallLog } from "./call-log.ts";
import type { LentServers } from "./lent.ts";
import { askPerson, withdrawQuestions } from "./questions.ts";
import type { SandboxHost } from "./sandbox-host.ts";
import { noteTurn, takeTurn } from "./sessions.ts";
import * as store from "./store.ts";
import { addNotice, addUser, applyUpdate, endTools, type Item } from "./transcript.ts";

const NO_TOOLS =
  "This agent does not take tools over ACP: its answer to initialize has no mcpCapabilities.acp. You can chat with it, but it cannot use the tools of this page.";
const NO_SANDBOX_REMEDY = "Restart the sandbox under Tools; the agent then gets its tools in a new session.";
const NO_TOOLS_REMEDY =
  "Use an agent that speaks MCP over ACP, such as the demo agent (start sandport without --agent), or let sandport bridge it.";

/** Settings of {@link Link}. */
export interface LinkOptions {
  /** Opens a channel to the agent. */
  connect(signal: AbortSignal): Promise<TextChannel>;
  /** How to find out whether a silent connection still lives. */
  readonly probe?: ProbeTimes | undefined;
  /** Why there is no connection, for a person. */
  problemOf(close: ChannelClose): Problem;
  /** Called when the agent has a session, before it counts as ready. */
  readonly onSession?: ((agent: Agent) => Promise<void>) | undefined;
  readonly sandbox: SandboxHost;
  readonly lent: LentServers;
  readonly log: CallLog;
  /** Called when the call log may have changed. */
  readonly onLog: () => void;
  /** A session of an earlier link, to take up. */
  readonly sessionId?: string | undefined;
  /** Why this link takes the place of another, as a sentence for the person. */
  readonly why?: string | undefined;
}

/** Everything between this page and the agent. */
export class Link {
  readonly #options: LinkOptions;
  readonly #kept: KeptConnection;
  #port: Port | undefined;
  #agent: Agent | undefined;
  /** The session to take up after the connection was lost. */
  #sessionId: string | undefined;
  /** While a session is loaded, its replay is gathered apart, so that nothing is shown twice. */
  #serverIds: readonly string[] = [];
  #replay: readonly Item[] | undefined;
  #problem: Problem | undefined;
  #abandoned = false;
  readonly #onProblem: (problem: Problem | undefined) => void;

  constructor(options: LinkOptions, onProblem: (problem: Problem | undefined) => void) {
    this.#options = options;
    this.#sessionId = options.sessionId;
    this.#onProblem = onProblem;
    this.#kept = keepConnected({
      connect: (signal) => options.connect(signal),
      onChannel: (channel) => void this.#open(channel),
      onState: (state) => this.#stateChanged(state),
      probe: options.probe,
    });
  }

  /** Tries again at once. */
  retry(): void {
    this.#kept.retry();
  }

  /** Ends the connection and takes no new one. */
  stop(): void {
    this.#kept.stop();
  }

  /** The person leaves this conversation: what still happens in it is no longer shown. */
  abandon(): void {
    this.#abandoned = true;
    withdrawQuestions();
    store.queued.value = false;
    store.working.value = false;
    noteTurn(undefined);
  }

  /** The session of this link, if it came so far. */
  get sessionId(): string | undefined {
    return this.#sessionId;
  }

  /** Whether the agent could take this session up on another connection. */
  get canTakeUp(): boolean {
    return this.#agent?.canTakeUp === true;
  }

  /** Sends a message and shows what becomes of it. */
  async send(text: string): Promise<void> {
    const agent = this.#agent;
    if (!agent || store.working.value) return;
    store.items.value = addUser(store.items.value, text);
    store.working.value = true;
    noteTurn(text);
    store.announcement.value = "The agent is working.";
    this.#setProblem(undefined);
    try {
      const reason = await agent.prompt(text);
      if (agent === this.#agent && !this.#abandoned) this.#turnEnded(reason);
    } catch (error) {
      // When the connection is gone, the loss itself is shown.
      if (agent === this.#agent) this.#setProblem(turnProblem(error));
      // What waited was meant for after an answer.
      store.queued.value = false;
    } finally {
      if (agent === this.#agent && !this.#abandoned) {
        noteTurn(undefined);
        store.working.value = false;
        store.items.value = endTools(store.items.value, "failed", Date.now());
      }
    }
  }

  /** Switches the session to another of the agent's modes. */
  async setMode(modeId: string): Promise<void> {
    await this.#agent?.setMode(modeId);
  }

  /** The conversations that the agent keeps. */
  async conversations(): Promise<readonly SessionHead[]> {
    return (await this.#agent?.conversations()) ?? [];
  }

  /** Lets the agent forget a conversation. */
  async forget(sessionId: string): Promise<void> {
    await this.#agent?.forget(sessionId);
  }

  /** Asks the agent to stop; questions that are open are answered with "cancelled", as ACP wants. */
  async cancel(): Promise<void> {
    withdrawQuestions();
    store.items.value = endTools(store.items.value, "cancelled", Date.now());
    // A connection that is gone has ended the turn already.
    await this.#agent?.cancel().catch(() => {});
    // Not every agent cancels what it called, and some wait for it before they call again.
    for (const id of this.#serverIds) this.#port?.stop(id);
  }

  #turnEnded(reason: string): void {
    const last = store.items.value.findLast((item) => item.kind === "agent");
    const said = last?.kind === "agent" ? last.text.slice(0, 2000) : "";
    store.announcement.value = reason === "cancelled" ? "Stopped." : `The agent says: ${said}`;
    const notes: Record<string, string> = {
      cancelled: "Stopped.",
      max_tokens: "The answer was cut off: the model's limit was reached.",
      max_turn_requests: "The agent stopped: it used as many steps as one message may take.",
      refusal: "The agent refused to go on.",
    };
    const note = notes[reason];
    if (note)
      store.items.value = addNotice(store.items.value, reason === "cancelled" ? "info" : "warning", note);
  }

  #stateChanged(state: ConnectionState): void {
    store.connection.value = state;
    if (state.kind === "stopped" && state.last.code !== 1000) {
      this.#setProblem(this.#options.problemOf(state.last));
    } else if (state.kind === "waiting" && !this.#isQuietLoss(state.last)) {
      this.#setProblem(this.#options.problemOf(state.last));
    }
  }

  /** The first loss of a connection that worked is mended in a moment; the chip says enough. */
  #isQuietLoss({ code }: ChannelClose): boolean {
    const worthAWord = code === 1011 || code === CLOSE_TRY_LATER;
    return !worthAWord && this.#sessionId !== undefined && this.#problem === undefined;
  }

  #setProblem(problem: Problem | undefined): void {
    if (this.#abandoned) return;
    this.#problem = problem;
    this.#onProblem(problem);
  }

  async #open(channel: TextChannel): Promise<void> {
    const { log, onLog } = this.#options;
    const port = new Port(channel, {
      onTraffic: (traffic) => {
        log.see(traffic, performance.now(), Date.now());
        onLog();
      },
      onDropped: () => {
        store.dropped.value = port.stats.dropped;
      },
    });
    this.#port = port;
    void port.closed.then(() => this.#closed(port));
    store.agent.value = { phase: "starting", since: Date.now() };
    try {
      const agent = await Agent.connect(port.acp, {
        update: (update, inputText) => {
          const now = Date.now();
          if (this.#abandoned) return;
          if (this.#replay) this.#replay = applyUpdate(this.#replay, update, now, inputText);
          else store.items.value = applyUpdate(store.items.value, update, now, inputText);
        },
        permission: askPerson,
      });
      store.agent.value = { phase: "opening", title: agent.title };
      const servers = agent.takesTools ? await this.#declare(port) : [];
      if (this.#port !== port) return;
      await this.#startSession(agent, servers);
      if (this.#port !== port) return;
      this.#agent = agent;
      this.#sessionId = agent.sessionId;
      await this.#options.onSession?.(agent);
      if (this.#port !== port) return;
      this.#setProblem(undefined);
      store.agent.value = { phase: "ready", title: agent.title, takesTools: agent.takesTools };
      if (!agent.takesTools)
        store.items.value = addNotice(store.items.value, "warning", NO_TOOLS, NO_TOOLS_REMEDY);
      store.announcement.value = `${agent.title} is ready.`;
    } catch (error) {
      if (this.#port !== port) return;
      const problem = sessionProblem(error);
      store.agent.value = { phase: "failed", problem };
      this.#setProblem(problem);
    }
  }

  /** Makes the page's servers known under fresh ids: the sandbox's, and what else the person lends. */
  async #declare(port: Port): Promise<ServerDeclaration[]> {
    const { lent, log } = this.#options;
    const servers = [...(await this.#declareSandbox(port)), ...(await lent.join(port))];
    for (const { name, id } of servers) log.name(id, name);
    this.#serverIds = servers.map(({ id }) => id);
    return servers;
  }

  /** Without a sandbox there are none, and one can still talk. */
  async #declareSandbox(port: Port): Promise<ServerDeclaration[]> {
    try {
      return await this.#options.sandbox.join(port);
    } catch (error) {
      if (this.#port !== port) return [];
      const why = error instanceof Error ? error.message : String(error);
      store.items.value = addNotice(
        store.items.value,
        "warning",
        `The agent gets no tools of the sandbox: ${why}.`,
        NO_SANDBOX_REMEDY,
      );
      return [];
    }
  }

  async #startSession(agent: Agent, servers: readonly ServerDeclaration[]): Promise<void> {
    const earlier = this.#sessionId;
    if (earlier === undefined) {
      await agent.newSession(servers);
      return;
    }
    this.#replay = [];
    const how = await agent.takeUp(earlier, servers);
    const replayed = this.#replay;
    this.#replay = undefined;
    if (how !== undefined) {
      // A replay is the whole history: it takes the place of what is shown. Without one, what is shown stays.
      if (replayed.some(({ kind }) => kind !== "notice")) store.items.value = replayed;
      // Taken up from the list or after a reload, it was not this page that lost the connection.
      const again = earlier === this.#options.sessionId ? (this.#options.why ?? "") : "Reconnected.";
      if (store.items.value.length > 0) {
        store.items.value = addNotice(
          store.items.value,
          "info",
          `${again} The conversation goes on.`.trimStart(),
        );
      }
      this.#mendTurn();
      return;
    }
    await agent.newSession(servers);
    this.#mendTurn();
    if (store.items.value.length === 0) return;
    store.items.value = addNotice(
      store.items.value,
      "warning",
      "Reconnected with a new session: the agent does not remember what was said above.",
    );
  }

  /** A reload in the middle of a turn ended it: the person gets their message back where the agent has lost it. */
  #mendTurn(): void {
    const text = takeTurn();
    if (text === undefined) return;
    const last = store.items.value.findLast(({ kind }) => kind === "user");
    if (last?.kind !== "user" || last.text !== text) store.draft.value ||= text;
    store.items.value = addNotice(
      endTools(store.items.value, "failed", Date.now()),
      "warning",
      "The page was loaded anew before the agent had finished.",
      "Send the message again if you still want an answer.",
    );
  }

  #closed(port: Port): void {
    if (this.#port !== port) return;
    this.#port = undefined;
    this.#agent = undefined;
    this.#replay = undefined;
    this.#options.sandbox.leave();
    this.#options.lent.leave();
    this.#options.log.end(performance.now());
    this.#options.onLog();
    withdrawQuestions();
    store.agent.value = { phase: "offline" };
    if (store.working.value && !this.#abandoned) {
      noteTurn(undefined);
      store.queued.value = false;
      store.working.value = false;
      store.items.value = addNotice(
        endTools(store.items.value, "failed", Date.now()),
        "warning",
        "The connection was lost before the agent had finished.",
        "Send the message again once the agent is back.",
      );
    }
  }
}

/** So often in a row the gateway must say that it would let this page in, before something else is to blame. */
const UNEXPLAINED = 3;

/**
 * The way to the gateway that serves this page. An attempt that fails says why, as far as the gateway does: with close
 * code 1008 where it is of no use to try again, with 1013 where it is (it is full, or stops).
 * @param agent its name there; without one the gateway chooses.
 */
export function gatewayChannel(
  token: string,
  agent: string | undefined,
): (signal: AbortSignal) => Promise<TextChannel> {
  const url = gatewayAddress(agent);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  let unexplained = 0;
  return async (signal) => {
    try {
      return await webSocketChannel(url, {
        protocols: ["acp.v1", `sandport.token.${token}`, UTF8_PROTOCOL],
        signal,
      });
    } catch (error) {
      const refusal = signal.aborted ? undefined : await gatewayRefusal(token, agent, signal);
      if (refusal === undefined) throw error;
      const { status, reason } = refusal;
      unexplained = status === 426 ? unexplained + 1 : 0;
      if (status === 503) throw new ChannelClosedError({ code: CLOSE_TRY_LATER, reason });
      if (status === 403 || status === 404 || unexplained >= UNEXPLAINED) {
        throw new ChannelClosedError({ code: CLOSE_REFUSED, reason });
      }
      throw error;
    }
  };
}

/**
 * Why the gateway refuses this page, if it is there and does. A browser does not tell a page that, so this asks over
 * HTTP. The gateway answers in plain text; what is none comes from somebody else.
 */
async function gatewayRefusal(
  token: string,
  agent: string | undefined,
  signal: AbortSignal,
): Promise<{ status: number; reason: string } | undefined> {
  try {
    const answer = await fetch(gatewayAddress(agent), {
      method: "POST",
      cache: "no-store",
      headers: { authorization: `Bearer ${token}` },
      signal,
    });
    if (!answer.headers.get("content-type")?.startsWith("text/plain")) return undefined;
    return { status: answer.status, reason: await answer.text() };
  } catch {
    return undefined;
  }
}

function gatewayAddress(agent: string | undefined): URL {
  const url = new URL("acp", document.baseURI);
  url.hash = "";
  if (agent !== undefined) url.searchParams.set("agent", agent);
  return url;
}
