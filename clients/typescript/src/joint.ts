/** Several keys at once, locks and permits, all or none (rule K6). */
import type { Duration } from "./duration.js";
import { refuseDeadlock } from "./flow.js";
import { delayOf } from "./holding.js";
import type { Bound } from "./pacing.js";
import { Acquisition, pursue } from "./acquisition.js";
import { type Context, track } from "./context.js";
import {
  InvalidRequestError,
  type LockHeldError,
  LockLostError,
  LockNotFoundError,
  type LostReason,
} from "./errors.js";
import { Guard } from "./guard.js";
import type { Held } from "./held.js";
import { checkGuardOptions, type GuardOptions, type ReleaseOutcome } from "./holding.js";
import { isSemaphore, type Lock, lockFromWire, type SemaphoreView, watchedVersion } from "./lock.js";
import { checkLease, type HeartbeatOptions } from "./options.js";
import { pollPause, type Wait, type WaitBudget } from "./pacing.js";
import { PermitGuard } from "./permits.js";
import { type Plan, plan } from "./plan.js";
import { type Requests, retrying, type SendOptions } from "./service.js";
import { sleepUntil } from "./timers.js";
import { watch, watches } from "./watching.js";

/** A key, or a key with its sort key. With `capacity` it is permits of a semaphore, else a lock. */
export type LockName =
  | string
  | {
      readonly key: string;
      readonly sortKey?: string | undefined;
      /** The number of permits. Only with `capacity`. Default: 1. */
      readonly permits?: number | undefined;
      /** The number of permits in all, if the semaphore is new. An existing one keeps its capacity. */
      readonly capacity?: number | undefined;
    };

/** Options of `tryAcquireAll`. */
export interface TryAcquireAllOptions extends GuardOptions {
  /** The owner, for people to read: 1 to 1024 bytes. Default: the client's. */
  ownerName?: string | undefined;
  /**
   * The time in which others must see no heartbeat before they may take over, in milliseconds: 100 to
   * 86400000. Default: the client's.
   */
  lease?: Duration | undefined;
  /** Ends the call, at whatever it waits for; it rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Options of `acquireAll` and `withAll`. */
export interface AcquireAllOptions extends TryAcquireAllOptions {
  /** The bound of the wait. Default: `"lease"`: the longest lease of the found holders, plus a margin. */
  wait?: Wait | undefined;
}

/** Several held keys, under one token. The loss of one is the loss of all, and the others are released. */
export class AllGuard implements AsyncDisposable {
  /** Tells the two results of an acquire apart. */
  readonly kind = "granted";
  /** One token for all keys, above every token granted for any of the keys before. */
  readonly fencingToken: number;
  readonly #context: Context;
  readonly #loss = new AbortController();
  #released: Promise<void> | undefined;

  /** @internal */
  constructor(
    context: Context,
    /** One guard for each key, in the order of the request. Release them together, by this guard. */
    readonly guards: readonly [Guard | PermitGuard, ...(Guard | PermitGuard)[]],
  ) {
    this.#context = context;
    this.fencingToken = guards[0].fencingToken;
    for (const { signal } of guards) {
      signal.addEventListener("abort", () => {
        this.#lose(signal.reason);
      });
    }
  }

  get keys(): readonly string[] {
    return this.guards.map(({ key }) => key);
  }

  /** Whether all locks are held now. */
  get valid(): boolean {
    return this.guards.every(({ valid }) => valid);
  }

  /** Returns the time for which all locks are certainly held, in milliseconds; 0 if they are not. */
  remaining(): number {
    return Math.min(...this.guards.map((guard) => guard.remaining()));
  }

  /** The reason of the first loss; undefined while all locks are held, and after a release. */
  get lost(): LostReason | undefined {
    return this.guards.map(({ lost }) => lost).find((lost) => lost !== undefined);
  }

  /**
   * A signal that is aborted at the first loss, with a {@link LockLostError} as its reason. A release does
   * not abort it.
   */
  get signal(): AbortSignal {
    return this.#loss.signal;
  }

  /** As {@link Guard.ensureHeld}, for each of them. @throws {LockLostError} one of them is lost or released. */
  ensureHeld(): void {
    for (const guard of this.guards) guard.ensureHeld();
  }

  /** Returns this guard. {@link Held.granted} throws: the pair treats giving up as an error. */
  granted(): this {
    return this;
  }

  /**
   * Renews the lease of each lock now, and changes it if the options say so; as {@link Guard.renew}.
   *
   * @throws {LockLostError} one of them is lost, or their release has begun.
   */
  async renew(options: Pick<HeartbeatOptions, "lease" | "signal"> = {}): Promise<void> {
    await Promise.all(this.guards.map((guard) => guard.renew(options)));
  }

