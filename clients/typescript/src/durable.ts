/**
 * Locks in durable functions, which sleep without a bill while another holds the lock.
 *
 * ```ts
 * export const handler = withDurableExecution(async (event: { id: string }, context) => {
 *   await using lock = await lockStep(context, `orders/${event.id}`, { client, lease: "15m" });
 *   await context.step("ship", () => ship(event, { fencingToken: lock.fencingToken }));
 * });
 * ```
 *
 * Needs `@aws/durable-execution-sdk-js`. The wait is a durable one: the function ends, and is invoked again when the lock
 * may be free. A replay acquires nothing: the lease id and the grant are checkpoints, and a request that is repeated under
 * its lease id finds itself. While the function sleeps, nobody sends heartbeats, so that the lease must be as long as the
 * work and its sleeps.
 */
import { randomUUID } from "node:crypto";
import type { DurableContext } from "@aws/durable-execution-sdk-js";
import { acquireUnder } from "./acquire.js";
import { type Client, contextOf } from "./client.js";
import { type Duration, millisecondsOf } from "./duration.js";
import { isRetryable, LockHeldError, LockLostError, LockNotFoundError } from "./errors.js";

export type { Duration };

/** The time after which a sleeping function looks again, though the holder's lease may last longer. */
const LONGEST_SLEEP_S = 300;
/** The time for the requests of one look. */
const ASKS_FOR_MS = 1000;
/** The sleep after a request without an answer. */
const SLEEP_AFTER_FAILURE_S = 2;
/** The time for which the row of a waiter outlives its sleep. */
const FORGOTTEN_S = 3600;

/** The part of `DynamoDB` of `@aws-sdk/client-dynamodb` that is needed. */
export interface PutItem {
  putItem(input: {
    TableName: string;
    Item: Record<string, { S: string } | { N: string } | { BOOL: boolean }>;
  }): Promise<unknown>;
}

/** The table of a stack with `WakeWaiters`, whose waker ends sleeps. */
export interface Waiters {
  /** The output `WaitersTableName`. */
  table: string;
  /** `new DynamoDB()`, with the permission `dynamodb:PutItem` on the table. */
  dynamodb: PutItem;
}

/** Options of {@link lockStep}. */
export interface LockStepOptions {
  client: Client;
  /** As long as the work and its sleeps: 100 ms to a day. {@link DurableLock.renew} begins it anew. */
  lease: Duration;
  sortKey?: string | undefined;
  ownerName?: string | undefined;
  /** Bounds the sleep. Default: no bound. */
  wait?: Duration | undefined;
  /** The name of the operations, which must be the same in each replay. Default: of the key. */
  name?: string | undefined;
  /** Has the stack's waker end a sleep as soon as the lock is free. Default: the function looks again by itself. */
  waiters?: Waiters | undefined;
}

/** What is known after a look: a checkpoint. */
interface State {
  leaseId: string;
  /** The token of the grant. */
  token: number | null;
  /** The sleep that comes next, in seconds. */
  sleep: number;
  /** The sleeps so far, in seconds. */
  slept: number;
  /** The time of the look, in milliseconds since 1970. */
  at: number;
  /** Whether the waker ended the last sleep. */
  woken: boolean;
}

/** A lock of a durable function. The end of its scope releases it; a sleep of the function does not. */
export class DurableLock implements AsyncDisposable {
  /** @internal */
  constructor(
    private readonly context: DurableContext,
    private readonly client: Client,
    private readonly name: string,
    readonly key: string,
    readonly sortKey: string | undefined,
    /** A token above every token granted for this key before. Hand it to every resource that the work writes to. */
    readonly fencingToken: number,
    private readonly leaseId: string,
  ) {}

  /** Renews the lease, in a step. Rejects as a step that failed, if the lock is lost. */
  async renew(lease: Duration): Promise<void> {
    const { key, sortKey, leaseId } = this;
    await this.context.step(`${this.name} renew`, async () => {
      await this.client.heartbeat(key, leaseId, { sortKey, lease });
    });
  }

