/// <reference lib="esnext.disposable" preserve="true" />
/** The common part of all guards (rules C2, C7 and C8): a driver of {@link Holder}. */
import { mayApply } from "./call.js";
import { type Duration, millisecondsOf } from "./duration.js";
import {
  InvalidRequestError,
  LeaseholdError,
  LockLostError,
  type LostReason,
  SupersededError,
  TooLateError,
  UnavailableError,
} from "./errors.js";
import { type Action, type Beat, type Event, faultOf, Holder, type Terms } from "./holder.js";
import type { Turn } from "./line.js";
import type { Lock } from "./lock.js";
import type { Numbered, Turn as Numbering } from "./numbers.js";
import { checkLease } from "./options.js";
import type { Releases } from "./releases.js";
import { wasSuspended } from "./pacing.js";
import { type Clocks, clocksOf, type Runtime } from "./runtime.js";
import { leave } from "./leaving.js";
import { endOf, retrying, type SendOptions, type Service } from "./service.js";
import type { Logger, Telemetry } from "./telemetry.js";
import { abortable, at, keepAlive } from "./timers.js";
import type { components } from "./wire.js";

/** The origin of a grant. `resumed`: by `resume`; `granted`: together with other locks. */
export type Outcome = components["schemas"]["AcquireOutcome"] | "resumed" | "granted";
/** The outcome of a release. `replayed` and `absent`: an earlier release, or an operator, had ended it. */
export type ReleaseOutcome = components["schemas"]["ReleaseOutcome"];

/** The settings of a held lock. All durations in milliseconds. */
export interface GuardOptions {
  /**
   * The interval between two heartbeats: at most half the lease. Default: a quarter of the lease. `false`:
   * the caller sends the heartbeats.
   */
  heartbeatInterval?: Duration | false | undefined;
  /**
   * Keeps believing in the lock when its lease has run out and the service cannot be reached. **Another
   * holder may have taken it over meanwhile.** Use this only for work where two holders are better than none.
   * Default: false.
   */
  holdOnUnavailable?: boolean | undefined;
  /**
   * Called when less than `atRiskBelow` of the lease is left, once for each lease that was not renewed in
   * time.
   */
  onAtRisk?: ((guard: Holding) => void) | undefined;
  /** The threshold of `onAtRisk`, above 0. Default: half the lease. */
  atRiskBelow?: Duration | undefined;
  /**
   * The holder believes in its lease less this many milliseconds, and its heartbeats keep pace with that. The
   * delay is for resources that still serve requests after their sender has stopped. Below the lease.
   * Default: 0.
   */
  lockDelay?: Duration | undefined;
  /**
   * The longest time to hold the lock, above 0. At its end the guard is lost, with the reason `max-hold`, and the lock
   * is free one lease after its last heartbeat. Default: none.
   */
  maxHold?: Duration | undefined;
}

/** The same, in milliseconds. */
interface Settings {
  readonly heartbeatInterval: number | false | undefined;
  readonly holdOnUnavailable: boolean;
  readonly onAtRisk: ((guard: Holding) => void) | undefined;
  readonly atRiskBelow: number | undefined;
  readonly maxHold: number;
}

/** Returns the time at the end of each lease in which its holder does not believe in it. */
export function delayOf({ lockDelay = 0 }: Pick<GuardOptions, "lockDelay">): number {
  return millisecondsOf(lockDelay, "lockDelay");
}

function settingsOf(options: GuardOptions): Settings {
  const { heartbeatInterval, holdOnUnavailable = false, onAtRisk, atRiskBelow, maxHold = Infinity } = options;
  return {
    heartbeatInterval:
      heartbeatInterval === undefined || heartbeatInterval === false
        ? heartbeatInterval
        : millisecondsOf(heartbeatInterval, "heartbeatInterval"),
    holdOnUnavailable,
    onAtRisk,
    atRiskBelow: atRiskBelow === undefined ? undefined : millisecondsOf(atRiskBelow, "atRiskBelow"),
    maxHold: millisecondsOf(maxHold, "maxHold"),
  };
}

