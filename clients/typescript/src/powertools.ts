/**
 * Leasehold as the persistence layer of Powertools for AWS Lambda: idempotency on the table of locks.
 *
 * ```ts
 * const persistenceStore = new LeaseholdPersistenceLayer(client);
 * export const handler = makeIdempotent(work, { persistenceStore });
 * ```
 *
 * An attempt in progress is a lock: a crashed one frees itself by its lease.
 */
import { IdempotencyItemAlreadyExistsError, IdempotencyItemNotFoundError } from "@aws-lambda-powertools/idempotency";
import { BasePersistenceLayer, IdempotencyRecord } from "@aws-lambda-powertools/idempotency/persistence";
import type { TryAcquireOptions } from "./acquire.js";
import type { Client } from "./client.js";
import { type Duration, millisecondsOf } from "./duration.js";
import { asked, Deadline, InvocationGuard } from "./invocation.js";
import type { Lock } from "./lock.js";
import { begin, leavingOf, type Record, recordOf } from "./records.js";

const LONGEST_INVOCATION_MS = 900_000;

/** Options of a layer. */
export interface LayerOptions {
  /** The beginning of each key. Default: `"idempotency/"`. */
  prefix?: string | undefined;
  /** Cut to what remains of the invocation. Default: the client's. */
  lease?: Duration | undefined;
  /** Default: `"1s"`. */
  margin?: Duration | undefined;
}

/** An attempt that is in progress in this process. */
interface UnderWay {
  readonly succeed: (record: Record) => void;
  readonly fail: (reason: unknown) => void;
  readonly payload: string;
  /** Settles once the lock was released. */
  readonly end: Promise<unknown>;
}

/** The status of a record in Powertools. */
type Status = ConstructorParameters<typeof IdempotencyRecord>[0]["status"];

/** Keeps the records of Powertools' idempotency as locks. */
export class LeaseholdPersistenceLayer extends BasePersistenceLayer {
  readonly #client: Client;
  readonly #prefix: string;
  readonly #lease: number;
  readonly #margin: number;
  readonly #underWay = new Map<string, UnderWay>();

  constructor(client: Client, { prefix = "idempotency/", lease = client.lease, margin = 1000 }: LayerOptions = {}) {
    super();
    this.#client = client;
    this.#prefix = prefix;
    this.#lease = millisecondsOf(lease, "lease");
    this.#margin = millisecondsOf(margin, "margin");
  }

  protected async _putRecord(record: IdempotencyRecord): Promise<void> {
    const { idempotencyKey, inProgressExpiryTimestamp: ends, payloadHash: payload = "" } = record;
    const left = ends === undefined ? LONGEST_INVOCATION_MS : Math.max(0, ends - Date.now());
    const deadline = new Deadline({ getRemainingTimeInMillis: () => left }, this.#margin);
    const lease = deadline.lease(this.#lease);
    const key = this.#prefix + idempotencyKey;
    const begun = await begin(
      (options) =>
        asked(this.#client, deadline, () =>
          this.#client.tryAcquire(key, { ...options, lease, heartbeatInterval: false }),
        ),
      payload,
    );
    if (begun.kind !== "attempt") {
      const known =
        begun.kind === "held" ? pending(idempotencyKey, recordOf(begun.lock)) : done(idempotencyKey, begun.record);
      throw new IdempotencyItemAlreadyExistsError(`There is a record of ${idempotencyKey}.`, known);
    }
    let succeed: UnderWay["succeed"] = () => undefined;
    let fail: UnderWay["fail"] = () => undefined;
    const result = new Promise<Record>((resolve, reject) => {
      succeed = resolve;
      fail = reject;
    });
    const guard = new InvocationGuard(begun.guard, deadline);
    const end = guard.run(
      () => result,
      (outcome) => leavingOf(begun, outcome),
    );
    end.catch(() => undefined);
    this.#underWay.set(idempotencyKey, { succeed, fail, payload, end });
  }

  protected async _updateRecord({
    idempotencyKey,
    expiryTimestamp = 0,
    responseData,
    payloadHash = "",
  }: IdempotencyRecord): Promise<void> {
    const attempt = this.#taken(idempotencyKey);
    const record = { payload: attempt?.payload ?? payloadHash, until: expiryTimestamp * 1000, result: responseData };
    if (attempt === undefined) return this.#store(idempotencyKey, record);
    attempt.succeed(record);
    await attempt.end;
  }

  /** Stores the result of an attempt that began in another process: a durable function was invoked again. */
  async #store(idempotencyKey: string, record: Record): Promise<void> {
    const begun = await this.#beginAlone(idempotencyKey, record.payload, Date.now());
    if (begun.kind !== "attempt") throw new Error(`Another attempt of ${idempotencyKey} is in progress, or has ended.`);
    await begun.guard.release(leavingOf(begun, record));
  }

  protected async _deleteRecord({ idempotencyKey }: IdempotencyRecord): Promise<void> {
    const attempt = this.#taken(idempotencyKey);
    if (attempt === undefined) return this.#forget(idempotencyKey);
    attempt.fail(new Error("the work failed"));
    await attempt.end.catch(() => undefined);
  }

  /**
   * Lets the event of a completed record run again: a time at which no result counts makes the next occurrence due. An
   * attempt that is in progress elsewhere is left alone.
   */
  async #forget(idempotencyKey: string): Promise<void> {
    const begun = await this.#beginAlone(idempotencyKey, "", Infinity);
    if (begun.kind === "attempt") await begun.guard.release();
  }

  /** Begins an attempt that does no work, unless there is a result that counts at this time. */
  #beginAlone(idempotencyKey: string, payload: string, at: number): ReturnType<typeof begin> {
    const key = this.#prefix + idempotencyKey;
    const ask = (options: TryAcquireOptions) => this.#client.tryAcquire(key, { ...options, heartbeatInterval: false });
    return begin(ask, payload, at);
  }

  protected async _getRecord(idempotencyKey: string): Promise<IdempotencyRecord> {
    const lock = await this.#client.get(this.#prefix + idempotencyKey);
    const found = lock && readable(idempotencyKey, lock);
    if (found === undefined) throw new IdempotencyItemNotFoundError(`There is no record of ${idempotencyKey}.`);
    return found;
  }

  #taken(idempotencyKey: string): UnderWay | undefined {
    const attempt = this.#underWay.get(idempotencyKey);
    this.#underWay.delete(idempotencyKey);
    return attempt;
  }
}

function readable(idempotencyKey: string, lock: Lock): IdempotencyRecord | undefined {
  if (lock.state === "held") return pending(idempotencyKey, recordOf(lock));
  return lock.lastOccurrence === undefined ? undefined : done(idempotencyKey, recordOf(lock));
}

const pending = (idempotencyKey: string, { payload: payloadHash }: Record): IdempotencyRecord =>
  new IdempotencyRecord({ idempotencyKey, status: "INPROGRESS" as Status, payloadHash });

const done = (idempotencyKey: string, { payload: payloadHash, until, result }: Record): IdempotencyRecord =>
  new IdempotencyRecord({
    idempotencyKey,
    status: "COMPLETED" as Status,
    expiryTimestamp: Math.floor(until / 1000),
    // What was undefined was kept as null.
    responseData: result as NonNullable<IdempotencyRecord["responseData"]>,
    payloadHash,
  });
