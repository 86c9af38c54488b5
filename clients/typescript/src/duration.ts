/** Durations as people write them. */
import { InvalidRequestError } from "./errors.js";

/** Milliseconds, or a text such as `500ms`, `20s`, `1h30m`, `7d`. */
export type Duration = number | string;

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Returns the duration in milliseconds. Refuses any other value. */
export function millisecondsOf(duration: Duration, name: string): number {
  const milliseconds = typeof duration === "number" ? duration : read(String(duration));
  if (milliseconds >= 0) return milliseconds;
  throw new InvalidRequestError(`${name} must be milliseconds, or a text such as "20s", not ${duration}.`, name);
}

function read(text: string): number {
  if (!/^(\d+(\.\d+)?(ms|s|m|h|d))+$/.test(text)) return NaN;
  const parts = [...text.matchAll(/([\d.]+)([a-z]+)/g)];
  return parts.reduce((sum, [, count, unit = ""]) => sum + Number(count) * (UNITS[unit] ?? NaN), 0);
}