/** Returns the settings for the rules. */
function termsOf(options: GuardOptions): Terms {
  const { heartbeatInterval, holdOnUnavailable, maxHold } = settingsOf(options);
  const beats = heartbeatInterval === false ? "manual" : (heartbeatInterval ?? "quarterly");
  return { beats, delay: delayOf(options), holdsOn: holdOnUnavailable, maxHold };
}

/** Refuses options that could not keep a lock of this lease. */
export function checkGuardOptions(options: GuardOptions, lease: number): void {
  const { atRiskBelow, maxHold } = settingsOf(options);
  if (!(maxHold > 0)) throw new InvalidRequestError("maxHold must be above 0 milliseconds.", "maxHold");
  if (atRiskBelow !== undefined && !(atRiskBelow > 0))
    throw new InvalidRequestError("atRiskBelow must be above 0 milliseconds.", "atRiskBelow");
  const terms = termsOf(options);
  switch (faultOf(terms, lease, terms.beats === "manual" ? undefined : atRiskBelow)) {
    case "delay":
      throw new InvalidRequestError("lockDelay must be 0 or more, and below the lease.", "lockDelay");
    case "interval":
      throw new InvalidRequestError(
        "The heartbeat interval must be above 0 and at most half the lease.",
        "heartbeatInterval",
      );
    case "warning":
      throw new InvalidRequestError(
        "atRiskBelow must be below what is left of the lease when the next heartbeat is due.",
        "atRiskBelow",
      );
    case undefined:
  }
}

/** The answer to a release. */
interface Released {
  readonly outcome: ReleaseOutcome;
  /** Whether somebody waits for the lock, as far as is known. */
  readonly wanted?: boolean;
}

/** A release. */
interface Leaving {
  readonly send: (sendOptions: SendOptions) => Promise<Released>;
  /** Whether it stores data or a completed occurrence. */
  readonly stores: boolean;
}

/** The parts of a client that a guard needs. */
export interface GuardHost {
  readonly service: Service;
  readonly runtime: Runtime;
  readonly telemetry: Telemetry;
  readonly logger: Logger;
  /** The guards that are held, or being released. */
  readonly guards: Set<Holding>;
  /** This client's last releases. */
  readonly releases: Releases;
  /** Reports a failed release that must not throw. Never throws. */
  releaseFailed(error: unknown, guard: Holding): void;
}

/** The parts that another process, in any language, needs to continue with a lock or with permits. */
export interface Handover {
  readonly key: string;
  readonly sortKey?: string | undefined;
  /** The secret that proves possession: it allows to renew and release the lock. */
  readonly leaseId: string;
  /**
   * The last number under the lease id: requests with a lower one change nothing any more. Default: the client learns it
   * from the service, with one more request.
   */
  readonly sequence?: number | undefined;
}

/** The members that all kinds of heartbeats share. */
export interface HeartbeatBody {
  readonly key: string;
  readonly sortKey: string | undefined;
  readonly leaseId: string;
  readonly leaseDurationMs: number;
}

/** The common part of all answers to heartbeats. */
export interface Renewal {
  readonly version: string;
  readonly leaseDurationMs: number;
  readonly fencingToken: number;
  /** Whether somebody waits. */
  readonly isWanted?: boolean;
}

/** A caller that waits for its heartbeat. */
interface Waiting {
  resolve(): void;
  reject(error: unknown): void;
}

/** The common part of all grants. */
export interface Grant extends Renewal {
  readonly key: string;
  readonly sortKey: string | undefined;
  readonly leaseId: string;
  /** The last number that was taken under the lease id. */
  readonly sequence: number;
  readonly outcome: Outcome;
  readonly ownerName?: string | undefined;
}

/**
 * The common part of the guards of locks and of permits, which hold until a release or a loss. Heartbeats are
 * sent in the background; they do not keep the process alive.
 *
 * `valid` and `remaining()` go by the clock and are right at once, even after a long computation that kept timers from
 * firing; `signal` and `onAtRisk` need the event loop to turn.
 */
export abstract class Holding<Change extends object = object> implements AsyncDisposable {
  /** Tells the two results of an acquire apart. */
  readonly kind = "granted";
  readonly key: string;
  readonly sortKey: string | undefined;
  /**
   * A token above every token granted for this key before, and below 2^53. Hand it to the protected resource.
   */
  readonly fencingToken: number;
  readonly outcome: Outcome;

