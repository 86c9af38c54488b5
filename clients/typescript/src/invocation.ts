/** A lock for one invocation of a Lambda function: its deadline, its heartbeats, its freezes. */
import { type Client, contextOf } from "./client.js";
import { InvalidRequestError, LockLostError, type LostReason } from "./errors.js";
import type { Guard } from "./guard.js";
import type { Held } from "./held.js";
import { OPERATION_BOUND_MS } from "./pacing.js";
import type { ReleaseOptions } from "./options.js";
import { systemRuntime as runtime } from "./runtime.js";
import { at, sleepUntil } from "./timers.js";
import { messageOf } from "./transport.js";

/** The time between two signs of life of the process. */
const PULSE_MS = 250;
/** The time without a sign of life after which the process counts as frozen. */
const FROZEN_MS = 1000;
const SHORTEST_LEASE_MS = 100;

/** The part of a Lambda context that is needed. */
export interface LambdaContext {
  getRemainingTimeInMillis(): number;
}

/** The end of an invocation, by the holder's clock, in milliseconds. */
export class Deadline {
  readonly at: number;

  constructor(
    context: LambdaContext,
    readonly margin: number,
  ) {
    this.at = runtime.now() + context.getRemainingTimeInMillis();
  }

  /** The time at which the work must end. */
  get stops(): number {
    return this.at - this.margin;
  }

  /** The time that is left for a wait, before work that needs so much. */
  left(needed = 0): number {
    return Math.max(0, this.stops - needed - runtime.now());
  }

  /** The lease that is asked for, or what remains of the invocation and the margin, if that is shorter. */
  lease(asked: number): number {
    if (this.left() === 0)
      throw new InvalidRequestError("The invocation ends within the margin: no time for any work.", "margin");
    return this.cut(asked);
  }

  /** The same, also at the end. */
  cut(asked: number): number {
    return Math.max(SHORTEST_LEASE_MS, Math.floor(Math.min(asked, this.at + this.margin - runtime.now())));
  }
}

/**
 * Asks for the lock of an invocation. Where that brings no guard, it waits until a request without an answer, which may
 * have acquired the lock, was given back: the sandbox is frozen behind the end of the invocation.
 */
export async function asked(
  client: Client,
  deadline: Deadline,
  ask: () => Promise<Guard | Held>,
): Promise<Guard | Held> {
  let result: Guard | Held | undefined;
  try {
    result = await ask();
    return result;
  } finally {
    if (result?.kind !== "granted") {
      const over = new AbortController();
      const limit = sleepUntil(runtime, deadline.at - deadline.margin / 4, over.signal).catch(() => undefined);
      await Promise.race([Promise.allSettled(contextOf(client).underWay), limit]);
      over.abort();
    }
  }
}

/**
 * The lock of an invocation. Hand `fencingToken` to every resource that the work writes to.
 *
 * Heartbeats renew the lease, which never outlasts the invocation by more than the margin. After a freeze of the
 * sandbox, nothing is believed until a heartbeat was answered.
 */
export class InvocationGuard {
  readonly key: string;
  readonly sortKey: string | undefined;
  /** A token above every token granted for this key before. */
  readonly fencingToken: number;
  readonly #guard: Guard;
  readonly #deadline: Deadline;
  readonly #lease: number;
  readonly #controller = new AbortController();
  /** Rejects once the lock was given back before the work had ended. */
  readonly #gaveBack: Promise<never>;
  #tellGaveBack: (error: LockLostError) => void = () => undefined;
  #timers: (() => void)[] = [];
  #cancelBeat = (): void => undefined;
  #cancelPulse = (): void => undefined;
  #pulse = runtime.now();
  #freezes = 0;
  /** The number of freezes before the last answered heartbeat was sent. */
  #believed = 0;
  #isOver = false;
  #isTold = false;
  /** Resolves when a release that the deadline or an error began has ended. */
  #returned: Promise<void> = Promise.resolve();

