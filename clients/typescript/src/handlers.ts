/**
 * Locks in Lambda functions.
 *
 * ```ts
 * export const handler = withLock(
 *   async (event, context) => write({ fencingToken: context.leasehold.fencingToken }),
 *   { key: "orders/{detail.id}", client },
 * );
 * ```
 *
 * The lock ends with the invocation: it is released on every way out, before the sandbox would be killed at its
 * time-out, and its lease never lasts longer than a second after that. The sandbox may be killed all the same, so the
 * resource must check the fencing token.
 */
import type { TryAcquireOptions } from "./acquire.js";
import { checkBody, finished } from "./bodies.js";
import type { Client } from "./client.js";
import { InvalidRequestError } from "./errors.js";
import { type Duration, millisecondsOf } from "./duration.js";
import { type KeyOf, keyReader } from "./event.js";
import type { Guard } from "./guard.js";
import type { Held } from "./held.js";
import { asked, Deadline, InvocationGuard, type LambdaContext } from "./invocation.js";
import type { ReleaseOptions } from "./options.js";
import { begin, compare, hashOf, leavingOf, recordOf } from "./records.js";
import { messageOf } from "./transport.js";

export type { Duration, KeyOf, LambdaContext };
export { InvocationGuard };

/** The context of a handler under a lock. */
export type LockedContext<Context = LambdaContext> = Context & { leasehold: InvocationGuard };

/**
 * The answer to a lock that is held. `skip`: return the value of `skipped`. `raise`: throw `LockHeldError`, and the
 * event source retries. `wait`: wait, until the deadline less the margin and what the work needs. `sqs-retry`: each
 * record of an SQS event has a lock of its own, and one that is held is hidden until the lease of its holder.
 */
export type OnContention = "skip" | "raise" | "wait" | "sqs-retry";

/** The lock of a handler. */
export interface InvocationLock<Event, Context> {
  client: Client;
  /**
   * A template with paths into the event, such as `orders/{detail.id}` and `{Records[0].messageId}`, or a function of
   * event and context. A path that is missing is an {@link InvalidRequestError}, and nothing is asked for.
   */
  key: KeyOf<Event, Context>;
  sortKey?: KeyOf<Event, Context> | undefined;
  /** Cut to what remains of the invocation and the margin. Default: the client's. */
  lease?: Duration | undefined;
  /**
   * The time before the deadline at which `context.leasehold.signal` is aborted. Half of it later the lock is released,
   * even if the work goes on. Default: `"1s"`.
   */
  margin?: Duration | undefined;
  ownerName?: string | undefined;
  staleness?: "rvn" | "clock" | undefined;
}

/** The part of `SQS` of `@aws-sdk/client-sqs` that is needed. */
export interface Visibility {
  changeMessageVisibility(input: {
    QueueUrl: string;
    ReceiptHandle: string;
    VisibilityTimeout: number;
  }): Promise<unknown>;
}

/** Options of `withLock`. */
export interface WithLockOptions<Event, Context> extends InvocationLock<Event, Context> {
  /** Default: `"raise"`. */
  onContention?: Exclude<OnContention, "sqs-retry"> | undefined;
  /** The result of an invocation that is skipped. */
  skipped?: unknown;
  /** The time that a wait leaves for the work. Default: 0. */
  workNeeds?: Duration | undefined;
}

/** Options of `withLock` for each record of an SQS event. */
export interface SqsOptions<Context> extends InvocationLock<SqsRecord, Context> {
  onContention: "sqs-retry";
  /** The time that a record's work needs: a record without it comes again. Default: 0. */
  workNeeds?: Duration | undefined;
  /** Hides records: `new SQS()`. */
  sqs: Visibility;
}

/** The part of a record of SQS that is needed. */
export interface SqsRecord {
  readonly messageId: string;
  readonly receiptHandle: string;
  readonly body: string;
  readonly eventSourceARN: string;
  readonly attributes?: { readonly MessageGroupId?: string | undefined } | undefined;
}

/** The answer to a batch: the records that are to come again. */
export interface PartialBatchResponse {
  batchItemFailures: { itemIdentifier: string }[];
}

const LONGEST_HIDDEN_S = 12 * 3600;

/**
 * Runs a handler of a Lambda function under a lock. The guard is `context.leasehold`. With `sqs-retry`, the handler takes
 * one record in place of an event.
 *
 * @throws {LockHeldError} another holds the lock, and `onContention` is not `skip`.
 * @throws {LockLostError} the work came to its end, but the lock was lost; or the invocation is about to end.
 */
