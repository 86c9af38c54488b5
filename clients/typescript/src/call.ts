/**
 * One retried request, or the requests under one lease id and the release of what they leave behind (rules C1, C5, C6
 * and C10).
 *
 * A pure machine: events go in, actions come out. It is the port of `call.rs` of the crate leasehold-client-core, and
 * replays the traces that were recorded from it (clients/vectors/traces). All times are whole milliseconds.
 */
import { type Ending, Numbers, type Turn } from "./numbers.js";
import { requestTimeout, retryPause, UNREACHED_BOUND_MS } from "./pacing.js";

export type Purpose = "backoff" | "request-id" | "heartbeat";

/** The draws of a machine. */
export interface Chance {
  /** Draws evenly from 0 to 1. */
  fraction(purpose: Purpose): number;
  /** Draws a fresh id that nobody can guess. */
  id(purpose: Purpose): string;
}

/** The knowledge of one client, which its calls share. */
export interface Memory {
  /** Whether the service has answered a request. */
  answered: boolean;
}

/** The settings of a call. */
export interface Terms {
  /** The lease that bounds the time-outs. */
  readonly lease?: number | undefined;
  /** The end of a granted lease that the holder does not believe in. */
  readonly delay?: number | undefined;
  /** The longest time-out of a request. */
  readonly longest: number;
  /** The bound of a retried request. `Infinity`: none. */
  readonly bound: number;
}

/** An answer, as far as it matters to a call. */
export type Reply =
  /** The request was carried out. `lease`: that of the grant. `found`: a release found something to release. */
  | { readonly type: "done"; readonly lease: number | undefined; readonly found: boolean }
  /** A repeat would be refused again. */
  | { readonly type: "refused" }
  /** The lease id has ended. */
  | { readonly type: "lost" }
  /** A request with a higher number was carried out. */
  | { readonly type: "superseded"; readonly sequence: number }
  /** The answer says nothing about the lock. `mayApply`: the request may be carried out all the same. */
  | { readonly type: "retryable"; readonly retryAfter: number; readonly mayApply: boolean };

/** The reason why there is no answer. */
export type Cause = "not-sent" | "unreached" | "cut-off" | "timed-out";

export type Event<Body> =
  /** A caller asks. Under a lease id the request is sent once, with this time-out; otherwise it is retried. */
  | { readonly type: "start"; readonly request: Body; readonly timeout: number }
  | { readonly type: "answer"; readonly send: number; readonly reply: Reply }
  | { readonly type: "unanswered"; readonly send: number; readonly cause: Cause }
  /** A time that the machine asked for has come. An early or a late one is harmless. */
  | { readonly type: "tick" }
  /** The caller stops asking. */
  | { readonly type: "cancel" }
  /** The caller has received its grant. */
  | { readonly type: "taken" };

/** The content of a send. */
export type What<Body> =
  | { readonly type: "plain"; readonly request: Body }
  | { readonly type: "numbered"; readonly turn: Turn<Body> }
  /** The release of the lease id on the key at this position. */
  | { readonly type: "release"; readonly key: number };

export type Action<Body> =
  /** Sends a request. Exactly one `answer` or `unanswered` follows, also after an `abandon`. */
  | { readonly type: "send"; readonly send: number; readonly what: What<Body>; readonly timeout: number }
  /** Nobody waits for the answer of this send any more. */
  | { readonly type: "abandon"; readonly send: number }
  /** Asks for a `tick` at this time. The last such time counts. */
  | { readonly type: "wake-at"; readonly time: number }
  /** The caller's call returns. The driver attaches the answer, or its own error, of the send. */
  | { readonly type: "finish"; readonly outcome: "answered" | "too-late" | "failed"; readonly send: number }
  /** The work that follows outlives the caller's call. */
  | { readonly type: "background" };

export type State =
  | "idle"
  | "asking"
  | "paused"
  | "granted"
  | "leaving"
  | "releasing"
  | "release-paused"
  | "doubting"
  | "ended";

/** The result of a step: the branch that it took, and its actions in order. */
export interface Step<Body> {
  readonly branch: string;
  readonly actions: readonly Action<Body>[];
}

type End = Reply | Cause;

/** One retried request, or the requests under one lease id. */
export class Call<Body> {
  readonly numbers = new Numbers<Body>();
  /** Whether the lease id may hold something, now or later. */
  mayHold = false;
  /** The number of the last send. */
  send = 0;
  /** The time that the state waits for. */
  until = 0;
  #state: State = "idle";
  #request: Body | undefined;
  #began = 0;
  #end = 0;
  #failures = 0;
  /** The key that is released next. */
  #key = 0;
  /** Whether each release so far found something. */
  #found = true;
  /** Whether a request may arrive after its release. */
  #doubts = false;

