/** Held permits, and waiting for them in the queue (rules K2, K4 and K5). */
import type { Duration } from "./duration.js";
import { refuseDeadlock } from "./flow.js";
import { delayOf } from "./holding.js";
import type { Bound } from "./pacing.js";
import { Acquisition, pursue } from "./acquisition.js";
import type { Context } from "./context.js";
import {
  isRetryable,
  LockHeldError,
  LockNotFoundError,
  QueueFullError,
  SupersededError,
  UnavailableError,
} from "./errors.js";
import type { Held } from "./held.js";
import {
  checkGuardOptions,
  type Grant,
  type GuardHost,
  type GuardOptions,
  type HeartbeatBody,
  Holding,
  type ReleaseOutcome,
  type Renewal,
} from "./holding.js";
import { isSemaphore, type Lock, lockFromWire, type SemaphoreView } from "./lock.js";
import type { Numbered } from "./numbers.js";
import { checkLease } from "./options.js";
import { pollPause, staleAfter, type Wait, type WaitBudget } from "./pacing.js";
import { toWire } from "./data.js";
import type { WirePayload } from "./payload.js";
import { type Ask, type DeadEntry, MOST_NAMES, type Plan, plan } from "./plan.js";
import { type Requests, retrying, type SendOptions } from "./service.js";
import { abortable, sleepUntil } from "./timers.js";
import { retryingTurns } from "./turns.js";
import { watch, watches } from "./watching.js";

/**
 * The default lease of a holder, in milliseconds. It is longer than a lock's, because writes are billed by
 * the row's size.
 */
const PERMITS_LEASE_MS = 60_000;
/** The lease of a ticket, in milliseconds. */
const TICKET_LEASE_MS = 120_000;

/** Options of `tryAcquire` of a semaphore. */
export interface TryPermitsOptions extends GuardOptions {
  /** The number of permits. Default: 1. */
  permits?: number | undefined;
  /** The owner, for people to read: 1 to 128 bytes. Default: the client's. */
  ownerName?: string | undefined;
  /**
   * The time in which others must see no heartbeat before they may take the permits, in milliseconds: 100 to
   * 86400000. Default: 60000.
   */
  lease?: Duration | undefined;
  /** A payload of this holder, for everyone to read: at most 256 bytes. */
  data?: string | Uint8Array | undefined;
  /**
   * `"clock"`: the service judges by its own clock which holders and waiters are dead, for callers that keep no
   * observations. A caller that waits observes them as well. Default: `"rvn"`.
   */
  staleness?: "rvn" | "clock" | undefined;
  /** Ends the call during any wait; the call rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Options of `acquire` of a semaphore, and of its scopes. */
export interface PermitsOptions extends TryPermitsOptions {
  /**
   * The bound of the wait. Default: `"lease"`: the longest lease of the found holders and waiters, plus a
   * margin.
   */
  wait?: Wait | undefined;
  /**
   * The time in which others must see no refresh of the ticket before they may pass it, in milliseconds.
   * Default: 120000.
   */
  ticketLease?: Duration | undefined;
}

/** Options of a heartbeat for permits. */
export interface PermitsHeartbeatOptions {
  /** A new lease, in milliseconds: 100 to 86400000. Default: the guard's. */
  lease?: Duration | undefined;
  /** A new payload: at most 256 bytes. Default: unchanged. */
  data?: string | Uint8Array | undefined;
  signal?: AbortSignal | undefined;
}

/** The answer that a guard of permits is made of. */
export interface PermitsGrant extends Grant {
  readonly holderId: string;
  readonly permits: number;
  readonly capacity: number;
}

/** The part of a heartbeat that only permits have. */
interface Change extends WirePayload {
  readonly permits?: number;
  readonly heldPermits?: number;
}

/** Held permits, until they are released or lost. */
export class PermitGuard extends Holding<Change> {
  /** The holder's public name, which proves nothing. */
  readonly holderId: string;
  /** The capacity of the semaphore at the grant. */
  readonly capacity: number;
  readonly #host: GuardHost;
  #permits: number;

  /** @internal */
  constructor(host: GuardHost, grant: PermitsGrant, sentAt: number, options: GuardOptions) {
    super(host, grant, sentAt, options);
    this.#host = host;
    this.holderId = grant.holderId;
    this.capacity = grant.capacity;
    this.#permits = grant.permits;
  }

