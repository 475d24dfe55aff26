// What the page knows of the node: one live stream, and regular polls of topics and views.

import { SvelteMap } from "svelte/reactivity";
import { address } from "./address.svelte";
import { Held } from "./held";
import { Rates } from "./rates.svelte";
import { Rows } from "./rows.svelte";
import {
  engineOf,
  memoryOf,
  pipelinesOf,
  problemIn,
  rowsOf,
  snapshotOf,
  topicsOf,
  viewsOf,
  type Engine,
  type Memory,
  type Pipeline,
  type Problem,
  type RowsMessage,
  type TopicInfo,
  type ViewInfo,
} from "./wire";

const LOOK_EVERY = 2000; // ms
const PATIENCE = 30_000; // ms until a poll fails; a node with very many topics is slow at first
const WAITS = [500, 1000, 2000, 4000]; // ms before the next try
const NEWEST: Record<string, string> = { hw_batches: "-committed_at", hw_late: "-received_at", hw_quarantine: "-received_at" };
const FIRST_PICTURE = 1500; // ms in which a page that opens paused still shows messages

export type Connection = "connecting" | "live" | "lost" | "hidden";

class Live {
  connection = $state<Connection>("connecting");
  lastAt = $state<number | null>(null);
  nextTryAt = $state<number | null>(null);
  version = $state("");
  pipelines = $state.raw<Pipeline[]>([]);
  engine = $state.raw<Engine | null>(null);
  memory = $state.raw<Memory | null>(null);
  views = $state.raw<ViewInfo[]>([]);
  topics = $state.raw<TopicInfo[]>([]);
  held = $state(0);
  loaded = $state(false);
  topicsLoaded = $state(false);
  viewsLoaded = $state(false);
  /** Why the node cannot answer, in its own words; null while it works. */
  problem = $state.raw<Problem | null>(null);
  now = $state(Date.now());
  readonly tables = new SvelteMap<string, Rows>();
  readonly rates = new Rates();

  #source: EventSource | null = null;
  #chosen: string[] = [];
  #sent = "";
  #waiting = new Held();
  #waitingPipelines: Pipeline[] | null = null;
  #tries = 0;
  #timer = 0;
  #firstOpenAt: number | null = null;

