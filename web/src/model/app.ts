/**
 * The application: what a person can do, in one place.
 *
 * Invariant: everything here works without the rest. No agent: the sandbox and its panels live. No sandbox: one can
 * still talk to the agent. What is missing is said, with a remedy.
 */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals";
import { forgetOffline, keepOffline } from "sandport";
import { closeProblem, inPageProblem, NO_TOKEN, type Problem } from "../lib/problem.ts";
import { takeToken } from "../lib/token.ts";
import { CallLog } from "./call-log.ts";
import { IN_PAGE, InPage, type InPageSettings, lastSession, noteSession, settings } from "./in-page.ts";
import { gatewayChannel, isGatewayRefusal, Link, type LinkOptions } from "./link.ts";
import { SandboxHost } from "./sandbox-host.ts";
import * as store from "./store.ts";
import { listZip, readDrop, readFiles, readZipText } from "./workspace.ts";

/** A problem and what a person can do about it with one click. */
export interface ActionableProblem {
  readonly problem: Problem;
  readonly actions: readonly { readonly label: string; run(): void }[];
}

/** The default workspace, packed at build. */
const DEFAULT_WORKSPACE = { url: "workspace.zip", name: "Sandport's own sources" };

export class App {
  /** What keeps the conversation from going on. */
  readonly problem: ReadonlySignal<ActionableProblem | undefined>;
  readonly #problem = signal<Problem | undefined>(undefined);
  readonly #log = new CallLog();
  readonly #sandbox: SandboxHost;
  #link: Link | undefined;
  /** A change of the agent's settings that is under way: the next message waits for it. */
  #settling: Promise<void> = Promise.resolve();
  #token: string | undefined;
  /** The gateway's agents; none on a static host. */
  #gatewayAgents: readonly string[] = [];
  #inPage: InPage | undefined;
  #static = false;
  #logPending = false;
  /** The zip that is mounted now, for the file list and for a sandbox that was restarted. */
  #zip: Uint8Array<ArrayBuffer> | undefined;

