import dagre from "@dagrejs/dagre";
import type { Graph } from "./graph";

export interface Point {
  x: number;
  y: number;
}

export interface Place extends Point {
  width: number;
  height: number;
}

export interface Route {
  /** From the right side of one box to the left side of another. */
  points: Point[];
  label: Point;
}

export interface Layout {
  places: Map<string, Place>;
  routes: Map<string, Route>;
  width: number;
  height: number;
}

type Drawing = InstanceType<typeof dagre.graphlib.Graph>;

const NAME_FONT = '650 15px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif';
const NARROWEST = 222;
const WIDEST = 350;
const BESIDE_NAME = 108; // pixels for padding and the word of the kind; the ends of a topic are round
const LINE = 19; // height of a line of the name
const HEIGHT = 66; // of a box whose name has one line
const LABEL = 19; // height of a label
const LABEL_PLACE = 42; // from the middle of a label to the box that its edge enters

/** The size of a box: its width follows the name, and a very long name has several lines. */
function sizeOf(name: string, measure: (text: string) => number, edges: number): { width: number; height: number } {
  const wanted = Math.ceil(measure(name) * 1.04);
  const width = Math.min(WIDEST, Math.max(NARROWEST, wanted + BESIDE_NAME));
  const room = width - BESIDE_NAME;
  // Lines break at any character, or earlier at the end of a word.
  const lines = wanted <= room ? 1 : Math.ceil(wanted / (room * 0.8));
  return { width, height: Math.max(HEIGHT + (lines - 1) * LINE, edges * LABEL + 4) };
}

function textMeasure(): (text: string) => number {
  const drawing = document.createElement("canvas").getContext("2d");
  if (!drawing) return (text) => text.length * 9;
  drawing.font = NAME_FONT;
  return (text) => drawing.measureText(text).width;
}

/** The place of each box, from left to right, and the way of each edge around the boxes between. */
export function layoutOf(graph: Graph): Layout {
  const drawing = new dagre.graphlib.Graph();
  drawing.setGraph({ rankdir: "LR", nodesep: 10, edgesep: 8, ranksep: 116, marginx: 4, marginy: 4 });
  drawing.setDefaultEdgeLabel(() => ({}));
  const measure = textMeasure();
  const entering = new Map<string, string[]>();
  for (const edge of graph.edges) entering.set(edge.to, [...(entering.get(edge.to) ?? []), edge.id]);
  for (const box of graph.boxes) drawing.setNode(box.id, sizeOf(box.name, measure, entering.get(box.id)?.length ?? 0));
  for (const edge of graph.edges) drawing.setEdge(edge.from, edge.to);
  dagre.layout(drawing);
  const places = new Map<string, Place>();
  for (const box of graph.boxes) {
    const { x, y, width, height } = drawing.node(box.id) as Place;
    places.set(box.id, { x: x - width / 2, y: y - height / 2, width, height });
  }
  const { width = 0, height = 0 } = drawing.graph() as { width?: number; height?: number };
  return { places, routes: routesOf(graph, drawing, places), width, height };
}

/** Edges into one box end below one another, in the order of where they come from, so that no label covers another. */
function routesOf(graph: Graph, drawing: Drawing, places: Map<string, Place>): Map<string, Route> {
  const between = (from: string, to: string): Point[] => (drawing.edge(from, to) as { points: Point[] }).points.slice(1, -1);
  const routes = new Map<string, Route>();
  for (const box of graph.boxes) {
    const edges = graph.edges.filter((edge) => edge.to === box.id);
    const comesFrom = (from: string): number => (between(from, box.id).at(-1) ?? places.get(from)!).y;
    edges.sort((one, other) => comesFrom(one.from) - comesFrom(other.from));
    const target = places.get(box.id)!;
    edges.forEach((edge, index) => {
      const source = places.get(edge.from)!;
      const end = { x: target.x, y: target.y + target.height / 2 + (index - (edges.length - 1) / 2) * LABEL };
      const begin = { x: source.x + source.width, y: source.y + source.height / 2 };
      // An edge to the next rank is one curve; a longer one passes the points that lie in the ranks between.
      const far = target.x - begin.x > 2 * LABEL_PLACE + 116;
      const points = [begin, ...(far ? between(edge.from, box.id) : []), end];
      routes.set(edge.id, { points, label: { x: end.x - LABEL_PLACE, y: end.y } });
    });
  }
  return routes;
}
