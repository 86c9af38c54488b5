/** One HTTP exchange: a request with a time-out, and an answer or an error that says what to do. */
import { answerFromWire } from "./dynamodb.js";
import {
  ConditionFailedError,
  CorruptRecordError,
  ForbiddenError,
  InvalidRequestError,
  type LeaseholdError,
  LockHeldError,
  LockLostError,
  LockNotFoundError,
  ThrottledError,
  TransactionCommittedError,
  TransactionContendedError,
  TransactionNotFoundError,
  TransactionRolledBackError,
  UnavailableError,
  VersionMismatchError,
} from "./errors.js";
import { lockFromWire } from "./lock.js";
import type { Runtime } from "./runtime.js";
import { abortable, at, LinkedController } from "./timers.js";
import type { components } from "./wire.js";

/** What the client asks of `fetch`. The global one has all of it, and so have signing and instrumented ones. */
export type Fetch = (
  url: string,
  init: { method: string; headers: Record<string, string>; body?: string; redirect: "manual"; signal: AbortSignal },
) => Promise<{ readonly status: number; readonly headers: { get(name: string): string | null }; text(): Promise<string> }>;

/** A bearer token, or what makes one: called for each request. */
export type Token = string | (() => string | Promise<string>);

export interface SendOptions {
  /** Milliseconds until the request counts as unanswered. */
  timeout: number;
  /** Ends the request at once. */
  signal?: AbortSignal | undefined;
}

type Problem = components["schemas"]["Problem"];

export class Transport {
  readonly #base: string;

  constructor(
    url: string | URL,
    private readonly token: Token | undefined,
    private readonly fetch: Fetch | undefined,
    private readonly runtime: Runtime,
  ) {
    this.#base = baseUrl(url);
  }

  /** The answer's JSON document. Rejects with a {@link LeaseholdError}, or with the signal's reason. */
  async send(method: "GET" | "POST", path: string, body: unknown, { timeout, signal }: SendOptions): Promise<unknown> {
    const controller = new LinkedController(signal);
    const cancel = at(this.runtime, this.runtime.now() + timeout, () => {
      controller.abort(new UnavailableError(`The service has not answered within ${Math.round(timeout)} ms.`));
    });
    try {
      // A fetch of the caller's need not heed the signal.
      return await abortable(this.#exchange(method, path, body, controller.signal), controller.signal);
    } finally {
      cancel();
      controller.unlink();
    }
  }

  async #exchange(method: string, path: string, body: unknown, signal: AbortSignal): Promise<unknown> {
    const headers: Record<string, string> = { accept: "application/json, application/problem+json" };
    if (body !== undefined) headers["content-type"] = "application/json";
    if (this.token !== undefined) headers["authorization"] = `Bearer ${await this.#bearer(this.token)}`;
    let status: number;
    let retryAfter: string | null;
    let text: string;
    try {
      signal.throwIfAborted();
      const send: Fetch = this.fetch ?? globalThis.fetch;
      const response = await send(this.#base + path, {
        method,
        headers,
        ...(body !== undefined && { body: JSON.stringify(body) }),
        // A redirect is a wrong address; following it would hand the token on, and turn a POST into a GET.
        redirect: "manual",
        signal,
      });
      status = response.status;
      retryAfter = response.headers.get("retry-after");
      text = await response.text();
    } catch (error) {
      throw new UnavailableError(`The service cannot be reached: ${messageOf(error)}`, 0, { cause: error });
    }
    const answer = parse(text);
    if (status !== 200) throw refusal(status, answer, retryAfterMs(retryAfter, this.runtime));
    if (answer === undefined) throw new UnavailableError("The answer is not one of Leasehold's.");
    return answer;
  }

  async #bearer(token: Token): Promise<string> {
    if (typeof token === "string") return token;
    try {
      return await token();
    } catch (error) {
      throw new UnavailableError(`There is no token: ${messageOf(error)}`, 0, { cause: error });
    }
  }
}

function baseUrl(url: string | URL): string {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch (error) {
    throw new InvalidRequestError("The url is none.", "url", { cause: error });
  }
  const { protocol, username, password, search, hash } = parsed;
  if (!["http:", "https:"].includes(protocol)) throw new InvalidRequestError("The url is neither http nor https.", "url");
  if (username || password || search || hash) {
    throw new InvalidRequestError("The url must have no credentials, no query and no fragment.", "url");
  }
  return parsed.href.replace(/\/+$/, "");
}

/** The JSON object in `text`; undefined where there is none. */
function parse(text: string): object | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  // The message of fetch's own error is "fetch failed"; what failed is its cause.
  const { message, code } = (error.cause ?? {}) as { message?: string; code?: string };
  return [error.message, message, code].filter(Boolean).join(": ");
}

/** Seconds, or a date as intermediaries may send it, in milliseconds from now. */
function retryAfterMs(header: string | null, runtime: Runtime): number {
  if (header === null) return 0;
  const milliseconds = /^\d+$/.test(header.trim()) ? Number(header) * 1000 : Date.parse(header) - runtime.epoch();
  return milliseconds > 0 ? milliseconds : 0;
}

/** The error for an answer that is not a 200. What is no problem document of Leasehold's is judged by its status. */
function refusal(status: number, answer: object | undefined, retryAfter: number): LeaseholdError {
  const problem: Partial<Problem> = answer ?? {};
  const detail = typeof problem.detail === "string" ? problem.detail : `The answer is HTTP ${status}.`;
  const lock = problem.lock ? lockFromWire(problem.lock) : undefined;
  switch (problem.type) {
    case "held":
      return lock ? new LockHeldError(detail, lock, retryAfter) : new UnavailableError("The answer is incomplete.");
    case "lost":
      return new LockLostError(detail, problem.reason ?? "absent", lock);
    case "not-found":
      return new LockNotFoundError(detail);
    case "version-mismatch":
      return new VersionMismatchError(detail, lock);
    case "forbidden":
      return new ForbiddenError(detail);
    case "throttled":
      return new ThrottledError(detail, retryAfter);
    case "unavailable":
      return new UnavailableError(detail, retryAfter);
    case "corrupt-record":
      return new CorruptRecordError(detail);
    case "invalid-request":
    case "too-large":
    case "unsupported-media-type":
    case "method-not-allowed":
    case "unknown-route":
      return new InvalidRequestError(detail, problem.field ?? undefined);
    case "contended":
      return new TransactionContendedError(detail, problem.transactionId ?? undefined, retryAfter);
    case "rolled-back":
      return new TransactionRolledBackError(detail, retryAfter);
    case "committed":
      return new TransactionCommittedError(detail);
    case "condition-failed":
      return new ConditionFailedError(detail, problem.request ?? undefined, answerFromWire(problem));
    case "transaction-not-found":
      return new TransactionNotFoundError(detail);
    case undefined:
      break;
    default:
      // A kind that a later version of the service knows: the type says that this cannot be, the network does not.
      problem.type satisfies never;
  }
  if (status === 401 || status === 403) return new ForbiddenError(detail);
  if (status === 429) return new ThrottledError(detail, retryAfter);
  // 408: the server gave up waiting for the request. Below 300: some proxy's own idea of success.
  if (status >= 500 || status === 408 || status < 300) return new UnavailableError(detail, retryAfter);
  return new InvalidRequestError(detail);
}