  /**
   * Releases all locks. May be repeated, also after a failure.
   *
   * @throws {LockLostError} one of them was lost before.
   * @throws {UnavailableError | ThrottledError} not all within 10 s: the others are free one lease after their last
   * heartbeats.
   */
  release(): Promise<void> {
    this.#released ??= this.#release();
    return this.#released;
  }

  /**
   * Releases, and never throws: an error of a release must not hide that of the work. `onReleaseError`
   * receives the failure.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.guards.map((guard) => guard[Symbol.asyncDispose]()));
  }

  /** @internal */
  blocks(host: object, key: string, sortKey: string | undefined): boolean {
    return this.guards.some((guard) => guard.blocks(host, key, sortKey));
  }

  /** @internal */
  releaseFailed(error: unknown): void {
    for (const guard of this.guards) guard.releaseFailed(error);
  }

  async #release(): Promise<void> {
    const results = await Promise.allSettled(this.guards.map((guard) => guard.release()));
    const errors = results.filter((result) => result.status === "rejected").map(({ reason }) => reason as unknown);
    if (errors.length === 0) return;
    this.#released = undefined;
    throw errors.find((error) => error instanceof LockLostError) ?? errors[0];
  }

  #lose(reason: unknown): void {
    if (this.#loss.signal.aborted) return;
    this.#loss.abort(reason);
    track(this.#context, this[Symbol.asyncDispose]());
  }
}

type Body = Omit<Requests["acquire-all"], "sequence" | "requestId">;
type Named = Required<Extract<LockName, object>>;

/** One lease id for several keys. */
class JointAcquisition extends Acquisition<AllGuard, Lock, Body> {
  constructor(
    context: Context,
    private readonly names: readonly Named[],
    private readonly options: TryAcquireAllOptions,
    leaseDuration: number,
  ) {
    super(context, leaseDuration, delayOf(options), names.length);
  }

  protected async send(): Promise<AllGuard> {
    const { service, observations, ownerName } = this.context;
    const { request } = this.take({
      keys: this.names.map((name) => {
        const { key, sortKey, permits, capacity } = name;
        const named = { key, ...(sortKey !== undefined && { sortKey }) };
        if (capacity === undefined) {
          return {
            ...named,
            ...(permits !== undefined && { permits }),
            observedRecordVersionNumber: observations.stale(key, sortKey) ?? null,
          };
        }
        const view = this.context.sightings.last(key, sortKey);
        const next = view && this.#plan(view, name);
        const epoch = this.context.sightings.epoch(key, sortKey);
        const observed = next && "ask" in next ? [...next.ask] : [];
        return { ...named, permits: permits ?? 1, capacity, observed, ...(epoch !== undefined && { epoch }) };
      }),
      ownerName: this.options.ownerName ?? ownerName,
      leaseId: this.leaseId,
      leaseDurationMs: this.leaseDuration,
      staleness: undefined,
    });
    const answer = await this.counted(request, (numbered, sendOptions) =>
      service.ask("acquire-all", numbered, sendOptions),
    );
    this.throwIfTooLate();
    const { leaseId, numbers, options, sentAt } = this;
    const guards = answer.locks.map((lock, index) => {
      const { key, sortKey: wireSortKey, recordVersionNumber: version, holderId, permits } = lock;
      const sortKey = wireSortKey ?? undefined;
      observations.forget(key, sortKey);
      const { fencingToken, leaseDurationMs } = answer;
      const sequence = numbers.last;
      const grant = {
        ...{ key, sortKey, leaseId, version, fencingToken, leaseDurationMs, sequence },
        outcome: "granted" as const,
      };
      const capacity = this.names[index]?.capacity;
      if (capacity === undefined) return new Guard(this.context, grant, sentAt, options);
      this.context.sightings.granted(key, sortKey, fencingToken);
      const share = { holderId: holderId ?? "", permits: permits ?? 1, capacity };
      return new PermitGuard(this.context, { ...grant, ...share }, sentAt, options);
    });
    return new AllGuard(this.context, guards as [Guard | PermitGuard, ...(Guard | PermitGuard)[]]);
  }

  found({ lock, locks }: LockHeldError, budget: WaitBudget | undefined): Lock {
    for (const each of locks) this.#hopelessUntil(each);
    const versions = locks.map(watchedVersion).join();
    const longest = Math.max(...locks.map(longestLease));
    budget?.found(versions, longest, this.context.runtime.now());
    return lock;
  }

