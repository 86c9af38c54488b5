/** Renewals under a lease id that has no guard here. */
import type { Duration } from "./duration.js";
import { delayOf } from "./holding.js";
import type { Context } from "./context.js";
import { TooLateError } from "./errors.js";
import type { HeartbeatBody } from "./holding.js";
import { believedOf } from "./holder.js";
import { type Numbered, Numbers, numbered, recorded } from "./numbers.js";
import type { SendOptions } from "./service.js";
import { retryingTurns } from "./turns.js";

/** The body of such a renewal: a lease that it does not name stays the record's. */
export type ResumeBody = Omit<HeartbeatBody, "leaseDurationMs"> & { readonly leaseDurationMs: number | undefined };

/** The result of a renewal: its answer, the time of its first sending, and the last number that was taken. */
export interface Resumed<Answer> {
  readonly answer: Answer;
  readonly sentAt: number;
  readonly sequence: number;
}

/** Sends one heartbeat, with its retries. */
export async function renewOnce<Body extends ResumeBody, Answer extends { leaseDurationMs: number }>(
  { runtime }: Context,
  body: Body,
  exchange: (request: Numbered<Body>, options: SendOptions) => Promise<Answer>,
  {
    sequence,
    signal,
    lockDelay,
  }: { sequence?: number | undefined; signal?: AbortSignal | undefined; lockDelay?: Duration | undefined },
): Promise<Resumed<Answer>> {
  const numbers = new Numbers<Body>(sequence);
  const delay = delayOf({ lockDelay });
  let sentAt = 0;
  const renew = async (sendOptions: SendOptions): Promise<Answer> => {
    const turn = numbers.next(body, Math.floor(runtime.now()), () => runtime.uuid());
    sentAt = turn.firstSent;
    const answer = await recorded(numbers, () => exchange(numbered(turn), sendOptions));
    if (sentAt + believedOf({ delay }, answer.leaseDurationMs) <= runtime.now()) throw new TooLateError();
    return answer;
  };
  const answer = await retryingTurns(runtime, renew, { signal, lease: body.leaseDurationMs });
  return { answer, sentAt, sequence: numbers.last };
}