  /** @internal */
  override blocks(host: object, key: string, sortKey: string | undefined, permits = 0): boolean {
    // A holder of some permits may still get others: the capacity may change.
    const isOfThese = permits > 0 && permits <= this.capacity && this.#permits === this.capacity;
    return isOfThese && super.blocks(host, key, sortKey);
  }

  /** The number of held permits. */
  get permits(): number {
    return this.#permits;
  }

  /** The version, which changes with every heartbeat. */
  get version(): string {
    return this.currentVersion;
  }

  /**
   * Keeps this number of permits, and releases the others. There is no upgrade.
   *
   * @throws {LockLostError} the permits are lost, or their release has begun.
   * @throws {UnavailableError | ThrottledError} the outcome is unknown; the next heartbeat determines it.
   * @throws {InvalidRequestError} the number is higher than that of the held permits.
   */
  async keep(permits: number, { signal }: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    await this.renewBy(() => ({ permits, heldPermits: this.#permits }), { signal });
  }

  /** Keeps one permit, and releases the others: a writer becomes a reader. */
  async downgrade(options: { signal?: AbortSignal | undefined } = {}): Promise<void> {
    await this.keep(1, options);
  }

  /**
   * Renews the lease now, and changes lease or payload if the options say so. Retries for the rest of the lease while
   * the service cannot be reached.
   *
   * @throws {LockLostError} the permits are lost, or their release has begun.
   * @throws {UnavailableError | ThrottledError} the outcome is unknown; the permits are held until the lease runs out.
   */
  async renew(options: PermitsHeartbeatOptions = {}): Promise<void> {
    await this.renewBy(() => toWire(options.data), options);
  }

  release({ signal }: { signal?: AbortSignal | undefined } = {}): Promise<ReleaseOutcome> {
    const { key, sortKey, leaseId } = this;
    const request = { key, sortKey, leaseId, version: undefined };
    const send = (sendOptions: SendOptions) => this.#host.service.ask("semaphore-release", request, sendOptions);
    return this.releaseBy({ send, stores: false }, signal);
  }

  override toJSON(): Record<string, unknown> {
    const { holderId, permits, capacity } = this;
    return { ...super.toJSON(), holderId, permits, capacity };
  }

  protected async sendHeartbeat(request: Numbered<HeartbeatBody & Change>, sendOptions: SendOptions): Promise<Renewal> {
    const renewal = await this.#host.service.ask("semaphore-heartbeat", request, sendOptions);
    this.#permits = renewal.permits;
    return renewal;
  }
}

/** The semaphore, and the permits that are requested. */
export interface PermitsTarget {
  readonly key: string;
  readonly sortKey: string | undefined;
  readonly capacity: number;
  readonly permits: number;
}

/** A request for permits, or for a ticket, which has no payload. */
type Body = Omit<Requests["semaphore-enqueue"], "sequence" | "requestId"> &
  Pick<Requests["semaphore-acquire"], "staleness" | "passes"> &
  WirePayload;

/** One lease id for permits, with its ticket. Requests for permits and for the ticket are numbered together. */
export class PermitsAcquisition extends Acquisition<PermitGuard, SemaphoreView, Body> {
  /** Whether the last request that was taken asks for permits. If not, it asks for a ticket. */
  #isForPermits = true;
  /** Whether only the service can tell the next step. */
  #mustAsk = true;
  /** The last view of the semaphore. */
  #view: SemaphoreView | undefined;
  #ticket: { readonly id: string; readonly number: number; readonly refreshAt: number } | undefined;
  /** That of the last answer before this lease id had a claim: of a view, then of refusals. */
  #epoch: string | undefined;
  /** Whether the view was seen after the ticket was taken. */
  #isCurrent = true;
  /** The time before the last request was sent. */
  #asked = 0;
  /**
   * The last change that a view showed: the time after its first view arrived, and the time before the last one was
   * requested. A late answer shows an old row.
   */
  #change = { changed: "", since: 0, until: 0 };
  /** Whether the queue was full: the next request for a ticket names the dead. */
  #isFull = false;
  /** The names of the last refused request, and the time until which they are not named again. */
  #refused: { readonly names: string; readonly until: number } | undefined;
  /** A guard that was granted while the ticket was refreshed, as the answer to an earlier request. */
  #granted: PermitGuard | undefined;
  /** The outcome of the first grant, even if that grant arrived too late to be of use. */
  #outcome: Grant["outcome"] | undefined;

  constructor(
    context: Context,
    private readonly target: PermitsTarget,
    private readonly options: PermitsOptions,
    leaseDuration: number,
  ) {
    super(context, leaseDuration, delayOf(options));
    this.#view = context.sightings.last(target.key, target.sortKey);
    this.#epoch = context.sightings.epoch(target.key, target.sortKey);
  }

  /** Requests the permits, unless the view tells the answer. */
  protected async send(): Promise<PermitGuard> {
    if (this.#granted) return this.#granted;
    const isUnanswered = this.numbers.open !== undefined && this.#isForPermits;
    const next = this.#plan(Infinity);
    const isFirstByClock = this.options.staleness === "clock" && this.#mustAsk;
    const asked: Ask = next && "ask" in next && !isFirstByClock ? next : { ask: [] };
    const names = asked.ask;
    if (this.#view && !this.#mustAsk && !isUnanswered && !(next && "ask" in next && this.#mayName(names))) {
      throw new LockHeldError("The permits are held, or somebody is ahead in the queue.", this.#view);
    }
    try {
      return await this.#ask(names, this.#mustAsk ? undefined : asked.turn);
    } catch (error) {
      if (!(error instanceof LockHeldError)) throw error;
      this.#wasRefused(error, names);
      // The epoch was too old, where the permits are free.
      const again = this.#ticket ? undefined : this.#plan(Infinity);
      if (!again || !("ask" in again)) throw error;
      return this.#ask(again.ask, undefined);
    }
  }

  found(_refusal: LockHeldError, budget: WaitBudget | undefined): SemaphoreView {
    const view = this.#view;
    if (!view) throw new UnavailableError("The answer is incomplete.");
    this.#count(view, budget);
    return view;
  }

  #count(view: SemaphoreView, budget: WaitBudget | undefined): void {
    const signsOfLife = view.holders.map(({ version }) => version).join();
    const longest = Math.max(0, ...[...view.holders, ...view.queue].map(({ leaseDurationMs }) => leaseDurationMs));
    budget?.found(signsOfLife, longest, this.context.runtime.now());
  }

  /** Takes a ticket, and looks until the plan says to request the permits. */
  async rest(_refusal: LockHeldError, budget: WaitBudget, signal: AbortSignal): Promise<void> {
    const { runtime } = this.context;
    while (runtime.now() < budget.deadline && !this.#granted && !this.#mustAsk) {
      if (!this.#ticket || runtime.now() >= this.#ticket.refreshAt) {
        await this.#queue(this.#isFull ? this.#deadTickets() : [], budget.deadline, signal);
        continue;
      }
      if (!this.#isCurrent) {
        await this.#read(budget.deadline, signal);
        continue;
      }
      if (this.#view) this.#count(this.#view, budget);
      const next = this.#plan(budget.deadline - runtime.now());
      if (!next) return;
      if ("waitMs" in next) {
        await this.#look(runtime.now() + next.waitMs, budget, signal);
      } else if ("enqueue" in next) {
        await this.#queue(next.enqueue, budget.deadline, signal);
      } else if (this.#mayName(next.ask)) {
        return;
      } else {
        await sleepUntil(runtime, Math.min(this.#refused?.until ?? 0, budget.deadline), signal);
      }
    }
  }

  protected giveBack(_key: number, sendOptions: SendOptions): Promise<ReleaseOutcome> {
    const { key, sortKey } = this.target;
    const request = { key, sortKey, leaseId: this.leaseId, version: undefined };
    return this.context.service.ask("semaphore-release", request, sendOptions).then(({ outcome }) => outcome);
  }

  /** Returns the next step, by the last view. */
  #plan(left: number): Plan | undefined {
    if (!this.#view) return undefined;
    const { runtime, sightings } = this.context;
    const { key, sortKey, permits } = this.target;
    const refreshIn = this.#ticket ? this.#ticket.refreshAt - runtime.now() : Infinity;
    const { since, until } = this.#change;
    const unchanged = Math.max(0, until - since);
    const watched = runtime.now() - since;
    const ticketId = this.#isCurrent ? this.#ticket?.id : undefined;
    const wanted = { permits, ticketId, refreshIn, left, unchanged, watched };
    return plan(this.#view, wanted, sightings.ages(key, sortKey));
  }

  /** Whether a request with these names may succeed: not at once after its refusal. */
  #mayName(names: readonly DeadEntry[]): boolean {
    if (!this.#isCurrent) return false;
    return this.#refused?.names !== JSON.stringify(names) || this.context.runtime.now() >= this.#refused.until;
  }

  #wasRefused({ lock, retryAfter }: LockHeldError, names: readonly DeadEntry[]): void {
    const { pollInterval, runtime } = this.context;
    this.#mustAsk = false;
    this.#refused = {
      names: JSON.stringify(names),
      until: runtime.now() + pollPause(pollInterval, retryAfter, runtime.random()),
    };
    this.#refusedBy(lock);
  }

  /** Records the view of a refusal, which also tells the epoch for the next request. */
  #refusedBy(lock: Lock | undefined): void {
    this.#saw(lock);
    if (lock && isSemaphore(lock)) this.#epoch = lock.epoch || undefined;
  }

  /** Records the present view of the key. */
  #saw(lock: Lock | undefined): void {
    if (!lock || !isSemaphore(lock)) {
      // The semaphore is gone, and the ticket with it.
      this.#mustAsk = true;
      return;
    }
    this.context.sightings.saw(lock);
    const { changed } = lock;
    const now = this.context.runtime.now();
    if (this.#change.changed === changed) this.#change.until = this.#asked;
    else this.#change = { changed, since: now, until: now };
    this.#view = lock;
    this.#isCurrent = true;
    // A waiter that was judged dead goes to the end of the queue.
    if (!lock.queue.some(({ ticketId }) => ticketId === this.#ticket?.id)) this.#ticket = undefined;
  }

  /** Waits for a change of the semaphore, or until `until`. */
  async #look(until: number, budget: WaitBudget, signal: AbortSignal): Promise<void> {
    const { context, target } = this;
    const { runtime, pollInterval } = context;
    const { key, sortKey } = target;
    if (!watches(context)) {
      await sleepUntil(runtime, Math.min(until, runtime.now() + pollPause(pollInterval, 0, runtime.random())), signal);
    } else {
      this.#asked = runtime.now();
      const sight = await watch(context, { key, sortKey }, this.#view?.changed ?? "", until, signal);
      if (sight) {
        this.#saw(sight.lock);
        return;
      }
    }
    await this.#read(budget.deadline, signal);
  }

  async #read(until: number, signal: AbortSignal): Promise<void> {
    const { runtime, service } = this.context;
    const { key, sortKey } = this.target;
    try {
      const look = (sendOptions: SendOptions) => {
        this.#asked = runtime.now();
        return service.ask("semaphore-get", { key, sortKey }, sendOptions);
      };
      this.#saw(lockFromWire(await retrying(runtime, look, { until, signal })));
    } catch (error) {
      if (!(error instanceof LockNotFoundError)) throw error;
      this.#saw(undefined);
    }
  }

  /** Takes or refreshes the ticket. A full queue, or a named entry that is alive, costs one poll pause. */
  async #queue(dead: readonly DeadEntry[], until: number, signal: AbortSignal): Promise<void> {
    const { runtime, pollInterval } = this.context;
    // The request continues when this wait is over: its release must come after its end.
    const enqueue = () => abortable(this.underWay(this.#enqueue(dead)), signal);
    const retryable = (error: unknown): boolean => isRetryable(error) && !this.#mustAsk;
    try {
      this.#granted = await retryingTurns(runtime, enqueue, { until, signal, retryable });
    } catch (error) {
      if (!(error instanceof QueueFullError || error instanceof LockHeldError)) throw error;
      this.#isFull = error instanceof QueueFullError;
      if (error.lock) this.#refusedBy(error.lock);
      await sleepUntil(runtime, Math.min(until, runtime.now() + pollPause(pollInterval, 0, runtime.random())), signal);
    }
  }

  /** Up to ten tickets of the last view that are dead. */
  #deadTickets(): DeadEntry[] {
    const { key, sortKey } = this.target;
    const ageOf = this.context.sightings.ages(key, sortKey);
    const dead =
      this.#view?.queue.filter(
        ({ ticketId, version, leaseDurationMs }) => ageOf(ticketId, version) >= staleAfter(leaseDurationMs),
      ) ?? [];
    return dead
      .slice(0, MOST_NAMES)
      .map(({ ticketId, version, permits }) => ({ holderId: ticketId, version, permits }));
  }

  async #ask(observed: readonly DeadEntry[], turn: Ask["turn"]): Promise<PermitGuard> {
    // A waiter vouches for its turn by the view that shows it. If not, the service looks for itself.
    const epoch = this.#ticket ? (turn && this.#view?.epoch) || undefined : this.#epoch;
    const staleness = observed.length ? undefined : this.options.staleness;
    const wanted = {
      ...this.#common(observed),
      leaseDurationMs: this.leaseDuration,
      ...toWire(this.options.data),
      staleness,
      number: this.#ticket?.number,
      epoch,
      ...(epoch && turn === "passing" && { passes: true }),
    };
    for (;;) {
      const { granted } = await this.#send(wanted, true);
      if (granted) return granted;
    }
  }

  async #enqueue(observed: readonly DeadEntry[]): Promise<PermitGuard | undefined> {
    const number = this.#ticket?.number;
    const epoch = this.#ticket ? undefined : this.#epoch;
    const wanted = { ...this.#common(observed), leaseDurationMs: this.#ticketLease, number, epoch };
    for (;;) {
      const { granted, body } = await this.#send(wanted, false);
      if (granted || body === wanted) return granted;
    }
  }

  get #ticketLease(): number {
    return checkLease(this.options.ticketLease ?? TICKET_LEASE_MS);
  }

  #common(observed: readonly DeadEntry[]): Body {
    const { key, sortKey, capacity, permits } = this.target;
    const ownerName = this.options.ownerName ?? this.context.ownerName;
    return { key, sortKey, capacity, permits, ownerName, leaseId: this.leaseId, observed: [...observed] };
  }

  /**
   * Sends one request: the open one again, or `wanted`. Returns the body that was sent, and the guard if
   * there is one.
   */
  async #send(wanted: Body, isForPermits: boolean): Promise<{ body: object; granted?: PermitGuard }> {
    this.#asked = this.context.runtime.now();
    const { request, body } = this.take(wanted, isForPermits ? this.leaseDuration : this.#ticketLease);
    if (body === wanted) this.#isForPermits = isForPermits;
    if (this.#isForPermits) return { body, granted: await this.#sendAcquire(request) };
    await this.#sendEnqueue(request);
    return { body };
  }

  async #sendAcquire(request: Numbered<Body>): Promise<PermitGuard> {
    const { service } = this.context;
    const { key, sortKey } = this.target;
    const answer = await this.counted(request, (numbered, sendOptions) =>
      service.ask("semaphore-acquire", numbered, sendOptions),
    );
    this.#outcome ??= answer.outcome;
    this.context.sightings.aged(key, sortKey, answer.epoch);
    this.throwIfTooLate();
    const grant = {
      ...answer,
      outcome: this.#outcome,
      key,
      sortKey,
      leaseId: this.leaseId,
      sequence: this.numbers.last,
    };
    return new PermitGuard(this.context, grant, this.sentAt, this.options);
  }

  async #sendEnqueue(request: Numbered<Body>): Promise<void> {
    const { runtime, service } = this.context;
    const refreshAt = runtime.now() + this.#ticketLease / 3;
    try {
      const answer = await this.told(
        (sendOptions) => service.ask("semaphore-enqueue", request, sendOptions),
        () => undefined,
      );
      if ("fencingToken" in answer) {
        // The permits were free. A request for them returns the grant, and counts its lease.
        this.#mustAsk = true;
        return;
      }
      const { ticketId: id, number } = answer;
      if (this.#ticket?.number !== number || request.observed?.length) this.#isCurrent = false;
      this.#ticket = { id, number, refreshAt };
    } catch (error) {
      // A late request has been granted: only another request for the permits returns the grant.
      if (error instanceof SupersededError && error.fencingToken !== undefined) this.#mustAsk = true;
      throw error;
    }
  }
}

/** Requests the permits: once, or for as long as `wait` says. */
export async function acquirePermits(
  context: Context,
  target: PermitsTarget,
  options: PermitsOptions,
  wait: Bound | undefined,
): Promise<PermitGuard | Held<SemaphoreView>> {
  if (wait !== undefined) refuseDeadlock(context, target.key, target.sortKey, target.permits);
  const lease = checkLease(options.lease ?? PERMITS_LEASE_MS);
  checkGuardOptions(options, lease);
  if (options.ticketLease !== undefined) checkLease(options.ticketLease);
  const { key, sortKey } = target;
  return pursue(
    context,
    { key, sortKey, wait, signal: options.signal },
    () => new PermitsAcquisition(context, target, options, lease),
  );
}
