// The list of locks: filters, and as many rows as the window shows.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { duration } from "./format.js";
import { type Seen, isSemaphore, ownersOf, stateOf } from "./observations.js";
import { Chip, Empty, LeaseBar } from "./parts.js";
import { addressOf, filter, go, loaded, locks, route, unreadable } from "./store.js";
import { Text, plain } from "./text.js";
import type { SortBy, StateFilter } from "./view.js";

/** Rows kept above and below the window, so that a quick scroll shows no gap. */
const OVERSCAN = 8;
const NARROW = "(max-width: 760px)";

const STATES: [StateFilter, string][] = [
  ["all", "All"],
  ["held", "Held"],
  ["stale", "Stale"],
  ["released", "Released"],
];

const COLUMNS: { name: string; sort?: SortBy; class: string }[] = [
  { name: "State", class: "c-state" },
  { name: "Key", sort: "key", class: "c-key" },
  { name: "Owner", sort: "owner", class: "c-owner" },
  { name: "Fencing token", class: "c-token" },
  { name: "Lease", class: "c-lease" },
  { name: "Last sign of life", sort: "silence", class: "c-life" },
];

export function Filters() {
  const { key, owner, state } = filter.value;
  const { counts } = locks.value;
  const set = (change: Partial<typeof filter.value>) => (filter.value = { ...filter.value, ...change });
  return (
    <form class="filters" role="search" aria-label="Filter locks" onSubmit={(event) => event.preventDefault()}>
      <label class="field">
        <span>Key</span>
        <input
          id="filter-key"
          type="search"
          value={key}
          placeholder="contains…"
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => set({ key: event.currentTarget.value })}
        />
        <kbd aria-hidden="true">/</kbd>
      </label>
      <label class="field">
        <span>Owner</span>
        <input
          id="filter-owner"
          type="search"
          value={owner}
          placeholder="contains…"
          autocomplete="off"
          spellcheck={false}
          onInput={(event) => set({ owner: event.currentTarget.value })}
        />
      </label>
      <fieldset class="segments">
        <legend class="hidden">State</legend>
        {STATES.map(([value, name]) => (
          <label key={value} class={`segment segment-${value}`}>
            <input
              type="radio"
              name="state"
              value={value}
              checked={state === value}
              onChange={() => set({ state: value })}
            />
            <span>
              {name} <b>{counts[value].toLocaleString("en")}</b>
            </span>
          </label>
        ))}
      </fieldset>
    </form>
  );
}

function useRowHeight(): number {
  const [narrow, setNarrow] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const follow = () => setNarrow(query.matches);
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, []);
  return narrow ? 76 : 40;
}

function Row({ seen, index, top, current }: { seen: Seen; index: number; top: number; current: boolean }) {
  const { lock } = seen;
  const state = stateOf(seen);
  return (
    <div
      id={`row-${index}`}
      role="row"
      class={`row row-${state}${current ? " current" : ""}`}
      aria-rowindex={index + 2}
      aria-selected={current}
      style={{ transform: `translateY(${top}px)` }}
      onClick={() => go(addressOf(lock))}
    >
      <span role="gridcell" class="c-state">
        <Chip state={state} />
      </span>
      <span role="gridcell" class="c-key mono" title={plain(lock.key)}>
        <Text of={lock.key} />
        {lock.sortKey != null && (
          <span class="sort-key">
            {" "}
            / <Text of={lock.sortKey} />
          </span>
        )}
      </span>
      <span role="gridcell" class="c-owner" title={plain(ownersOf(lock))}>
        <Text of={ownersOf(lock)} />
      </span>
      <span role="gridcell" class="c-token mono">
        {lock.fencingToken ?? "–"}
      </span>
      <span role="gridcell" class="c-lease">
        {isSemaphore(lock) ? "–" : duration(lock.leaseDurationMs)}
      </span>
      <span role="gridcell" class="c-life">
        <LeaseBar seen={seen} />
      </span>
    </div>
  );
}

function Head() {
  const { sort } = filter.value;
  return (
    <div role="row" class="head" aria-rowindex={1}>
      {COLUMNS.map((column) => (
        <span
          key={column.name}
          role="columnheader"
          class={column.class}
          aria-sort={column.sort === undefined ? undefined : column.sort === sort ? "ascending" : "none"}
        >
          {column.sort ? (
            <button type="button" onClick={() => (filter.value = { ...filter.value, sort: column.sort as SortBy })}>
              {column.name}
              <span class="arrow" aria-hidden="true">
                {column.sort === sort ? "↓" : ""}
              </span>
            </button>
          ) : (
            column.name
          )}
        </span>
      ))}
    </div>
  );
}

