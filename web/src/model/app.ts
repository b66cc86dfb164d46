/**
 * The application: what a person can do, in one place.
 *
 * Invariant: everything here works without the rest. No agent: the sandbox and its panels live. No sandbox: one can
 * still talk to the agent. What is missing is said, with a remedy.
 */

import { computed, effect, type ReadonlySignal, signal } from "@preact/signals";
import { forgetOffline, keepOffline, PROBE_TIMES } from "sandport";
import { plainLine } from "../lib/plain.ts";
import { closeProblem, inPageProblem, NO_TOKEN, type Problem } from "../lib/problem.ts";
import { takeToken } from "../lib/token.ts";
import { keepAgent, wantedAgent } from "./agent-choice.ts";
import { CallLog } from "./call-log.ts";
import { endSession, revoke } from "./grants.ts";
import { IN_PAGE, InPage, type InPageSettings, settings } from "./in-page.ts";
import { type LentId, LentServers } from "./lent.ts";
import { gatewayChannel, Link, type LinkOptions } from "./link.ts";
import { SandboxHost } from "./sandbox-host.ts";
import { lastSession, noteSession, ownStorage } from "./sessions.ts";
import * as store from "./store.ts";
import { listZip, packForDownload, readDrop, readFiles, readZipFile, readZipText } from "./workspace.ts";

/** A problem and what a person can do about it with one click. */
export interface ActionableProblem {
  readonly problem: Problem;
  readonly actions: readonly { readonly label: string; run(): void }[];
}

/** The default workspace, packed at build. */
const DEFAULT_WORKSPACE = { url: "workspace.zip", name: "Sandport's own sources" };

const NOT_LISTED = "The files cannot be listed";

export class App {
  /** What keeps the conversation from going on. */
  readonly problem: ReadonlySignal<ActionableProblem | undefined>;
  readonly #problem = signal<Problem | undefined>(undefined);
  readonly #log = new CallLog();
  readonly #sandbox: SandboxHost;
  readonly #lent = new LentServers();
  #link: Link | undefined;
  /** A change of the agent's settings that is under way: the next message waits for it. */
  #settling: Promise<void> = Promise.resolve();
  #token: string | undefined;
  /** The gateway's agents; none on a static host. */
  #gatewayAgents: readonly string[] = [];
  #inPage: InPage | undefined;
  #static = false;
  #logPending = false;
  /** The workspace as the page saw it last, for the file list: the zip that was mounted or taken out. */
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
    const owned = ownStorage();
    this.#static = this.#token === undefined && !(await hasGateway());
    void workspace.finally(() => this.#sandbox.start(this.#static));
    this.#lent.restore();
    this.#sendQueued();
    this.#watchFiles();
    await owned;
    if (this.#static) {
      store.agents.value = { names: [IN_PAGE], current: IN_PAGE };
      this.#keepOfflineWhenUp();
      void this.#connect(lastSession(IN_PAGE));
    } else if (this.#token === undefined) {
      store.connection.value = { kind: "no-token" };
      this.#problem.value = NO_TOKEN;
    } else {
      void forgetOffline();
      void this.#chooseFirstAgent().then((name) => this.#connect(lastSession(name)));
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
    // What cannot be sent now stays where it is written.
    if (!link || store.working.value || store.agent.value.phase !== "ready") return;
    store.draft.value = "";
    store.show("chat");
    void this.#settling.then(() => link.send(text));
  }

  /** Sends what is written as soon as the agent's turn ends. */
  queue(): void {
    store.queued.value = true;
    store.announcement.value = "The message waits until the agent has finished.";
  }

  /** Asks the agent to stop. */
  stop(): void {
    void this.#link?.cancel();
  }

  /** Connects to another of the gateway's agents, in the conversation that this tab had with it, or a new one. */
  chooseAgent(name: string): void {
    const agents = store.agents.value;
    if (!agents || agents.current === name) return;
    const stopped = store.working.value ? this.#link?.cancel() : undefined;
    store.agents.value = { ...agents, current: name };
    keepAgent(name);
    this.#leaveConversation();
    store.announcement.value = `Switching to the agent ${name}.`;
    // What was going on with the one before is stopped before its connection is closed.
    void Promise.resolve(stopped).finally(() => this.#connect(lastSession(name)));
  }

  /** Switches a server of this page on or off. */
  async setLent(id: LentId, on: boolean): Promise<void> {
    await this.#lent.set(id, on);
    if (on) this.#tellOfLent();
  }

  /** Has a tool ask again before each call. */
  revoke(server: string, tool: string): void {
    revoke(server, tool);
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
    noteSession(this.#agentName(), undefined);
    this.#leaveConversation();
    void this.#connect();
  }

  /** Takes an earlier conversation up. */
  openConversation(sessionId: string): void {
    this.#leaveConversation();
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

  /** Looks at what the tools have made of the workspace. */
  async refreshFiles(): Promise<void> {
    const before = this.#zip;
    try {
      const zip = await this.#sandbox.takeWorkspace();
      const files = listZip(zip);
      // Another workspace was put in place meanwhile.
      if (this.#zip !== before || store.workspaceBusy.value) return;
      this.#zip = zip;
      store.files.value = files;
      if (store.workspaceProblem.value?.startsWith(NOT_LISTED)) store.workspaceProblem.value = undefined;
    } catch (error) {
      // A sandbox that cannot run, or was restarted, says so itself.
      if (store.sandbox.value.phase !== "ready") return;
      store.workspaceProblem.value = `${NOT_LISTED}: ${error instanceof Error ? error.message : error}`;
    }
  }

  /** Gives the person a file of the workspace as it is now, or all of them as a zip. */
  async download(path?: string): Promise<void> {
    await this.refreshFiles();
    const zip = this.#zip;
    if (!zip) return;
    try {
      const data = path === undefined ? packForDownload(zip) : readZipFile(zip, path);
      if (data) save(data, path === undefined ? "workspace.zip" : (path.split("/").at(-1) ?? path));
      else store.workspaceProblem.value = `There is no ${path} in the workspace any more.`;
    } catch (error) {
      store.workspaceProblem.value = error instanceof Error ? error.message : String(error);
    }
  }

  /** The text of a file in the workspace; undefined for a binary one. */
  fileText(path: string): string | undefined {
    return this.#zip && readZipText(this.#zip, path);
  }

  /** Loads a module with a FastMCP server; returns the names of its tools. */
  loadTools(name: string, source: string): Promise<readonly string[]> {
    return this.#sandbox.loadTools(name, source);
  }

  /** Loads a wheel or a zipped folder; returns the names of its tools. */
  loadPackage(name: string, archive: Blob): Promise<readonly string[]> {
    return this.#sandbox.loadPackage(name, archive);
  }

  unloadTools(name: string): Promise<void> {
    return this.#sandbox.unloadTools(name);
  }

  /** The list of files is that of the sandbox while it is looked at. */
  #watchFiles(): void {
    effect(() => {
      const seen = store.panel.value === "workspace" && store.sandbox.value.phase === "ready";
      if (seen && !store.working.value) queueMicrotask(() => void this.refreshFiles());
    });
  }

  #sendQueued(): void {
    effect(() => {
      if (!store.queued.value || store.working.value || store.agent.value.phase !== "ready") return;
      queueMicrotask(() => {
        if (!store.queued.value) return;
        store.queued.value = false;
        const text = store.draft.value.trim();
        if (text) this.send(text);
      });
    });
  }

  /** Ends what belongs to one conversation alone. */
  #leaveConversation(): void {
    this.#link?.abandon();
    store.agent.value = { phase: "offline" };
    store.items.value = [];
    endSession();
  }

  /** The agents that there are, and the one to begin with. */
  async #chooseFirstAgent(): Promise<string> {
    const found = await listAgents();
    this.#gatewayAgents = found?.names ?? [];
    if (!found) return "";
    const names = [...found.names, IN_PAGE];
    const wanted = wantedAgent();
    const known = wanted !== undefined && names.includes(wanted.name);
    const current = known ? wanted.name : found.current;
    store.agents.value = { names, current };
    if (wanted?.named && !known) {
      store.banner.value = {
        text: `There is no agent "${plainLine(wanted.name, 60)}" here.`,
        detail: `This is ${current}; the gateway has ${found.names.join(", ")}.`,
      };
    }
    return current;
  }

  /** The name of the agent that the page talks to; empty behind a gateway that does not tell. */
  #agentName(): string {
    return store.agents.value?.current ?? "";
  }

