/// <reference lib="esnext.disposable" preserve="true" />
/** The common part of all guards: heartbeats, loss and release (rules C2, C7 and C8). */
import { type Duration, millisecondsOf } from "./duration.js";
import {
  InvalidRequestError,
  isRetryable,
  LeaseholdError,
  LockLostError,
  type LostReason,
  SupersededError,
  TooLateError,
} from "./errors.js";
import type { Lease } from "./lease.js";
import type { Turn } from "./line.js";
import type { Lock } from "./lock.js";
import { type Numbered, Numbers, numbered, recorded } from "./numbers.js";
import { checkLease } from "./options.js";
import {
  heartbeatInterval as defaultInterval,
  heartbeatPause,
  heartbeatRetryPause,
  longestHeartbeatInterval,
  OPERATION_BOUND_MS,
} from "./pacing.js";
import type { Releases } from "./releases.js";
import type { Runtime } from "./runtime.js";
import { leave } from "./leaving.js";
import { retrying, type SendOptions, type Service } from "./service.js";
import type { Logger, Telemetry } from "./telemetry.js";
import { abortable, at, keepAlive, LinkedController } from "./timers.js";
import { retryingTurns } from "./turns.js";
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

/** Refuses options that could not keep a lock of this lease. */
export function checkGuardOptions(options: GuardOptions, published: number): void {
  const { heartbeatInterval, atRiskBelow, maxHold } = settingsOf(options);
  const lockDelay = delayOf(options);
  if (!(maxHold > 0)) throw new InvalidRequestError("maxHold must be above 0 milliseconds.", "maxHold");
  if (!(lockDelay >= 0 && lockDelay < published))
    throw new InvalidRequestError("lockDelay must be 0 or more, and below the lease.", "lockDelay");
  const lease = published - lockDelay;
  if (
    typeof heartbeatInterval === "number" &&
    !(heartbeatInterval > 0 && heartbeatInterval <= longestHeartbeatInterval(lease))
  ) {
    throw new InvalidRequestError(
      "The heartbeat interval must be above 0 and at most half the lease.",
      "heartbeatInterval",
    );
  }
  if (atRiskBelow === undefined) return;
  if (!(atRiskBelow > 0)) throw new InvalidRequestError("atRiskBelow must be above 0 milliseconds.", "atRiskBelow");
  if (heartbeatInterval !== false && atRiskBelow >= lease - (heartbeatInterval ?? defaultInterval(lease))) {
    throw new InvalidRequestError(
      "atRiskBelow must be below what is left of the lease when the next heartbeat is due.",
      "atRiskBelow",
    );
  }
}

/** The answer to a release. */
interface Released {
  readonly outcome: ReleaseOutcome;
  /** Whether somebody waits for the lock, as far as is known. */
  readonly wanted?: boolean;
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
  readonly #settings: Settings;
  readonly #holdEnds: number;
  readonly #leaseId: string;
  readonly #grantedAt: number;
  readonly #lease: Lease;
  readonly #numbers: Numbers<HeartbeatBody & Change>;
  #leaseDuration: number;
  #version: string;
  /** The number of renewals, which shows whether one happened meanwhile. */
  #generation = 0;
  /** The generation that `onAtRisk` was called for. */
  #warnedOf = -1;
  #cancelBeat = (): void => undefined;
  #cancelWatch = (): void => undefined;
  /** The turn of the heartbeats, which are sent one after the other. */
  #turn: Promise<unknown> = Promise.resolve();
  /** The failure of the last heartbeat. */
  #trouble: unknown;
  /** Aborted at the end of the guard, with all its requests in flight. */
  readonly #ended = new AbortController();
  readonly #lostController = new AbortController();
  #lost: LockLostError | undefined;
  #released: Promise<ReleaseOutcome> | undefined;
  /** The turn in the client's line, which ends with the hold. */
  #place: Turn | undefined;
  readonly #ownerName: string;