  /** Begin; called once. */
  start(): void {
    document.addEventListener("visibilitychange", () => this.#visibility());
    setInterval(() => (this.now = Date.now()), 1000);
    void this.#looking();
    this.#open();
  }

  /** Choose the views whose rows are shown; the stream is opened again when they change. */
  choose(names: string[]): void {
    if (names.join(",") === this.#chosen.join(",")) return;
    this.#chosen = names;
    for (const name of this.tables.keys()) if (!names.includes(name)) this.tables.delete(name);
    for (const name of names) if (!this.tables.has(name)) this.tables.set(name, new Rows());
    this.#openIfOther();
  }

  /** Show the messages that were held back. */
  release(): void {
    const waiting = this.#waiting;
    this.#waiting = new Held();
    this.held = 0;
    if (this.#waitingPipelines) this.#showPipelines(this.#waitingPipelines);
    this.#waitingPipelines = null;
    if (waiting.overflown) this.#open();
    else for (const message of waiting.take()) this.tables.get(message.view)?.take(message);
  }

  // -- the stream ------------------------------------------------------------------------------------------------

  #open(): void {
    this.#source?.close();
    clearTimeout(this.#timer);
    this.#sent = this.#wanted;
    const source = new EventSource(`/api/live?views=${this.#sent}`);
    this.#source = source;
    source.onopen = () => this.#arrived();
    source.onerror = () => this.#source === source && this.#lost();
    const on = (name: string, take: (data: unknown) => void): void =>
      source.addEventListener(name, (message) => {
        this.#arrived();
        take(JSON.parse((message as MessageEvent<string>).data));
      });
    on("pipelines", (data) => this.#takePipelines(pipelinesOf(data)));
    on("node", (data) => (this.problem = problemIn(data)));
    on("engine", (data) => (this.engine = engineOf(data)));
    on("memory", (data) => (this.memory = memoryOf(data)));
    on("rows", (data) => this.#takeRows(rowsOf(data)));
    on("problem", (data) => {
      this.problem = problemIn(data);
      if (this.#source === source) this.#lost();
    });
  }

  /** The views to subscribe to: the node refuses unknown views, and system views are polled instead. */
  get #wanted(): string {
    const known = new Set(this.views.filter((view) => view.kind === "view").map((view) => view.name));
    return this.#chosen.filter((name) => known.has(name)).map(encodeURIComponent).join(",");
  }

  #openIfOther(): void {
    if (this.#source && this.#wanted !== this.#sent) this.#open();
  }

  #arrived(): void {
    this.#firstOpenAt ??= performance.now();
    this.#tries = 0;
    this.nextTryAt = null;
    this.connection = "live";
    this.lastAt = Date.now();
  }

  #lost(): void {
    this.#source?.close();
    this.#source = null;
    if (document.hidden) return;
    const wait = WAITS[Math.min(this.#tries, WAITS.length - 1)]!;
    this.#tries += 1;
    this.connection = "lost";
    this.nextTryAt = Date.now() + wait;
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => this.#open(), wait);
  }

  #visibility(): void {
    if (document.hidden) {
      this.#source?.close();
      this.#source = null;
      clearTimeout(this.#timer);
      this.connection = "hidden";
    } else {
      this.connection = "connecting";
      this.#open();
      void this.#look();
    }
  }

  get #holding(): boolean {
    return address.paused && performance.now() - (this.#firstOpenAt ?? Infinity) > FIRST_PICTURE;
  }

  #takePipelines(pipelines: Pipeline[]): void {
    this.rates.note(pipelines, Date.now());
    this.loaded = true;
    if (!this.#holding) return this.#showPipelines(pipelines);
    this.#waitingPipelines = pipelines;
    this.held += 1;
  }

  #showPipelines(pipelines: Pipeline[]): void {
    const names = (all: Pipeline[]): string => all.map((one) => `${one.name}@${one.version}`).join(" ");
    const changed = names(pipelines) !== names(this.pipelines);
    this.pipelines = pipelines;
    if (changed) void this.#lookAtViews();
  }

  #takeRows(message: RowsMessage): void {
    if (this.#holding) {
      this.#waiting.add(message);
      this.held += 1;
    } else this.tables.get(message.view)?.take(message);
  }

  // -- polls -----------------------------------------------------------------------------------------------------

  async #looking(): Promise<void> {
    const version = await this.#get("/api/version");
    if (version) this.version = String((version as { version?: unknown }).version ?? "");
    for (let round = 0; ; round += 1) {
      if (!document.hidden) {
        await this.#look();
        if (round % 5 === 0) await this.#lookAtViews();
        await this.#lookAtSystemViews();
      }
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY));
    }
  }

  async #look(): Promise<void> {
    const answer = await this.#get("/api/topics");
    if (answer === null) {
      if (this.connection === "live") this.#lost();
      return;
    }
    if (this.connection === "live") this.lastAt = Date.now();
    this.topicsLoaded = true;
    const topics = topicsOf(answer);
    this.rates.noteTopics(topics, performance.now());
    if (!this.#holding) this.topics = topics;
  }

  async #lookAtViews(): Promise<void> {
    const answer = await this.#get("/api/views");
    if (answer === null) return;
    this.views = viewsOf(answer);
    this.viewsLoaded = true;
    this.#openIfOther();
  }

  async #lookAtSystemViews(): Promise<void> {
    for (const { name, kind, key } of this.views) {
      if (kind !== "system" || !this.#chosen.includes(name)) continue;
      const answer = await this.#get(`/api/views/${encodeURIComponent(name)}?limit=200&order=${NEWEST[name] ?? "name"}`);
      if (answer !== null && !this.#holding) this.tables.get(name)?.take(snapshotOf(name, key, answer));
    }
  }

  async #get(path: string): Promise<unknown> {
    try {
      const answer = await fetch(path, { signal: AbortSignal.timeout(PATIENCE) });
      if (answer.ok) return await answer.json();
      if (answer.status >= 500) this.problem = problemIn(await answer.json());
      return null;
    } catch {
      return null;
    }
  }
}

export const live = new Live();
