/** The boundary between the client and an observability library. */

/** The measurements of a client. Durations are in milliseconds. */
export type Measurement =
  /** From the call of `acquire` or `tryAcquire` to its result: `granted`, `held` or the kind of an error. */
  | { readonly name: "wait"; readonly duration: number; readonly result: string }
  /** From the grant to the release, the loss or the handover. */
  | { readonly name: "hold"; readonly duration: number }
  /** One heartbeat: `renewed` or the kind of an error. */
  | { readonly name: "heartbeat"; readonly duration: number; readonly result: string }
  /** A lock was lost. */
  | { readonly name: "loss"; readonly reason: string };

/**
 * Receives what a client does. `openTelemetry()` of `leasehold/opentelemetry` is one. No method may throw of its own.
 */
export interface Telemetry {
  /**
   * Runs `work`, which is an acquire with all its requests, or one request, and returns its result. `headers` go with
   * the request: the trace context, for example.
   */
  trace<T>(operation: string, key: string | undefined, work: (headers: Readonly<Record<string, string>>) => Promise<T>): Promise<T>;
  record(measurement: Measurement): void;
}

/** Reports nothing. */
export const silent: Telemetry = {
  trace: (_operation, _key, work) => work({}),
  record: () => undefined,
};