  /** @internal */
  protected constructor(context: GuardHost, grant: Grant, lease: Lease, options: GuardOptions) {
    this.#context = context;
    this.#settings = settingsOf(options);
    this.key = grant.key;
    this.sortKey = grant.sortKey;
    this.fencingToken = grant.fencingToken;
    this.outcome = grant.outcome;
    this.#leaseId = grant.leaseId;
    this.#ownerName = grant.ownerName ?? "";
    this.#grantedAt = context.runtime.now();
    this.#holdEnds = this.#grantedAt + this.#settings.maxHold;
    this.#lease = lease;
    this.#numbers = new Numbers(grant.sequence);
    this.#leaseDuration = grant.leaseDurationMs;
    this.#version = grant.version;
    context.guards.add(this);
    this.#watch();
    this.#scheduleBeat(lease.startedAt);
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
    return this.#leaseDuration;
  }

  /**
   * Returns the time for which the lock is certainly held, in milliseconds, by the holder's own cautious
   * count; 0 if it is not held.
   */
  remaining(): number {
    if (this.#ended.signal.aborted) return 0;
    return Math.max(0, Math.min(this.#lease.validUntil, this.#holdEnds) - this.#context.runtime.now());
  }

  /** Whether the lock is held now. False as soon as it is lost or its release begins. */
  get valid(): boolean {
    if (this.#ended.signal.aborted || this.#context.runtime.now() >= this.#holdEnds) return false;
    return this.#settings.holdOnUnavailable || this.remaining() > 0;
  }

  /** The reason of the loss; undefined while the lock is held, and after a release. */
  get lost(): LostReason | undefined {
    return this.#lossByNow()?.reason;
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
   */
  ensureHeld(): void {
    const loss = this.#lossByNow();
    if (loss) throw loss;
    if (this.#ended.signal.aborted) throw new LockLostError(this.key, "released", "It was released here.");
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
    const lease = chosen === undefined ? this.#leaseDuration : checkLease(chosen);
    checkGuardOptions(this.#settings, lease);
    const linked = new LinkedController(signal, this.#ended.signal);
    // The previous turn may pause in the background.
    const letGo = keepAlive(this.#context.runtime);
    try {
      const turn = this.#exclusively(async () => {
        try {
          await this.#renew(lease, change(), { signal: linked.signal, background: false, retryable: isRetryable });
        } catch (error) {
          // The abandoned request may have shortened the lease, and the next heartbeat is due earlier.
          this.#scheduleBeat(this.#lease.startedAt);
          throw error;
        }
      });
      await abortable(turn, linked.signal);
    } finally {
      letGo();
      linked.unlink();
    }
  }

  /**
   * Releases the lock or the permits. Heartbeats end first. May be repeated, also after a failure.
   *
   * @throws {LockLostError} the lock was lost before; nothing is sent if the loss is known.
   * @throws {UnavailableError | ThrottledError} no success within 10 s: the lock is free one lease after its last
   *   heartbeat.
   */
  abstract release(options?: { signal?: AbortSignal | undefined }): Promise<ReleaseOutcome>;

  /** @internal */
  protected releaseBy(
    send: (sendOptions: SendOptions) => Promise<Released>,
    signal: AbortSignal | undefined,
  ): Promise<ReleaseOutcome> {
    this.#released ??= this.#release(send, signal);
    return this.#released;
  }

  /**
   * Stops the heartbeats without a release, for another process to continue with `resume`. Later releases send nothing.
   *
   * @throws {LockLostError} the lock is lost, or its release has begun.
   */
  detach(): Handover {
    const loss = this.#lossByNow();
    if (loss) throw this.#lose(loss);
    this.#ended.signal.throwIfAborted();
    this.#end(new LockLostError(this.key, "released", "It was handed on."));
    this.#context.guards.delete(this);
    this.#released = Promise.resolve("absent");
    this.#place?.end();
    const { key, sortKey } = this;
    return { key, ...(sortKey !== undefined && { sortKey }), leaseId: this.#leaseId, sequence: this.#numbers.last };
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
      leaseDurationMs: this.#leaseDuration,
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

  async #release(
    send: (sendOptions: SendOptions) => Promise<Released>,
    signal: AbortSignal | undefined,
  ): Promise<ReleaseOutcome> {
    const { runtime, guards } = this.#context;
    try {
      // The clock decides too: a timer that could not fire yet must not make a lost lock look kept.
      const loss = this.#lossByNow();
      if (loss) throw this.#lose(loss);
      this.#end(new LockLostError(this.key, "released", "It was released."));
      const { outcome, wanted } = await retrying(runtime, send, { lease: this.#leaseDuration, signal });
      this.#context.releases.released(this.key, this.sortKey, wanted ?? false, runtime.now());
      return outcome;
    } catch (error) {
      if (error instanceof LockLostError) throw this.#lose(error);
      // The release may be tried again.
      this.#released = undefined;
      throw error;
    } finally {
      guards.delete(this);
      this.#place?.end();
    }
  }

  /** Sends one heartbeat, and returns its answer. */
  protected abstract sendHeartbeat(
    request: Numbered<HeartbeatBody & Change>,
    sendOptions: SendOptions,
  ): Promise<Renewal>;

  /** Runs `work` when the previous heartbeat has ended. */
  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(work);
    this.#turn = turn.catch(() => undefined);
    return turn;
  }

  /** Sends one heartbeat, and retries while `retryable`. */
  async #renew(
    lease: number,
    change: Change,
    options: { signal: AbortSignal; background: boolean; retryable: (error: unknown) => boolean },
  ): Promise<void> {
    const { runtime } = this.#context;
    const wanted = { key: this.key, sortKey: this.sortKey, leaseId: this.#leaseId, leaseDurationMs: lease, ...change };
    const knownLoss = this.#lossByNow();
    if (knownLoss) throw this.#lose(knownLoss);
    const until = this.#settings.holdOnUnavailable ? runtime.now() + OPERATION_BOUND_MS : this.#lease.validUntil;
    await retryingTurns(
      runtime,
      async (sendOptions) => {
        // An abandoned heartbeat may yet be carried out: it is repeated before the next number is taken.
        while ((await this.#send(wanted, sendOptions)) !== wanted);
      },
      {
        ...options,
        until,
        pace: (pause) => heartbeatRetryPause(pause, this.remaining()),
        lease: Math.min(lease, this.#lease.believed),
      },
    );
  }

  /** Sends one request: the open one again, or `wanted`. Returns the body that was sent. */
  async #send(wanted: HeartbeatBody & Change, sendOptions: SendOptions): Promise<HeartbeatBody & Change> {
    const { runtime } = this.#context;
    const sentAt = runtime.now();
    const turn = this.#numbers.next(wanted, sentAt, () => runtime.uuid());
    const { body } = turn;
    const request = numbered(turn);
    this.#lease.send(request.sequence, request.leaseDurationMs, sentAt);
    this.#watch();
    const measured = (result: string): void => {
      this.#context.telemetry.record({ name: "heartbeat", duration: runtime.now() - sentAt, result });
    };
    try {
      const answer = await recorded(this.#numbers, () => this.sendHeartbeat(request, sendOptions));
      // The lease ran out before the answer: a caller may have learned of the loss.
      const loss = this.#lossByNow();
      if (loss) throw loss;
      if (answer.fencingToken !== this.fencingToken) throw this.#ghost();
      this.#lease.renewed(answer.leaseDurationMs);
      if (this.#lease.validUntil <= runtime.now()) throw new TooLateError();
      this.#leaseDuration = answer.leaseDurationMs;
      this.#version = answer.version;
      this.#generation += 1;
      this.#trouble = undefined;
      this.#watch();
      this.#scheduleBeat(this.#lease.startedAt);
      measured("renewed");
      return body;
    } catch (error) {
      // A release, or the caller's signal, ended the request: that is no loss.
      if (sendOptions.signal?.aborted) {
        measured("aborted");
        throw error;
      }
      measured(error instanceof LeaseholdError ? error.kind : "aborted");
      if (error instanceof LockLostError) throw this.#lose(error);
      const isGhost =
        error instanceof SupersededError &&
        error.fencingToken !== undefined &&
        error.fencingToken !== this.fencingToken;
      if (isGhost) throw this.#lose(this.#ghost());
      this.#trouble = error;
      throw error;
    }
  }

  /** The row has another token than the one that was granted. */
  #ghost(): LockLostError {
    return new LockLostError(
      this.key,
      "taken-over",
      "A late request acquired it again, and another holder may have been in between.",
    );
  }

  /**
   * Sends the heartbeat of the timer. Only the service's `lost` ends the belief; any other failure says
   * nothing about a thief.
   */
  async #beat(generation: number): Promise<void> {
    const retryable = (error: unknown): boolean => !(error instanceof LockLostError);
    try {
      await this.#exclusively(async () => {
        // The lease was renewed by hand while this heartbeat waited for its turn.
        if (generation !== this.#generation || this.#ended.signal.aborted) return;
        await this.#renew(this.#leaseDuration, {} as Change, {
          signal: this.#ended.signal,
          background: true,
          retryable,
        });
      });
    } catch {
      // The lock was lost, and `signal` reports the loss; or the lease is about to run out; or the holder
      // holds on.
      if (this.#settings.holdOnUnavailable) this.#scheduleBeat(this.#context.runtime.now());
    }
  }

  /** Sets the timer of the next heartbeat, one interval after `since`. */
  #scheduleBeat(since: number): void {
    this.#cancelBeat();
    const { heartbeatInterval } = this.#settings;
    if (heartbeatInterval === false || this.#ended.signal.aborted) return;
    const { runtime } = this.#context;
    const generation = this.#generation;
    const { believed } = this.#lease;
    const interval = Math.min(heartbeatInterval ?? defaultInterval(believed), longestHeartbeatInterval(believed));
    const pause = heartbeatPause(interval, runtime.random());
    this.#cancelBeat = at(runtime, since + pause, () => void this.#beat(generation), true);
  }

  /** Sets the timers for the present lease. */
  #watch(): void {
    this.#cancelWatch();
    if (this.#ended.signal.aborted) return;
    const { runtime } = this.#context;
    const { onAtRisk, atRiskBelow, holdOnUnavailable } = this.#settings;
    const generation = this.#generation;
    const { validUntil } = this.#lease;
    const timers: (() => void)[] = [];
    this.#cancelWatch = () => {
      for (const cancel of timers) cancel();
    };
    if (onAtRisk && this.#warnedOf !== generation) {
      const warn = (): void => {
        this.#warnedOf = generation;
        onAtRisk(this);
      };
      timers.push(at(runtime, validUntil - (atRiskBelow ?? this.#leaseDuration / 2), warn, true));
    }
    const expire = (): void => {
      const loss = this.#lossByNow();
      if (loss) this.#lose(loss);
    };
    timers.push(at(runtime, holdOnUnavailable ? this.#holdEnds : Math.min(validUntil, this.#holdEnds), expire, true));
  }

  /**
   * Returns the loss, if there is one, even if only the clock knows of it and no timer has reported it yet.
   */
  #lossByNow(): LockLostError | undefined {
    if (this.#lost || this.valid || this.#ended.signal.aborted) return this.#lost;
    if (this.#context.runtime.now() >= this.#holdEnds)
      return new LockLostError(this.key, "max-hold", "It was held for as long as it may be.");
    return new LockLostError(this.key, "expired", "The lease ran out before it could be renewed.", {
      cause: this.#trouble,
    });
  }

  /** Reports the loss, once. Returns the loss that counts. */
  #lose(error: LockLostError): LockLostError {
    if (!this.#lost) {
      this.#lost = error;
      this.#context.guards.delete(this);
      this.#context.telemetry.record({ name: "loss", reason: error.reason });
      this.#end(error);
      this.#place?.end();
      this.#lostController.abort(error);
    }
    return this.#lost;
  }

  /** Ends heartbeats and timers. */
  #end(reason: LockLostError): void {
    if (this.#ended.signal.aborted) return;
    const { runtime, telemetry } = this.#context;
    telemetry.record({ name: "hold", duration: runtime.now() - this.#grantedAt });
    this.#cancelBeat();
    this.#cancelWatch();
    this.#ended.abort(reason);
  }
}
