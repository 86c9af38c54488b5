/** Several locks at once, all or none (rule K6). */
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
import { Lease } from "./lease.js";
import { type Lock, lockFromWire } from "./lock.js";
import { checkLease, type HeartbeatOptions } from "./options.js";
import { pollPause, type Wait, type WaitBudget } from "./pacing.js";
import { type Requests, retrying, type SendOptions } from "./service.js";
import { sleepUntil } from "./timers.js";
import { watch, watches } from "./watching.js";

/** A key, or a key with its sort key. */
export type LockName = string | { readonly key: string; readonly sortKey?: string | undefined };

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

/** Options of `acquireAll` and `withLocks`. */
export interface AcquireAllOptions extends TryAcquireAllOptions {
  /** The bound of the wait. Default: `"lease"`: the longest lease of the found holders, plus a margin. */
  wait?: Wait | undefined;
}

/** Several held locks, under one token. The loss of one is the loss of all, and the others are released. */
export class JointGuard implements AsyncDisposable {
  /** Tells the two results of an acquire apart. */
  readonly kind = "granted";
  /** One token for all locks, above every token granted for any of the keys before. */
  readonly fencingToken: number;
  readonly #context: Context;
  readonly #loss = new AbortController();
  #released: Promise<void> | undefined;

  /** @internal */
  constructor(
    context: Context,
    /** One guard for each lock, in the order of the request. Release them together, by this guard. */
    readonly guards: readonly [Guard, ...Guard[]],
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
  get isHeld(): boolean {
    return this.guards.every(({ isHeld }) => isHeld);
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

  /** Throws the {@link LockLostError} if one of them is lost. */
  throwIfLost(): void {
    for (const guard of this.guards) guard.throwIfLost();
  }

  /** Returns this guard. {@link Held.granted} throws: the pair treats giving up as an error. */
  granted(): this {
    return this;
  }

  /**
   * Renews the lease of each lock now, and changes it if the options say so; as {@link Guard.heartbeat}.
   *
   * @throws {LockLostError} one of them is lost, or their release has begun.
   */
  async heartbeat(options: Pick<HeartbeatOptions, "lease" | "signal"> = {}): Promise<void> {
    await Promise.all(this.guards.map((guard) => guard.heartbeat(options)));
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

/** One lease id for several locks. */
class JointAcquisition extends Acquisition<JointGuard, Lock, Body> {
  constructor(
    context: Context,
    private readonly names: readonly Named[],
    private readonly options: TryAcquireAllOptions,
    leaseDuration: number,
  ) {
    super(context, leaseDuration, delayOf(options), names.length);
  }

  protected async send(): Promise<JointGuard> {
    const { service, observations, ownerName } = this.context;
    const { request } = this.take({
      keys: this.names.map(({ key, sortKey }) => ({
        key,
        ...(sortKey !== undefined && { sortKey }),
        observedRecordVersionNumber: observations.stale(key, sortKey) ?? null,
      })),
      ownerName: this.options.ownerName ?? ownerName,
      leaseId: this.leaseId,
      leaseDurationMs: this.leaseDuration,
      staleness: undefined,
    });
    const answer = await this.counted(request, (numbered, sendOptions) =>
      service.ask("acquire-all", numbered, sendOptions),
    );
    this.throwIfTooLate();
    const { leaseId, numbers, options } = this;
    const guards = answer.locks.map(({ key, sortKey: wireSortKey, recordVersionNumber: version }) => {
      const sortKey = wireSortKey ?? undefined;
      observations.forget(key, sortKey);
      const lease = new Lease(delayOf(options));
      lease.send(numbers.last, this.leaseDuration, this.lease.startedAt);
      lease.renewed(answer.leaseDurationMs);
      const { fencingToken, leaseDurationMs } = answer;
      return new Guard(
        this.context,
        { key, sortKey, leaseId, version, fencingToken, leaseDurationMs, sequence: numbers.last, outcome: "granted" },
        lease,
        options,
      );
    });
    return new JointGuard(this.context, guards as [Guard, ...Guard[]]);
  }

  found({ lock, locks }: LockHeldError, budget: WaitBudget | undefined): Lock {
    for (const each of locks) this.#staleFrom(each);
    const versions = locks.map(({ recordVersionNumber }) => recordVersionNumber).join();
    const longest = Math.max(...locks.map(({ leaseDurationMs }) => leaseDurationMs));
    budget?.found(versions, longest, this.context.runtime.now());
    return lock;
  }

  /** Looks at the held locks, one after the other, until none of them looks held and alive. */
  async rest({ locks, retryAfter }: LockHeldError, budget: WaitBudget, signal: AbortSignal): Promise<void> {
    const { runtime, pollInterval } = this.context;
    let looks = 0;
    for (const named of locks) {
      let lock: Lock | undefined = named;
      while (lock?.state === "held") {
        const until = Math.min(this.#staleFrom(lock), budget.deadline);
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
    const { key, sortKey } = this.names[index] ?? {};
    const request = { key: key ?? "", sortKey, leaseId: this.leaseId };
    return (await this.context.service.ask("release", request, sendOptions)).outcome;
  }

  #staleFrom({ key, sortKey, recordVersionNumber, leaseDurationMs }: Lock): number {
    return this.context.observations.found(key, sortKey, recordVersionNumber, leaseDurationMs);
  }

  /** Waits for a change of one lock, or until `until`, and returns the lock as it is then. */
  async #look(
    { key, sortKey, recordVersionNumber }: Lock,
    until: number,
    signal: AbortSignal,
  ): Promise<Lock | undefined> {
    const { context } = this;
    const { runtime, service, pollInterval } = context;
    if (watches(context)) {
      const sight = await watch(context, { key, sortKey }, recordVersionNumber, until, signal);
      if (sight) return sight.lock;
    } else {
      await sleepUntil(runtime, Math.min(until, runtime.now() + pollPause(pollInterval, 0, runtime.random())), signal);
    }
    try {
      return lockFromWire(
        await retrying(runtime, (sendOptions) => service.ask("get", { key, sortKey }, sendOptions), { signal }),
      );
    } catch (error) {
      if (error instanceof LockNotFoundError) return undefined;
      throw error;
    }
  }
}

/** Requests all locks: once, or for as long as `wait` says. */
export async function acquireAll(
  context: Context,
  locks: readonly LockName[],
  options: TryAcquireAllOptions,
  wait: Bound | undefined,
): Promise<JointGuard | Held> {
  if (wait !== undefined)
    for (const name of locks) {
      const { key, sortKey } = typeof name === "string" ? { key: name, sortKey: undefined } : name;
      refuseDeadlock(context, key, sortKey);
    }
  const lease = checkLease(options.lease ?? context.lease);
  checkGuardOptions(options, lease);
  const names = locks.map((name) =>
    typeof name === "string" ? { key: name, sortKey: undefined } : { key: name.key, sortKey: name.sortKey },
  );
  const [first] = names;
  if (!first) throw new InvalidRequestError("Name 2 to 50 locks.", "keys");
  return pursue(
    context,
    { ...first, wait, signal: options.signal },
    () => new JointAcquisition(context, names, options, lease),
  );
}
