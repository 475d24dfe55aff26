// Parses what the node sends. A field that is missing or has another type gets a default, so that one odd row never
// empties the page.

export type Cell = string | number | boolean | null | Cell[] | { [name: string]: Cell };
export type Cells = Record<string, Cell>;

export interface Problem {
  code: string;
  title: string;
  detail: string;
  fix: string;
}

/** What keeps a running pipeline from going on: a topic of history, or a table that is not loaded. */
export interface Wait {
  reason: string;
  name: string;
  fix: string;
}

export interface Pipeline {
  name: string;
  version: number;
  kind: string;
  state: string;
  detail: string;
  since: string | null;
  watermarkAt: string | null;
  in: number;
  used: number;
  late: number;
  quarantined: number;
  dropped: number;
  rows: number;
  batches: number;
  cpu: number;
  lastCommitAt: string | null;
  error: Problem | null;
  inputs: string[];
  place: string;
  doc: string;
  rebuilding: number | null;
  rate: number | null;
  lagSeconds: number | null;
  lagEvents: number | null;
  /** A pipeline in real-time mode has no ledger, so its events are not counted. */
  counted: boolean;
  /** By input topic: how far it is read, as the sum of the offsets. */
  read: Map<string, number>;
  waiting: Wait[];
}

export interface Engine {
  state: string;
  detail: string;
  since: string | null;
}

/** Bytes by part, in the order of the docs; parts of the engine are missing while Spark does not run. */
export interface Memory {
  parts: { name: string; bytes: number; note: string }[];
  total: number;
}

export interface ViewInfo {
  name: string;
  kind: string;
  version: number;
  key: string[];
  window: string | null;
  rows: number | null;
  watermark: string | null;
}

export interface Capture {
  name: string;
  state: string;
  behind: number | null;
}

export interface TopicInfo {
  name: string;
  events: number;
  end: number;
  /** The capture that fills the topic with a table of a database. */
  capture: Capture | null;
}

export interface Upsert {
  key: string;
  cells: Cells;
  open: boolean | null;
}

export interface RowsMessage {
  view: string;
  upserts: Upsert[];
  deletes: string[];
  whole: boolean;
}

type Document = Record<string, unknown>;

const text = (value: unknown): string => (typeof value === "string" ? value : "");
const moment = (value: unknown): string | null => (typeof value === "string" && value ? value : null);
const number = (value: unknown): number => (typeof value === "number" && Number.isFinite(value) ? value : 0);
const perhaps = (value: unknown): number | null => (typeof value === "number" && Number.isFinite(value) ? value : null);
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const document = (value: unknown): Document =>
  value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Document) : {};

/** Structured columns of system views are JSON text; in live messages they may be values already. */
function unfolded(value: unknown): unknown {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch {
    return null;
  }
}

function problemOf(value: unknown): Problem | null {
  const found = document(unfolded(value));
  const told = { code: text(found.code), title: text(found.title), detail: text(found.detail), fix: text(found.fix) };
  return told.code || told.title ? told : null;
}

export function pipelineOf(value: unknown): Pipeline {
  const row = document(value);
  return {
    name: text(row.name),
    version: number(row.version),
    kind: text(row.kind) || "view",
    state: text(row.state) || "unknown",
    detail: text(row.detail),
    since: moment(row.since),
    watermarkAt: moment(row.watermark_at),
    in: number(row.in_),
    used: number(row.used),
    late: number(row.late),
    quarantined: number(row.quarantined),
    dropped: number(row.dropped),
    rows: number(row.rows),
    batches: number(row.batches),
    cpu: number(row.cpu_seconds),
    lastCommitAt: moment(row.last_commit_at),
    error: problemOf(row.error),
    inputs: list(unfolded(row.inputs)).map(String),
    place: text(row.place),
    doc: text(row.doc),
    rebuilding: perhaps(row.rebuilding),
    rate: perhaps(row.rate),
    lagSeconds: perhaps(row.lag_seconds),
    lagEvents: perhaps(row.lag_events),
    counted: row.latency !== "realtime",
    read: readOf(row.last_ranges),
    waiting: list(row.waiting).map(waitOf),
  };
}