  /** `keys`: the number of keys of the lease id. 0: the call has no lease id. */
  constructor(
    private readonly terms: Terms,
    private readonly keys = 0,
  ) {}

  get state(): State {
    return this.#state;
  }

  /** Whether nothing is left to do. */
  get hasEnded(): boolean {
    return this.#state === "ended";
  }

  /** Takes one event. */
  step(memory: Memory, event: Event<Body>, now: number, chance: Chance): Step<Body> {
    const actions: Action<Body>[] = [];
    return { branch: this.#branch(memory, event, now, chance, actions), actions };
  }

  #branch(memory: Memory, event: Event<Body>, now: number, chance: Chance, actions: Action<Body>[]): string {
    switch (event.type) {
      case "start":
        return this.#start(event.request, event.timeout, now, chance, actions);
      case "answer":
        memory.answered = true;
        return this.#ended(event.send, event.reply, now, chance, actions);
      case "unanswered":
        if (event.cause === "unreached" && !memory.answered)
          this.#end = Math.min(this.#end, this.#began + UNREACHED_BOUND_MS);
        return this.#ended(event.send, event.cause, now, chance, actions);
      case "tick":
        return this.#tick(now, actions);
      case "cancel":
        return this.#cancel(now, actions);
      case "taken":
        if (this.#state !== "granted") return "stale";
        this.#state = "ended";
        return "taken";
    }
  }

  #start(request: Body, timeout: number, now: number, chance: Chance, actions: Action<Body>[]): string {
    if (this.#state !== "idle") return "stale";
    if (this.keys === 0) {
      this.#request = request;
      this.#tryFor(now);
      this.#ask(now, actions);
      return "started";
    }
    const branch = this.numbers.open === undefined ? "started" : "repeated";
    const turn = this.numbers.next(request, now, () => chance.id("request-id"));
    this.#send({ type: "numbered", turn }, timeout, actions);
    this.#state = "asking";
    return branch;
  }

  #ended(send: number, end: End, now: number, chance: Chance, actions: Action<Body>[]): string {
    if (send !== this.send) return "stale";
    switch (this.#state) {
      case "asking": {
        if (this.keys === 0) return this.#plainEnded(send, end, now, chance, actions);
        const branch = this.#numberedEnded(end, now);
        this.#state = branch === "granted" ? "granted" : "idle";
        const isAnswered = branch === "granted" || branch === "noted";
        const failure = branch === "granted-too-late" ? "too-late" : "failed";
        actions.push({ type: "finish", outcome: isAnswered ? "answered" : failure, send });
        return branch;
      }
      case "leaving": {
        const branch = this.#numberedEnded(end, now);
        if (!this.mayHold) {
          this.#state = "ended";
          return "nothing-to-release";
        }
        this.#giveBack(!["granted", "granted-too-late", "noted"].includes(branch), now, actions);
        return "released-after-request";
      }
      case "releasing":
        return this.#releaseEnded(end, now, chance, actions);
      default:
        return "stale";
    }
  }

