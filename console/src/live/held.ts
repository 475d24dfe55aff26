import type { RowsMessage, Upsert } from "./wire";

const MOST_ROWS = 20_000;

/** Messages that arrived while the page was paused. Keeps the latest state of each row, so that memory does not grow with the pause. */
export class Held {
  messages = 0;
  overflown = false;
  #views = new Map<string, { upserts: Map<string, Upsert>; deletes: Set<string>; whole: boolean }>();
  #rows = 0;

  add(message: RowsMessage): void {
    this.messages += 1;
    if (this.overflown) return;
    const found = this.#views.get(message.view);
    const held = found && !message.whole ? found : { upserts: new Map<string, Upsert>(), deletes: new Set<string>(), whole: message.whole };
    this.#views.set(message.view, held);
    for (const key of message.deletes) {
      held.upserts.delete(key);
      held.deletes.add(key);
    }
    for (const one of message.upserts) {
      held.deletes.delete(one.key);
      held.upserts.set(one.key, one);
    }
    this.#rows += message.upserts.length + message.deletes.length;
    if (this.#rows > MOST_ROWS) {
      this.overflown = true;
      this.#views.clear();
    }
  }

  take(): RowsMessage[] {
    return [...this.#views].map(([view, held]) => ({
      view,
      upserts: [...held.upserts.values()],
      deletes: [...held.deletes],
      whole: held.whole,
    }));
  }
}
