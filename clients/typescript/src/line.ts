/** The line of one client for one lock: one waiter asks the service, and the others wait for their turn. */
import type { Lock } from "./lock.js";
import type { WaitBudget } from "./pacing.js";
import type { Runtime } from "./runtime.js";
import { sleepUntil } from "./timers.js";

/** The time after which a waiter in line looks whether its wait is over. */
const LOOK_AGAIN_MS = 250;

/** The turn of one waiter: to ask, and then to hold. It ends once. */
export class Turn {
  #line: Line | undefined;

  constructor(line: Line) {
    this.#line = line;
  }

  /** Shows the holder to the waiters behind. */
  saw(lock: Lock): void {
    if (this.#line) this.#line.seen = lock;
  }

  /** The waiter holds the lock now. `view` returns how it is held. */
  holds(view: () => Lock | undefined): void {
    if (this.#line) this.#line.held = view;
  }

  /** Passes the turn to the next waiter. */
  end(): void {
    const line = this.#line;
    this.#line = undefined;
    line?.passOn();
  }
}

class Ticket {
  isCalled = false;
  call = (): void => undefined;
  readonly called = new Promise<void>((resolve) => {
    this.call = () => {
      this.isCalled = true;
      resolve();
    };
  });
}

/** The waiters for one lock, first in, first out. */
class Line {
  /** The last view of a holder that the service showed. */
  seen: Lock | undefined;
  /** Returns the view of the holder, where that is the one with the turn. */
  held: () => Lock | undefined = () => undefined;
  readonly #waiting: Ticket[] = [];

  constructor(private readonly drop: () => void) {}

  get view(): Lock | undefined {
    return this.held() ?? this.seen;
  }

  enter(): Ticket {
    const ticket = new Ticket();
    this.#waiting.push(ticket);
    return ticket;
  }

  /** Gives a place up; and the turn, where it came meanwhile. */
  leave(ticket: Ticket): void {
    if (ticket.isCalled) this.passOn();
    else this.#waiting.splice(this.#waiting.indexOf(ticket), 1);
  }

  passOn(): void {
    this.held = () => undefined;
    const next = this.#waiting.shift();
    if (next) next.call();
    else this.drop();
  }
}

/** The lines of one client. */
export class Lines {
  readonly #lines = new Map<string, Line>();

  constructor(private readonly runtime: Runtime) {}

  /**
   * Waits for the turn. Resolves with the last view of the holder where the wait is over before; with undefined where
   * there is none. Rejects with the signal's reason.
   */
  async turn(
    key: string,
    sortKey: string | undefined,
    budget: WaitBudget,
    signal: AbortSignal,
  ): Promise<Turn | Lock | undefined> {
    const name = JSON.stringify([key, sortKey]);
    const line = this.#lines.get(name);
    if (!line) {
      const made = new Line(() => this.#lines.delete(name));
      this.#lines.set(name, made);
      return new Turn(made);
    }
    const ticket = line.enter();
    const { runtime } = this;
    try {
      for (;;) {
        const { view } = line;
        if (view) budget.found(view.recordVersionNumber, view.leaseDurationMs, runtime.now());
        if (runtime.now() >= budget.deadline) break;
        const until = Math.min(budget.deadline, runtime.now() + LOOK_AGAIN_MS);
        await Promise.race([ticket.called, sleepUntil(runtime, until, signal)]);
        if (ticket.isCalled) return new Turn(line);
      }
    } catch (error) {
      line.leave(ticket);
      throw error;
    }
    line.leave(ticket);
    return line.view;
  }
}
