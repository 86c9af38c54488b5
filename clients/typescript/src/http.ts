/** Requests over HTTP. */
import { InvalidRequestError, UnavailableError } from "./errors.js";
import { retryAfterMs } from "./pacing.js";
import { Room } from "./room.js";
import { loopbackDispatcher } from "./runtime.js";
import {
  type Answer,
  bodyOf,
  type Call,
  type ExchangeOptions,
  messageOf,
  parseDocument,
  type Transport,
  unanswered,
} from "./transport.js";

/**
 * The part of `fetch` that the client uses. The global function has all of it, and so have signing and
 * instrumented ones.
 */
export type Fetch = (
  url: string,
  init: {
    method: string;
    headers: Record<string, string>;
    body?: string;
    redirect: "manual";
    signal: AbortSignal;
  },
) => Promise<{
  readonly status: number;
  readonly headers: { get(name: string): string | null };
  text(): Promise<string>;
}>;

/** A bearer token, or a function that returns one. The function is called for each request. */
export type Token = string | (() => string | Promise<string>);

/** Method and path of each operation. A GET carries its request in the query. */
export const ROUTES: Readonly<Record<Call, readonly ["GET" | "POST", string]>> = {
  acquire: ["POST", "/v1/acquire"],
  "acquire-all": ["POST", "/v1/acquire-all"],
  heartbeat: ["POST", "/v1/heartbeat"],
  release: ["POST", "/v1/release"],
  want: ["POST", "/v1/want"],
  break: ["POST", "/v1/break"],
  occurrence: ["POST", "/v1/occurrence"],
  get: ["GET", "/v1/lock"],
  watch: ["GET", "/v1/watch"],
  "semaphore-acquire": ["POST", "/v1/semaphore/acquire"],
  "semaphore-enqueue": ["POST", "/v1/semaphore/enqueue"],
  "semaphore-heartbeat": ["POST", "/v1/semaphore/heartbeat"],
  "semaphore-release": ["POST", "/v1/semaphore/release"],
  "semaphore-break": ["POST", "/v1/semaphore/break"],
  "semaphore-capacity": ["POST", "/v1/semaphore/capacity"],
  "semaphore-get": ["GET", "/v1/semaphore"],
  list: ["GET", "/v1/locks"],
  history: ["GET", "/v1/history"],
  begin: ["POST", "/v1/transactions/begin"],
  add: ["POST", "/v1/transactions/add"],
  commit: ["POST", "/v1/transactions/commit"],
  rollback: ["POST", "/v1/transactions/rollback"],
  "get-transaction": ["GET", "/v1/transaction"],
  "get-items": ["POST", "/v1/items/get"],
  "list-items": ["POST", "/v1/items/list"],
};

/** Calls that the service may keep waiting: for a change, or for other transactions. */
const LONG: ReadonlySet<Call> = new Set<Call>(["watch", "begin", "add", "commit", "rollback"]);

/**
 * The other requests that may be under way at once. A thousand heartbeats at the same time need no more connections,
 * and a thousand connections would only keep each other waiting.
 */
const MOST_AT_ONCE = 64;

export class HttpTransport implements Transport {
  readonly #room = new Room(MOST_AT_ONCE);
  /** The URL of the service. */
  readonly url: string;
  readonly #send: Fetch;
  /** Whether an answer came from there, whoever's. */
  #answered = false;

  constructor(
    url: string | URL,
    private readonly token: Token | undefined,
    fetch: Fetch | undefined,
  ) {
    const base = baseUrl(url);
    this.url = base.href.replace(/\/+$/, "");
    this.#send = fetch ?? (isLoopback(base.hostname) ? directFetch : (target, init) => globalThis.fetch(target, init));
  }

