// Everything that came from a producer is put on the page as text, never as markup.
const LOOK_EVERY = 2000, POINTS = 60, MOST_ROWS = 300, FIRST_ROWS = 30;
const $ = (id) => document.getElementById(id);
const make = (name, className, text) => {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const whole = new Intl.NumberFormat("en");
const rated = (rate) => rate >= 10 ? whole.format(Math.round(rate)) : rate > 0 ? rate.toFixed(1) : "0";
const rows = new Map();
let chosen = null, source = null, paused = false, held = [], shown = 0;

function state(text, kind) {
  $("state").textContent = text;
  $("dot").className = kind;
}

function addTopic(name) {
  const row = make("tr"), label = make("td"), button = make("button", "", name);
  const events = make("td", "number"), rate = make("td", "number"), history = make("td", "wide");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 100 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.append(line);
  history.append(svg);
  button.type = "button";
  button.addEventListener("click", () => follow(name));
  label.append(button);
  row.append(label, events, rate, history);
  const found = { row, events, rate, line, end: null, at: 0, points: [] };
  rows.set(name, found);
  return found;
}

function showTopic(topic, now) {
  const found = rows.get(topic.name) ?? addTopic(topic.name);
  if (found.end !== null) {
    const rate = Math.max(0, (topic.end - found.end) * 1000 / (now - found.at));
    found.points = [...found.points, rate].slice(-POINTS);
    found.rate.textContent = rated(rate);
    const most = Math.max(1, ...found.points);
    const step = 100 / (POINTS - 1), left = (POINTS - found.points.length) * step;
    found.line.setAttribute("points", found.points.map((y, i) => `${left + i * step},${19 - 18 * y / most}`).join(" "));
  }
  found.events.textContent = whole.format(topic.events);
  found.end = topic.end;
  found.at = now;
  return found.row;
}

async function look() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/api/topics");
      const { topics } = await answer.json();
      const now = performance.now();
      const body = $("topics").tBodies[0];
      const known = new Set(topics.map((topic) => topic.name));
      for (const name of rows.keys()) if (!known.has(name)) rows.delete(name);
      const wanted = topics.map((topic) => showTopic(topic, now));
      if (wanted.length !== body.rows.length || wanted.some((row, i) => body.rows[i] !== row)) body.replaceChildren(...wanted);
      $("topics").hidden = !topics.length;
      $("none").hidden = topics.length > 0;
      state("running", "good");
      const asked = decodeURIComponent(location.hash.slice(1));
      if (!chosen && known.has(asked)) follow(asked);
    } catch {
      state("the node does not answer; trying again", "bad");
    }
  }
  setTimeout(look, LOOK_EVERY);
}

async function follow(name) {
  source?.close();
  chosen = name;
  location.hash = encodeURIComponent(name);
  held = [];
  shown = 0;
  setPaused(false);
  for (const [other, { row }] of rows) row.classList.toggle("chosen", other === name);
  $("topic").textContent = name;
  $("about").textContent = "";
  $("tail").replaceChildren();
  $("hint").hidden = false;
  $("hint").textContent = "Waiting for events.";
  $("bar").hidden = false;
  const path = `/api/topics/${encodeURIComponent(name)}`;
  const { partitions } = await (await fetch(`${path}/ends`)).json();
  if (chosen !== name) return;
  const back = Math.ceil(FIRST_ROWS / partitions.length);
  const from = partitions.map((p) => `${p.partition}:${Math.max(p.start, p.end - back)}`).join(",");
  source = new EventSource(`${path}/follow?resume=${encodeURIComponent(from)}`);
  source.onmessage = (message) => arrived(JSON.parse(message.data));
  source.addEventListener("problem", (message) => {
    source.close();
    $("hint").hidden = false;
    $("hint").textContent = JSON.parse(message.data).title;
  });
}

function arrived(event) {
  shown += 1;
  held.push(event);
  if (held.length > MOST_ROWS) held.shift();
  if (held.length === 1) requestAnimationFrame(draw);
}

function draw() {
  $("about").textContent = `${whole.format(shown)} ${shown === 1 ? "event" : "events"}${paused ? `, ${whole.format(held.length)} held back` : ""}`;
  if (paused) return setTimeout(() => held.length && draw(), 250);
  $("hint").hidden = true;
  const tail = $("tail");
  tail.prepend(...held.reverse().map(item));
  held = [];
  while (tail.childElementCount > MOST_ROWS) tail.lastElementChild.remove();
}

function item(event) {
  const details = make("details"), summary = make("summary");
  const value = make("span", "value");
  if (event.late) value.append(make("em", "", "late"));
  if (event.value === null) value.append(make("em", "", "deleted"));
  else value.append(JSON.stringify(event.value));
  const key = event.key === null ? "" : typeof event.key === "string" ? event.key : JSON.stringify(event.key);
  const where = make("span", "where", `${event.partition}/${whole.format(event.offset)}`);
  where.title = "partition / offset";
  summary.append(make("span", "when", clock(event.received_at)), where, make("span", "key", key), value);
  details.append(summary);
  details.addEventListener("toggle", () => details.append(make("pre", "", JSON.stringify(event, null, 2))), { once: true });
  const li = make("li");
  li.append(details);
  return li;
}

function clock(text) {
  const at = new Date(text), pad = (n, width = 2) => String(n).padStart(width, "0");
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

function setPaused(value) {
  paused = value;
  $("pause").textContent = paused ? "Go on" : "Pause";
  $("pause").setAttribute("aria-pressed", String(paused));
}

$("address").textContent = location.origin;
$("pause").addEventListener("click", () => {
  setPaused(!paused);
  if (!paused && held.length) draw();
});
$("clear").addEventListener("click", () => {
  $("tail").replaceChildren();
  held = [];
});
look();