export function withLock<Context extends LambdaContext>(
  handler: (record: SqsRecord, context: LockedContext<Context>) => unknown,
  options: SqsOptions<Context>,
): (event: { Records: readonly SqsRecord[] }, context: Context) => Promise<PartialBatchResponse>;
export function withLock<Event, Result, Context extends LambdaContext>(
  handler: (event: Event, context: LockedContext<Context>) => Result | Promise<Result>,
  options: WithLockOptions<Event, Context>,
): (event: Event, context: Context) => Promise<Result>;
export function withLock<Event, Result, Context extends LambdaContext>(
  handler: (event: Event, context: LockedContext<Context>) => Result | Promise<Result>,
  options: WithLockOptions<Event, Context> | SqsOptions<Context>,
): (event: never, context: Context) => Promise<unknown> {
  checkBody(handler, "handler");
  const needed = millisecondsOf(options.workNeeds ?? 0, "workNeeds");
  if (options.onContention === "sqs-retry") {
    const lock = new Lock<SqsRecord, Context>(options);
    const work = handler as unknown as (record: SqsRecord, context: LockedContext<Context>) => unknown;
    return async (event: { Records: readonly SqsRecord[] }, context) =>
      new Batch(lock, work, needed, options.sqs, context).response(event.Records);
  }
  const { onContention = "raise", skipped } = options;
  if (!["skip", "raise", "wait"].includes(onContention))
    throw new InvalidRequestError(`There is no contention mode ${String(onContention)}.`, "onContention");
  const lock = new Lock<Event, Context>(options, onContention === "wait" ? needed : undefined);
  return async (event: Event, context) => {
    const deadline = lock.deadline(context);
    const result = await lock.ask(event, context, deadline);
    if (result.kind === "held" && onContention === "skip") return skipped;
    return under(result.granted(), deadline, context, (locked) => handler(event, locked));
  };
}

/** Options of `idempotent`. */
export interface IdempotentOptions<Event, Context> extends Omit<InvocationLock<Event, Context>, "staleness"> {
  /** The time for which a result counts, by the clocks of the callers. Default: `"1h"`. */
  completedTtl?: Duration | undefined;
  /** Returns the part of the event that must be the same each time. Default: all of it. */
  payload?: ((event: Event) => unknown) | undefined;
  /** The answer to an attempt that is in progress. Default: `"raise"`. */
  onContention?: "raise" | "wait" | undefined;
  /** The time that a wait leaves for the work. Default: 0. */
  workNeeds?: Duration | undefined;
}

/**
 * Runs a handler of a Lambda function once for each event, and answers a repeated event with its result, which must be
 * JSON of at most 256 KiB. An attempt that fails, or dies, runs again: a dead one as soon as its lease is over by the
 * service's clock.
 *
 * @throws {PayloadMismatchError} another payload came under the same key.
 * @throws {LockHeldError} an attempt is in progress.
 */
export function idempotent<Event, Result, Context extends LambdaContext>(
  handler: (event: Event, context: LockedContext<Context>) => Result | Promise<Result>,
  options: IdempotentOptions<Event, Context>,
): (event: Event, context: Context) => Promise<Result> {
  checkBody(handler, "handler");
  const { completedTtl = "1h", payload = (event: Event): unknown => event, onContention = "raise" } = options;
  const needed = millisecondsOf(options.workNeeds ?? 0, "workNeeds");
  const counts = millisecondsOf(completedTtl, "completedTtl");
  const lock = new Lock<Event, Context>(options, onContention === "wait" ? needed : undefined);
  return async (event, context) => {
    const deadline = lock.deadline(context);
    const seen = await hashOf(payload(event));
    const begun = await begin((more) => lock.ask(event, context, deadline, more), seen);
    if (begun.kind === "known") {
      compare(begun.record, seen, lock.key(event, context));
      return begun.record.result as Result;
    }
    if (begun.kind === "held") {
      compare(recordOf(begun.lock), seen, begun.lock.key);
      return begun.granted();
    }
    return under(
      begun.guard,
      deadline,
      context,
      (locked) => handler(event, locked),
      (result) => leavingOf(begun, { payload: seen, until: Date.now() + counts, result }),
    );
  };
}

