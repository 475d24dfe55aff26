import { SvelteMap } from "svelte/reactivity";
import type { Pipeline, TopicInfo } from "./wire";

const POINTS = 60;
const POINT_EVERY = 1000; // ms between two points of a pipeline's line

interface Seen {
  total: number;
  at: number;
}

/** Rows arrive in batches; an exponential moving average smooths their rate. */
const calmed = (before: number | undefined, now: number): number => {
  const mean = before === undefined ? now : 0.7 * before + 0.3 * now;
  return mean < 0.05 ? 0 : Math.max(0, mean);
};

/** Rates over time, for the sparklines: of topics from their ends, of pipelines as the node reports them. */
export class Rates {
  readonly topics = new SvelteMap<string, number[]>();
  readonly pipelines = new SvelteMap<string, number[]>();
  readonly rows = new SvelteMap<string, number>();
  /** By pipeline and input, as `pipeline<input`, for pipelines of several inputs. */
  readonly inputs = new SvelteMap<string, number>();
  #ends = new Map<string, Seen>();
  #totals = new Map<string, Seen>();
  #pointAt = 0;

  topic(name: string): number | null {
    return this.topics.get(name)?.at(-1) ?? null;
  }

  noteTopics(topics: TopicInfo[], at: number): void {
    for (const topic of topics) {
      const before = this.#ends.get(topic.name);
      this.#ends.set(topic.name, { total: topic.end, at });
      if (!before || at <= before.at) continue;
      const rate = Math.max(0, ((topic.end - before.total) * 1000) / (at - before.at));
      this.topics.set(topic.name, [...(this.topics.get(topic.name) ?? []), rate].slice(-POINTS));
    }
    const known = new Set(topics.map((topic) => topic.name));
    for (const name of this.topics.keys()) if (!known.has(name)) this.topics.delete(name);
  }

  note(pipelines: Pipeline[], at: number): void {
    if (at - this.#pointAt < POINT_EVERY) return;
    this.#pointAt = at;
    for (const pipeline of pipelines) {
      const points = this.pipelines.get(pipeline.name) ?? [];
      this.pipelines.set(pipeline.name, [...points, pipeline.rate ?? 0].slice(-POINTS));
      this.#noteTotal(this.rows, pipeline.name, pipeline.rows, at);
      if (pipeline.read.size > 1)
        for (const [input, end] of pipeline.read) this.#noteTotal(this.inputs, `${pipeline.name}<${input}`, end, at);
    }
  }

  #noteTotal(rates: SvelteMap<string, number>, name: string, total: number, at: number): void {
    const before = this.#totals.get(name);
    this.#totals.set(name, { total, at });
    if (before && at > before.at) rates.set(name, calmed(rates.get(name), ((total - before.total) * 1000) / (at - before.at)));
  }
}
