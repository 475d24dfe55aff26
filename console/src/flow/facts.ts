import { clock, count, plural, rated, span } from "../live/format";
import { live } from "../live/live.svelte";
import { stateOf } from "../live/waits";
import type { Box, Edge } from "./graph";

export interface Facts {
  first: string;
  second: string;
  trouble: boolean;
  waits: boolean;
}

const facts = (first: string, second = "", more: Partial<Facts> = {}): Facts => ({ first, second, trouble: false, waits: false, ...more });

/** The line of a box in two parts, from the newest data. */
export function factsOf(box: Box): Facts {
  if (box.kind === "database") {
    const capture = live.topics.find((one) => one.capture?.name === box.name)?.capture;
    if (!capture) return facts("–");
    const trouble = ["stopped", "unreachable", "not running"].includes(capture.state);
    return facts(capture.state, capture.behind === null ? "" : `${span(capture.behind)} behind`, { trouble });
  }
  if (box.kind === "topic") {
    const topic = live.topics.find((one) => one.name === box.name);
    if (!topic) return facts(live.topicsLoaded ? "not created yet" : "");
    return topic.events ? facts(plural(topic.events, "event", "events"), `${rated(live.rates.topic(box.name))}/s`) : facts(topic.end ? "no events" : "no events yet");
  }
  const pipeline = live.pipelines.find((one) => one.name === box.name);
  if (box.kind === "view") {
    const rows = live.views.find((one) => one.name === box.name)?.rows ?? null;
    const complete = pipeline?.watermarkAt ? `complete to ${clock(pipeline.watermarkAt)}` : "";
    if (rows === null) return facts("–", complete);
    return facts(rows ? `${count(rows)} ${rows === 1 ? "row" : "rows"}` : "no rows yet", complete);
  }
  if (!pipeline) return facts("–");
  const { state, reason } = stateOf(pipeline, live.engine);
  if (reason) return facts(state, reason.short, { waits: true });
  if (state === "failed") return facts(state, "", { trouble: true });
  if (!pipeline.in) return facts(pipeline.lagEvents ? `${span(pipeline.lagSeconds)} behind` : "no events yet", state);
  const lag = pipeline.lagSeconds;
  return facts(lag === null ? state : lag < 0.05 ? "up to date" : `${span(lag)} behind`, lag === null ? "" : state);
}

/** Events per second on an edge: what a pipeline reads, or the rows that it changes; null before the first one. */
export function rateOf(edge: Edge): number | null {
  const [kind, name] = split(edge.to);
  if (edge.from.startsWith("database:")) return live.rates.topic(name);
  if (kind !== "pipeline") {
    const pipeline = live.pipelines.find((one) => one.name === name);
    return pipeline?.rows ? (live.rates.rows.get(name) ?? null) : null;
  }
  const pipeline = live.pipelines.find((one) => one.name === name);
  if (!pipeline?.in) return null;
  if (new Set(pipeline.inputs).size === 1) return pipeline.rate;
  const [from, source] = split(edge.from);
  const input = from === "view" ? `${source}.changes` : source;
  if (!pipeline.read.get(input)) return null;
  return pipeline.rate ? (live.rates.inputs.get(`${name}<${input}`) ?? null) : 0;
}

export function rateText(edge: Edge): string {
  const rate = rateOf(edge);
  if (rate === null) return "";
  return `${rated(rate)} ${edge.to.startsWith("view:") ? "rows/s" : "/s"}`;
}

export const split = (id: string): [string, string] => {
  const at = id.indexOf(":");
  return [id.slice(0, at), id.slice(at + 1)];
};