/** Runs the work under the guard, which `context.leasehold` names meanwhile. */
async function under<Context, Result>(
  guard: Guard,
  deadline: Deadline,
  context: Context,
  work: (context: LockedContext<Context>) => Result | Promise<Result>,
  leaving?: (result: Result) => Omit<ReleaseOptions, "sortKey">,
): Promise<Result> {
  const held = new InvocationGuard(guard, deadline);
  const locked = Object.assign(context as Context & object, { leasehold: held });
  return held.run(async () => finished(await work(locked)), leaving);
}

/** The lock of a wrapper. */
class Lock<Event, Context extends LambdaContext> {
  readonly #options: InvocationLock<Event, Context>;
  readonly key: (event: Event, context: Context) => string;
  readonly #sortKey: ((event: Event, context: Context) => string) | undefined;
  readonly #lease: number;
  readonly #margin: number;

  /** `leaves`: what a wait leaves for the work. Without it, the lock is asked for once. */
  constructor(
    options: InvocationLock<Event, Context>,
    private readonly leaves?: number,
  ) {
    const { client, key, sortKey, lease = client.lease, margin = 1000 } = options;
    this.#options = options;
    this.key = keyReader(key);
    this.#sortKey = sortKey === undefined ? undefined : keyReader(sortKey);
    this.#lease = millisecondsOf(lease, "lease");
    this.#margin = millisecondsOf(margin, "margin");
  }

  deadline(context: Context): Deadline {
    return new Deadline(context, this.#margin);
  }

  /** Asks once, or for as long as the work can wait. Reads the keys before that. */
  async ask(event: Event, context: Context, deadline: Deadline, more?: TryAcquireOptions): Promise<Guard | Held> {
    const { client, ownerName, staleness } = this.#options;
    const key = this.key(event, context);
    const sortKey = this.#sortKey?.(event, context);
    // The lease shrinks towards the deadline, and the invocation's heartbeats keep pace with it.
    const lease = deadline.lease(this.#lease);
    const options = { sortKey, ownerName, staleness, lease, heartbeatInterval: false as const, ...more };
    const { leaves } = this;
    return asked(client, deadline, () =>
      leaves === undefined
        ? client.tryAcquire(key, options)
        : client.acquire(key, { ...options, wait: deadline.left(leaves) }),
    );
  }
}

/** The records of one SQS event, each under a lock of its own. */
class Batch<Context extends LambdaContext> {
  /** Groups of a FIFO queue, whose later records must wait. */
  readonly #stopped = new Set<string>();

  constructor(
    private readonly lock: Lock<SqsRecord, Context>,
    private readonly work: (record: SqsRecord, context: LockedContext<Context>) => unknown,
    private readonly needed: number,
    private readonly sqs: Visibility,
    private readonly context: Context,
  ) {}

  async response(records: readonly SqsRecord[]): Promise<PartialBatchResponse> {
    const batchItemFailures = [];
    for (const record of records) {
      const group = record.attributes?.MessageGroupId;
      if ((group === undefined || !this.#stopped.has(group)) && (await this.#run(record))) continue;
      if (group !== undefined) this.#stopped.add(group);
      batchItemFailures.push({ itemIdentifier: record.messageId });
    }
    return { batchItemFailures };
  }

  async #run(record: SqsRecord): Promise<boolean> {
    try {
      const deadline = this.lock.deadline(this.context);
      if (deadline.left(this.needed) === 0) return false;
      const result = await this.lock.ask(record, this.context, deadline);
      if (result.kind === "held") {
        await this.#hide(record, result.lock.leaseDurationMs);
        return false;
      }
      await under(result, deadline, this.context, (locked) => this.work(record, locked));
      return true;
    } catch (error) {
      console.error(`leasehold: the record ${record.messageId} failed, and comes again: ${messageOf(error)}`);
      return false;
    }
  }

  /** Hides a record until its lock may be free. If that fails, it comes again after the queue's own time. */
  async #hide({ messageId, receiptHandle, eventSourceARN }: SqsRecord, milliseconds: number): Promise<void> {
    const [, partition, , region, account, queue] = eventSourceARN.split(":");
    const domain = partition === "aws-cn" ? "amazonaws.com.cn" : "amazonaws.com";
    try {
      await this.sqs.changeMessageVisibility({
        QueueUrl: `https://sqs.${region}.${domain}/${account}/${queue}`,
        ReceiptHandle: receiptHandle,
        VisibilityTimeout: Math.min(LONGEST_HIDDEN_S, Math.ceil(milliseconds / 1000)),
      });
    } catch (error) {
      console.warn(`leasehold: the visibility of ${messageId} could not be changed: ${messageOf(error)}`);
    }
  }
}
