// The URL is the state: what is chosen, paused and shown can be sent to a colleague.

class Address {
  views = $state<string[]>([]);
  topic = $state<string | null>(null);
  pipeline = $state<string | null>(null);
  paused = $state(false);
  utc = $state(true);
  graphAsTable = $state(false);
  fit = $state(false);

  constructor() {
    this.#read();
    addEventListener("popstate", () => this.#read());
  }

  #read(): void {
    const query = new URLSearchParams(location.search);
    this.views = (query.get("view") ?? "").split(",").filter(Boolean);
    this.topic = query.get("topic");
    this.pipeline = query.get("pipeline");
    this.paused = query.has("paused");
    this.utc = query.get("time") !== "local";
    this.graphAsTable = query.get("flow") === "table";
    this.fit = query.has("fit");
  }

  /** Change what is shown. A choice becomes an entry in the history of the browser, a switch does not. */
  set(change: Partial<Pick<Address, "views" | "topic" | "pipeline" | "paused" | "utc" | "graphAsTable" | "fit">>): void {
    Object.assign(this, change);
    const query = new URLSearchParams();
    if (this.views.length) query.set("view", this.views.join(","));
    if (this.topic) query.set("topic", this.topic);
    if (this.pipeline) query.set("pipeline", this.pipeline);
    if (this.paused) query.set("paused", "1");
    if (!this.utc) query.set("time", "local");
    if (this.graphAsTable) query.set("flow", "table");
    if (this.fit) query.set("fit", "1");
    const text = query.toString().replaceAll("%2C", ",");
    const chosen = "views" in change || "topic" in change || "pipeline" in change;
    history[chosen ? "pushState" : "replaceState"](null, "", text ? `?${text}` : location.pathname);
  }
}

export const address = new Address();
