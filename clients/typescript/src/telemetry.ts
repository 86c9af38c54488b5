/** The boundary between the client and an observability library. */

/** The measurements of a client. Durations are in milliseconds. */
export type Measurement =
  /**
   * The wait, from the call of `acquire` or `tryAcquire` to its result: `granted`, `held` or the kind of an
   * error.
   */
  | { readonly name: "wait"; readonly duration: number; readonly result: string }
  /** The hold, from the grant to the release, the loss or the handover. */
  | { readonly name: "hold"; readonly duration: number }
  /** One heartbeat: `renewed` or the kind of an error. */
  | { readonly name: "heartbeat"; readonly duration: number; readonly result: string }
  /** The loss of a lock. */
  | { readonly name: "loss"; readonly reason: string };

/**
 * Receives the operations of a client. `openTelemetry()` of `leasehold/opentelemetry` makes one. No method
 * may throw an error of its own.
 */
export interface Telemetry {
  /**
   * Runs `work`, which is an acquire with all its requests, or one request, and returns its result. `headers` go with
   * the request: the trace context, for example.
   */
  trace<T>(
    operation: string,
    key: string | undefined,
    work: (headers: Readonly<Record<string, string>>) => Promise<T>,
  ): Promise<T>;
  record(measurement: Measurement): void;
}

/** The members of a message of the log: of what it is about. */
export interface LogFields {
  /** The key, or the keys of several locks. */
  readonly key?: string;
  readonly error?: unknown;
}

/** Receives the client's messages, with their parts as members. `console` is one, and so are pino and winston with a few words. */
export interface Logger {
  warn(message: string, fields: LogFields): void;
}

/** Writes to the process's output. */
export const consoleLogger: Logger = {
  warn: (message) => {
    console.warn(`leasehold: ${message}`);
  },
};

/** Reports nothing. */
export const silent: Telemetry = {
  trace: (_operation, _key, work) => work({}),
  record: () => undefined,
};
