import type { Cells, RowsMessage, Upsert } from "./wire";

export interface Row {
  key: string;
  cells: Cells;
  open: boolean | null;
  /** How often each cell has flashed. Odd and even numbers have different animation names, so that it starts again. */
  flashes: Record<string, number>;
}

const MOST = 2000; // rows; the first message has 500 at most
const FLASH_EVERY = 400; // ms, so that no cell flashes three times a second

/** The rows of one view that the page holds. */
export class Rows {
  version = $state(0);
  columns = $state.raw<string[]>([]);
  #rows = new Map<string, Row>();
  #flashedAt = new Map<string, number>();

  get all(): ReadonlyMap<string, Row> {
    void this.version;
    return this.#rows;
  }

  take(message: RowsMessage): void {
    if (message.whole) this.#keepOnly(new Set(message.upserts.map((one) => one.key)));
    for (const key of message.deletes) this.#remove(key);
    const first = this.#rows.size === 0;
    // A whole message has the newest rows first. They are added last, because the first ones are removed first.
    for (const one of message.whole ? message.upserts.toReversed() : message.upserts) this.#put(one, first);
    for (const key of this.#rows.keys()) {
      if (this.#rows.size <= MOST) break;
      this.#remove(key);
    }
    const columns = message.upserts[0] && Object.keys(message.upserts[0].cells);
    if (columns && columns.join("\n") !== this.columns.join("\n")) this.columns = columns;
    this.version += 1;
  }

  #keepOnly(keys: Set<string>): void {
    for (const key of [...this.#rows.keys()]) if (!keys.has(key)) this.#remove(key);
  }

  #remove(key: string): void {
    this.#rows.delete(key);
    this.#flashedAt.delete(key);
  }

  #put(one: Upsert, first: boolean): void {
    const before = this.#rows.get(one.key);
    const changed = first ? [] : changedCells(before?.cells, one.cells);
    if (before && !changed.length && before.open === one.open) return;
    const now = performance.now();
    const flash = changed.length > 0 && now - (this.#flashedAt.get(one.key) ?? -Infinity) >= FLASH_EVERY;
    const flashes = { ...before?.flashes };
    if (flash) {
      this.#flashedAt.set(one.key, now);
      for (const name of changed) flashes[name] = (flashes[name] ?? 0) + 1;
    }
    this.#rows.set(one.key, { key: one.key, cells: one.cells, open: one.open ?? before?.open ?? null, flashes });
  }
}

function changedCells(before: Cells | undefined, after: Cells): string[] {
  return Object.keys(after).filter((name) => !before || !same(before[name], after[name]));
}

const same = (one: unknown, other: unknown): boolean =>
  one === other || (typeof one === "object" && JSON.stringify(one) === JSON.stringify(other));
