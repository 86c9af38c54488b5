/** The calls of the service (docs/openapi.json), typed by its document, and their retries (rule C5). */
import { Call, type Event, type Memory, type Step } from "./call.js";
import {
  isTransient,
  isUnanswered,
  isUnreached,
  LeaseholdError,
  LockLostError,
  SupersededError,
  UnavailableError,
  UnconnectedError,
} from "./errors.js";
import type { Numbered } from "./numbers.js";
import { LONGEST_REQUEST_MS, OPERATION_BOUND_MS } from "./pacing.js";
import { refusal } from "./problem.js";
import { drawsOf, type Runtime } from "./runtime.js";
import { silent, type Telemetry } from "./telemetry.js";
import { abortable, at, LinkedController, sleepUntil } from "./timers.js";
import type { Call as Operation, Transport } from "./transport.js";
import type { components } from "./wire.js";

type Schemas = components["schemas"];
/** One operation on one item, as the wire has it. */
export type Entry = Schemas["Entry"];
/** A request whose absent members may be there as `undefined`: JSON leaves them out. */
type Request<Name extends keyof Schemas> = { [Member in keyof Schemas[Name]]: Schemas[Name][Member] | undefined };

/** Bounds of one request. */
export interface SendOptions {
  /** Milliseconds until the request counts as unanswered. */
  timeout: number;
  /** Ends the request at once. */
  signal?: AbortSignal | undefined;
}

/** The request of each call. */
export interface Requests {
  acquire: Numbered<Request<"AcquireRequest">>;
  "acquire-all": Numbered<Request<"AcquireAllRequest">>;
  heartbeat: Numbered<Request<"HeartbeatRequest">>;
  release: Request<"ReleaseRequest">;
  want: Request<"WantRequest">;
  break: Request<"BreakRequest">;
  occurrence: Request<"OccurrenceRequest">;
  get: { key: string; sortKey: string | undefined };
  watch: { key: string; sortKey: string | undefined; version: string; waitMs: number };
  "semaphore-acquire": Numbered<Request<"AcquirePermitsRequest">>;
  "semaphore-enqueue": Numbered<Request<"EnqueueRequest">>;
  "semaphore-heartbeat": Numbered<Request<"HeartbeatPermitsRequest">>;
  "semaphore-release": Request<"ReleasePermitsRequest">;
  "semaphore-break": Request<"BreakEntryRequest">;
  "semaphore-capacity": Request<"CapacityRequest">;
  "semaphore-get": { key: string; sortKey: string | undefined };
  list: {
    limit?: number | undefined;
    cursor?: string | undefined;
    state?: string | undefined;
    ownerName?: string | undefined;
    key?: string | undefined;
  };
  history: {
    key: string;
    sortKey?: string | undefined;
    sinceMs?: number | undefined;
    untilMs?: number | undefined;
    limit?: number | undefined;
    cursor?: string | undefined;
  };
  begin: Request<"BeginRequest">;
  add: Request<"AddRequest">;
  commit: Request<"CommitRequest">;
  rollback: Request<"EndRequest">;
  "get-transaction": { id: string };
  "get-items": Partial<Request<"GetItemsRequest">>;
  "list-items": Request<"ListItemsRequest">;
}

/** The answer of each call. */
export interface Answers {
  acquire: Schemas["AcquireResponse"];
  "acquire-all": Schemas["AcquireAllResponse"];
  heartbeat: Schemas["HeartbeatResponse"];
  release: Schemas["ReleaseResponse"];
  want: Schemas["WantResponse"];
  break: Schemas["ReleaseResponse"];
  occurrence: Schemas["OccurrenceResponse"];
  get: Schemas["Lock"];
  watch: Schemas["Lock"];
  "semaphore-acquire": Schemas["AcquirePermitsResponse"];
  "semaphore-enqueue": Schemas["EnqueueAnswer"];
  "semaphore-heartbeat": Schemas["HeartbeatPermitsResponse"];
  "semaphore-release": Schemas["ReleaseResponse"];
  "semaphore-break": Schemas["ReleaseResponse"];
  "semaphore-capacity": Schemas["CapacityResponse"];
  "semaphore-get": Schemas["Lock"];
  list: Schemas["ListResponse"];
  history: Schemas["HistoryResponse"];
  begin: Schemas["BeginResponse"];
  add: Schemas["AddResponse"];
  commit: Schemas["CommitResponse"];
  rollback: Schemas["EndResponse"];
  "get-transaction": Schemas["Transaction"];
  "get-items": Schemas["GetItemsResponse"];
  "list-items": Schemas["ListItemsResponse"];
}

const LEASE = { recordVersionNumber: "string", leaseDurationMs: "number", fencingToken: "number" } as const;

const PERMITS = {
  version: "string",
  leaseDurationMs: "number",
  fencingToken: "number",
  permits: "number",
  holderId: "string",
} as const;

/** Members of each answer that the client relies on. */
const MEMBERS: {
  readonly [C in Operation]: { readonly [Member in keyof Answers[C]]?: "string" | "number" | "object" };
} = {
  acquire: { ...LEASE, outcome: "string" },
  "acquire-all": { leaseDurationMs: "number", fencingToken: "number", locks: "object" },
  heartbeat: LEASE,
  release: { outcome: "string" },
  want: { outcome: "string" },
  break: { outcome: "string" },
  occurrence: { recordVersionNumber: "string" },
  get: { recordVersionNumber: "string" },
  watch: { recordVersionNumber: "string", state: "string" },
  "semaphore-acquire": { ...PERMITS, outcome: "string", capacity: "number" },
  "semaphore-enqueue": {},
  "semaphore-heartbeat": PERMITS,
  "semaphore-release": { outcome: "string" },
  "semaphore-break": { outcome: "string" },
  "semaphore-capacity": { capacity: "number", available: "number" },
  "semaphore-get": { recordVersionNumber: "string" },
  list: { locks: "object" },
  history: { entries: "object" },
  begin: { state: "string" },
  add: { answers: "object" },
  commit: { state: "string" },
  rollback: { state: "string" },
  "get-transaction": { state: "string", requests: "object" },
  "get-items": {},
  "list-items": { items: "object" },
};

