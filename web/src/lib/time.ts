/** Times for people. */

/** A span of milliseconds: `3 ms`, `1.2 s`, `2 min 5 s`. */
export function duration(ms: number): string {
  if (ms < 1) return "<1 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

/** The time of day. */
export function clock(at: number): string {
  return clockFormat.format(at);
}

const units = ["B", "KB", "MB", "GB"];

/** A number of bytes: `812 B`, `14 KB`, `3.2 MB`. */
export function bytes(count: number): string {
  let [value, at] = [count, 0];
  while (value >= 1000 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${at === 0 || value >= 10 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}