  readonly #context: GuardHost;
  readonly #options: GuardOptions;
  readonly #leaseId: string;
  readonly #grantedAt: number;
  readonly #holder: Holder<() => Change>;
  /** The bodies of the heartbeats. A repeat has the same one. */
  readonly #bodies = new WeakMap<Numbering<Beat<() => Change>>, HeartbeatBody & Change>();
  readonly #calls = new Map<number, Waiting>();
  #lastCall = 0;
  #version: string;
  /** The clocks when the last heartbeat was answered, or the last suspension was seen. */
  #clocks: Clocks;
  #cancelTick = (): void => undefined;
  /** The failure of the last heartbeat. */
  #trouble: unknown;
  /** The loss, where an answer told it, or somebody was told of it. */
  #told: LockLostError | undefined;
  /** Aborted at the end of the guard, with all its requests in flight. */
  readonly #ended = new AbortController();
  readonly #lostController = new AbortController();
  #released: Promise<ReleaseOutcome> | undefined;
  /** What a release leaves that has begun. */
  #leaving: Leaving | undefined;
  /** The turn in the client's line, which ends with the hold. */
  #place: Turn | undefined;
  readonly #ownerName: string;

  /**
   * `sentAt`: the time of the first sending of the grant's request.
   *
   * @internal
   */
  protected constructor(context: GuardHost, grant: Grant, sentAt: number, options: GuardOptions) {
    this.#context = context;
    this.#options = options;
    this.key = grant.key;
    this.sortKey = grant.sortKey;
    this.fencingToken = grant.fencingToken;
    this.outcome = grant.outcome;
    this.#leaseId = grant.leaseId;
    this.#ownerName = grant.ownerName ?? "";
    this.#grantedAt = context.runtime.now();
    this.#clocks = clocksOf(context.runtime);
    const { leaseDurationMs: lease, fencingToken: token, sequence } = grant;
    this.#holder = new Holder(termsOf(options), { sent: sentAt, lease, token, sequence });
    this.#version = grant.version;
    context.guards.add(this);
    this.#step({ type: "start" });
    const { onAtRisk, atRiskBelow } = settingsOf(options);
    if (onAtRisk) this.#step({ type: "warn-at", left: atRiskBelow });
  }

  /**
   * The secret that proves possession: it allows to renew and release the lock. A printed guard does not show
   * it.
   */
  get leaseId(): string {
    return this.#leaseId;
  }

  /** @internal */
  protected get currentVersion(): string {
    return this.#version;
  }

  /** The lease of the last renewal, in milliseconds. */
  get leaseDuration(): number {
    return this.#holder.lease;
  }

  /** @internal */
  protected get isWanted(): boolean {
    return this.#holder.isWanted;
  }

  /**
   * Returns the time for which the lock is certainly held, in milliseconds, by the holder's own cautious
   * count; 0 if it is not held.
   */
  remaining(): number {
    this.#look();
    return this.#holder.remaining(this.#now());
  }

  /**
   * Whether the lock is held now. False as soon as it is lost or its release begins; and after the process was suspended,
   * until a heartbeat was answered.
   */
  get valid(): boolean {
    this.#look();
    return this.#holder.valid(this.#now());
  }

  /**
   * Whether no heartbeat was answered since a suspension.
   *
   * @internal
   */
  get isInDoubt(): boolean {
    this.#look();
    return this.#holder.isInDoubt;
  }

  /** The reason of the loss; undefined while the lock is held, and after a release. */
  get lost(): LostReason | undefined {
    return this.#loss()?.reason;
  }

  /**
   * A signal that is aborted at a loss, with a {@link LockLostError} as its reason. A release does not abort
   * it.
   */
  get signal(): AbortSignal {
    return this.#lostController.signal;
  }

  /**
   * Checks that the lock is held, by the clock, before a step that depends on it. Sends nothing.
   *
   * @throws {LockLostError} the lock is lost, or its release has begun.
   * @throws {UnavailableError} the process was suspended, and no heartbeat was answered since.
   */
  ensureHeld(): void {
    if (this.valid) return;
    if (this.isInDoubt) throw new UnavailableError("The process was suspended, and no heartbeat was answered since.");
    throw this.#notHeld();
  }