/** Errors of requests without an answer. */
const unanswered = new WeakSet();

export class Service {
  /** The knowledge that the calls of one client share. */
  readonly memory: Memory = { answered: false };

  constructor(
    private readonly transport: Transport,
    private readonly runtime: Runtime,
    private readonly telemetry: Telemetry = silent,
  ) {}

  /** Sends one request. Rejects with a {@link LeaseholdError}, or with the signal's reason. */
  async ask<C extends Operation>(call: C, request: Requests[C], options: SendOptions): Promise<Answers[C]> {
    const key = "key" in request ? (request.key as string) : undefined;
    return this.telemetry.trace(call, key, (headers) => this.#exchange(call, request, headers, options));
  }

  async #exchange<C extends Operation>(
    call: C,
    request: Requests[C],
    headers: Readonly<Record<string, string>>,
    { timeout, signal }: SendOptions,
  ): Promise<Answers[C]> {
    const controller = new LinkedController(signal);
    const cancel = at(this.runtime, this.runtime.now() + timeout, () => {
      controller.abort(new UnavailableError(`The service has not answered within ${Math.round(timeout)} ms.`));
    });
    try {
      // A transport of the caller's need not heed the signal.
      const conditions = { signal: controller.signal, headers, timeout };
      const exchange = this.transport.exchange(call, { ...request }, conditions);
      const answer = await abortable(exchange, controller.signal).catch((error: unknown) => {
        if (typeof error === "object" && error !== null) unanswered.add(error);
        throw error;
      });
      this.memory.answered = true;
      if (answer.status !== 200) throw refusal(answer, "key" in request ? (request.key as string) : "");
      return complete(call, answer.document);
    } catch (error) {
      if (error instanceof UnconnectedError) error.neverAnswered = !this.memory.answered;
      throw error;
    } finally {
      cancel();
      controller.unlink();
    }
  }
}

/** Refuses an answer that lacks a member: some proxies answer 200 with a document of their own. */
function complete<C extends Operation>(call: C, document: object | undefined): Answers[C] {
  const has = (member: string, type: unknown): boolean =>
    typeof (document as Partial<Record<string, unknown>>)[member] === type;
  const isComplete =
    document !== undefined && Object.entries(MEMBERS[call]).every(([member, type]) => has(member, type));
  if (!isComplete) throw new UnavailableError("The answer is not one of Leasehold's.");
  return document as Answers[C];
}

export interface RetryOptions {
  /** On the monotonic clock: no request is begun after it. Default: {@link OPERATION_BOUND_MS} from now. */
  until?: number | undefined;
  /** A lease, in milliseconds, that bounds the time-out of each request. */
  lease?: number | undefined;
  /** Ends the retries at once, with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** If true, the pauses do not keep the process alive. */
  background?: boolean | undefined;
}

/** Sends requests until one has a useful answer, within the bound: a driver of {@link Call}. */
export async function retrying<T>(
  runtime: Runtime,
  request: (options: SendOptions) => Promise<T>,
  { until, lease, signal, background }: RetryOptions = {},
): Promise<T> {
  const bound = until === undefined ? OPERATION_BOUND_MS : Math.max(0, Math.floor(until - runtime.now()));
  const call = new Call<undefined>({ lease, longest: LONGEST_REQUEST_MS, bound });
  const memory: Memory = { answered: false };
  let event: Event<undefined> = { type: "start", request: undefined, timeout: 0 };
  let result: T | undefined;
  let failure: unknown;
  for (;;) {
    signal?.throwIfAborted();
    const step: Step<undefined> = call.step(memory, event, Math.floor(runtime.now()), drawsOf(runtime));
    const action = step.actions.at(-1);
    if (action?.type === "send") {
      try {
        result = await request({ timeout: action.timeout, signal });
        event = { type: "answer", send: action.send, reply: { type: "done", lease: undefined, found: true } };
      } catch (error) {
        signal?.throwIfAborted();
        failure = error;
        event = endOf(action.send, error);
        // An error knows whether the service had answered by then.
        memory.answered ||= !isUnreached(error);
      }
    } else if (action?.type === "wake-at") {
      await sleepUntil(runtime, action.time, signal, background);
      event = { type: "tick" };
    } else if (action?.type === "finish" && action.outcome === "answered") {
      return result as T;
    } else {
      throw failure;
    }
  }
}

/** Returns the end of a send that failed with this error. */
export function endOf(send: number, error: unknown): Event<never> {
  if (error instanceof LockLostError) return { type: "answer", send, reply: { type: "lost" } };
  if (error instanceof SupersededError)
    return { type: "answer", send, reply: { type: "superseded", sequence: error.sequence } };
  if (error instanceof UnconnectedError) return { type: "unanswered", send, cause: "unreached" };
  if (!(error instanceof LeaseholdError)) return { type: "unanswered", send, cause: "cut-off" };
  if (!isTransient(error)) return { type: "answer", send, reply: { type: "refused" } };
  if (unanswered.has(error)) return { type: "unanswered", send, cause: "cut-off" };
  const { retryAfter } = error;
  return { type: "answer", send, reply: { type: "retryable", retryAfter, mayApply: isUnanswered(error) } };
}
