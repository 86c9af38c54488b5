/**
 * What is held under one lease id: heartbeats, belief, loss and end (rules C2, C7, C8 and C10).
 *
 * A pure machine: events go in, actions come out. It is the port of `holder.rs` of the crate leasehold-client-core, and
 * replays the traces that were recorded from it (clients/vectors/traces). All times are whole milliseconds.
 *
 * Belief is asked, not told: `valid`, `remaining` and `loss` are functions of the state and the time.
 */
import type { Cause, Chance } from "./call.js";
import type { LostReason } from "./errors.js";
import { Numbers, type Turn } from "./numbers.js";
import {
  heartbeatInterval,
  heartbeatPause,
  heartbeatRetryPause,
  leaveBound,
  longestHeartbeatInterval,
  requestTimeout,
  retryPause,
} from "./pacing.js";

/** The reason of a loss. No process of this language is the child of a fork that shares its locks. */
export type Reason = LostReason | "forked";

/** The settings of a holder. */
export interface Terms {
  /** The interval of heartbeats. `quarterly`: every quarter of the lease. `manual`: the caller sends them. */
  readonly beats: number | "quarterly" | "manual";
  /** The end of each lease that the holder does not believe in. */
  readonly delay: number;
  /** Whether the holder believes on after its lease, while the service cannot be reached. */
  readonly holdsOn: boolean;
  /** The longest time to hold. */
  readonly maxHold: number | undefined;
}

/** Returns the part of a lease that the holder believes in. */
export function believedOf({ delay }: Pick<Terms, "delay">, lease: number): number {
  return Math.max(0, lease - delay);
}

/** Returns the time between heartbeats under a lease that is believed in for this long. */
export function intervalOf({ beats }: Pick<Terms, "beats">, believed: number): number | undefined {
  if (beats === "manual") return undefined;
  return beats === "quarterly" ? heartbeatInterval(believed) : beats;
}

/**
 * Returns the setting that cannot keep this lease, if there is one. A warning with `warnsAt` of the lease left must not
 * come although all is well.
 */
export function faultOf(
  terms: Pick<Terms, "beats" | "delay">,
  lease: number,
  warnsAt?: number,
): "delay" | "interval" | "warning" | undefined {
  const believed = believedOf(terms, lease);
  if (!(terms.delay >= 0 && believed > 0)) return "delay";
  const interval = intervalOf(terms, believed);
  if (interval !== undefined && !(interval > 0 && interval <= longestHeartbeatInterval(believed))) return "interval";
  return warnsAt !== undefined && warnsAt >= believed - (interval ?? 0) ? "warning" : undefined;
}

/** A grant. `sent`: the time of the first sending of its request. */
export interface Grant {
  readonly sent: number;
  readonly lease: number;
  readonly token: number;
  readonly sequence: number;
}

/** A heartbeat that a caller waits for. */
interface Renewal<Change> {
  readonly call: number;
  readonly change: Change;
  /** A new lease. */
  readonly lease: number | undefined;
}

/** An answer to a heartbeat. */
export type Reply =
  | { readonly type: "renewed"; readonly lease: number; readonly token: number; readonly wanted: boolean }
  /** A repeat would be refused again. The answer says nothing about a thief. */
  | { readonly type: "refused" }
  | { readonly type: "lost"; readonly reason: Reason }
  | { readonly type: "superseded"; readonly sequence: number; readonly token: number | undefined }
  | { readonly type: "retryable"; readonly retryAfter: number; readonly mayApply: boolean };

/** The end of a release. `failed`: it may be tried again. */
export type Return = { readonly type: "done" | "failed" } | { readonly type: "lost"; readonly reason: Reason };

export type Event<Change> =
  /** A caller wants a heartbeat with this change. */
  | ({ readonly type: "renew" } & Renewal<Change>)
  /** A caller waits for its heartbeat no more. */
  | { readonly type: "leave"; readonly call: number }
  | { readonly type: "answer"; readonly send: number; readonly reply: Reply }
  | { readonly type: "unanswered"; readonly send: number; readonly cause: Cause }
  /** A caller wants a warning when no more than this is left. `undefined`: half of the lease. */
  | { readonly type: "warn-at"; readonly left: number | undefined }
  /**
   * A try of the release, which was sent then, has no answer that tells its end. The next try, or `returned`, follows.
   * `mayApply`: it may be carried out all the same. `stores`: it stores data or a completed occurrence, of which only an
   * answer tells.
   */
  | { readonly type: "untold"; readonly sent: number; readonly mayApply: boolean; readonly stores: boolean }
  | { readonly type: "returned"; readonly end: Return }
  /** The belief ends for this reason, and what was held is given back. */
  | { readonly type: "revoke"; readonly reason: Reason }
  /**
   * `tick`: a time that the machine asked for has come; an early or a late one is harmless. `suspended`: the process
   * stood still for longer than the clock shows. `forked`: the process is the child of a fork.
   */
  | { readonly type: "start" | "tick" | "release" | "detach" | "suspended" | "forked" };

