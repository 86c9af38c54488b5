// The selection and the order of the locks to show.
import { type Seen, type State, stateOf } from "./observations.js";

export type StateFilter = State | "all";
export type SortBy = "key" | "owner" | "silence";

export interface Filter {
  key: string;
  owner: string;
  state: StateFilter;
  sort: SortBy;
}

export interface View {
  rows: Seen[];
  counts: Record<StateFilter, number>;
}

const compare = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);

const ORDER: Record<SortBy, (a: Seen, b: Seen) => number> = {
  key: (a, b) => compare(a.id, b.id),
  owner: (a, b) => compare(a.searchOwner, b.searchOwner) || compare(a.id, b.id),
  silence: (a, b) =>
    Number(b.lock.state === "held") - Number(a.lock.state === "held") || a.since - b.since || compare(a.id, b.id),
};

export function view(locks: Iterable<Seen>, filter: Filter): View {
  const key = filter.key.trim().toLowerCase();
  const owner = filter.owner.trim().toLowerCase();
  const counts = { all: 0, held: 0, stale: 0, released: 0 };
  const rows: Seen[] = [];
  for (const seen of locks) {
    if (key && !seen.searchKey.includes(key)) continue;
    if (owner && !seen.searchOwner.includes(owner)) continue;
    const state = stateOf(seen);
    counts.all += 1;
    counts[state] += 1;
    if (filter.state === "all" || filter.state === state) rows.push(seen);
  }
  rows.sort(ORDER[filter.sort]);
  return { rows, counts };
}
