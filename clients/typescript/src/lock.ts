/** The public views of locks and semaphores. */
import { fromWire, type Payload } from "./payload.js";
import type { components } from "./wire.js";

/** The public view of a lock. */
export interface Lock extends Payload {
  readonly key: string;
  readonly sortKey?: string;
  readonly state: "held" | "released";
  /** The present or last owner, for people to read. The name proves nothing. */
  readonly ownerName: string;
  /** The version, which changes with every acquire and heartbeat. */
  readonly recordVersionNumber: string;
  /** The time for which the version must be seen unchanged before the lock is stale, in milliseconds. */
  readonly leaseDurationMs: number;
  /** The fencing token. Absent if another kind of client wrote the row. */
  readonly fencingToken?: number;
  /** The last occurrence that was completed. */
  readonly lastOccurrence?: string;
  /** The occurrence that the holder runs. */
  readonly occurrence?: string;
  /** The owner name of a waiter who marked the lock. */
  readonly wantedBy?: string;
  /** Additional attributes of the row. Sets are lists, binary values base64. */
  readonly attributes?: Readonly<Record<string, unknown>>;
}

/** A holder of permits. */
export interface Holder extends Payload {
  /** The holder's public name, which proves nothing. */
  readonly holderId: string;
  readonly ownerName: string;
  /** The version, which changes with every heartbeat of this holder. */
  readonly version: string;
  /** The time for which the version must be seen unchanged before the holder is dead, in milliseconds. */
  readonly leaseDurationMs: number;
  readonly permits: number;
  readonly fencingToken: number;
}

/** A waiter for permits. */
export interface Ticket {
  /** The ticket's public name, which proves nothing. */
  readonly ticketId: string;
  readonly ownerName: string;
  /** The version, which changes with every refresh. */
  readonly version: string;
  /** The time for which the version must be seen unchanged before the ticket is dead, in milliseconds. */
  readonly leaseDurationMs: number;
  /** The number of permits that the ticket waits for. */
  readonly permits: number;
  /** The ticket's place: lower numbers go first. */
  readonly number: number;
}

/**
 * The public view of a semaphore. As a lock, a semaphore is held by `leasehold:semaphore`, under a lease
 * without end.
 */
export interface SemaphoreView extends Lock {
  readonly kind: "semaphore";
  readonly capacity: number;
  /** The number of free permits. */
  readonly available: number;
  /**
   * A version that changes when permits are released, and when the queue or the capacity changes. Heartbeats
   * do not change it.
   */
  readonly changed: string;
  /** The holders, the oldest first. */
  readonly holders: readonly Holder[];
  /** The waiters, the first in the queue first. */
  readonly queue: readonly Ticket[];
  /** The age of the semaphore, for requests that this view leads to. */
  readonly epoch: string;
}

/** Whether this is the view of a semaphore. */
export function isSemaphore(lock: Lock): lock is SemaphoreView {
  return "kind" in lock;
}

/** Returns the version that a watch compares. */
export function watchedVersion(lock: Lock): string {
  return isSemaphore(lock) ? lock.changed : lock.recordVersionNumber;
}

export function lockFromWire(wire: components["schemas"]["Lock"]): Lock | SemaphoreView {
  return {
    key: wire.key,
    ...(typeof wire.sortKey === "string" && { sortKey: wire.sortKey }),
    state: wire.state,
    ownerName: wire.ownerName,
    recordVersionNumber: wire.recordVersionNumber,
    leaseDurationMs: wire.leaseDurationMs,
    ...(typeof wire.fencingToken === "number" && { fencingToken: wire.fencingToken }),
    ...fromWire(wire),
    ...(typeof wire.lastOccurrence === "string" && { lastOccurrence: wire.lastOccurrence }),
    ...(typeof wire.occurrence === "string" && { occurrence: wire.occurrence }),
    ...(typeof wire.wantedBy === "string" && { wantedBy: wire.wantedBy }),
    ...(wire.attributes && { attributes: wire.attributes }),
    ...semaphoreFromWire(wire),
  };
}

/** Returns the members that only a semaphore has. */
function semaphoreFromWire(
  wire: components["schemas"]["SemaphoreState"] | Record<string, unknown>,
): Omit<SemaphoreView, keyof Lock> | undefined {
  const state = wire as Partial<components["schemas"]["SemaphoreState"]>;
  const { kind, capacity = 0, available = 0, changed = "", holders = [], queue = [], epoch = "" } = state;
  if (kind !== "semaphore") return undefined;
  const visible = holders.map(({ data, dataBase64, ...holder }) => ({ ...holder, ...fromWire({ data, dataBase64 }) }));
  return { kind, capacity, available, changed, holders: visible, queue, epoch };
}

/** Returns the view of one of several keys that refused; undefined if it is incomplete. */
export function refusedFromWire(wire: components["schemas"]["RefusedLock"]): Lock[] {
  const { state, ownerName, recordVersionNumber, leaseDurationMs } = wire;
  if (state == null || ownerName == null || recordVersionNumber == null || leaseDurationMs == null) return [];
  const { key, sortKey, fencingToken } = wire;
  const known = { key, state, ownerName, recordVersionNumber, leaseDurationMs };
  const view = { ...known, ...(sortKey != null && { sortKey }), ...(fencingToken != null && { fencingToken }) };
  return [{ ...view, ...semaphoreFromWire(wire) }];
}