  /** @internal */
  constructor(guard: Guard, deadline: Deadline) {
    this.#guard = guard;
    this.#deadline = deadline;
    this.#lease = guard.leaseDuration;
    this.key = guard.key;
    this.sortKey = guard.sortKey;
    this.fencingToken = guard.fencingToken;
    guard.signal.addEventListener("abort", () => {
      this.#controller.abort(guard.signal.reason);
    });
    this.#gaveBack = new Promise((_, reject) => {
      this.#tellGaveBack = reject;
    });
    this.#gaveBack.catch(() => undefined);
    // After a wait, the lease was asked for when more of the invocation remained.
    if (deadline.cut(this.#lease) < this.#lease - PULSE_MS) void this.#beat();
    else this.#beatLater();
    this.#pulseLater();
    this.#timers = [
      at(runtime, deadline.stops, () => {
        this.#isTold = true;
        this.#controller.abort(this.#deadlineError());
      }),
      at(runtime, deadline.at - deadline.margin / 2, () => {
        void this.#end().then(() => {
          this.#tellGaveBack(this.#deadlineError());
        });
      }),
    ];
  }

  /** The payload at the time of the grant. */
  get data(): Uint8Array | undefined {
    return this.#guard.data;
  }

  /** Whether somebody waits for the lock, as far as a heartbeat has told. */
  get wanted(): boolean {
    return this.#guard.wanted;
  }

  /** The reason to stop: that of a loss, or `deadline`. Undefined while the work may go on. */
  get lost(): LostReason | undefined {
    return this.#isTold ? "deadline" : this.#guard.lost;
  }

  /** A signal that is aborted when the work must stop, with a {@link LockLostError} as its reason. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Whether the work may go on. False after a freeze, until a heartbeat was answered. */
  get valid(): boolean {
    return !this.#isFrozen() && !this.#isTold && this.#guard.valid;
  }

  /** The time for which nobody else can take the lock over, in milliseconds; 0 where `valid` is false. */
  remaining(): number {
    return this.valid ? this.#guard.remaining() : 0;
  }

  /**
   * Resolves if the work may go on. Sends nothing, but after a freeze a heartbeat.
   *
   * @throws {LockLostError} the work must stop.
   */
  async ensureHeld(): Promise<void> {
    while (this.#isFrozen()) await this.renew();
    if (this.#isTold) throw this.#deadlineError();
    this.#guard.ensureHeld();
  }

  /** Renews the lease now. Rejects as {@link Guard.renew}. */
  async renew(): Promise<void> {
    this.#isFrozen();
    const freezes = this.#freezes;
    await this.#guard.renew({ lease: this.#deadline.cut(this.#lease) });
    this.#believed = Math.max(this.#believed, freezes);
  }

  /**
   * Returns the result of `body`, and releases on every way out. An error of `body` comes out as it is.
   *
   * @internal
   */
  async run<T>(body: () => Promise<T>, leaving?: (result: T) => Omit<ReleaseOptions, "sortKey">): Promise<T> {
    try {
      const result = await Promise.race([body(), this.#gaveBack]);
      const left = leaving?.(result);
      if (!this.#finish()) throw this.#deadlineError();
      this.#guard.ensureHeld();
      if (left === undefined) await this.#giveBack();
      else await this.#guard.release({ ...left, signal: this.#lastMoment() });
      return result;
    } catch (error) {
      await this.#end();
      throw error;
    }
  }

  /** Ends all background work. Returns whether it was this call that did. */
  #finish(): boolean {
    if (this.#isOver) return false;
    this.#isOver = true;
    for (const cancel of [...this.#timers, this.#cancelBeat, this.#cancelPulse]) cancel();
    return true;
  }

  /** Gives the lock back, once. A sandbox is frozen behind its answer, so that each caller waits for the release. */
  #end(): Promise<void> {
    if (this.#finish()) this.#returned = this.#giveBack();
    return this.#returned;
  }

  /** Releases; the lock is free at the end of its lease where that fails. */
  async #giveBack(): Promise<void> {
    try {
      await this.#guard.release({ signal: this.#lastMoment() });
    } catch (error) {
      if (!(error instanceof LockLostError))
        console.warn(`leasehold: ${this.key} is free at the end of its lease: ${messageOf(error)}`);
    }
  }

  #lastMoment(): AbortSignal {
    const reserve = this.#deadline.margin / 4;
    const left = Math.max(reserve, this.#deadline.at - reserve - runtime.now());
    return AbortSignal.timeout(Math.floor(Math.min(left, OPERATION_BOUND_MS)));
  }

  #deadlineError(): LockLostError {
    return new LockLostError(this.key, "deadline", "The invocation ends.");
  }

  /** Looks for a freeze since the last sign of life. Returns whether no heartbeat was sent and answered since. */
  #isFrozen(): boolean {
    const now = runtime.now();
    if (!this.#isOver && now - this.#pulse > FROZEN_MS) this.#freezes += 1;
    this.#pulse = now;
    return this.#believed < this.#freezes || this.#guard.isInDoubt;
  }

  #pulseLater(): void {
    this.#cancelPulse = runtime.after(
      PULSE_MS,
      () => {
        const wasFrozen = this.#isFrozen();
        this.#pulseLater();
        if (wasFrozen) void this.#beat();
      },
      true,
    );
  }

  #beatLater(): void {
    const next = runtime.now() + Math.max(PULSE_MS, this.#guard.leaseDuration / 4);
    this.#cancelBeat();
    if (this.#guard.valid && next < this.#deadline.stops)
      this.#cancelBeat = at(runtime, next, () => void this.#beat(), true);
  }

  async #beat(): Promise<void> {
    try {
      await this.renew();
    } catch (error) {
      if (!this.#isOver) console.warn(`leasehold: a heartbeat of ${this.key} failed: ${messageOf(error)}`);
    }
    this.#beatLater();
  }
}
