import dagre from "@dagrejs/dagre";
import type { Graph } from "./graph";

export const BOX = { width: 190, height: 82 };

export interface Layout {
  places: Map<string, { x: number; y: number }>;
  width: number;
  height: number;
}

/** The position of each box, from left to right. */
export function layoutOf(graph: Graph): Layout {
  const drawing = new dagre.graphlib.Graph();
  drawing.setGraph({ rankdir: "LR", nodesep: 16, ranksep: 110, marginx: 4, marginy: 4 });
  drawing.setDefaultEdgeLabel(() => ({}));
  for (const box of graph.boxes) drawing.setNode(box.id, { ...BOX });
  for (const edge of graph.edges) drawing.setEdge(edge.from, edge.to);
  dagre.layout(drawing);
  const places = new Map(
    graph.boxes.map((box) => {
      const { x, y } = drawing.node(box.id) as { x: number; y: number };
      return [box.id, { x: x - BOX.width / 2, y: y - BOX.height / 2 }];
    }),
  );
  const { width = 0, height = 0 } = drawing.graph() as { width?: number; height?: number };
  return { places, width, height };
}
