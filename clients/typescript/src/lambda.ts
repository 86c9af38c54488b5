/**
 * Requests by direct invocation, without a gateway: `new Client({ transport: lambda("leasehold-invoke") })`.
 *
 * Needs `@aws-sdk/client-lambda`, and the permission `lambda:InvokeFunction`.
 */
import { InvokeCommand, LambdaClient } from "@aws-sdk/client-lambda";
import { ForbiddenError, InvalidRequestError } from "./errors.js";
import { ROUTES } from "./http.js";
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

/** Options of {@link lambda}. */
export interface LambdaOptions {
  /** Name or ARN of the function for transactions and items. Without it such calls are refused. */
  transactFunction?: string | undefined;
  /**
   * The client to invoke with. Its `maxAttempts` must be 1: Leasehold repeats requests itself. Default: a client for
   * this environment.
   */
  client?: LambdaClient | undefined;
}

/** Calls that only the HTTP API has. */
const HTTP_CALLS: ReadonlySet<Call> = new Set(["list", "watch"]);
/** The limit for baggage in a client context, whose size is bounded. */
const TRACE_HEADERS: ReadonlySet<string> = new Set(["traceparent", "tracestate"]);

/** Returns a transport that invokes the function for locks and semaphores, by its name or ARN. Listings and watches need the HTTP API. */
export function lambda(lockFunction: string, { transactFunction, client }: LambdaOptions = {}): Transport {
  const invoker = client ?? new LambdaClient({ maxAttempts: 1 });
  const functionFor = (call: Call): string => {
    if (HTTP_CALLS.has(call))
      throw new InvalidRequestError(
        `There is no direct invocation of ${call}: use the url of the HTTP API.`,
        "transport",
      );
    const [, path] = ROUTES[call];
    if (!/^\/v1\/(transactions?|items)(\/|$)/.test(path)) return lockFunction;
    if (transactFunction === undefined)
      throw new InvalidRequestError("Transactions need the option transactFunction.", "transactFunction");
    return transactFunction;
  };
  return {
    async exchange(call, request, { signal, headers }: ExchangeOptions): Promise<Answer> {
      const custom = Object.fromEntries(Object.entries(headers).filter(([name]) => TRACE_HEADERS.has(name)));
      const command = new InvokeCommand({
        FunctionName: functionFor(call),
        Payload: new TextEncoder().encode(bodyOf({ action: call, ...request })),
        ...(Object.keys(custom).length > 0 && { ClientContext: btoa(JSON.stringify({ custom })) }),
      });
      try {
        const { FunctionError, Payload } = await invoker.send(command, { abortSignal: signal });
        const document = parseDocument(new TextDecoder().decode(Payload));
        return FunctionError === undefined ? { status: 200, document, retryAfter: 0 } : refusalOf(document);
      } catch (error) {
        const status = (error as { $metadata?: { httpStatusCode?: number } }).$metadata?.httpStatusCode;
        const text = `The function ${command.input.FunctionName ?? ""} cannot be invoked`;
        if (status !== undefined && status >= 400)
          return {
            status,
            document: { status, detail: `${text}: ${messageOf(error)} (HTTP ${status}).` },
            retryAfter: 0,
          };
        if ((error as Error).name === "CredentialsProviderError")
          throw new ForbiddenError(`${text}: ${messageOf(error)}.`, { cause: error });
        if (messageOf(error) === "Region is missing")
          throw new InvalidRequestError(`${text}: no region is configured.`, "client", { cause: error });
        throw unanswered(text, error);
      }
    },
  };
}

/**
 * Returns the error of a function. The message of a refusal is its problem document; a crash or a time-out
 * has none.
 */
function refusalOf(failure: { errorType?: unknown; errorMessage?: unknown } | undefined): Answer {
  const message = String(failure?.errorMessage);
  const document = parseDocument(message) as { status?: unknown } | undefined;
  if (typeof document?.status === "number") return { status: document.status, document, retryAfter: 0 };
  return { status: 502, document: { status: 502, detail: `The function failed: ${message}` }, retryAfter: 0 };
}