  /** Looks at the keys that refused, one after the other, until none of them looks held and alive. */
  async rest({ locks, retryAfter }: LockHeldError, budget: WaitBudget, signal: AbortSignal): Promise<void> {
    const { runtime, pollInterval } = this.context;
    let looks = 0;
    for (const named of locks) {
      let lock: Lock | undefined = named;
      while (lock && (lock.state === "held" || isSemaphore(lock))) {
        const until = Math.min(this.#hopelessUntil(lock), budget.deadline);
        if (runtime.now() >= until) break;
        looks += 1;
        lock = await this.#look(lock, until, signal);
      }
    }
    // All locks were named as dead, without success.
    const pause = pollPause(pollInterval, retryAfter, runtime.random());
    if (looks === 0) await sleepUntil(runtime, Math.min(runtime.now() + pause, budget.deadline), signal);
  }

  protected async giveBack(index: number, sendOptions: SendOptions): Promise<ReleaseOutcome> {
    const { key, sortKey, capacity } = this.names[index] ?? {};
    const request = { key: key ?? "", sortKey, leaseId: this.leaseId };
    const { service } = this.context;
    if (capacity === undefined) return (await service.ask("release", request, sendOptions)).outcome;
    return (await service.ask("semaphore-release", { ...request, version: undefined }, sendOptions)).outcome;
  }

  /** The next step of a caller that has no place in the queue. */
  #plan(view: SemaphoreView, { permits = 1 }: Pick<Named, "permits">): Plan {
    const wanted = { permits, ticketId: undefined, refreshIn: Infinity, left: Infinity, unchanged: 0, watched: 0 };
    return plan(view, wanted, this.context.sightings.ages(view.key, view.sortKey));
  }

  /** The time until which another request is refused by this key, unless the key changes. */
  #hopelessUntil(lock: Lock): number {
    const { observations, runtime, sightings } = this.context;
    const { key, sortKey, recordVersionNumber, leaseDurationMs } = lock;
    const wanted = this.names.find((name) => name.key === key && name.sortKey === sortKey);
    if (!isSemaphore(lock)) return observations.found(key, sortKey, recordVersionNumber, leaseDurationMs);
    sightings.saw(lock);
    // A key of another kind is refused as such.
    if (wanted?.capacity === undefined) return runtime.now();
    const next = this.#plan(lock, wanted);
    return runtime.now() + ("waitMs" in next ? next.waitMs : 0);
  }

  /** Waits for a change of one key, or until `until`, and returns the key as it is then. */
  async #look(found: Lock, until: number, signal: AbortSignal): Promise<Lock | undefined> {
    const { context } = this;
    const { key, sortKey } = found;
    const { runtime, service, pollInterval } = context;
    if (watches(context)) {
      const sight = await watch(context, { key, sortKey }, watchedVersion(found), until, signal);
      if (sight) return sight.lock;
    } else {
      await sleepUntil(runtime, Math.min(until, runtime.now() + pollPause(pollInterval, 0, runtime.random())), signal);
    }
    try {
      return lockFromWire(
        await retrying(
          runtime,
          (sendOptions) => service.ask(isSemaphore(found) ? "semaphore-get" : "get", { key, sortKey }, sendOptions),
          { signal },
        ),
      );
    } catch (error) {
      if (error instanceof LockNotFoundError) return undefined;
      throw error;
    }
  }
}

/** The lease after which each holder of the key that is dead counts as dead, in milliseconds. */
function longestLease(lock: Lock): number {
  if (!isSemaphore(lock)) return lock.leaseDurationMs;
  return Math.max(0, ...[...lock.holders, ...lock.queue].map(({ leaseDurationMs }) => leaseDurationMs));
}

/** Requests all keys: once, or for as long as `wait` says. */
export async function acquireAll(
  context: Context,
  locks: readonly LockName[],
  options: TryAcquireAllOptions,
  wait: Bound | undefined,
): Promise<AllGuard | Held> {
  if (wait !== undefined)
    for (const name of locks) {
      const { key, sortKey, capacity }: Exclude<LockName, string> = typeof name === "string" ? { key: name } : name;
      if (capacity === undefined) refuseDeadlock(context, key, sortKey);
    }
  const lease = checkLease(options.lease ?? context.lease);
  checkGuardOptions(options, lease);
  if (!Array.isArray(locks)) throw new InvalidRequestError("The keys must be a list.", "keys");
  const names = locks.map((name) => {
    const wanted: Exclude<LockName, string> = typeof name === "string" ? { key: name } : name;
    const { key, sortKey, permits, capacity } = wanted;
    return { key, sortKey, permits, capacity };
  });
  const [first] = names;
  if (!first) throw new InvalidRequestError("Name 2 to 50 locks.", "keys");
  return pursue(
    context,
    { ...first, wait, signal: options.signal },
    () => new JointAcquisition(context, names, options, lease),
  );
}
