/** The patience of a waiter, after which it marks the lock (rule C4). */
import { type Context, track } from "./context.js";
import type { Lock } from "./lock.js";
import { markPause, requestTimeout } from "./pacing.js";

/** The largest row that a waiter marks, in bytes: a write is billed by the size of the row. */
const MAX_MARKED_BYTES = 4 * 1024;

/** Marks a lock, once for each holder, after a random part of a second of waiting. */
export class Patience {
  readonly #endsAt: number;
  #marked: number | undefined;

  constructor(
    private readonly context: Context,
    private readonly target: { key: string; sortKey: string | undefined },
    private readonly ownerName: string,
  ) {
    const { runtime } = context;
    this.#endsAt = runtime.now() + markPause(runtime.random());
  }

  /** Returns the time at which this lock is marked. */
  endsAt(lock: Lock): number {
    return this.#mayMark(lock) ? this.#endsAt : Infinity;
  }

  /** Marks the lock, in the background, if the time has come. */
  saw(lock: Lock): void {
    if (this.endsAt(lock) > this.context.runtime.now()) return;
    this.#marked = lock.fencingToken;
    const request = { ...this.target, ownerName: this.ownerName };
    // A hint: a waiter without a mark waits as long.
    track(this.context, this.context.service.ask("want", request, { timeout: requestTimeout() }));
  }

  #mayMark(lock: Lock): boolean {
    const { key, sortKey } = this.target;
    const bytes = (lock.data?.length ?? 0) + JSON.stringify(lock.attributes ?? {}).length;
    const isOwn = [...this.context.guards].some((guard) => guard.key === key && guard.sortKey === sortKey);
    return lock.wantedBy === undefined && lock.fencingToken !== this.#marked && bytes <= MAX_MARKED_BYTES && !isOwn;
  }
}