  constructor() {
    this.#sandbox = new SandboxHost({
      workspace: () => this.#zip,
      onPrint: (stream, source, text) => {
        this.#log.print(stream, source, text, Date.now());
        this.#showLog();
      },
    });
    this.problem = computed(() => {
      const problem = this.#problem.value;
      if (!problem) return undefined;
      const connection = store.connection.value;
      if (connection.kind === "no-token") return { problem, actions: [] };
      if (store.agent.value.phase === "ready" && connection.kind === "open") return { problem, actions: [] };
      return { problem, actions: [{ label: "Reconnect now", run: () => this.reconnect() }] };
    });
  }

  /** Starts the sandbox and the connection, side by side; without a gateway, the agent in this page. */
  async start(): Promise<void> {
    const workspace = this.#loadDefaultWorkspace();
    this.#token = takeToken();
    this.#static = this.#token === undefined && !(await hasGateway());
    void workspace.finally(() => this.#sandbox.start(this.#static));
    if (this.#static) {
      store.agents.value = { names: [IN_PAGE], current: IN_PAGE };
      this.#keepOfflineWhenUp();
      void this.#connect(lastSession());
    } else if (this.#token === undefined) {
      store.connection.value = { kind: "no-token" };
      this.#problem.value = NO_TOKEN;
    } else {
      void forgetOffline();
      void this.#connect();
    }
    // A full address pasted into an open tab changes only the fragment: the page is not loaded anew.
    window.addEventListener("hashchange", () => {
      if (location.hash.startsWith("#token=")) location.reload();
    });
  }

  /** Tries to reach the agent again. */
  reconnect(): void {
    if (store.connection.value.kind === "open") {
      // The socket is fine, the session is not: start over.
      void this.#connect(this.#link?.sessionId);
    } else {
      this.#link?.retry();
    }
  }

  /** Sends a message to the agent. */
  send(text: string): void {
    const link = this.#link;
    if (!link || store.working.value) return;
    store.draft.value = "";
    store.show("chat");
    void this.#settling.then(() => link.send(text));
  }

  /** Asks the agent to stop. */
  stop(): void {
    void this.#link?.cancel();
  }

  /** Connects to another of the gateway's agents, in a new conversation. */
  chooseAgent(name: string): void {
    const agents = store.agents.value;
    if (!agents || agents.current === name) return;
    store.agents.value = { ...agents, current: name };
    store.items.value = [];
    void this.#connect(name === IN_PAGE ? lastSession() : undefined);
  }

  /**
   * Lets the agent in this page work with another model, from the next message on.
   * @throws {EndpointError} the settings cannot be used.
   */
  useModel(chosen: InPageSettings): Promise<void> {
    const done = this.#use(chosen);
    this.#settling = done.catch(() => {});
    return done;
  }

  async #use(chosen: InPageSettings): Promise<void> {
    await this.#agentInPage().use(chosen);
    await this.#link?.setMode(chosen.ask ? "ask" : "auto");
  }

  /** Starts a conversation with the same agent. */
  newConversation(): void {
    noteSession(undefined);
    store.items.value = [];
    void this.#connect();
  }

  /** Takes an earlier conversation up. */
  openConversation(sessionId: string): void {
    store.items.value = [];
    void this.#connect(sessionId);
  }

  /** Forgets a conversation. The one that is open goes on, and is kept again with its next message. */
  async deleteConversation(sessionId: string): Promise<void> {
    await this.#link?.forget(sessionId).catch(() => {});
    if (sessionId === this.#link?.sessionId) this.newConversation();
    await this.refreshConversations();
  }

  /** Asks the agent which conversations it keeps. */
  async refreshConversations(): Promise<void> {
    store.conversations.value = (await this.#link?.conversations().catch(() => [])) ?? [];
  }

  /** Starts the sandbox anew after it failed, and gives the agent a session that has its tools. */
  async restartSandbox(): Promise<void> {
    try {
      await this.#sandbox.restart("it was restarted by hand");
      if (store.connection.value.kind === "open") await this.#connect(this.#link?.sessionId);
    } catch {
      // It failed again, and says so itself.
    }
  }

  clearLog(): void {
    this.#log.clear();
    this.#showLog();
  }

  /** Puts other files in the place of the workspace. */
  async replaceWorkspace(source: { drop: DataTransfer } | { files: FileList }): Promise<void> {
    // The drop's data is gone after the first await.
    const reading = "drop" in source ? readDrop(source.drop) : readFiles(source.files);
    await this.#mount(reading);
  }

  /** Brings the workspace back that the page opened with, as it was. */
  async resetWorkspace(): Promise<void> {
    await this.#mount(fetchWorkspace());
  }

  /** The text of a file in the mounted workspace; undefined for a binary one. */
  fileText(path: string): string | undefined {
    return this.#zip && readZipText(this.#zip, path);
  }

  /** Loads a module with a FastMCP server; returns the names of its tools. */
  loadTools(name: string, source: string): Promise<readonly string[]> {
    return this.#sandbox.loadTools(name, source);
  }

  unloadTools(name: string): Promise<void> {
    return this.#sandbox.unloadTools(name);
  }

  async #connect(sessionId?: string): Promise<void> {
    this.#link?.stop();
    store.connection.value = { kind: "connecting", attempt: 1 };
    if (!store.agents.value) {
      const found = await listAgents();
      this.#gatewayAgents = found?.names ?? [];
      if (found) store.agents.value = { ...found, names: [...found.names, IN_PAGE] };
    }
    const way = store.agents.value?.current === IN_PAGE ? this.#wayInPage() : this.#wayToGateway();
    if (!way) return;
    this.#link = new Link(
      { ...way, sandbox: this.#sandbox, log: this.#log, onLog: () => this.#showLog(), sessionId },
      (problem) => {
        this.#problem.value = problem;
      },
    );
  }

  #wayToGateway(): Pick<LinkOptions, "connect" | "isRefusal" | "problemOf"> | undefined {
    const token = this.#token;
    if (token === undefined) return undefined;
    // A gateway with one agent has no choice to make.
    const name = this.#gatewayAgents.length > 1 ? store.agents.value?.current : undefined;
    return {
      connect: (signal) => gatewayChannel(token, name, signal),
      isRefusal: isGatewayRefusal,
      problemOf: ({ code, reason }) => closeProblem(code, reason),
    };
  }

  #wayInPage(): Pick<LinkOptions, "connect" | "problemOf" | "onSession"> {
    const agent = this.#agentInPage();
    return {
      connect: () => agent.open(),
      problemOf: ({ reason }) => inPageProblem(reason),
      onSession: async (session) => {
        noteSession(session.sessionId);
        await session.setMode(settings.value.ask ? "ask" : "auto");
      },
    };
  }

  #agentInPage(): InPage {
    this.#inPage ??= new InPage(this.#static, (text) => {
      this.#log.print("stderr", IN_PAGE, text, Date.now());
      this.#showLog();
    });
    return this.#inPage;
  }

  /** Once all is there, the browser keeps it: the next visit needs no network. */
  #keepOfflineWhenUp(): void {
    const stop = effect(() => {
      if (store.sandbox.value.phase !== "ready" || store.agent.value.phase !== "ready") return;
      queueMicrotask(() => stop());
      void keepOffline().then((kept) => {
        // For whoever wants to know, such as a test.
        document.documentElement.dataset["offline"] = kept ? "ready" : "unavailable";
      });
    });
  }

  /** Shows the log once a frame at most: a busy tool may print thousands of times a second. */
  #showLog(): void {
    if (this.#logPending) return;
    this.#logPending = true;
    setTimeout(() => {
      this.#logPending = false;
      store.log.value = this.#log.entries;
    }, 30);
  }

  async #loadDefaultWorkspace(): Promise<void> {
    try {
      const { zip } = await fetchWorkspace();
      store.files.value = listZip(zip);
      this.#zip = zip;
    } catch (error) {
      store.workspaceName.value = "No workspace";
      store.workspaceProblem.value = `The bundle's own workspace is missing: ${error instanceof Error ? error.message : error}`;
    }
  }

  async #mount(reading: Promise<{ name: string; zip: Uint8Array<ArrayBuffer> }>): Promise<void> {
    store.workspaceBusy.value = true;
    store.workspaceProblem.value = undefined;
    try {
      const { name, zip } = await reading;
      const files = listZip(zip);
      await this.#sandbox.mountWorkspace(zip);
      this.#zip = zip;
      store.files.value = files;
      store.workspaceName.value = name;
      store.announcement.value = `The workspace is now ${name}, ${files.length} files.`;
    } catch (error) {
      store.workspaceProblem.value = error instanceof Error ? error.message : String(error);
    } finally {
      store.workspaceBusy.value = false;
    }
  }
}

async function fetchWorkspace(): Promise<{ name: string; zip: Uint8Array<ArrayBuffer> }> {
  const answer = await fetch(DEFAULT_WORKSPACE.url);
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return { name: DEFAULT_WORKSPACE.name, zip: new Uint8Array(await answer.arrayBuffer()) };
}

/** Whether a gateway serves this page: a static host has no such address, or answers it with a page. */
async function hasGateway(): Promise<boolean> {
  try {
    const answer = await fetch("health", { cache: "no-store" });
    const { sockets } = (await answer.json()) as { sockets?: unknown };
    return answer.ok && typeof sockets === "number";
  } catch {
    return false;
  }
}

/** The agents that the gateway offers; undefined behind a server that is no gateway. */
async function listAgents(): Promise<{ names: string[]; current: string } | undefined> {
  try {
    const answer = await fetch("agents", { cache: "no-store" });
    const { agents, default: current } = (await answer.json()) as { agents?: unknown; default?: unknown };
    if (!Array.isArray(agents) || typeof current !== "string") return undefined;
    return { names: agents.filter((name) => typeof name === "string"), current };
  } catch {
    return undefined;
  }
}
