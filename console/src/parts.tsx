// The parts that several views share.
import type { ComponentChildren } from "preact";
import { age, duration } from "./format.js";
import { type Seen, type State, isSemaphore, staleAfterMs, stateOf } from "./observations.js";
import { now } from "./store.js";
import type { Semaphore } from "./wire.js";

export function Chip({ state, children }: { state: string; children?: ComponentChildren }) {
  return <span class={`chip chip-${state.replaceAll(" ", "-")}`}>{children ?? state}</span>;
}

/** Time since this page saw the last version, as far as an answer has confirmed it. */
function silence(seen: Seen): { ms: number; left: number; state: State } {
  const ms = Math.max(0, now.value - seen.since);
  const state = stateOf(seen);
  // An empty bar without a confirmed look is not stale yet.
  const left = state === "stale" ? 0 : Math.max(0, 1 - ms / staleAfterMs(seen.lock));
  return { ms, left, state };
}

/** "2 of 5 permits, 1 waits" */
export function permits({ capacity, available, queue }: Semaphore): string {
  const waiting = queue.length === 0 ? "" : queue.length === 1 ? ", 1 waits" : `, ${queue.length} wait`;
  return `${capacity - available} of ${capacity} ${capacity === 1 ? "permit" : "permits"}${waiting}`;
}

/** The lease as a bar that runs out, and the age of the last heartbeat. */
export function LeaseBar({ seen }: { seen: Seen }) {
  if (isSemaphore(seen.lock)) return <span class="quiet">{permits(seen.lock)}</span>;
  if (seen.lock.state !== "held") return <span class="quiet">released</span>;
  const { ms, left, state } = silence(seen);
  const words = `${seen.olderThanSeen ? "over " : ""}${age(ms)}`;
  const low = state === "held" && left < 0.25;
  return (
    <span class={`lease lease-${state}${low ? " lease-low" : ""}`}>
      <span
        class="bar"
        role="meter"
        aria-label="Lease left"
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.round(left * 100)}
        aria-valuetext={
          state === "stale" ? "stale" : `${Math.round(left * 100)} % of ${duration(seen.lock.leaseDurationMs)}`
        }
      >
        <span class="fill" style={{ transform: `scaleX(${left.toFixed(4)})` }} />
      </span>
      <span
        class="age"
        title={
          seen.olderThanSeen ? "Unchanged since this page first looked" : "Since this page saw the last sign of life"
        }
      >
        {words}
      </span>
    </span>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <p>{children}</p>}
    </div>
  );
}

/** The lock with its lease, as the page's mark. */
export function Mark() {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" class="logo-ground" />
      <path d="M10 15v-3.5a6 6 0 0 1 12 0V15" class="logo-shackle" />
      <rect x="7" y="15" width="18" height="10.5" rx="2" class="logo-body" />
      <rect x="9.5" y="18.6" width="8" height="3.4" rx="1.2" class="logo-ground" />
    </svg>
  );
}
