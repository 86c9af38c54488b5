/**
 * An acquisition: from its first request to its guard, or to its end without one (rules C1, C4, C5, C6 and
 * C10).
 */
import { type Action, Call, type Event } from "./call.js";
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
import type { ReleaseOutcome } from "./holding.js";
import { Turn } from "./line.js";
import type { Lock } from "./lock.js";
import { type Numbered, type Numbers, numbered } from "./numbers.js";
import {
  LAST_LOOK_MS,
  LONGEST_REQUEST_MS,
  OPERATION_BOUND_MS,
  requestTimeout,
  retryPause,
  type Bound,
  WaitBudget,
} from "./pacing.js";
import { drawsOf } from "./runtime.js";
import { endOf, type SendOptions } from "./service.js";
import { at, abortable, LinkedController, sleepUntil } from "./timers.js";

/** The result of an acquisition. */
interface Granted {
  readonly kind: "granted";
  release(): Promise<unknown>;
  /** Keeps the turn of its waiter until the end of the hold. */
  takeTurn?(turn: Turn): void;
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
  /** Records that the caller has its guard. */
  taken(): void;
  /** Releases a grant that may have been missed, once the last request has ended. */
  abandon(): Promise<void>;
}

/** One lease id, from its first request to its guard, or to its end without one: a driver of {@link Call}. */
export abstract class Acquisition<Guard extends Granted, View extends Lock, Body extends object>
  implements Attempt<Guard, View>
{
  protected readonly leaseId: string;
  /** The first sending of the last request, from which the lease of its grant counts. */
  protected sentAt = 0;
  readonly #call: Call<Body>;
  #actions: readonly Action<Body>[] = [];
  #wasTooLate = false;
  #hasLeft = false;
  #underWay: Promise<Guard | undefined> | undefined;

  protected constructor(
    protected readonly context: Context,
    readonly leaseDuration: number,
    lockDelay: number | undefined,
    keys = 1,
    leaseId = context.runtime.uuid(),
  ) {
    this.leaseId = leaseId;
    const terms = { lease: leaseDuration, delay: lockDelay, longest: LONGEST_REQUEST_MS, bound: OPERATION_BOUND_MS };
    this.#call = new Call(terms, keys);
  }

  /** The numbers of the requests. */
  protected get numbers(): Numbers<Body> {
    return this.#call.numbers;
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

  taken(): void {
    this.#step({ type: "taken" });
  }

  async abandon(): Promise<void> {
    const { runtime } = this.context;
    const guard = this.#call.state === "granted" ? await this.#underWay?.catch(() => undefined) : undefined;
    if (guard) {
      this.taken();
      await guard.release();
      return;
    }
    this.#hasLeft = true;
    this.#step({ type: "cancel" });
    // The request may be granted: its release comes after its end.
    await this.#underWay?.catch(() => undefined);
    while (!this.#call.hasEnded) {
      const action = this.#actions.at(-1);
      if (action?.type === "wake-at") {
        await sleepUntil(runtime, action.time, undefined, true);
        this.#step({ type: "tick" });
      } else if (action?.type === "send" && action.what.type === "release") {
        this.#step(await this.#released(action.send, action.what.key, action.timeout));
      } else return;
    }
  }

  protected abstract send(): Promise<Guard>;

  /** Releases the lease id on the key at this position. */
  protected abstract giveBack(key: number, sendOptions: SendOptions): Promise<ReleaseOutcome>;

  async #released(send: number, key: number, timeout: number): Promise<Event<Body>> {
    try {
      const found = (await this.giveBack(key, { timeout })) !== "absent";
      return { type: "answer", send, reply: { type: "done", lease: undefined, found } };
    } catch (error) {
      return endOf(send, error);
    }
  }

  /** Returns the request to send, and its body: the open one again, or this one. */
  protected take(body: Body, lease = this.leaseDuration): { request: Numbered<Body>; body: Body } {
    const [action] = this.#step({ type: "start", request: body, timeout: requestTimeout(lease) });
    if (action?.type !== "send" || action.what.type !== "numbered") throw new UnavailableError("The caller has left.");
    const { turn } = action.what;
    this.sentAt = turn.firstSent;
    return { request: numbered(turn), body: turn.body };
  }

  /** Sends the request that was taken. `leaseOf` returns the lease that its answer grants. */
  protected async told<Answer>(
    exchange: (options: SendOptions) => Promise<Answer>,
    leaseOf: (answer: Answer) => number | undefined,
  ): Promise<Answer> {
    const action = this.#actions.at(-1);
    if (action?.type !== "send") throw new UnavailableError("The caller has left.");
    const { send, timeout } = action;
    let answer: Answer;
    try {
      answer = await exchange({ timeout });
    } catch (error) {
      this.#step(endOf(send, error));
      throw error;
    }
    const reply = { type: "done", lease: leaseOf(answer), found: true } as const;
    const end = this.#step({ type: "answer", send, reply }).at(-1);
    if (this.#hasLeft) throw new UnavailableError("The caller has left.");
    this.#wasTooLate = end?.type === "finish" && end.outcome === "too-late";
    return answer;
  }

  /** Sends the request for a grant that was taken. The lease counts from before its first sending. */
  protected async counted<Answer extends { leaseDurationMs: number }>(
    request: Numbered<Body>,
    exchange: (request: Numbered<Body>, options: SendOptions) => Promise<Answer>,
  ): Promise<Answer> {
    return this.told(
      (options) => exchange(request, options),
      ({ leaseDurationMs }) => leaseDurationMs,
    );
  }

  /** Refuses a grant that arrived after its lease had run out. */
  protected throwIfTooLate(): void {
    if (this.#wasTooLate) throw new TooLateError();
  }

  #step(event: Event<Body>): readonly Action<Body>[] {
    const { runtime, service } = this.context;
    const step = this.#call.step(service.memory, event, Math.floor(runtime.now()), drawsOf(runtime));
    // A call of the driver's that comes at the wrong time changes nothing.
    if (step.branch !== "stale") this.#actions = step.actions;
    return step.actions;
  }
}

/** The target and the bound of an acquisition: one request if `wait` is undefined. */
export interface Pursuit {
  readonly key: string;
  readonly sortKey: string | undefined;
  readonly wait: Bound | undefined;
  readonly signal: AbortSignal | undefined;
  /** Whether the waiters of this client for the key stand in line. */
  readonly inLine?: boolean | undefined;
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
  { key, sortKey, wait, signal, inLine = false }: Pursuit,
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
  let turn: Turn | undefined;
  try {
    stop.signal.throwIfAborted();
    if (budget && inLine && budget.deadline > begunAt) {
      const came = await context.lines.turn(key, sortKey, budget, stop.signal);
      if (came instanceof Turn) turn = came;
      else if (came) return new Held(new LockHeldError("The wait in line is over.", came), came as View);
    }
    if (budget) await giveWay(context, key, sortKey, budget.deadline, stop.signal);
    for (;;) {
      stop.signal.throwIfAborted();
      const left = budget ? budget.deadline - runtime.now() : Infinity;
      const cutAt = runtime.now() + requestTimeout(attempt.leaseDuration, left, LAST_LOOK_MS);
      try {
        let refusal: LockHeldError;
        try {
          guard = await answerBy(context, attempt.ask(), cutAt, stop.signal);
          attempt.taken();
          if (turn) guard.takeTurn?.(turn);
          return guard;
        } catch (error) {
          if (!(error instanceof LockHeldError)) throw error;
          refusal = error;
        }
        held = new Held(refusal, attempt.found(refusal, budget));
        turn?.saw(held.lock);
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
        if (error instanceof LockLostError) {
          track(context, attempt.abandon());
          attempt = begin();
        }
        await sleepUntil(runtime, next, stop.signal);
      }
    }
  } finally {
    stop.unlink();
    if (!guard) {
      track(context, attempt.abandon());
      turn?.end();
    }
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