/** The content of a heartbeat. Each names its lease. */
export interface Beat<Change> {
  readonly lease: number;
  readonly change: Change | undefined;
  readonly call: number | undefined;
}

export type Action<Change> =
  /** Sends a heartbeat. One `answer` or `unanswered` follows, unless the send is abandoned. */
  | { readonly type: "send"; readonly send: number; readonly turn: Turn<Beat<Change>>; readonly timeout: number }
  /** The answer of this send does not matter any more. */
  | { readonly type: "abandon"; readonly send: number }
  /** Asks for a `tick` at this time. The last such time counts. */
  | { readonly type: "wake-at"; readonly time: number }
  /** The answer of this send has the present version, and what else the driver keeps. */
  | { readonly type: "renewed"; readonly send: number }
  /** A caller's heartbeat is over. `failed`: the driver attaches its own error of the send. */
  | { readonly type: "finish"; readonly call: number; readonly outcome: Outcome }
  /** So little is left of the lease. `risk`: the position of its `warn-at` among all. */
  | { readonly type: "at-risk"; readonly risk: number; readonly left: number }
  /** The loss, once. */
  | { readonly type: "lost"; readonly reason: Reason }
  /**
   * Gives back what was held, by a retried request under this lease. `returned` follows. The end of a scope waits for no
   * longer than `patience`.
   */
  | { readonly type: "give-back"; readonly lease: number; readonly patience: number };

export type Outcome = { readonly type: "renewed" | "ended" } | { readonly type: "failed"; readonly send: number };

export type State = "held" | "releasing" | "unreleased" | "released" | "detached" | "lost";

/** The result of a step: the branch that it took, and its actions in order. */
export interface Step<Change> {
  readonly branch: string;
  readonly actions: readonly Action<Change>[];
}

interface Risk {
  readonly left: number | undefined;
  isTold: boolean;
}

/** What is held under one lease id. */
export class Holder<Change> {
  readonly numbers: Numbers<Beat<Change>>;
  readonly token: number;
  /** The lease of the last answer. */
  lease: number;
  /**
   * The end of the belief. A heartbeat with a shorter lease caps it from its sending on, because it may be carried out
   * without an answer. A higher number that is answered lifts the cap.
   */
  until: number;
  /** The heartbeat that is under way. */
  underWay: number | undefined;
  /** Whether a heartbeat told that somebody waits. */
  isWanted = false;
  /** The send that failed last, if no later one succeeded. */
  trouble: number | undefined;
  #state: State = "held";
  #reason: Reason | undefined;
  #renewedAt: number;
  /**
   * The end of the belief of a holder that holds on: one lease after the next try. A holder that stood still for longer
   * knows nothing.
   */
  #faith = -Infinity;
  #holdEnds = Infinity;
  #sends = 0;
  #renewals: Renewal<Change>[] = [];
  /** The time of the next heartbeat. `undefined`: one is under way, or the caller sends them. */
  #due: number | undefined;
  #failures = 0;
  /** Whether the last answer was about the number of its heartbeat, and not about the lock. */
  #isRenumbered = false;
  readonly #risks: Risk[] = [];
  /** The last number before a suspension. */
  #suspended: number | undefined;
  /** Whether a release that left within the lease has no answer. */
  #mayBeGivenBack = false;
  #wake: number | undefined;

  constructor(
    private readonly terms: Terms,
    grant: Grant,
  ) {
    this.token = grant.token;
    this.lease = grant.lease;
    this.until = grant.sent + believedOf(terms, grant.lease);
    this.#renewedAt = grant.sent;
    this.numbers = new Numbers(grant.sequence);
  }

  get state(): State {
    return this.#state;
  }

  /** Whether the holder believes that it holds. */
  valid(now: number): boolean {
    return this.#state === "held" && this.#suspended === undefined && this.#over(now) === undefined;
  }

