import type { Pipeline, TopicInfo, ViewInfo } from "../live/wire";

export type Kind = "database" | "topic" | "pipeline" | "view";

export interface Box {
  id: string;
  kind: Kind;
  name: string;
}

export interface Edge {
  id: string;
  from: string;
  to: string;
}

export interface Graph {
  boxes: Box[];
  edges: Edge[];
  /** Topics that no pipeline reads or feeds. */
  alone: string[];
}

/** What flows where: from captured databases into topics, through pipelines into views, and on into the topics of streams. */
export function graphOf(pipelines: Pipeline[], topics: TopicInfo[], views: ViewInfo[]): Graph {
  const boxes = new Map<string, Box>();
  const edges: Edge[] = [];
  const box = (kind: Kind, name: string): string => {
    const id = `${kind}:${name}`;
    if (!boxes.has(id)) boxes.set(id, { id, kind, name });
    return id;
  };
  const join = (from: string, to: string): void => void edges.push({ id: `${from}>${to}`, from, to });
  const kept = new Set(pipelines.filter((one) => one.kind !== "stream").map((one) => one.name));
  for (const pipeline of pipelines) {
    const here = box("pipeline", pipeline.name);
    for (const input of new Set(pipeline.inputs)) {
      const source = input.replace(/\.changes(\.\d+)?$/, "");
      join(kept.has(source) ? box("view", source) : box("topic", input), here);
    }
    join(here, kept.has(pipeline.name) ? box("view", pipeline.name) : box("topic", pipeline.name));
  }
  for (const view of views) if (view.kind === "view" && !kept.has(view.name)) box("view", view.name);
  for (const topic of topics) if (topic.capture) join(box("database", topic.capture.name), box("topic", topic.name));
  const changes = /\.changes(\.\d+)?$/;
  const names = topics.map((topic) => topic.name);
  const alone = names.filter((name) => !changes.test(name) && !name.startsWith("_") && !boxes.has(`topic:${name}`));
  return { boxes: [...boxes.values()], edges, alone };
}
