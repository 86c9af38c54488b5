/**
 * The endpoints of one service, of which one is current. Where it gives no answer of the service's, the next one is asked
 * (C11 of docs/client.md).
 */
import { InvalidRequestError, UnavailableError, UnconnectedError } from "./errors.js";
import { endpointTimeout } from "./pacing.js";
import { refusal } from "./problem.js";
import type { Runtime } from "./runtime.js";
import { abortable, at, LinkedController } from "./timers.js";
import type { Answer, Call, ExchangeOptions, Transport } from "./transport.js";

/** The transport to one endpoint, with its URL. */
interface Endpoint extends Transport {
  readonly url: string;
}

/** Returns the URLs in an option, or in a text that has them with commas between them. */
export function urlsOf(url: string | URL | readonly (string | URL)[]): readonly (string | URL)[] {
  if (url instanceof URL) return [url];
  if (Array.isArray(url)) return url as readonly (string | URL)[];
  if (typeof url !== "string")
    throw new InvalidRequestError("The url must be a string or a URL, or a list of these.", "url");
  if (!url.includes(",")) return [url];
  return url
    .split(",")
    .map((part) => part.trim())
    .filter((part) => part !== "");
}

/**
 * The transport to several endpoints.
 *
 * A request that certainly was not sent goes to the next endpoint at once. One that may have been carried out is left to
 * the caller, whose next try, under the same lease id and number, goes to the next endpoint.
 */
export class Endpoints implements Transport {
  #current = 0;
  /** What was wrong with each endpoint since the last answer. */
  readonly #failures = new Map<number, string>();

  constructor(
    private readonly endpoints: readonly Endpoint[],
    private readonly runtime: Runtime,
  ) {}

  async exchange(call: Call, request: Readonly<Record<string, unknown>>, options: ExchangeOptions): Promise<Answer> {
    const first = this.#current;
    let failure = new UnconnectedError("There is no endpoint.", 0);
    const all = [...this.endpoints.entries()];
    for (const [index, endpoint] of [...all.slice(first), ...all.slice(0, first)]) {
      try {
        const answer = await this.#ask(endpoint, call, request, options);
        const trouble = troubleOf(endpoint, answer);
        if (trouble === undefined) this.#failures.clear();
        else this.#leave(index, trouble);
        return answer;
      } catch (error) {
        if (!(error instanceof UnavailableError) || options.signal.aborted) throw error;
        this.#leave(index, error.message);
        const told = [...this.#failures].sort(([a], [b]) => a - b).map(([, reason]) => reason);
        const { cause } = error;
        if (!(error instanceof UnconnectedError)) throw new UnavailableError(told.join(" "), 0, { cause });
        failure = new UnconnectedError(told.join(" "), 0, { cause });
      }
    }
    throw failure;
  }

  async #ask(
    endpoint: Endpoint,
    call: Call,
    request: Readonly<Record<string, unknown>>,
    { signal, headers, timeout }: ExchangeOptions,
  ): Promise<Answer> {
    const share = endpointTimeout(timeout, this.endpoints.length);
    const controller = new LinkedController(signal);
    const late = new UnavailableError(`${endpoint.url} has not answered within ${Math.round(share)} ms.`);
    const cancel = at(this.runtime, this.runtime.now() + share, () => {
      controller.abort(late);
    });
    try {
      const exchange = endpoint.exchange(call, request, { signal: controller.signal, headers, timeout: share });
      return await abortable(exchange, controller.signal);
    } catch (error) {
      throw controller.signal.reason === late ? late : error;
    } finally {
      cancel();
      controller.unlink();
    }
  }

  /** Makes the next endpoint the current one, unless another request has done so. */
  #leave(index: number, reason: string): void {
    this.#failures.set(index, reason);
    if (this.#current === index) this.#current = (index + 1) % this.endpoints.length;
  }
}

/**
 * Returns what is wrong with an endpoint where the next try goes to the next one after a pause: the service is there, and
 * cannot reach its table; or a gateway says when to return. Throws for the answer of another program that does not.
 */
function troubleOf({ url }: Endpoint, answer: Answer): string | undefined {
  const { status, document, retryAfter } = answer;
  const problem = (document ?? {}) as { status?: unknown; type?: unknown };
  const text = `${url} gives no answer: ${refusal(answer, "").message}`;
  if (problem.status === status && problem.type !== undefined) return problem.type === "unavailable" ? text : undefined;
  const isResult = status === 200 && document !== undefined && !Array.isArray(document);
  if (isResult || (status >= 400 && status < 500 && status !== 408)) return undefined;
  if (status >= 400 && retryAfter > 0) return text;
  throw new UnavailableError(text);
}
