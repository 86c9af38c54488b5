/** The boundary between the client and whatever carries its requests. */

import { UnavailableError, UnconnectedError } from "./errors.js";

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

/** Returns the error of a request without an answer. */
export function unanswered(place: string, error: unknown): UnavailableError {
  const { code, cause } = error as { code?: unknown; cause?: { code?: unknown; message?: unknown } };
  const reason = String(code ?? cause?.code);
  const text = `${place}: ${messageOf(error)}`;
  if (!UNCONNECTED.test(reason) && cause?.message !== "bad port")
    return new UnavailableError(`${text}${mayBeTls(place, reason)}`, 0, { cause: error });
  return new UnconnectedError(`${text}; ${adviceFor(reason)}`, 0, { cause: error });
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