  /** Returns the rest of the lease; 0 without belief. */
  remaining(now: number): number {
    return this.valid(now) ? Math.max(0, Math.min(this.until, this.#holdEnds) - now) : 0;
  }

  /** Whether the process was suspended, and no heartbeat was answered since. Nothing is believed, and nothing is lost. */
  get isInDoubt(): boolean {
    return this.#state === "held" && this.#suspended !== undefined;
  }

  /** Returns the reason of the loss, if there is one. */
  loss(now: number): Reason | undefined {
    return this.#state === "held" ? this.#over(now) : this.#reason;
  }

  #over(now: number): Reason | undefined {
    if (now >= this.until && now >= this.#faith) return "expired";
    return now >= this.#holdEnds ? "max-hold" : undefined;
  }

  /** Takes one event. */
  step(event: Event<Change>, now: number, chance: Chance): Step<Change> {
    const actions: Action<Change>[] = [];
    const over = this.#ends(now, actions);
    const branch = this.#take(event, over, now, chance, actions);
    // A refusal in an outage ends the belief past the lease.
    this.#ends(now, actions);
    this.#plan(now, actions);
    return { branch, actions };
  }

  /** Ends the hold if the time has ended the belief. Returns the reason. */
  #ends(now: number, actions: Action<Change>[]): Reason | undefined {
    const over = this.#state === "held" ? this.#over(now) : undefined;
    if (over !== undefined) this.#lose(over, actions);
    return over;
  }

  #take(
    event: Event<Change>,
    over: Reason | undefined,
    now: number,
    chance: Chance,
    actions: Action<Change>[],
  ): string {
    const isHeld = this.#state === "held";
    switch (event.type) {
      case "start":
        if (!isHeld) return "stale";
        this.#holdEnds = now + (this.terms.maxHold ?? Infinity);
        this.#nextBeat(chance);
        return "started";
      case "renew":
        if (!isHeld) {
          actions.push({ type: "finish", call: event.call, outcome: { type: "ended" } });
          return "asked-too-late";
        }
        this.#renewals.push(event);
        if (this.underWay !== undefined) return "queued";
        this.#beat(now, chance, actions);
        return "asked";
      case "leave":
        return this.#leave(event.call);
      case "answer":
      case "unanswered":
        if (this.underWay !== event.send) return "stale";
        this.underWay = undefined;
        return this.#ended(event.send, event.type === "answer" ? event.reply : event.cause, now, chance, actions);
      case "tick":
        this.#wake = undefined;
        return this.#tick(over, now, chance, actions);
      case "warn-at":
        if (!isHeld) return "stale";
        this.#risks.push({ left: event.left, isTold: false });
        return "warned-later";
      case "release":
        return this.#release(now, actions);
      case "untold":
        if (this.#state !== "releasing") return "stale";
        // A release that left later may have met another holder.
        if (!event.mayApply || event.stores || this.#suspended !== undefined || event.sent >= this.until)
          return "still-to-give-back";
        this.#mayBeGivenBack = true;
        return "may-be-given-back";
      case "returned":
        return this.#state === "releasing" ? this.#returned(event.end, actions) : "stale";
      case "detach":
        if (!isHeld) return "stale";
        this.#end("detached", actions);
        return "detached";
      case "revoke": {
        if (!isHeld) return "stale";
        const giveBack = this.#giveBack(now);
        this.#lose(event.reason, actions);
        actions.push(giveBack);
        return "revoked";
      }
      case "suspended":
        if (this.#state === "releasing" || this.#state === "unreleased") {
          // The clock does not show that a later release leaves after the lease.
          this.until = Math.min(this.until, now);
          return "suspended";
        }
        if (!isHeld) return "stale";
        this.#suspended = this.numbers.last;
        if (this.underWay === undefined && this.terms.beats !== "manual") this.#beat(now, chance, actions);
        return "suspended";
      case "forked":
        if (!isHeld) return "stale";
        this.#lose("forked", actions);
        return "forked";
    }
  }

  #leave(call: number): string {
    const left = this.#renewals.filter((renewal) => renewal.call !== call);
    if (left.length === this.#renewals.length) return "stale";
    this.#renewals = left;
    if (left.length === 0 && this.terms.beats === "manual") this.#due = undefined;
    return "left";
  }

  #tick(over: Reason | undefined, now: number, chance: Chance, actions: Action<Change>[]): string {
    if (over !== undefined) return over === "max-hold" ? "held-too-long" : "expired";
    if (this.#state !== "held") return "nothing-due";
    const left = this.until - now;
    let warns = false;
    for (const [index, risk] of this.#risks.entries()) {
      if (risk.isTold || now < this.#warnsAt(risk)) continue;
      risk.isTold = true;
      // After a long pause there is no risk to report.
      if (left <= 0) continue;
      warns = true;
      actions.push({ type: "at-risk", risk: index, left });
    }
    if (this.#due !== undefined && now >= this.#due) {
      this.#beat(now, chance, actions);
      return this.#failures > 0 ? "beat-again" : "beat";
    }
    return warns ? "warned" : "nothing-due";
  }

  #ended(send: number, end: Reply | Cause, now: number, chance: Chance, actions: Action<Change>[]): string {
    const turn = this.numbers.open;
    if (turn === undefined) return "stale";
    if (typeof end === "string") {
      this.numbers.ended(end === "cut-off" || end === "timed-out" ? "may-apply" : "untold");
      return this.#failed(send, 0, now, chance, actions);
    }
    switch (end.type) {
      case "renewed":
        this.numbers.ended("told");
        this.isWanted ||= end.wanted;
        return this.#answered(turn, send, end, now, chance, actions);
      case "lost":
        this.numbers.ended("told");
        this.#lose(end.reason, actions);
        return "lost-by-answer";
      case "superseded":
        this.numbers.ended(end.sequence);
        if (end.token !== undefined && end.token !== this.token) {
          this.#lose("taken-over", actions);
          return "ghost";
        }
        return this.#again(now, chance, actions) ? "superseded" : "superseded-again";
      case "refused": {
        this.numbers.ended("told");
        this.trouble = send;
        this.#faith = -Infinity;
        this.#isRenumbered = false;
        const wasWanted = this.#finish(turn.body.call, { type: "failed", send }, actions);
        this.#pause(0, now, chance);
        return wasWanted ? "asked-in-vain" : "refused";
      }
      case "retryable":
        this.numbers.ended(end.mayApply ? "may-apply" : "untold");
        return this.#failed(send, end.retryAfter, now, chance, actions);
    }
  }

  #answered(
    turn: Turn<Beat<Change>>,
    send: number,
    { lease, token }: { readonly lease: number; readonly token: number },
    now: number,
    chance: Chance,
    actions: Action<Change>[],
  ): string {
    if (token !== this.token) {
      this.#lose("taken-over", actions);
      return "ghost";
    }
    if (this.#suspended !== undefined && turn.sequence <= this.#suspended) {
      this.#beat(now, chance, actions);
      return "renewed-before-suspension";
    }
    if (now - turn.firstSent >= believedOf(this.terms, lease)) {
      this.trouble = send;
      this.#again(now, chance, actions);
      return "renewed-too-late";
    }
    actions.push({ type: "renewed", send });
    this.#renewed(turn.firstSent, lease);
    this.#finish(turn.body.call, { type: "renewed" }, actions);
    if (this.#renewals.length === 0) {
      this.#nextBeat(chance);
      return "renewed";
    }
    this.#beat(now, chance, actions);
    return "renewed-and-next";
  }

  /** Records a failure that tells nothing. */
  #failed(send: number, retryAfter: number, now: number, chance: Chance, actions: Action<Change>[]): string {
    this.trouble = send;
    this.#isRenumbered = false;
    const isOver = now >= this.until;
    // Callers do not wait for the end of an outage.
    if (isOver) this.#finishAll({ type: "failed", send }, actions);
    this.#pause(retryAfter, now, chance);
    this.#holdOn(now);
    return isOver ? "held-on" : "failed";
  }

