/** An open transaction, and its operations (rules T1 and T3 to T6). */
import type { CapacityMeter } from "./capacity.js";
import { type Context, track } from "./context.js";
import { answerFromWire, itemFromWire, itemToWire } from "./dynamodb.js";
import {
  isContention,
  isTransient,
  LeaseholdError,
  TransactionCommittedError,
  TransactionContendedError,
  TransactionRolledBackError,
} from "./errors.js";
import { OPERATION_BOUND_MS, TRANSACTION_CALL_MS } from "./pacing.js";
import { type Answers, type Entry, type Requests, retrying } from "./service.js";
import { at } from "./timers.js";
import type { Item } from "./values.js";

/** The state of the item that a write returns. */
export type ReturnValues = "NONE" | "ALL_OLD" | "ALL_NEW";

interface Expressions {
  TableName: string;
  ExpressionAttributeNames?: Record<string, string>;
}

interface Conditional extends Expressions {
  /** The expressions' `:values`. */
  ExpressionAttributeValues?: object;
  /** Whether a {@link ConditionFailedError} shows the item. */
  ReturnValuesOnConditionCheckFailure?: "NONE" | "ALL_OLD";
}

interface Write extends Conditional {
  ConditionExpression?: string;
  ReturnValues?: ReturnValues;
}

/** One operation on one item: an entry of TransactWriteItems or TransactGetItems, with JavaScript's values. */
export type TransactionRequest =
  | { Get: Expressions & { Key: object; ProjectionExpression?: string } }
  | { Put: Write & { Item: object } }
  | { Update: Write & { Key: object; UpdateExpression: string } }
  | { Delete: Write & { Key: object } }
  | { ConditionCheck: Conditional & { Key: object; ConditionExpression: string } }
  | { Query: Query };

/** A query by key condition. It goes into an add of its own: {@link Transaction.query}. */
interface Query extends Expressions {
  IndexName?: string;
  KeyConditionExpression: string;
  ProjectionExpression?: string;
  ExpressionAttributeValues?: object;
  ScanIndexForward?: boolean;
}

/** The options of a query in a transaction. */
export interface QueryOptions {
  /** An index to find the items in. */
  indexName?: string;
  /** The expressions' `#names`. */
  names?: Record<string, string>;
  /** The attributes to return. Default: all. */
  projection?: string;
  /** False: by descending sort keys. Default: true. */
  forward?: boolean;
}

/** The options of a write. */
export interface WriteOptions {
  /** A condition that must hold for the item as it was when the transaction locked it. */
  condition?: string;
  /** The expressions' `:values`. */
  values?: object;
  /** The expressions' `#names`. */
  names?: Record<string, string>;
  /** The state of the item to return. Default: none. */
  returnValues?: ReturnValues;
}

/** The conflict with another transaction, or with a sweeper. */
export type Contention = TransactionContendedError | TransactionRolledBackError;

/**
 * An open transaction. Its methods may be called concurrently.
 *
 * With `await using` the transaction is rolled back at the end of the block, unless it was committed or detached.
 */
export class Transaction implements AsyncDisposable {
  #lastWorked: number;
  #ended = false;
  #contention: Contention | undefined;
  /** The number of requests other than `Get` and `Query` that this handle made, and that were not refused. */
  #writes = 0;
  #overwritten: Answers["commit"]["overwritten"];
  #calls = 0;
  /** A part of the names of this handle's calls: another process may continue with the same transaction. */
  readonly #handle: string;
  /** The calls that were not carried out as a whole, as far as is known. */
  #unsettled: { requests: string; name: string; counted: boolean }[] = [];
  /** Adds up the capacity that the calls from here on consume. */
  capacity: CapacityMeter | undefined;

  /** @internal */
  constructor(
    private readonly context: Context,
    /** The id, for `resumeTransaction` and `transactionStatus`. */
    readonly id: string,
    private readonly signal?: AbortSignal,
  ) {
    this.#lastWorked = context.runtime.now();
    this.#handle = context.runtime.uuid().slice(0, 8);
  }