/** The changelog of any version of a view has one name here. */
function readOf(value: unknown): Map<string, number> {
  const ranges = list(unfolded(value)).map(document);
  const sum = (ends: unknown): number => Object.values(document(ends)).reduce<number>((all, end) => all + number(end), 0);
  return new Map(ranges.map((range) => [text(range.topic).replace(/\.changes\.\d+$/, ".changes"), sum(range.end)]));
}

function waitOf(value: unknown): Wait {
  const found = document(value);
  return { reason: text(found.reason), name: text(found.name), fix: text(found.fix) };
}

export function pipelinesOf(value: unknown): Pipeline[] {
  const rows = Array.isArray(value) ? value : list(document(value).pipelines);
  return rows.map(pipelineOf).filter((pipeline) => pipeline.name);
}

/** The problem document of an answer; null if it is something else. */
export const problemIn = (value: unknown): Problem | null => problemOf(value);

export function engineOf(value: unknown): Engine {
  const found = document(value);
  return { state: text(found.state), detail: text(found.detail), since: moment(found.since) };
}

export function memoryOf(value: unknown): Memory {
  const found = document(value);
  const engine = document(found.engine);
  const workers = number(engine.python_processes);
  const parts = [
    { name: "node", bytes: number(found.node), note: "log, views, server" },
    { name: "engine", bytes: number(engine.driver), note: "Python of the driver" },
    { name: "Java heap", bytes: number(engine.java_heap), note: `limit ${Math.round(number(engine.java_heap_limit) / 1e6)} MB` },
    { name: "Java classes", bytes: number(engine.java_classes), note: "classes and compiled code" },
    { name: "Java, other", bytes: number(engine.java_native), note: "threads, buffers, files" },
    { name: "state stores", bytes: number(engine.state_store), note: "caches of RocksDB" },
    { name: "Python workers", bytes: number(engine.python_workers), note: `${workers} processes` },
  ].filter((part) => part.bytes > 0);
  return { parts, total: parts.reduce((sum, part) => sum + part.bytes, 0) };
}

export function viewsOf(value: unknown): ViewInfo[] {
  return list(document(value).views).map((one) => {
    const view = document(one);
    return {
      name: text(view.name),
      kind: text(view.kind),
      version: number(view.version),
      key: list(view.key).map(String),
      window: moment(view.window),
      rows: perhaps(view.rows),
      watermark: moment(view.watermark),
    };
  });
}

function captureOf(value: unknown): Capture | null {
  const found = document(value);
  return found.name ? { name: text(found.name), state: text(found.state), behind: perhaps(found.behind_seconds) } : null;
}

export function topicsOf(value: unknown): TopicInfo[] {
  return list(document(value).topics).map((one) => {
    const topic = document(one);
    return { name: text(topic.name), events: number(topic.events), end: number(topic.end), capture: captureOf(topic.capture) };
  });
}

/** A key as one text, for any number of columns. */
export const keyText = (key: unknown): string => (typeof key === "string" ? key : JSON.stringify(key));

export function rowsOf(value: unknown): RowsMessage {
  const message = document(value);
  const open = document(message.open);
  const upserts = list(message.upserts).map((one) => {
    const { _key, ...cells } = document(one);
    const key = keyText(_key ?? Object.values(cells));
    const told = open[key];
    return { key, cells: cells as Cells, open: typeof told === "boolean" ? told : null };
  });
  return {
    view: text(message.view),
    upserts,
    deletes: list(message.deletes).map(keyText),
    whole: message.whole === true,
  };
}

/** The answer of GET /api/views/NAME in the form of a live message, for views that are not sent live. */
export function snapshotOf(view: string, key: string[], value: unknown): RowsMessage {
  const answer = document(value);
  const open = list(answer.open);
  const upserts = list(answer.rows).map((one, index) => {
    const cells = document(one) as Cells;
    const values = key.length ? key.map((name) => cells[name]) : Object.values(cells);
    return { key: JSON.stringify(values), cells, open: typeof open[index] === "boolean" ? (open[index] as boolean) : null };
  });
  return { view, upserts, deletes: [], whole: true };
}
