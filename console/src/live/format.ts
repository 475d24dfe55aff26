import { address } from "./address.svelte";

const whole = new Intl.NumberFormat();
const tenth = new Intl.NumberFormat(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const short = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });

export const count = (value: number): string => whole.format(value);
export const plural = (value: number, one: string, many: string): string => `${count(value)} ${value === 1 ? one : many}`;

/** Events per second, with one decimal below 10. */
export function rated(rate: number | null): string {
  if (rate === null) return "–";
  if (rate >= 10) return whole.format(Math.round(rate));
  return rate > 0 ? tenth.format(rate) : "0";
}

/** A number of seconds as a duration: 0.3 s, 12 s, 4 min 10 s, 3 h 20 min, 2 d 4 h. */
export function span(seconds: number | null): string {
  if (seconds === null) return "–";
  const value = Math.max(0, seconds);
  if (value < 0.05) return "0 s";
  if (value < 10) return `${tenth.format(value)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return two(value, 60, "min", 1, "s");
  if (value < 172_800) return two(value, 3600, "h", 60, "min");
  return two(value, 86_400, "d", 3600, "h");
}

function two(value: number, large: number, one: string, small: number, other: string): string {
  const first = Math.floor(value / large);
  const rest = Math.floor((value - first * large) / small);
  return rest ? `${first} ${one} ${rest} ${other}` : `${first} ${one}`;
}

/** Processor time of one event: 12 µs, 3.4 ms. */
export function cost(seconds: number): string {
  if (seconds < 0.001) return `${short.format(seconds * 1e6)} µs`;
  return seconds < 1 ? `${short.format(seconds * 1000)} ms` : `${short.format(seconds)} s`;
}

/** Bytes as megabytes, or as gigabytes with one decimal: 128 MB, 1.6 GB. */
export const size = (bytes: number): string => (bytes < 1e9 ? `${whole.format(Math.round(bytes / 1e6))} MB` : `${tenth.format(bytes / 1e9)} GB`);

export function zoneName(): string {
  return address.utc ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone || "local";
}

const pad = (value: number, width = 2): string => String(value).padStart(width, "0");

/** A moment as a time of day, with the date in front when it is another day than today. */
export function clock(moment: string | number | null, digits = 0): string {
  if (moment === null) return "–";
  const at = new Date(moment);
  if (Number.isNaN(at.getTime())) return String(moment);
  const utc = address.utc;
  const parts = (date: Date) =>
    utc
      ? [date.getUTCFullYear(), date.getUTCMonth() + 1, date.getUTCDate(), date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds()]
      : [date.getFullYear(), date.getMonth() + 1, date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds()];
  const [year, month, day, hour, minute, second] = parts(at) as [number, number, number, number, number, number];
  const [thisYear, thisMonth, today] = parts(new Date()) as [number, number, number, number, number, number];
  const fraction = digits ? `.${pad(Math.floor(at.getMilliseconds() / 10 ** (3 - digits)), digits)}` : "";
  const time = `${pad(hour)}:${pad(minute)}:${pad(second)}${fraction}`;
  return year === thisYear && month === thisMonth && day === today ? time : `${year}-${pad(month)}-${pad(day)} ${time}`;
}

const MOMENT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/;

/** A cell of a view, as text: moments and windows in the chosen zone, numbers by locale, the rest as JSON. */
export function cell(value: unknown): string {
  if (value === null || value === undefined) return "∅";
  if (typeof value === "string") return MOMENT.test(value) ? clock(value, /\.0*(Z|\+)/.test(value) || !value.includes(".") ? 0 : 3) : value;
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : value.toLocaleString(undefined, { maximumFractionDigits: 6 });
  if (typeof value === "boolean") return value ? "yes" : "no";
  const window = value as { start?: unknown; end?: unknown };
  if (typeof window.start === "string" && typeof window.end === "string" && Object.keys(window).length === 2)
    return `${clock(window.start)} – ${clock(window.end).split(" ").at(-1)}`;
  return JSON.stringify(value);
}

export const numeric = (value: unknown): boolean =>
  typeof value === "number" || (typeof value === "string" && value !== "" && /^-?\d+(\.\d+)?$/.test(value));