  async exchange(
    call: Call,
    request: Readonly<Record<string, unknown>>,
    { signal, headers: given }: ExchangeOptions,
  ): Promise<Answer> {
    const [method, path] = ROUTES[call];
    const headers: Record<string, string> = { ...given, accept: "application/json, application/problem+json" };
    if (method === "POST") headers["content-type"] = "application/json";
    if (this.token !== undefined) headers["authorization"] = `Bearer ${await bearer(this.token)}`;
    const url = this.url + path + (method === "GET" ? queryString(request) : "");
    const body = method === "POST" ? bodyOf(request) : undefined;
    const isLong = LONG.has(call);
    try {
      if (!isLong) await this.#room.enter(signal);
    } catch (error) {
      throw unanswered(`${this.url} cannot be reached`, error, this.#answered);
    }
    try {
      signal.throwIfAborted();
      const response = await this.#send(url, {
        method,
        headers,
        ...(body !== undefined && { body }),
        // A redirect means a wrong address. Following it would pass the token on, and turn a POST into a GET.
        redirect: "manual",
        signal,
      });
      this.#answered = true;
      const retryAfter = retryAfterMs(response.headers.get("retry-after"));
      return { status: response.status, document: parseDocument(await response.text()), retryAfter };
    } catch (error) {
      if (error instanceof InvalidRequestError) throw error;
      throw unanswered(`${this.url} cannot be reached`, error, this.#answered);
    } finally {
      if (!isLong) this.#room.leave();
    }
  }
}

/** The token, which no error message repeats. */
async function bearer(token: Token): Promise<string> {
  const text = typeof token === "string" ? token : await renewed(token);
  if (typeof text !== "string" || text === "") throw new InvalidRequestError("The token is empty.", "token");
  if (!/^[\x20-\x7e]*$/.test(text)) {
    throw new InvalidRequestError(
      "The token is not one line of printable ASCII: trim() what was read from a file.",
      "token",
    );
  }
  return text;
}

async function renewed(token: Exclude<Token, string>): Promise<string> {
  if (typeof token !== "function")
    throw new InvalidRequestError("The token must be a string, or a function that returns one.", "token");
  try {
    return await token();
  } catch (error) {
    throw new UnavailableError(`The token function failed: ${messageOf(error)}`, 0, { cause: error });
  }
}

function baseUrl(url: string | URL): URL {
  let parsed: URL;
  try {
    parsed = new URL(url);
  } catch (error) {
    throw new InvalidRequestError("The url must be absolute, such as https://locks.example.com/prod.", "url", {
      cause: error,
    });
  }
  const { protocol, username, password, search, hash } = parsed;
  if (!["http:", "https:"].includes(protocol))
    throw new InvalidRequestError("The url must begin with http:// or https://.", "url");
  if (username || password || search || hash) {
    throw new InvalidRequestError("The url must have no credentials, no query and no fragment.", "url");
  }
  return parsed;
}

function queryString(query: Readonly<Record<string, unknown>>): string {
  const pairs = Object.entries(query).map(([name, value]) => {
    if (/^(key|sortKey)$/.test(name) && value !== undefined && typeof value !== "string")
      throw new InvalidRequestError(`${name} must be a string.`, name);
    try {
      return value === undefined ? [] : [`${name}=${encodeURIComponent(value as string | number)}`];
    } catch (error) {
      throw new InvalidRequestError(`The ${name} is not well-formed Unicode.`, name, { cause: error });
    }
  });
  return `?${pairs.flat().join("&")}`;
}

function isLoopback(hostname: string): boolean {
  return (
    hostname === "localhost" ||
    hostname.endsWith(".localhost") ||
    hostname === "[::1]" ||
    /^127(\.\d+){3}$/.test(hostname)
  );
}

/** The global `fetch`, without the environment's proxy, which cannot reach this machine's loopback. */
const directFetch: Fetch = (url, init) => {
  const dispatcher = loopbackDispatcher();
  return globalThis.fetch(url, { ...init, ...(dispatcher !== undefined && { dispatcher }) } as RequestInit);
};
