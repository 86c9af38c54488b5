/** The boundary between the client and whatever carries its requests. */

import { InvalidRequestError, UnavailableError, UnconnectedError } from "./errors.js";

/** The operations of the service, by the names that direct invocations use. */
export type Call =
  | "acquire"
  | "acquire-all"
  | "heartbeat"
  | "release"
  | "want"
  | "break"
  | "occurrence"
  | "get"
  | "watch"
  | "semaphore-acquire"
  | "semaphore-enqueue"
  | "semaphore-heartbeat"
  | "semaphore-release"
  | "semaphore-break"
  | "semaphore-capacity"
  | "semaphore-get"
  | "list"
  | "history"
  | "begin"
  | "add"
  | "commit"
  | "rollback"
  | "get-transaction"
  | "get-items"
  | "list-items";

/** The answer to one request. */
export interface Answer {
  /** The HTTP status, even if the request did not travel over HTTP. */
  readonly status: number;
  /** The JSON document; undefined if the answer has none. */
  readonly document: object | undefined;
  /** The shortest pause before the next request, in milliseconds; 0 if the service asks for none. */
  readonly retryAfter: number;
}

/** Conditions of one request. */
export interface ExchangeOptions {
  /** Ends the request: its caller has gone, or its time is over. */
  readonly signal: AbortSignal;
  /** The milliseconds after which the signal comes at the latest. */
  readonly timeout: number;
  /** Headers for the request, such as the trace context. */
  readonly headers: Readonly<Record<string, string>>;
}

/**
 * Carries requests to the service. A transport sends each request once: the client repeats requests itself.
 *
 * `exchange` resolves with whatever the service answered, and rejects with an {@link UnavailableError} if there is no
 * answer.
 */
export interface Transport {
  exchange(call: Call, request: Readonly<Record<string, unknown>>, options: ExchangeOptions): Promise<Answer>;
}

/** Returns the members of a request as JSON, without those that are undefined. */
export function bodyOf(request: Readonly<Record<string, unknown>>): string {
  const members = Object.entries(request).filter(([, value]) => value !== undefined);
  return `{${members.map(([name, value]) => `${JSON.stringify(name)}:${jsonOf(value, name)}`).join(",")}}`;
}

/** Returns the JSON of a value of the caller's. Refuses what JSON lacks, or would change in silence. */
export function jsonOf(value: unknown, field: string): string {
  let refused: string | undefined;
  const check = function (this: Record<string, unknown>, name: string, found: unknown): unknown {
    refused ??= notInJson(found, this[name], Array.isArray(this));
    return typeof found === "bigint" ? null : found;
  };
  try {
    const text = JSON.stringify(value, check);
    if (refused === undefined) return text;
  } catch (error) {
    const reason = error instanceof TypeError ? "it contains itself" : messageOf(error);
    throw new InvalidRequestError(`The ${field} is not JSON: ${reason}.`, field, { cause: error });
  }
  throw new InvalidRequestError(`The ${field} is not JSON: it has ${refused}.`, field);
}

/** Says what JSON would leave out, or write as null or {}. `found` is what an object's `toJSON` made of it. */
function notInJson(found: unknown, original: unknown, inList: boolean): string | undefined {
  if (typeof found === "number" && !Number.isFinite(found)) return `the number ${found}`;
  if (typeof found === "bigint") return `the BigInt ${found}`;
  if (typeof found === "function" || typeof found === "symbol") return `a ${typeof found}`;
  if (found === undefined && inList) return "undefined in a list";
  if (found instanceof Map || found instanceof Set) return `a ${found.constructor.name}`;
  if (typeof found === "string" && /\p{Surrogate}/u.test(found)) return "a text that is not Unicode";
  return original instanceof Date && found === null ? "an invalid Date" : undefined;
}

/** Returns the JSON object in `text`; undefined if there is none. */
export function parseDocument(text: string): object | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

/** The codes of failures before a request is sent: of names, connections and handshakes. */
const UNCONNECTED =
  /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT|ERR_SSL_WRONG_VERSION_NUMBER|ERR_TLS_\w+|\w*CERT\w*|UNABLE_TO_\w+)$/;

/**
 * Returns the error of a request without an answer. It has advice for an address that may be wrong, unless an answer came
 * from there before (`answered`).
 */
export function unanswered(place: string, error: unknown, answered = false): UnavailableError {
  const { code, cause } = error as { code?: unknown; cause?: { code?: unknown; message?: unknown } };
  const reason = String(code ?? cause?.code);
  const text = `${place}: ${messageOf(error)}`;
  if (!UNCONNECTED.test(reason) && cause?.message !== "bad port")
    return new UnavailableError(`${text}${answered ? "" : mayBeTls(place, reason)}`, 0, { cause: error });
  return new UnconnectedError(`${text}${answered ? "" : `; ${adviceFor(reason)}`}`, 0, { cause: error });
}

/** Says what to do about a connection that could not be made. */
function adviceFor(reason: string): string {
  const advice = "check the address, and that the service runs.";
  if (/^(ENOTFOUND|EAI_AGAIN)$/.test(reason)) return `there is no such host: ${advice}`;
  if (reason === "ERR_SSL_WRONG_VERSION_NUMBER")
    return `the port seems to speak no TLS, which needs http:// in the url: ${advice}`;
  if (/CERT|UNABLE_TO_/.test(reason))
    return `a private authority is named by tls: { ca }, or NODE_EXTRA_CA_CERTS=ca.pem: ${advice}`;
  return advice;
}

/** A port that speaks TLS closes a connection that does not. */
function mayBeTls(place: string, reason: string): string {
  const isClosed = /^(UND_ERR_SOCKET|ECONNRESET|HPE_\w+|EPROTO)$/.test(reason);
  return isClosed && place.startsWith("http:") ? "; a port that speaks TLS needs https:// in the url." : "";
}

/** Returns the message of an error with that of its cause. */
export function messageOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  // The message of fetch's own error is "fetch failed"; its cause has the reason.
  const { message, code } = (error.cause ?? {}) as { message?: string; code?: string };
  // That of OpenSSL ends its line.
  return [error.message, message, code].filter(Boolean).join(": ").replace(/\s+/g, " ");
}