  #renewed(sent: number, lease: number): void {
    this.#renewedAt = sent;
    this.lease = lease;
    this.until = sent + believedOf(this.terms, lease);
    this.trouble = undefined;
    this.#faith = -Infinity;
    this.#suspended = undefined;
    this.#failures = 0;
    this.#isRenumbered = false;
    for (const risk of this.#risks) risk.isTold = false;
  }

  /** Plans the next heartbeat, which keeps pace with the part of the lease that is believed in. */
  #nextBeat(chance: Chance): void {
    const believed = this.until - this.#renewedAt;
    const interval = intervalOf(this.terms, believed);
    if (interval === undefined) return;
    // An interval that was chosen before may be too long for a shortened lease.
    const longest = Math.floor(Math.min(interval, longestHeartbeatInterval(believed)));
    this.#due = this.#renewedAt + heartbeatPause(longest, chance.fraction("heartbeat"));
  }

  /**
   * Sends the next heartbeat at once; or after a pause, if the last answer was about its number as well. Returns whether
   * it was sent at once.
   */
  #again(now: number, chance: Chance, actions: Action<Change>[]): boolean {
    if (this.#isRenumbered) {
      this.#pause(0, now, chance);
      this.#holdOn(now);
      return false;
    }
    this.#isRenumbered = true;
    this.#beat(now, chance, actions);
    return true;
  }

  /** Believes for one lease from the next try, if the holder holds on. */
  #holdOn(now: number): void {
    if (this.terms.holdsOn) this.#faith = (this.#due ?? now) + believedOf(this.terms, this.lease);
  }

  /** Plans the next try. */
  #pause(retryAfter: number, now: number, chance: Chance): void {
    this.#failures += 1;
    const pause = retryPause(this.#failures, retryAfter, chance.fraction("backoff"));
    const next = now + Math.floor(heartbeatRetryPause(pause, this.until - now));
    this.#due = this.terms.beats !== "manual" || this.#renewals.length > 0 ? next : undefined;
  }

  /** Sends the open heartbeat again, or a new one: the first that a caller waits for, or a plain one. */
  #beat(now: number, chance: Chance, actions: Action<Change>[]): void {
    const renewal = this.#renewals[0];
    const fresh = { lease: renewal?.lease ?? this.lease, change: renewal?.change, call: renewal?.call };
    const turn = this.numbers.next(fresh, now, () => chance.id("request-id"));
    const { lease } = turn.body;
    this.until = Math.min(this.until, turn.firstSent + believedOf(this.terms, lease));
    const believed = this.until - this.#renewedAt;
    const timeout = requestTimeout(Math.min(lease, believed), this.until - now);
    this.#sends += 1;
    this.underWay = this.#sends;
    this.#due = undefined;
    actions.push({ type: "send", send: this.#sends, turn, timeout });
  }

  /** Tells the caller of a heartbeat its result, if it still waits. Returns whether it does. */
  #finish(call: number | undefined, outcome: Outcome, actions: Action<Change>[]): boolean {
    const renewal = this.#renewals[0];
    if (renewal === undefined || renewal.call !== call) return false;
    this.#renewals.shift();
    actions.push({ type: "finish", call: renewal.call, outcome });
    return true;
  }

  #finishAll(outcome: Outcome, actions: Action<Change>[]): void {
    for (const { call } of this.#renewals) actions.push({ type: "finish", call, outcome });
    this.#renewals = [];
  }

  #release(now: number, actions: Action<Change>[]): string {
    const giveBack = this.#giveBack(now);
    if (this.#state === "held") {
      this.#end("releasing", actions);
      actions.push(giveBack);
      return "gives-back";
    }
    if (this.#state !== "unreleased") return "nothing-to-give-back";
    this.#state = "releasing";
    actions.push(giveBack);
    return "gives-back-again";
  }

  #giveBack(now: number): Action<Change> {
    return { type: "give-back", lease: this.lease, patience: leaveBound(this.remaining(now)) };
  }

  #returned(end: Return, actions: Action<Change>[]): string {
    if (end.type === "lost" && this.#mayBeGivenBack) {
      this.#state = "released";
      return "was-given-back";
    }
    if (end.type === "lost") {
      this.#lose(end.reason, actions);
      return "was-lost";
    }
    this.#state = end.type === "done" ? "released" : "unreleased";
    return end.type === "done" ? "gave-back" : "not-given-back";
  }

  #lose(reason: Reason, actions: Action<Change>[]): void {
    this.#reason = reason;
    this.#end("lost", actions);
    actions.push({ type: "lost", reason });
  }

  /** Ends the belief, and the heartbeats with it. */
  #end(state: State, actions: Action<Change>[]): void {
    this.#state = state;
    if (this.underWay !== undefined) actions.push({ type: "abandon", send: this.underWay });
    this.underWay = undefined;
    this.#finishAll({ type: "ended" }, actions);
  }

  #warnsAt({ left }: Risk): number {
    return Math.max(0, this.until - (left ?? Math.floor(this.lease / 2)));
  }

  /** Asks for the next tick, if its time has changed. */
  #plan(now: number, actions: Action<Change>[]): void {
    if (this.#state !== "held") return;
    const times = this.#risks.filter(({ isTold }) => !isTold).map((risk) => this.#warnsAt(risk));
    // Past its end, a lease is held through an outage.
    times.push(...[this.until, this.#faith].filter((end) => end > now), this.#holdEnds, this.#due ?? Infinity);
    const next = Math.min(...times);
    if (next === this.#wake) return;
    this.#wake = next;
    actions.push({ type: "wake-at", time: next });
  }
}
