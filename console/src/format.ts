// Durations for people.

/** "0 s", "42 s", "3 min 05 s", "2 h 10 min", "5 d 3 h". */
export function age(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(seconds % 60).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A lease: exact, in the largest unit that divides it. */
export function duration(ms: number): string {
  for (const [unit, length] of [
    ["h", 3_600_000],
    ["min", 60_000],
    ["s", 1000],
  ] as const) {
    if (ms >= length && ms % length === 0) return `${ms / length} ${unit}`;
  }
  return ms >= 1000 ? `${ms / 1000} s` : `${ms} ms`;
}
