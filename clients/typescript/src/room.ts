/** A bound on what is under way at once: first come, first served. */
import { abortable } from "./timers.js";

export class Room {
  #free: number;
  readonly #waiting = new Set<() => void>();

  constructor(places: number) {
    this.#free = places;
  }

  /** Waits for a place, which `leave` gives back. Rejects with the signal's reason. */
  async enter(signal: AbortSignal): Promise<void> {
    if (this.#free > 0) {
      this.#free -= 1;
      return;
    }
    let enter = (): void => undefined;
    const entered = new Promise<void>((resolve) => {
      enter = resolve;
    });
    this.#waiting.add(enter);
    try {
      await abortable(entered, signal);
    } catch (error) {
      // The place may have come with the signal.
      if (!this.#waiting.delete(enter)) this.leave();
      throw error;
    }
  }

  leave(): void {
    const [next] = this.#waiting;
    if (next === undefined) {
      this.#free += 1;
      return;
    }
    this.#waiting.delete(next);
    next();
  }
}
