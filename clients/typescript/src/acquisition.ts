/**
 * An acquisition: from its first request to its guard, or to its end without one (rules C1, C4, C5, C6 and
 * C10).
 */
import { type Context, track } from "./context.js";
import {
  isAboutItsNumber,
  isRetryable,
  isTransient,
  isUnreached,
  LeaseholdError,
  LockHeldError,
  LockLostError,
  TooLateError,
  UnavailableError,
} from "./errors.js";
import { Held } from "./held.js";
import { Lease } from "./lease.js";
import type { Lock } from "./lock.js";
import { type Numbered, Numbers } from "./numbers.js";
import { LAST_LOOK_MS, requestTimeout, retryPause, type Wait, WaitBudget } from "./pacing.js";
import { retrying, type SendOptions } from "./service.js";
import { at, abortable, LinkedController, sleepUntil } from "./timers.js";

/** The result of an acquisition. */
interface Granted {
  readonly kind: "granted";
  release(): Promise<unknown>;
}

/** One lease id within a wait. */
interface Attempt<Guard extends Granted, View extends Lock> {
  readonly leaseDuration: number;
  /** Sends one request. Rejects with a {@link LockHeldError} if others hold the lock. */
  ask(): Promise<Guard>;
  /** Records a refusal, and returns the view of the holders. */
  found(refusal: LockHeldError, budget: WaitBudget | undefined): View;
  /** Resolves when another request may succeed, or when the wait is over. */
  rest(refusal: LockHeldError, budget: WaitBudget, signal: AbortSignal): Promise<void>;
  /** Releases a grant that may have been missed, once the last request has ended. */
  abandon(): Promise<void>;
}

/** One lease id, from its first request to its guard, or to its end without one. */
export abstract class Acquisition<Guard extends Granted, View extends Lock, Body extends object>
  implements Attempt<Guard, View>
{
  protected readonly leaseId: string;
  protected readonly numbers: Numbers<Body>;
  protected readonly lease: Lease;
  /** Whether the service may know the lease id. */
  protected isKnown = false;
  #underWay: Promise<Guard | undefined> | undefined;

  protected constructor(
    protected readonly context: Context,
    readonly leaseDuration: number,
    lockDelay: number | undefined,
  ) {
    this.lease = new Lease(lockDelay);
    this.leaseId = context.runtime.uuid();
    this.numbers = new Numbers(context.runtime);
  }

  ask(): Promise<Guard> {
    return this.underWay(this.send());
  }

  /** Records the request in flight, which may bring a guard. */
  protected underWay<Result extends Guard | undefined>(request: Promise<Result>): Promise<Result> {
    this.#underWay = request;
    return request;
  }

  abstract found(refusal: LockHeldError, budget: WaitBudget | undefined): View;

  abstract rest(refusal: LockHeldError, budget: WaitBudget, signal: AbortSignal): Promise<void>;

  async abandon(): Promise<void> {
    const guard = await this.#underWay?.catch(() => undefined);
    if (guard) {
      await guard.release();
    } else if (this.isKnown || this.numbers.isOpen) {
      await retrying(this.context.runtime, (sendOptions) => this.giveBack(sendOptions), {
        lease: this.leaseDuration,
        background: true,
      });
    }
  }

  protected abstract send(): Promise<Guard>;

  /** Releases the lease id. */
  protected abstract giveBack(sendOptions: SendOptions): Promise<unknown>;

  /** Sends a request for a grant. The lease counts from before its first sending. */
  protected async counted<Answer extends { leaseDurationMs: number }>(
    request: Numbered<Body>,
    exchange: (request: Numbered<Body>, options: SendOptions) => Promise<Answer>,
  ): Promise<Answer> {
    const { runtime } = this.context;
    this.lease.send(request.sequence, this.leaseDuration, runtime.now());
    const timeout = requestTimeout(this.leaseDuration);
    const answer = await this.numbers.send(request, (numbered) => exchange(numbered, { timeout }));
    this.isKnown = true;
    this.lease.renewed(answer.leaseDurationMs);
    return answer;
  }

  /** Refuses a grant that arrived after its lease had run out. */
  protected throwIfTooLate(): void {
    if (this.lease.validUntil <= this.context.runtime.now()) throw new TooLateError();
  }
}

/** The target and the bound of an acquisition: one request if `wait` is undefined. */
export interface Pursuit {
  readonly key: string;
  readonly sortKey: string | undefined;
  readonly wait: Wait | undefined;
  readonly signal: AbortSignal | undefined;
}