  /** Gives the agent a session that has the servers that were switched on since, where that costs nobody anything. */
  #tellOfLent(): void {
    let done = false;
    const stop = effect(() => {
      // The connection that is being made has them.
      if (store.agent.value.phase !== "ready" || store.working.value || done) return;
      done = true;
      queueMicrotask(() => {
        stop();
        const link = this.#link;
        if (!link || this.#lent.allDeclared || store.agent.value.phase !== "ready") return;
        const said = store.items.value.some(({ kind }) => kind === "user");
        // Without a way back into the session, what was said would be lost: then the panel says how to go on.
        if (said && !link.canTakeUp) return;
        const why = "The agent was told of the tools that you switched on.";
        void this.#connect(said ? link.sessionId : undefined, said ? why : undefined);
      });
    });
  }

  async #connect(sessionId?: string, why?: string): Promise<void> {
    this.#link?.stop();
    store.connection.value = { kind: "connecting", attempt: 1 };
    store.agent.value = { phase: "offline" };
    const name = this.#agentName();
    const way = name === IN_PAGE ? this.#wayInPage() : this.#wayToGateway();
    if (!way) return;
    this.#link = new Link(
      {
        ...way,
        onSession: async (session) => {
          noteSession(name, session.sessionId);
          await way.onSession?.(session);
        },
        sandbox: this.#sandbox,
        lent: this.#lent,
        log: this.#log,
        onLog: () => this.#showLog(),
        sessionId,
        why,
      },
      (problem) => {
        this.#problem.value = problem;
      },
    );
  }

  #wayToGateway(): Pick<LinkOptions, "connect" | "probe" | "problemOf" | "onSession"> | undefined {
    const token = this.#token;
    if (token === undefined) return undefined;
    // A gateway with one agent has no choice to make.
    const name = this.#gatewayAgents.length > 1 ? store.agents.value?.current : undefined;
    return {
      connect: gatewayChannel(token, name),
      probe: PROBE_TIMES,
      problemOf: ({ code, reason }) => closeProblem(code, reason),
    };
  }

  #wayInPage(): Pick<LinkOptions, "connect" | "problemOf" | "onSession"> {
    const agent = this.#agentInPage();
    return {
      connect: () => agent.open(),
      problemOf: ({ reason }) => inPageProblem(reason),
      onSession: (session) => session.setMode(settings.value.ask ? "ask" : "auto"),
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

/** Has the browser save bytes as a file. */
function save(data: Uint8Array<ArrayBuffer>, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
  // Tools choose names too: what would make one look like another is spelled out.
  link.download = plainLine(name, 200);
  link.click();
  // The download has begun by then and keeps what it needs.
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
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
