/** The numbers of the requests under one lease id (rule C10). */
import { isTransient, isUnanswered, SupersededError } from "./errors.js";

/** A request with its number, as the wire has it. */
export type Numbered<Body> = Body & { readonly sequence: number; readonly requestId: string };

/** A request with its number. A repeat is the same object. */
export interface Turn<Body> {
  readonly body: Body;
  readonly sequence: number;
  readonly requestId: string;
  /** The time of the first sending. */
  readonly firstSent: number;
}

/** Returns the request for the wire. */
export function numbered<Body extends object>({ body, sequence, requestId }: Turn<Body>): Numbered<Body> {
  return { ...body, sequence, requestId };
}

/**
 * The end of a request: an answer told the outcome; nothing did, and the request was certainly not carried out, or it
 * may be; or the service carried out this higher number.
 */
export type Ending = "told" | "untold" | "may-apply" | number;

/** Numbers the requests of one kind. One request is under way at a time. */
export class Numbers<Body> {
  #last: number;
  /** A request that may have been carried out. It is repeated before the next number is taken. */
  #open: Turn<Body> | undefined;
  /** Whether a copy of the open request may have arrived, or may yet: a repeat that did not arrive says nothing of it. */
  #mayArrive = false;

  /** `last`: the last number that was taken under the lease id. */
  constructor(last = 0) {
    this.#last = last;
  }

  /** The last number that was taken. */
  get last(): number {
    return this.#last;
  }

  /** The request that may have been carried out. */
  get open(): Turn<Body> | undefined {
    return this.#open;
  }

  /** Returns the request to send now: the open one again, or `body` under the next number. */
  next(body: Body, now: number, newId: () => string): Turn<Body> {
    if (this.#open === undefined) {
      this.#last += 1;
      this.#open = { body, sequence: this.#last, requestId: newId(), firstSent: now };
    }
    return this.#open;
  }

  /** Records the end of the request. Only a request that may have been carried out stays open. */
  ended(ending: Ending): void {
    this.#mayArrive ||= ending === "may-apply";
    if (!this.#mayArrive || ending === "told" || typeof ending === "number") {
      this.#open = undefined;
      this.#mayArrive = false;
    }
    if (typeof ending === "number") this.#last = Math.max(this.#last, ending);
  }
}

/** Sends a request, and records its end. */
export async function recorded<Answer>(
  numbers: Pick<Numbers<unknown>, "ended">,
  exchange: () => Promise<Answer>,
): Promise<Answer> {
  try {
    const answer = await exchange();
    numbers.ended("told");
    return answer;
  } catch (error) {
    numbers.ended(endingOf(error));
    throw error;
  }
}

/** Returns the end of a request that failed with this error. */
export function endingOf(error: unknown): Ending {
  if (error instanceof SupersededError) return error.sequence;
  if (isUnanswered(error)) return "may-apply";
  return isTransient(error) ? "untold" : "told";
}
