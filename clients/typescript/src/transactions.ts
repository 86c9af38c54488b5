/** Runs a body until its transaction is committed: rules T2, T5 and T7. */
import { checkBody, finished } from "./bodies.js";
import type { CapacityMeter } from "./capacity.js";
import { deriveTransactionId, NEXT_TRY } from "./derived.js";
import { type Context, track } from "./context.js";
import { answerFromWire } from "./dynamodb.js";
import { InvalidRequestError, isContention, TransactionContendedError } from "./errors.js";
import { retryPause } from "./pacing.js";
import type { Runtime } from "./runtime.js";
import { type Duration, millisecondsOf } from "./duration.js";
import { abortable, keepAlive, LinkedController, sleepUntil } from "./timers.js";
import { type Contention, entry, send, Transaction, type TransactionRequest } from "./transaction.js";
import type { Item } from "./values.js";

/** The bounds of a transaction's retries. All durations in milliseconds. */
export interface TransactOptions {
  /** The largest number of tries after conflicts. Default: 10. */
  tries?: number | undefined;
  /** The time after which no new try is begun: 0 or more. A try that has begun is finished. Default: 30000. */
  deadline?: Duration | undefined;
  /** Ends the call, which rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** Adds up the capacity that all tries consume. Default: nobody counts. */
  capacity?: CapacityMeter | undefined;
}

/** The options of one call. */
export interface OneCallOptions extends TransactOptions {
  /**
   * The id, a secret UUID such as {@link deriveTransactionId} derives from a business key: the same requests under one id
   * are carried out once, whichever processes make the call, for as long as the service keeps the outcome. Default: a
   * new one.
   */
  transactionId?: string | undefined;
}

/** The bounds of a transaction's retries, and its keep-alive. */
export interface TransactionOptions extends TransactOptions {
  /**
   * The time for which the body may be idle before a keep-alive is sent, above 0; `false`: none. Default:
   * 20000, a third of what the service allows unless it was set up otherwise.
   *
   * Another transaction that needs an item waits for one second of silence. With a third of that, 300, the
   * keep-alives defend the item. The price is more requests, and a longer wait for the other transaction.
   */
  keepAlive?: Duration | false | undefined;
}

/** Work to end early, with the controller that ends it. */
interface Ending {
  readonly signal: AbortSignal;
}

/**
 * Runs `body` in a transaction, and again in another one, until a commit succeeds or a failure is no
 * conflict.
 */
export async function runTransaction<T>(
  context: Context,
  body: (tx: Transaction) => T | Promise<T>,
  options: TransactionOptions,
): Promise<T> {
  checkBody(body, "body");
  const period = options.keepAlive === false ? false : millisecondsOf(options.keepAlive ?? 20_000, "keepAlive");
  if (period !== false && !(period > 0))
    throw new InvalidRequestError("keepAlive must be above 0 milliseconds.", "keepAlive");
  // The previous attempt, whose age the next one keeps.
  let before: string | undefined;
  return repeated(context, options, async (ending) => {
    const tx = new Transaction(context, context.runtime.uuid(), ending.signal);
    tx.capacity = options.capacity;
    const retryOf = before;
    before = tx.id;
    try {
      return { value: await attempt(context, tx, body, period, ending, retryOf) };
    } catch (error) {
      return { error, contention: tx.contention };
    }
  });
}

/** Sends all requests in one call, and again under another id after a conflict. */
export async function transact(
  context: Context,
  requests: readonly TransactionRequest[],
  options: OneCallOptions,
): Promise<(Item | undefined)[]> {
  const entries = requests.map(entry);
  let id = options.transactionId ?? context.runtime.uuid();
  let retryOf: string | undefined;
  let gaveWay = false;
  return repeated(context, options, async ({ signal }) => {
    for (;;) {
      const body = { transactionId: id, retryOf, requests: entries, commit: true };
      try {
        const answer = await send(context, "begin", body, { signal, capacity: options.capacity });
        return { value: (answer.answers ?? []).map(answerFromWire) };
      } catch (error) {
        if (!isContention(error)) return { error, contention: undefined };
        if (error instanceof TransactionContendedError) {
          // The answer was to a repeat. An abandoned first try may have been carried out, or may yet be. Only
          // the same id prevents a second effect.
          gaveWay = true;
          return { error, contention: error };
        }
        // The rollback is certain.
        retryOf = id;
        id = await deriveTransactionId(id, NEXT_TRY);
        if (!gaveWay) return { error, contention: error };
        gaveWay = false;
      }
    }
  });
}

async function attempt<T>(
  context: Context,
  tx: Transaction,
  body: (tx: Transaction) => T | Promise<T>,
  period: number | false,
  { signal }: Ending,
  retryOf: string | undefined,
): Promise<T> {
  let value: T;
  let stop = (): void => undefined;
  try {
    await tx.begin(retryOf);
    if (period !== false) stop = tx.keep(period);
    value = finished(await abortable((async () => body(tx))(), signal));
  } catch (error) {
    stop();
    const rolledBack = tx[Symbol.asyncDispose]();
    // A caller that ends the call does not wait.
    if (signal.aborted) track(context, rolledBack);
    else await rolledBack;
    throw error;
  }
  stop();
  await tx.settle();
  return value;
}

type Outcome<T> = { value: T } | { error: unknown; contention: Contention | undefined };

async function repeated<T>(
  context: Context,
  options: TransactOptions,
  attempt: (ending: Ending) => Promise<Outcome<T>>,
): Promise<T> {
  const { runtime } = context;
  context.closed.throwIfAborted();
  const ending = new LinkedController(options.signal, context.closed);
  const tries = new Tries(runtime, options);
  const letGo = keepAlive(runtime);
  try {
    for (;;) {
      ending.signal.throwIfAborted();
      const outcome = await attempt(ending);
      if ("value" in outcome) return outcome.value;
      const { error, contention } = outcome;
      if (ending.signal.aborted || contention === undefined || !(await tries.again(contention, ending.signal)))
        throw error;
    }
  } finally {
    letGo();
    ending.unlink();
  }
}

/** The remaining tries, and their end. */
class Tries {
  readonly #until: number;
  #failures = 0;

  constructor(
    private readonly runtime: Runtime,
    private readonly options: TransactOptions,
  ) {
    this.#until = runtime.now() + millisecondsOf(options.deadline ?? 30_000, "deadline");
  }

  /** Waits for the next try. Resolves with false if there is none. */
  async again({ retryAfter }: Contention, signal: AbortSignal): Promise<boolean> {
    this.#failures += 1;
    const next = this.runtime.now() + retryPause(this.#failures, retryAfter, this.runtime.random());
    if (this.#failures >= (this.options.tries ?? 10) || next >= this.#until) return false;
    await sleepUntil(this.runtime, next, signal);
    return true;
  }
}