/** Makes attempts, each under a lease id of its own, until one is granted or the wait is over. */
export function pursue<Guard extends Granted, View extends Lock>(
  context: Context,
  pursuit: Pursuit,
  attempt: () => Attempt<Guard, View>,
): Promise<Guard | Held<View>> {
  const { runtime, telemetry } = context;
  const begunAt = runtime.now();
  const operation = pursuit.wait === undefined ? "try-acquire" : "wait";
  const result = telemetry.trace(operation, pursuit.key, () => attempts(context, pursuit, attempt));
  const measured = (outcome: string): void => {
    telemetry.record({ name: "wait", duration: runtime.now() - begunAt, result: outcome });
  };
  result.then(
    ({ kind }) => {
      measured(kind);
    },
    (error: unknown) => {
      measured(error instanceof LeaseholdError ? error.kind : "aborted");
    },
  );
  track(context, result);
  return result;
}

async function attempts<Guard extends Granted, View extends Lock>(
  context: Context,
  { key, sortKey, wait, signal }: Pursuit,
  begin: () => Attempt<Guard, View>,
): Promise<Guard | Held<View>> {
  const { runtime } = context;
  const begunAt = runtime.now();
  const budget = wait === undefined ? undefined : new WaitBudget(wait, context.waitMargin, begunAt);
  const stop = new LinkedController(signal, context.closed);
  let attempt = begin();
  let guard: Guard | undefined;
  /** The last useful answer, and the number of failed requests since. */
  let held: Held<View> | undefined;
  let failures = 0;
  try {
    stop.signal.throwIfAborted();
    if (budget) await giveWay(context, key, sortKey, budget.deadline, stop.signal);
    for (;;) {
      stop.signal.throwIfAborted();
      const left = budget ? budget.deadline - runtime.now() : Infinity;
      const cutAt = runtime.now() + requestTimeout(attempt.leaseDuration, left, LAST_LOOK_MS);
      try {
        let refusal: LockHeldError;
        try {
          guard = await answerBy(context, attempt.ask(), cutAt, stop.signal);
          return guard;
        } catch (error) {
          if (!(error instanceof LockHeldError)) throw error;
          refusal = error;
        }
        held = new Held(refusal, attempt.found(refusal, budget));
        failures = 0;
        if (!budget || runtime.now() >= budget.deadline) return held;
        await attempt.rest(refusal, budget, stop.signal);
      } catch (error) {
        stop.signal.throwIfAborted();
        if (!budget || !(isRetryable(error) || error instanceof LockLostError)) throw error;
        if (isUnreached(error)) budget.unreached(begunAt);
        failures += 1;
        const pause = isAboutItsNumber(error)
          ? 0
          : retryPause(failures, isTransient(error) ? error.retryAfter : 0, runtime.random());
        const next = runtime.now() + pause;
        if (next >= budget.deadline) {
          // Only the last look failed: the answer before it names the holder.
          if (held && failures === 1 && isTransient(error)) return held;
          throw error;
        }
        // An operator broke the lock of a lost answer: the lease id has ended.
        if (error instanceof LockLostError) attempt = begin();
        await sleepUntil(runtime, next, stop.signal);
      }
    }
  } finally {
    stop.unlink();
    if (!guard) track(context, attempt.abandon());
  }
}

/**
 * Pauses for one poll after this client's own release of the key, where others waited. Two clients that return at once
 * would otherwise starve each other.
 */
async function giveWay(
  context: Context,
  key: string,
  sortKey: string | undefined,
  deadline: number,
  signal: AbortSignal,
): Promise<void> {
  const { runtime, releases, pollInterval } = context;
  const pause = releases.returns({ key, sortKey }, pollInterval, runtime.now(), runtime.random());
  if (pause > 0) await sleepUntil(runtime, Math.min(runtime.now() + pause, deadline), signal);
}

/**
 * Returns the answer, if it comes in time. The request continues either way: its release must come after its
 * end.
 */
export async function answerBy<Answer>(
  context: Context,
  answer: Promise<Answer>,
  time: number,
  signal: AbortSignal,
): Promise<Answer> {
  const over = new LinkedController(signal);
  const cancel = at(context.runtime, time, () => {
    over.abort(new UnavailableError("The service has not answered in time."));
  });
  try {
    return await abortable(answer, over.signal);
  } finally {
    cancel();
    over.unlink();
  }
}