export function LockList() {
  const { rows, counts } = locks.value;
  const at = route.value;
  const height = useRowHeight();
  const viewport = useRef<HTMLDivElement>(null);
  const [scroll, setScroll] = useState({ top: 0, height: 800 });
  const [current, setCurrent] = useState<string | undefined>(undefined);

  useLayoutEffect(() => {
    const element = viewport.current;
    if (!element) return;
    const measure = () => setScroll({ top: element.scrollTop, height: element.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    measure();
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  const opened = at.name === "lock" ? (at.sortKey === undefined ? at.key : `${at.key}\0${at.sortKey}`) : undefined;
  const marked = opened ?? current;
  const first = Math.max(0, Math.floor(scroll.top / height) - OVERSCAN);
  const last = Math.min(rows.length, Math.ceil((scroll.top + scroll.height) / height) + OVERSCAN);
  const currentIndex = marked === undefined ? -1 : rows.findIndex((seen) => seen.id === marked);

  const moveTo = (index: number) => {
    const target = Math.max(0, Math.min(rows.length - 1, index));
    const seen = rows[target];
    const element = viewport.current;
    if (!seen || !element) return;
    setCurrent(seen.id);
    if (target * height < element.scrollTop) element.scrollTop = target * height;
    else {
      const head = element.querySelector<HTMLElement>(".grid-head")?.offsetHeight ?? 0;
      element.scrollTop = Math.max(element.scrollTop, head + (target + 1) * height - element.clientHeight);
    }
    if (opened !== undefined) go(addressOf(seen.lock));
  };

  const onKeyDown = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor(scroll.height / height) - 1);
    const steps: Record<string, number> = {
      ArrowDown: currentIndex + 1,
      j: currentIndex + 1,
      ArrowUp: currentIndex - 1,
      k: currentIndex - 1,
      PageDown: currentIndex + page,
      PageUp: currentIndex - page,
      Home: 0,
      End: rows.length - 1,
    };
    const target = steps[event.key];
    if (target !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      moveTo(target);
    } else if (event.key === "Enter") {
      const seen = rows[currentIndex];
      if (seen) go(addressOf(seen.lock));
    }
  };

  const isVisible = currentIndex >= first && currentIndex < last;
  return (
    <section class="list" aria-label="Locks">
      <div
        id="locks"
        role="grid"
        tabIndex={0}
        aria-label="Locks"
        aria-rowcount={rows.length + 1}
        aria-activedescendant={isVisible ? `row-${currentIndex}` : undefined}
        onKeyDown={onKeyDown}
        class="grid"
        ref={viewport}
      >
        <div role="rowgroup" class="grid-head">
          <Head />
        </div>
        <div role="rowgroup" class="rows" style={{ height: `${rows.length * height}px` }}>
          {rows.slice(first, last).map((seen, offset) => (
            <Row
              key={seen.id}
              seen={seen}
              index={first + offset}
              top={(first + offset) * height}
              current={seen.id === marked}
            />
          ))}
        </div>
      </div>
      {rows.length === 0 && (
        <Nothing filtered={counts.all > 0 || filter.value.key !== "" || filter.value.owner !== ""} />
      )}
      {unreadable.value.length > 0 && <UnreadableRows />}
    </section>
  );
}

function Nothing({ filtered }: { filtered: boolean }) {
  if (!loaded.value) return <Empty title="Looking…" />;
  if (filtered) return <Empty title="No lock matches this filter." />;
  return (
    <Empty title="No locks yet.">
      A lock appears here within a second of its first acquire, for example by{" "}
      <code>leasehold run my-job -- sleep 30</code>.
    </Empty>
  );
}

function UnreadableRows() {
  const rows = unreadable.value;
  return (
    <details class="unreadable">
      <summary>
        {rows.length} {rows.length === 1 ? "row is" : "rows are"} no readable lock
      </summary>
      <ul>
        {rows.slice(0, 100).map((row) => (
          <li key={`${row.key}\0${row.sortKey ?? ""}`}>
            <span class="mono">
              <Text of={row.key} />
            </span>
            : <Text of={row.detail} />
          </li>
        ))}
      </ul>
    </details>
  );
}