  /** Releases the lock, in a step. A lock that was lost before is no error: its work may have been refused. */
  async release(): Promise<void> {
    const { key, sortKey, leaseId } = this;
    await this.context.step(`${this.name} release`, async () => {
      await this.client.release(key, leaseId, { sortKey }).catch((error: unknown) => {
        if (!(error instanceof LockLostError)) throw error;
      });
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }
}

/**
 * Acquires a lock, and sleeps while another holds it. A holder that is silent is judged by the service's clock.
 *
 * @throws {LockHeldError} the wait was over.
 */
export async function lockStep(
  context: DurableContext,
  key: string,
  { client, lease, sortKey, ownerName, wait, name = `lock ${key}`, waiters }: LockStepOptions,
): Promise<DurableLock> {
  const milliseconds = millisecondsOf(lease, "lease");
  const longest = wait === undefined ? Infinity : millisecondsOf(wait, "wait") / 1000;
  const isOver = ({ token, slept }: State): boolean => token !== null || slept >= longest;

  /** Asks once. After a crash before the checkpoint, it is the same lease id again, whose holder is this function. */
  const look = async (before: State): Promise<State> => {
    const at = Date.now();
    const last = before.woken ? Math.min(before.sleep, (at - before.at) / 1000) : before.sleep;
    const state = { ...before, slept: before.slept + last, at, woken: false };
    try {
      const options = {
        sortKey,
        ownerName,
        lease: milliseconds,
        staleness: "clock",
        heartbeatInterval: false,
      } as const;
      const result = await acquireUnder(contextOf(client), key, state.leaseId, options, ASKS_FOR_MS);
      if (result.kind === "held") return { ...state, sleep: sleepOf(result.lock.leaseDurationMs) };
      result.detach();
      return { ...state, token: result.fencingToken };
    } catch (error) {
      if (!isRetryable(error) && !(error instanceof LockLostError)) throw error;
      // What the request may have acquired is given back.
      return { ...state, leaseId: randomUUID(), sleep: SLEEP_AFTER_FAILURE_S };
    }
  };

  const first = await context.step(`${name} id`, async () => ({ leaseId: randomUUID(), askedAt: Date.now() }));
  let state: State = { leaseId: first.leaseId, token: null, sleep: 0, slept: 0, at: first.askedAt, woken: false };
  if (waiters === undefined) {
    state = await context.waitForCondition(name, look, {
      initialState: state,
      waitStrategy: (now) =>
        isOver(now) ? { shouldContinue: false } : { shouldContinue: true, delay: { seconds: now.sleep } },
    });
  } else {
    for (;;) {
      const before = state;
      state = await context.step(name, () => look(before));
      if (isOver(state)) break;
      const row = {
        lock: JSON.stringify(sortKey === undefined ? [key] : [key, sortKey]),
        waiter: `${first.askedAt}#${first.leaseId}`,
      };
      state = { ...state, woken: await sleepUntilWoken(context, name, waiters, row, state.sleep) };
    }
  }
  if (state.token !== null) return new DurableLock(context, client, name, key, sortKey, state.token, state.leaseId);
  const lock = await client.get(key, { sortKey });
  if (lock === undefined) throw new LockNotFoundError(`There is no lock ${key}.`);
  throw new LockHeldError(`${key} is held by ${lock.ownerName ?? "another owner"}, and the wait is over.`, lock);
}

/** A second more than the lease: the service allows its clocks a difference. */
const sleepOf = (leaseDurationMs: number): number => Math.min(Math.ceil(leaseDurationMs / 1000 + 1), LONGEST_SLEEP_S);

/**
 * Leaves a callback for the waker, and sleeps. The waker looks at the lock after the row was written, so that no release
 * is missed. Returns whether the waker ended the sleep.
 */
async function sleepUntilWoken(
  context: DurableContext,
  name: string,
  { table, dynamodb }: Waiters,
  { lock, waiter }: { lock: string; waiter: string },
  seconds: number,
): Promise<boolean> {
  const [woken, callback] = await context.createCallback(`${name} sleep`, { timeout: { seconds } });
  await context.step(`${name} enqueue`, async () => {
    await dynamodb.putItem({
      TableName: table,
      Item: {
        lock: { S: lock },
        waiter: { S: waiter },
        permits: { N: "1" },
        token: { S: callback },
        isCallback: { BOOL: true },
        expireAt: { N: String(Math.ceil(Date.now() / 1000) + seconds + FORGOTTEN_S) },
      },
    });
  });
  return woken.then(
    () => true,
    () => false,
  );
}
