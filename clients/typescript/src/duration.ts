/** Durations as people write them. */
import { InvalidRequestError } from "./errors.js";

/** Milliseconds, or a text such as `500ms`, `20s`, `5m`, `24h`, `7d`. */
export type Duration = number | string;

const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Returns the duration in milliseconds. Refuses any other value. */
export function millisecondsOf(duration: Duration, name: string): number {
  const [, count, unit = ""] = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)$/.exec(String(duration)) ?? [];
  const milliseconds = typeof duration === "number" ? duration : Number(count) * (UNITS[unit] ?? NaN);
  if (milliseconds >= 0) return milliseconds;
  throw new InvalidRequestError(`${name} must be milliseconds, or a text such as "20s", not ${duration}.`, name);
}
