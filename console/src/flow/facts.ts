import { clock, count, plural, rated, span } from "../live/format";
import { live } from "../live/live.svelte";
import type { Box, Edge } from "./graph";

export interface Facts {
  first: string;
  second: string;
  state: string;
  trouble: boolean;
}

/** The two lines of a box, from the newest data. */
export function factsOf(box: Box): Facts {
  if (box.kind === "topic") {
    const topic = live.topics.find((one) => one.name === box.name);
    if (!topic) return { first: "not there yet", second: "", state: "", trouble: false };
    return { first: `${rated(live.rates.topic(box.name))} events/s`, second: plural(topic.events, "event", "events"), state: "", trouble: false };
  }
  const pipeline = live.pipelines.find((one) => one.name === box.name);
  if (box.kind === "view") {
    const view = live.views.find((one) => one.name === box.name);
    const rows = view?.rows ?? null;
    return {
      first: rows === null ? "–" : `${count(rows)} ${rows === 1 ? "row" : "rows"}`,
      second: pipeline?.watermarkAt ? `complete to ${clock(pipeline.watermarkAt)}` : "",
      state: "",
      trouble: false,
    };
  }
  if (!pipeline) return { first: "–", second: "", state: "", trouble: false };
  const trouble = pipeline.state === "failed";
  const lag = pipeline.lagSeconds;
  return { first: lag === null ? pipeline.state : lag < 0.05 ? "up to date" : `${span(lag)} behind`, second: pipeline.state, state: pipeline.state, trouble };
}

/** Events per second on an edge: what a pipeline reads, or the rows that it changes. */
export function rateOf(edge: Edge): number | null {
  const [kind, name] = split(edge.to);
  if (kind !== "pipeline") return live.rates.rows.get(split(edge.from)[1]) ?? null;
  const pipeline = live.pipelines.find((one) => one.name === name);
  if (!pipeline) return null;
  if (pipeline.inputs.length === 1) return pipeline.rate;
  const [from, source] = split(edge.from);
  return from === "topic" ? live.rates.topic(source) : (live.rates.rows.get(source) ?? null);
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