  #plainEnded(send: number, end: End, now: number, chance: Chance, actions: Action<Body>[]): string {
    const retryAfter = retryable(end);
    if (retryAfter !== undefined) {
      const until = this.#nextTry(retryAfter, now, chance);
      if (until !== undefined) {
        this.#pause("paused", until, actions);
        return "paused-to-retry";
      }
      this.#state = "ended";
      actions.push({ type: "finish", outcome: "failed", send });
      return "given-up";
    }
    this.#state = "ended";
    const isAnswered = typeof end === "object" && end.type === "done";
    actions.push({ type: "finish", outcome: isAnswered ? "answered" : "failed", send });
    return isAnswered ? "answered" : "refused";
  }

  /** Records what the end of a request under the lease id tells. */
  #numberedEnded(end: End, now: number): string {
    const sent = this.numbers.open?.firstSent ?? now;
    let branch: string;
    let ending: Ending = "told";
    if (typeof end === "string" || end.type === "retryable") {
      const arrives = mayApply(end);
      branch = arrives ? "may-apply" : "did-not-arrive";
      ending = arrives ? "may-apply" : "untold";
    } else if (end.type === "done") {
      const isOver = end.lease !== undefined && now - sent >= end.lease - (this.terms.delay ?? 0);
      branch = end.lease === undefined ? "noted" : isOver ? "granted-too-late" : "granted";
    } else if (end.type === "superseded") {
      branch = "superseded";
      ending = end.sequence;
    } else {
      branch = end.type === "lost" ? "lease-id-ended" : "denied";
    }
    this.numbers.ended(ending);
    // A late copy is refused. Of several locks, others may be the lease id's.
    if (branch === "lease-id-ended") this.mayHold &&= this.keys > 1;
    else if (branch !== "denied" && branch !== "did-not-arrive") this.mayHold = true;
    return branch;
  }

  #tick(now: number, actions: Action<Body>[]): string {
    const state = this.#state;
    if (state !== "paused" && state !== "release-paused" && state !== "doubting") return "nothing-due";
    if (now < this.until) {
      actions.push({ type: "wake-at", time: this.until });
      return "nothing-due";
    }
    if (state === "paused") {
      if (now >= this.#end) {
        this.#state = "ended";
        actions.push({ type: "finish", outcome: "failed", send: this.send });
        return "woken-too-late";
      }
      this.#ask(now, actions);
      return "retried";
    }
    if (state === "doubting") {
      this.#giveBack(false, now, actions);
      return "looked-again";
    }
    this.#release(now, actions);
    return "released-again";
  }

  #cancel(now: number, actions: Action<Body>[]): string {
    const state = this.#state;
    if (state === "asking" && this.keys === 0) {
      this.#state = "ended";
      actions.push({ type: "abandon", send: this.send });
      return "abandoned";
    }
    if (state === "asking") {
      this.#state = "leaving";
      actions.push({ type: "background" });
      return "left-during-request";
    }
    if ((state === "granted" || state === "idle") && this.mayHold) {
      actions.push({ type: "background" });
      this.#giveBack(state !== "granted", now, actions);
      return "left-something";
    }
    if (state === "idle" || state === "paused") {
      this.#state = "ended";
      return "left-nothing";
    }
    return "stale";
  }

  /** Releases the lease id on all of its keys. `doubts`: the request may arrive after the release. */
  #giveBack(doubts: boolean, now: number, actions: Action<Body>[]): void {
    this.#key = 0;
    this.#found = true;
    this.#doubts = doubts;
    this.#tryFor(now);
    this.#release(now, actions);
  }

  #release(now: number, actions: Action<Body>[]): void {
    this.#send({ type: "release", key: this.#key }, this.#timeout(now), actions);
    this.#state = "releasing";
  }

  #releaseEnded(end: End, now: number, chance: Chance, actions: Action<Body>[]): string {
    const retryAfter = retryable(end);
    const until = retryAfter === undefined ? undefined : this.#nextTry(retryAfter, now, chance);
    if (until !== undefined) {
      this.#pause("release-paused", until, actions);
      return "paused-to-release";
    }
    this.#found &&= typeof end === "object" && end.type === "done" && end.found;
    this.#key += 1;
    if (this.#key < this.keys) {
      this.#release(now, actions);
      return "next-key";
    }
    if (this.#found || !this.#doubts) {
      this.#state = "ended";
      return "gave-back";
    }
    this.#pause("doubting", now + this.terms.longest, actions);
    return "found-nothing";
  }

  #ask(now: number, actions: Action<Body>[]): void {
    this.#send({ type: "plain", request: this.#request as Body }, this.#timeout(now), actions);
    this.#state = "asking";
  }

  #send(what: What<Body>, timeout: number, actions: Action<Body>[]): void {
    this.send += 1;
    actions.push({ type: "send", send: this.send, what, timeout });
  }

  #pause(state: State, until: number, actions: Action<Body>[]): void {
    this.#state = state;
    this.until = until;
    actions.push({ type: "wake-at", time: until });
  }

  #tryFor(now: number): void {
    this.#began = now;
    this.#end = now + this.terms.bound;
    this.#failures = 0;
  }

  #timeout(now: number): number {
    return Math.min(this.terms.longest, requestTimeout(this.terms.lease, Math.max(0, this.#end - now)));
  }

  /** Returns the time of the next try, if there is time for one. */
  #nextTry(retryAfter: number, now: number, chance: Chance): number | undefined {
    this.#failures += 1;
    const next = now + retryPause(this.#failures, retryAfter, chance.fraction("backoff"));
    return next < this.#end ? next : undefined;
  }
}

/** Whether the request may be carried out all the same. `undefined`: the answer tells its end. */
export function mayApply(end: Reply | Cause): boolean | undefined {
  if (typeof end === "string") return end === "cut-off" || end === "timed-out";
  return end.type === "retryable" ? end.mayApply : undefined;
}

/** Returns the shortest pause before another try, if the end is worth one. */
function retryable(end: End): number | undefined {
  if (typeof end === "string") return 0;
  return end.type === "retryable" ? end.retryAfter : undefined;
}
