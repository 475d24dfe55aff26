import type { Engine, Pipeline } from "./wire";

export interface Reason {
  /** What it waits for, after the word "waiting". */
  short: string;
  long: string;
  /** The command that ends the wait; empty where none is needed. */
  fix: string;
}

export interface Shown {
  state: string;
  reason: Reason | null;
}

const NO_SPARK = ["starting", "restarting", "failed", "stopped", "dead", "down"];

/** The state of a pipeline as a reader should see it, and what it waits for. */
export function stateOf(pipeline: Pipeline, engine: Engine | null): Shown {
  if (pipeline.state === "failed" || pipeline.state === "stopped") return { state: pipeline.state, reason: null };
  if (engine && NO_SPARK.includes(engine.state)) {
    const long = `Spark is ${engine.state}${engine.detail ? `: ${engine.detail}` : ""}`;
    return { state: "waiting", reason: { short: "for Spark", long, fix: "" } };
  }
  if (pipeline.state === "starting") return { state: "starting", reason: { short: pipeline.detail || "Spark builds the query", long: pipeline.detail, fix: "" } };
  if (pipeline.state === "waiting") {
    const short = pipeline.detail.split(";")[0]!;
    return { state: "waiting", reason: { short, long: pipeline.detail === short ? "" : pipeline.detail, fix: "" } };
  }
  const [wait] = pipeline.waiting;
  if (!wait) return { state: pipeline.state, reason: null };
  const short = wait.reason === "table" ? `for table ${wait.name}` : `for event time of ${wait.name}`;
  const long = wait.reason === "table" ? "events are held until the table is loaded" : `${wait.name} holds history, so silence does not advance its event time`;
  return { state: "waiting", reason: { short, long, fix: wait.fix } };
}
