/** The numbers of the requests under one lease id (rule C10). */
import { isTransient, isUnanswered, SupersededError } from "./errors.js";
import type { Runtime } from "./runtime.js";

/** A request with its number. A repeat has the same number and the same id. */
export type Numbered<Body> = Body & { readonly sequence: number; readonly requestId: string };

/** Numbers the requests of one kind. One request is under way at a time. */
export class Numbers<Body extends object> {
  #last: number;
  /** A request that may have been carried out. It is repeated before the next number is taken. */
  #open: { readonly body: Body; readonly numbered: Numbered<Body> } | undefined;
  /** Whether a copy of the open request may have arrived, or may yet: a repeat that did not arrive says nothing of it. */
  #mayArrive = false;

  constructor(
    private readonly runtime: Runtime,
    /** The last number that was taken under the lease id. */
    last = 0,
  ) {
    this.#last = last;
  }

  /** The last number that was taken. */
  get last(): number {
    return this.#last;
  }

  /** Whether a request may have been carried out without an answer. */
  get isOpen(): boolean {
    return this.#open !== undefined;
  }

  /**
   * Returns the request to send now, and its body: the open request again, or `body` under the next number.
   */
  take(body: Body): { request: Numbered<Body>; body: Body } {
    if (this.#open === undefined) {
      this.#last += 1;
      this.#open = { body, numbered: { ...body, sequence: this.#last, requestId: this.runtime.uuid() } };
    }
    return { request: this.#open.numbered, body: this.#open.body };
  }

  /** Sends a request and records its end. Only a request that may have been carried out stays open. */
  async send<Answer>(request: Numbered<Body>, exchange: (request: Numbered<Body>) => Promise<Answer>): Promise<Answer> {
    try {
      const answer = await exchange(request);
      this.#close();
      return answer;
    } catch (error) {
      this.#mayArrive ||= isUnanswered(error);
      const tellsNothing = isUnanswered(error) || isTransient(error);
      if (!(this.#mayArrive && tellsNothing)) this.#close();
      if (error instanceof SupersededError) this.#last = Math.max(this.#last, error.sequence);
      throw error;
    }
  }

  #close(): void {
    this.#open = undefined;
    this.#mayArrive = false;
  }
}
