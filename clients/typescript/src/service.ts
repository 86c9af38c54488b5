/** The calls of the service (docs/openapi.json), typed by its document, and how they are tried again (rule C5). */
import { InvalidRequestError, isTransient, UnavailableError } from "./errors.js";
import { OPERATION_BOUND_MS, requestTimeout, retryPause, SHORTEST_REQUEST_MS } from "./pacing.js";
import type { Runtime } from "./runtime.js";
import { sleepUntil } from "./timers.js";
import type { SendOptions, Transport } from "./transport.js";
import type { components } from "./wire.js";

type Schemas = components["schemas"];
/** One operation on one item, as the wire has it. */
export type Entry = Schemas["Entry"];
/** A request whose absent members may be there as `undefined`: JSON leaves them out. */
type Request<Name extends keyof Schemas> = { [Member in keyof Schemas[Name]]: Schemas[Name][Member] | undefined };

export interface ListQuery {
  limit?: number | undefined;
  cursor?: string | undefined;
  state?: string | undefined;
  ownerName?: string | undefined;
  key?: string | undefined;
}

const LEASE = { recordVersionNumber: "string", leaseDurationMs: "number", fencingToken: "number" } as const;

export class Service {
  constructor(private readonly transport: Transport) {}

  async acquire(request: Request<"AcquireRequest">, options: SendOptions): Promise<Schemas["AcquireResponse"]> {
    return complete<Schemas["AcquireResponse"]>(await this.transport.send("POST", "/v1/acquire", request, options), { ...LEASE, outcome: "string" });
  }

  async heartbeat(request: Request<"HeartbeatRequest">, options: SendOptions): Promise<Schemas["HeartbeatResponse"]> {
    return complete<Schemas["HeartbeatResponse"]>(await this.transport.send("POST", "/v1/heartbeat", request, options), LEASE);
  }

  async release(request: Request<"ReleaseRequest">, options: SendOptions): Promise<Schemas["ReleaseResponse"]> {
    return complete<Schemas["ReleaseResponse"]>(await this.transport.send("POST", "/v1/release", request, options), { outcome: "string" });
  }

  async break(request: Request<"BreakRequest">, options: SendOptions): Promise<Schemas["ReleaseResponse"]> {
    return complete<Schemas["ReleaseResponse"]>(await this.transport.send("POST", "/v1/break", request, options), { outcome: "string" });
  }

  async get(key: string, sortKey: string | undefined, options: SendOptions): Promise<Schemas["Lock"]> {
    const path = `/v1/lock${queryString({ key, sortKey })}`;
    return complete<Schemas["Lock"]>(await this.transport.send("GET", path, undefined, options), { recordVersionNumber: "string" });
  }

  async list(query: ListQuery, options: SendOptions): Promise<Schemas["ListResponse"]> {
    return complete<Schemas["ListResponse"]>(await this.transport.send("GET", `/v1/locks${queryString({ ...query })}`, undefined, options), { locks: "object" });
  }

  async begin(request: Request<"BeginRequest">, options: SendOptions): Promise<Schemas["BeginResponse"]> {
    return complete<Schemas["BeginResponse"]>(await this.transport.send("POST", "/v1/transactions/begin", request, options), { state: "string" });
  }

  async add(request: Request<"AddRequest">, options: SendOptions): Promise<Schemas["AddResponse"]> {
    return complete<Schemas["AddResponse"]>(await this.transport.send("POST", "/v1/transactions/add", request, options), { answers: "object" });
  }

  async commit(request: Request<"EndRequest">, options: SendOptions): Promise<Schemas["EndResponse"]> {
    return complete<Schemas["EndResponse"]>(await this.transport.send("POST", "/v1/transactions/commit", request, options), { state: "string" });
  }

  async rollback(request: Request<"EndRequest">, options: SendOptions): Promise<Schemas["EndResponse"]> {
    return complete<Schemas["EndResponse"]>(await this.transport.send("POST", "/v1/transactions/rollback", request, options), { state: "string" });
  }

  async transaction(id: string, options: SendOptions): Promise<Schemas["Transaction"]> {
    const path = `/v1/transaction${queryString({ id })}`;
    return complete<Schemas["Transaction"]>(await this.transport.send("GET", path, undefined, options), { state: "string", requests: "object" });
  }

  async getItems(request: Partial<Request<"GetItemsRequest">>, options: SendOptions): Promise<Schemas["GetItemsResponse"]> {
    return complete<Schemas["GetItemsResponse"]>(await this.transport.send("POST", "/v1/items/get", request, options), {});
  }

  async listItems(request: Request<"ListItemsRequest">, options: SendOptions): Promise<Schemas["ListItemsResponse"]> {
    return complete<Schemas["ListItemsResponse"]>(await this.transport.send("POST", "/v1/items/list", request, options), { items: "object" });
  }
}

function queryString(query: Readonly<Record<string, string | number | undefined>>): string {
  const pairs = Object.entries(query).map(([name, value]) => {
    try {
      return value === undefined ? [] : [`${name}=${encodeURIComponent(value)}`];
    } catch (error) {
      throw new InvalidRequestError(`The ${name} is not well-formed Unicode.`, name, { cause: error });
    }
  });
  return `?${pairs.flat().join("&")}`;
}

/** Refuses an answer without what is counted on: some proxies answer 200 with whatever they have. */
function complete<T>(answer: unknown, members: { readonly [Member in keyof T]?: "string" | "number" | "object" }): T {
  for (const [member, type] of Object.entries(members)) {
    if (typeof (answer as Partial<Record<string, unknown>>)[member] !== type) {
      throw new UnavailableError("The answer is not one of Leasehold's.");
    }
  }
  return answer as T;
}

export interface RetryOptions {
  /** On the monotonic clock: no request is begun after it. Default: {@link OPERATION_BOUND_MS} from now. */
  until?: number | undefined;
  /** Milliseconds that limit the time-out of each request, as a quarter of it does. */
  lease?: number | undefined;
  /** Ends it at once, with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** The pauses do not keep the process alive. */
  background?: boolean | undefined;
  /** The longest pause at this moment, in milliseconds, whatever the service asks for. Default: as long as it asks for. */
  patience?: (() => number) | undefined;
  /** Which errors are worth another try. */
  retryable?: ((error: unknown) => boolean) | undefined;
}

/** Sends the same request again while there is no useful answer, within the bound. */
export async function retrying<T>(runtime: Runtime, request: (options: SendOptions) => Promise<T>, options: RetryOptions = {}): Promise<T> {
  const { until = runtime.now() + OPERATION_BOUND_MS, lease, signal } = options;
  const { background = false, patience = () => Infinity, retryable = isTransient } = options;
  for (let failures = 1; ; failures += 1) {
    signal?.throwIfAborted();
    const timeout = Math.min(requestTimeout(lease), Math.max(until - runtime.now(), SHORTEST_REQUEST_MS));
    try {
      return await request({ timeout, signal });
    } catch (error) {
      if (signal?.aborted || !retryable(error)) throw error;
      const pause = retryPause(failures, isTransient(error) ? error.retryAfter : 0, runtime.random());
      const next = runtime.now() + Math.min(pause, patience());
      if (next >= until) throw error;
      await sleepUntil(runtime, next, signal, background);
      if (runtime.now() >= until) throw error;
    }
  }
}