  /**
   * Locks an item and reads it; undefined if there is none. No other transaction changes or creates the item before
   * this one ends.
   */
  async get(
    table: string,
    key: object,
    options: { projection?: string; names?: Record<string, string> } = {},
  ): Promise<Item | undefined> {
    const { projection, names } = options;
    return this.#one({
      Get: {
        TableName: table,
        Key: key,
        ...(projection !== undefined && { ProjectionExpression: projection }),
        ...(names !== undefined && { ExpressionAttributeNames: names }),
      },
    });
  }

  /**
   * Locks the items that match a key condition, at most 100, and reads them. No other transaction changes them before
   * this one ends. Other items that match may come later: docs/transactions.md says how to prevent that.
   */
  async query(table: string, keyCondition: string, values: object, options: QueryOptions = {}): Promise<Item[]> {
    const { indexName, names, projection, forward } = options;
    const [answer] = await this.#send([
      {
        Query: {
          TableName: table,
          KeyConditionExpression: keyCondition,
          ExpressionAttributeValues: values,
          ...(indexName !== undefined && { IndexName: indexName }),
          ...(names !== undefined && { ExpressionAttributeNames: names }),
          ...(projection !== undefined && { ProjectionExpression: projection }),
          ...(forward !== undefined && { ScanIndexForward: forward }),
        },
      },
    ]);
    return (answer?.items ?? []).map(itemFromWire);
  }

  /** Puts an item in place of the existing one. Returns the state that `returnValues` names. */
  async put(table: string, item: object, options: WriteOptions = {}): Promise<Item | undefined> {
    return this.#one({ Put: { TableName: table, Item: item, ...expressions(options) } });
  }

  /** Updates or creates an item. `values` are the expression's. */
  async update(
    table: string,
    key: object,
    expression: string,
    values?: object,
    options: WriteOptions = {},
  ): Promise<Item | undefined> {
    const all = expressions({
      ...options,
      ...((values ?? options.values) && { values: { ...options.values, ...values } }),
    });
    return this.#one({ Update: { TableName: table, Key: key, UpdateExpression: expression, ...all } });
  }

  /** Deletes an item, when the transaction is committed. */
  async delete(table: string, key: object, options: WriteOptions = {}): Promise<Item | undefined> {
    return this.#one({ Delete: { TableName: table, Key: key, ...expressions(options) } });
  }

  /** Locks an item and checks a condition. */
  async check(
    table: string,
    key: object,
    condition: string,
    options: { values?: object; names?: Record<string, string> } = {},
  ): Promise<void> {
    await this.#one({
      ConditionCheck: { TableName: table, Key: key, ...expressions(options), ConditionExpression: condition },
    });
  }

  /**
   * Locks the items of these requests, in one order for all transactions, and applies the requests provisionally.
   * Returns the requested items, in the order of the requests: at most 1000.
   *
   * @throws {TransactionContendedError} repeat the call, or roll back.
   * @throws {TransactionRolledBackError} begin another one.
   * @throws {ConditionFailedError} the transaction is rolled back.
   * @throws {InvalidRequestError} the transaction is rolled back if DynamoDB refused the request, and unchanged
   *   otherwise.
   */
  async add(requests: readonly TransactionRequest[]): Promise<(Item | undefined)[]> {
    return (await this.#send(requests)).map(answerFromWire);
  }

  async #send(requests: readonly TransactionRequest[]): Promise<Answers["add"]["answers"]> {
    const entries = requests.map(entry);
    const callId = this.#beginCall(entries);
    try {
      return (await this.#call("add", { transactionId: this.id, requests: entries, callId })).answers;
    } catch (error) {
      this.#failCall(entries, callId, error);
      throw error;
    }
  }

  /** Tells the service that the transaction is alive. */
  async keepAlive(): Promise<void> {
    await this.add([]);
  }

  /**
   * Commits all changes. May be repeated, and should be after an {@link UnavailableError}: the outcome is unknown then.
   *
   * @throws {TransactionRolledBackError} no change was made.
   */
  async commit(): Promise<void> {
    const body = { transactionId: this.id, expectedItems: undefined, expectedWrites: this.#writes };
    const answer = await this.#call("commit", body);
    this.#ended = true;
    this.#overwritten = answer.overwritten;
  }

  /**
   * Rolls all changes back. May be repeated.
   *
   * @throws {TransactionCommittedError} the commit was earlier.
   */
  async rollback(): Promise<void> {
    await send(this.context, "rollback", { transactionId: this.id }, { capacity: this.capacity });
    this.#ended = true;
  }

  /**
   * Leaves the transaction open at the end of `await using`, for another process to continue with its id.
   * Returns the id.
   */
  detach(): string {
    this.#ended = true;
    return this.id;
  }

  /**
   * Rolls back, unless the transaction was committed, rolled back or detached. Never throws: a sweeper ends
   * what cannot be rolled back.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#ended) return;
    try {
      await this.rollback();
    } catch (error) {
      if (!(error instanceof LeaseholdError)) throw error;
    }
  }

  /**
   * The items that a writer past the protocol deleted or replaced while the transaction held them. The commit is of
   * the other items.
   */
  get overwritten(): readonly { tableName: string; key: Item }[] {
    return (this.#overwritten ?? []).map(({ tableName, key }) => ({ tableName, key: itemFromWire(key) }));
  }

  /** The conflict that aborted the transaction, if there was one. @internal */
  get contention(): Contention | undefined {
    return this.#contention;
  }

  /** @internal */
  async begin(retryOf?: string): Promise<void> {
    const body = { transactionId: this.id, retryOf, requests: undefined, commit: undefined };
    await this.#call("begin", body);
  }

  /** Sends a keep-alive after each idle period, until the returned function is called. @internal */
  keep(period: number): () => void {
    let stopped = false;
    let cancel = (): void => undefined;
    const { runtime } = this.context;
    const plan = (): void => {
      if (!stopped) cancel = at(runtime, this.#lastWorked + period, look, true);
    };
    const look = (): void => {
      if (runtime.now() < this.#lastWorked + period) {
        plan();
        return;
      }
      this.keepAlive().then(plan, (error: unknown) => {
        // The next call, or the commit, reports any other failure.
        if (isTransient(error)) plan();
      });
    };
    plan();
    return () => {
      stopped = true;
      cancel();
    };
  }

  /** Commits, and determines the outcome. @internal */
  async settle(): Promise<void> {
    let contention: Contention;
    try {
      await this.commit();
      return;
    } catch (error) {
      if (!isContention(error)) {
        // The outcome is unknown, or an added request is wrong: a rollback decides as soon as it can.
        track(this.context, this[Symbol.asyncDispose]());
        throw error;
      }
      contention = error;
    }
    // An abandoned commit may still arrive. A rollback makes certain that the commit has no effect before
    // anything is tried again.
    try {
      await this.rollback();
    } catch (error) {
      if (error instanceof TransactionCommittedError) return;
      if (!(error instanceof TransactionRolledBackError)) {
        this.#contention = undefined;
        throw error;
      }
    }
    throw contention;
  }

  /** Names a call. The repeat of one that was not carried out as a whole has the name of that one. */
  #beginCall(entries: readonly Entry[]): string | undefined {
    if (entries.length === 0) return undefined;
    const requests = JSON.stringify(entries);
    const index = this.#unsettled.findIndex((call) => call.requests === requests);
    const [earlier] = index < 0 ? [] : this.#unsettled.splice(index, 1);
    if (earlier?.counted !== true) this.#count(entries, 1);
    if (earlier !== undefined) return earlier.name;
    this.#calls += 1;
    return `${this.#handle}-${String(this.#calls)}`;
  }

  /**
   * Keeps the name of a call that may be repeated. Its requests stay counted where nobody knows whether they were
   * carried out: a commit is refused then if they were not.
   */
  #failCall(entries: readonly Entry[], name: string | undefined, error: unknown): void {
    const counted = isTransient(error) || this.signal?.aborted === true;
    if (!counted) this.#count(entries, -1);
    if (name !== undefined && (counted || error instanceof TransactionContendedError)) {
      this.#unsettled.push({ requests: JSON.stringify(entries), name, counted });
    }
  }

  #count(entries: readonly Entry[], sign: 1 | -1): void {
    this.#writes += sign * entries.filter((entry) => !("Get" in entry || "Query" in entry)).length;
  }

  async #one(request: TransactionRequest): Promise<Item | undefined> {
    return (await this.add([request]))[0];
  }

  /** Calls the service, unless its answer is already known. */
  async #call<C extends TransactionCall>(call: C, body: Requests[C]): Promise<Answers[C]> {
    if (this.#contention instanceof TransactionRolledBackError) throw this.#contention;
    const { runtime } = this.context;
    const sent = runtime.now();
    try {
      const answer = await send(this.context, call, body, { signal: this.signal, capacity: this.capacity });
      this.#lastWorked = sent;
      // A transaction that waited in vain, and found another way, is not aborted.
      this.#contention = undefined;
      return answer;
    } catch (error) {
      if (isContention(error)) this.#contention = error;
      // A failed keep-alive counts too, so that keep-alives are not sent without pause.
      else this.#lastWorked = runtime.now();
      throw error;
    }
  }
}

