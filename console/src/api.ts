// Requests to the service behind the page.
import { signal } from "@preact/signals";
import type { Problem } from "./wire.js";

const TOKEN = "leasehold-token";
/** Longest time to wait for an answer. */
const TIMEOUT_MS = 15_000;

/** True once the service has refused a request without a valid token. */
export const needsToken = signal(false);

/** A refusal or a failure, in words for people. */
export class ApiError extends Error {
  constructor(
    message: string,
    /** HTTP status; 0 without an answer. */
    readonly status: number,
    readonly problem?: Problem,
    readonly retryAfterMs = 0,
  ) {
    super(message);
  }
}

/**
 * Removes the session token from the address, so that neither the history nor a copied address contains it.
 */
export function takeTokenFromAddress(): void {
  const parameters = new URLSearchParams(location.hash.replace(/^#\/?\??/, ""));
  const token = parameters.get("token");
  if (token) {
    setToken(token);
    history.replaceState(null, "", "#/locks");
  }
}

export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN, token);
  needsToken.value = false;
}

export function get<T>(path: string, parameters: Record<string, string | undefined> = {}): Promise<T> {
  const given = Object.entries(parameters).filter((entry): entry is [string, string] => entry[1] !== undefined);
  const query = new URLSearchParams(given).toString();
  return send<T>(query ? `${path}?${query}` : path, { method: "GET" });
}

export function post<T>(path: string, body: unknown): Promise<T> {
  return send<T>(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } });
}

async function send<T>(path: string, init: RequestInit): Promise<T> {
  const headers = new Headers(init.headers);
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.set("authorization", `Bearer ${token}`);
  let response: Response;
  let text: string;
  try {
    const signal = AbortSignal.timeout(TIMEOUT_MS);
    response = await fetch(path, {
      ...init,
      headers,
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
    text = await response.text();
  } catch (error) {
    const late = error instanceof DOMException && error.name === "TimeoutError";
    throw new ApiError(late ? "The service did not answer in time." : "The service cannot be reached.", 0);
  }
  if (response.ok) return JSON.parse(text) as T;
  if (response.status === 401) needsToken.value = true;
  const problem = asProblem(text);
  const seconds = Number(response.headers.get("retry-after"));
  const retryAfterMs = Number.isFinite(seconds) ? seconds * 1000 : 0;
  throw new ApiError(
    problem?.detail ?? `The service answered ${response.status}.`,
    response.status,
    problem,
    retryAfterMs,
  );
}

function asProblem(text: string): Problem | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && "detail" in value ? (value as Problem) : undefined;
  } catch {
    return undefined;
  }
}