  /** Returns this guard. {@link Held.granted} throws: the pair treats giving up as an error. */
  granted(): this {
    return this;
  }

  /**
   * Renews the lease now, with the result of `change`, which is called when the previous heartbeat has ended.
   *
   * @internal
   */
  protected async renewBy(
    change: () => Change,
    { lease: chosen, signal }: { lease?: Duration | undefined; signal?: AbortSignal | undefined },
  ): Promise<void> {
    const lease = chosen === undefined ? undefined : checkLease(chosen);
    checkGuardOptions(this.#options, lease ?? this.#holder.lease);
    this.#lastCall += 1;
    const call = this.#lastCall;
    const renewed = new Promise<void>((resolve, reject) => {
      this.#calls.set(call, { resolve, reject });
    });
    // The heartbeat may pause in the background.
    const letGo = keepAlive(this.#context.runtime);
    try {
      signal?.throwIfAborted();
      this.#step({ type: "renew", call, change, lease });
      await abortable(renewed, signal);
    } finally {
      renewed.catch(() => undefined);
      if (this.#calls.delete(call)) this.#step({ type: "leave", call });
      letGo();
    }
  }

  /**
   * Releases the lock or the permits. Heartbeats end first. May be repeated, also after a failure.
   *
   * @throws {LockLostError} the lock was lost before; nothing is sent if the loss is known. Or no answer tells that the
   *   data, or the completed occurrence, was stored.
   * @throws {UnavailableError | ThrottledError} no success within 10 s: the lock is free one lease after its last
   *   heartbeat.
   */
  abstract release(options?: { signal?: AbortSignal | undefined }): Promise<ReleaseOutcome>;

  /**
   * Releases. A later call, after a failure, leaves what the first call would have left, which may have been carried
   * out; but not after a refusal.
   *
   * @internal
   */
  protected releaseBy(leaving: Leaving, signal: AbortSignal | undefined): Promise<ReleaseOutcome> {
    // A release has begun that stores nothing.
    if (leaving.stores && this.#leaving?.stores === false) return Promise.reject(this.#notHeld());
    this.#leaving ??= leaving;
    this.#released ??= this.#release(this.#leaving, signal);
    return this.#released;
  }

  /**
   * Stops the heartbeats without a release, for another process to continue with `resume`. Later releases send nothing.
   *
   * @throws {LockLostError} the lock is lost, or its release has begun.
   */
  detach(): Handover {
    this.ensureHeld();
    this.#step({ type: "detach" });
    this.#end(new LockLostError(this.key, "released", "It was handed on."));
    this.#context.guards.delete(this);
    this.#released = Promise.resolve("absent");
    this.#place?.end();
    const { key, sortKey } = this;
    return {
      key,
      ...(sortKey !== undefined && { sortKey }),
      leaseId: this.#leaseId,
      sequence: this.#holder.numbers.last,
    };
  }

  /**
   * Releases, and never throws: an error of a release must not hide that of the work. `onReleaseError`
   * receives the failure.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.lost) return;
    try {
      await leave(this.#context, this);
    } catch (error) {
      this.releaseFailed(error);
    }
  }

  /** @internal */
  blocks(host: object, key: string, sortKey: string | undefined, _permits?: number): boolean {
    return host === this.#context && key === this.key && sortKey === this.sortKey;
  }

  /** @internal */
  takeTurn(turn: Turn): void {
    this.#place = turn;
    turn.holds(() => (this.valid ? this.view() : undefined));
  }

  /**
   * How the lock is held, for the waiters of the same client.
   *
   * @internal
   */
  protected view(): Lock {
    const { key, sortKey, fencingToken } = this;
    return {
      key,
      ...(sortKey !== undefined && { sortKey }),
      state: "held",
      ownerName: this.#ownerName,
      recordVersionNumber: this.#version,
      leaseDurationMs: this.#holder.lease,
      fencingToken,
      attributes: {},
    };
  }

  /** @internal */
  releaseFailed(error: unknown): void {
    this.#context.releaseFailed(error, this);
  }

  /** The parts that may be shown. */
  toJSON(): Record<string, unknown> {
    const { key, sortKey, fencingToken, valid, lost } = this;
    return { key, ...(sortKey !== undefined && { sortKey }), fencingToken, valid, ...(lost && { lost }) };
  }

  /** @internal */
  [Symbol.for("nodejs.util.inspect.custom")](
    _depth: number,
    options: object,
    inspect: (value: unknown, options: object) => string,
  ): string {
    return `Guard ${inspect(this.toJSON(), options)}`;
  }

  async #release(leaving: Leaving, signal: AbortSignal | undefined): Promise<ReleaseOutcome> {
    const { runtime, guards } = this.#context;
    const giveBack = this.#step({ type: "release" });
    if (giveBack === undefined) throw this.#notHeld();
    this.#end(new LockLostError(this.key, "released", "It was released."));
    try {
      const trying = (sendOptions: SendOptions): Promise<Released> => this.#tryRelease(leaving, sendOptions);
      const { outcome, wanted } = await retrying(runtime, trying, { lease: giveBack.lease, signal });
      this.#step({ type: "returned", end: { type: "done" } });
      this.#context.releases.released(this.key, this.sortKey, wanted ?? false, runtime.now());
      return outcome;
    } catch (error) {
      if (error instanceof LockLostError) {
        this.#told = error;
        this.#step({ type: "returned", end: { type: "lost", reason: error.reason } });
        if (this.#holder.state === "released") return "replayed";
        throw error;
      }
      // The release may be tried again.
      this.#step({ type: "returned", end: { type: "failed" } });
      this.#released = undefined;
      throw error;
    } finally {
      guards.delete(this);
      this.#place?.end();
    }
  }

  async #tryRelease({ send, stores }: Leaving, sendOptions: SendOptions): Promise<Released> {
    const sent = this.#now();
    try {
      return await send(sendOptions);
    } catch (error) {
      const arrives = releaseMayApply(error);
      if (arrives !== undefined) this.#step({ type: "untold", sent, mayApply: arrives, stores });
      else if (error instanceof InvalidRequestError) this.#leaving = undefined;
      throw error;
    }
  }

  /** Sends one heartbeat, and returns its answer. */
  protected abstract sendHeartbeat(
    request: Numbered<HeartbeatBody & Change>,
    sendOptions: SendOptions,
  ): Promise<Renewal>;

  #now(): number {
    return Math.floor(this.#context.runtime.now());
  }

  /** Ends the belief if the process was suspended since the last heartbeat was answered. */
  #look(): void {
    const clocks = clocksOf(this.#context.runtime);
    // A pause between two readings is no suspension.
    if (!wasSuspended(clocks.after - this.#clocks.before, clocks.wall - this.#clocks.wall)) return;
    this.#clocks = clocks;
    this.#step({ type: "suspended" });
  }

  /** Takes an event, and carries out the actions. Returns what is to be given back. */
  #step(event: Event<() => Change>, answer?: Renewal, error?: unknown): { readonly lease: number } | undefined {
    const { runtime } = this.#context;
    this.#look();
    const chance = { fraction: () => runtime.random(), id: () => runtime.uuid() };
    const { actions } = this.#holder.step(event, this.#now(), chance);
    if ((event.type === "answer" || event.type === "unanswered") && this.#holder.trouble === event.send)
      this.#trouble = error ?? new TooLateError();
    let giveBack: { readonly lease: number } | undefined;
    for (const action of actions) {
      if (action.type === "give-back") giveBack = action;
      else this.#carryOut(action, answer);
    }
    return giveBack;
  }

  #carryOut(action: Action<() => Change>, answer: Renewal | undefined): void {
    const { runtime } = this.#context;
    switch (action.type) {
      case "send":
        void this.#send(action);
        break;
      case "wake-at":
        this.#cancelTick();
        this.#cancelTick = at(runtime, action.time, () => this.#step({ type: "tick" }), true);
        break;
      case "renewed":
        this.#trouble = undefined;
        this.#version = answer?.version ?? this.#version;
        this.#clocks = clocksOf(runtime);
        break;
      case "finish": {
        const waiting = this.#calls.get(action.call);
        this.#calls.delete(action.call);
        if (action.outcome.type === "renewed") waiting?.resolve();
        else waiting?.reject(action.outcome.type === "failed" ? this.#trouble : this.#notHeld());
        break;
      }
      case "at-risk":
        // A mistake of the callback is its own.
        queueMicrotask(() => this.#options.onAtRisk?.(this));
        break;
      case "lost":
        this.#tellLost();
        break;
      // A request that was abandoned ends with the guard.
      case "abandon":
      case "give-back":
    }
  }

  /** Sends a heartbeat, and tells its end. */
  async #send({ send, turn, timeout }: Extract<Action<() => Change>, { type: "send" }>): Promise<void> {
    const { runtime, telemetry } = this.#context;
    const { lease: leaseDurationMs, change } = turn.body;
    const known = { key: this.key, sortKey: this.sortKey, leaseId: this.#leaseId, leaseDurationMs };
    const body = this.#bodies.get(turn) ?? { ...known, ...(change?.() as Change) };
    this.#bodies.set(turn, body);
    const { sequence, requestId } = turn;
    const { signal } = this.#ended;
    const sentAt = runtime.now();
    const measured = (result: string): void => {
      telemetry.record({ name: "heartbeat", duration: runtime.now() - sentAt, result });
    };
    let answer: Renewal;
    try {
      answer = await this.sendHeartbeat({ ...body, sequence, requestId }, { timeout, signal });
    } catch (error) {
      // A release ended the request: that is no loss.
      measured(error instanceof LeaseholdError && !signal.aborted ? error.kind : "aborted");
      if (error instanceof LockLostError && !signal.aborted) this.#told ??= error;
      this.#step(beatEnd(send, error), undefined, error);
      return;
    }
    measured("renewed");
    const { leaseDurationMs: lease, fencingToken: token, isWanted: wanted = false } = answer;
    this.#step({ type: "answer", send, reply: { type: "renewed", lease, token, wanted } }, answer);
  }

  /** Returns the loss, if there is one, even if only the clock knows of it and no timer has reported it yet. */
  #loss(): LockLostError | undefined {
    const reason = this.#holder.loss(this.#now()) as LostReason | undefined;
    if (reason === undefined) return undefined;
    if (this.#told?.reason !== reason) this.#told = this.#inWords(reason);
    return this.#told;
  }

  #inWords(reason: LostReason): LockLostError {
    switch (reason) {
      case "max-hold":
        return new LockLostError(this.key, reason, "It was held for as long as it may be.");
      case "expired": {
        const cause = this.#trouble;
        return new LockLostError(this.key, reason, "The lease ran out before it could be renewed.", { cause });
      }
      default:
        return new LockLostError(
          this.key,
          reason,
          "A late request acquired it again, and another holder may have been in between.",
        );
    }
  }

  #notHeld(): LockLostError {
    return this.#loss() ?? new LockLostError(this.key, "released", "It was released here.");
  }

  /** Reports the loss, once. */
  #tellLost(): void {
    const loss = this.#notHeld();
    this.#context.guards.delete(this);
    this.#context.telemetry.record({ name: "loss", reason: loss.reason });
    this.#end(loss);
    this.#place?.end();
    this.#lostController.abort(loss);
  }

  /** Ends heartbeats and timers. */
  #end(reason: LockLostError): void {
    if (this.#ended.signal.aborted) return;
    const { runtime, telemetry } = this.#context;
    telemetry.record({ name: "hold", duration: runtime.now() - this.#grantedAt });
    this.#cancelTick();
    this.#ended.abort(reason);
  }
}

/** Returns the end of a heartbeat that failed with this error. */
function beatEnd(send: number, error: unknown): Event<never> {
  if (error instanceof LockLostError) return { type: "answer", send, reply: { type: "lost", reason: error.reason } };
  if (error instanceof SupersededError) {
    const { sequence, fencingToken: token } = error;
    return { type: "answer", send, reply: { type: "superseded", sequence, token } };
  }
  return endOf(send, error) as Event<never>;
}

/** Whether a release that failed with this error may be carried out all the same. `undefined`: the error tells its end. */
function releaseMayApply(error: unknown): boolean | undefined {
  const ended = endOf(0, error);
  if (ended.type === "answer") return mayApply(ended.reply);
  return ended.type === "unanswered" ? mayApply(ended.cause) : undefined;
}
