/** A runtime whose time a test decides. */
import type { Runtime } from "../dist/runtime.js";

/** A clock that stands still until a test moves it. */
export class VirtualRuntime implements Runtime {
  time = 1000;
  wall = 1_000_000;
  chance = 0;
  /** The delays of the calls of `after`. */
  delays: number[] = [];
  #timers: { time: number; callback: () => void }[] = [];

  now = (): number => this.time;
  epoch = (): number => this.wall;
  random = (): number => this.chance;
  uuid = (): string => "uuid";
  after = (delay: number, callback: () => void): (() => void) => {
    this.delays.push(delay);
    const timer = { time: this.time + delay, callback };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  };

  get pending(): number {
    return this.#timers.length;
  }

  /** Lets `duration` pass, and runs all callbacks that are due in it. */
  async advance(duration: number): Promise<void> {
    const end = this.time + duration;
    for (;;) {
      await new Promise(setImmediate);
      const next = this.#timers.sort((one, other) => one.time - other.time)[0];
      if (!next || next.time > end) break;
      this.#timers.shift();
      this.wall += next.time - this.time;
      this.time = next.time;
      next.callback();
    }
    this.wall += end - this.time;
    this.time = end;
  }
}