/** The calls for one transaction. */
type TransactionCall = "begin" | "add" | "commit" | "rollback";

/** Sends a call that may have to wait for other transactions. The call may be repeated, and is. */
export async function send<C extends TransactionCall>(
  { runtime, service }: Context,
  call: C,
  body: Requests[C],
  { signal, capacity }: { signal?: AbortSignal | undefined; capacity: CapacityMeter | undefined },
): Promise<Answers[C]> {
  const request: Requests[C] = capacity === undefined ? body : { ...body, returnConsumedCapacity: "TOTAL" };
  // The call is repeated for as long as any other operation, after the first try was given up.
  const until = runtime.now() + TRANSACTION_CALL_MS + OPERATION_BOUND_MS;
  try {
    const answer = await retrying(
      runtime,
      (options) => service.ask(call, request, { ...options, timeout: TRANSACTION_CALL_MS }),
      { until, signal },
    );
    capacity?.add(answer.consumedCapacity);
    return answer;
  } catch (error) {
    if (error instanceof LeaseholdError && body.transactionId != null) error.transactionId = body.transactionId;
    throw error;
  }
}

/** Returns the operation as the wire has it. */
export function entry(request: TransactionRequest): Entry {
  const convert = (members: object): object =>
    Object.fromEntries(
      Object.entries(members)
        .filter(([, value]) => value !== undefined)
        .map(([name, value]: [string, unknown]) => [name, TYPED.has(name) ? itemToWire(value as object) : value]),
    );
  return Object.fromEntries(
    Object.entries(request).map(([operation, members]) => [operation, convert(members as object)]),
  ) as unknown as Entry;
}

const TYPED: ReadonlySet<string> = new Set(["Key", "Item", "ExpressionAttributeValues"]);

function expressions({ condition, values, names, returnValues }: WriteOptions): Omit<Write, "TableName"> {
  return {
    ...(condition !== undefined && { ConditionExpression: condition }),
    ...(values !== undefined && { ExpressionAttributeValues: values }),
    ...(names !== undefined && { ExpressionAttributeNames: names }),
    ...(returnValues !== undefined && { ReturnValues: returnValues }),
  };
}
