/**
 * Spans, metrics and the W3C trace context of a client, by OpenTelemetry: `new Client({ url, telemetry: openTelemetry()
 * })`.
 *
 * Needs `@opentelemetry/api`. Without an SDK that is set up, nothing is recorded.
 */
import {
  context,
  type MeterProvider,
  metrics,
  propagation,
  SpanKind,
  SpanStatusCode,
  trace,
  type TracerProvider,
} from "@opentelemetry/api";
import { LeaseholdError } from "./errors.js";
import type { Measurement, Telemetry } from "./telemetry.js";

/** Providers in place of the global ones. */
export interface OpenTelemetryOptions {
  tracerProvider?: TracerProvider | undefined;
  meterProvider?: MeterProvider | undefined;
}

const SCOPE = "leasehold";

/**
 * Returns the telemetry of a client. Keys are in spans only: as attributes of metrics they would have no bound. A failure
 * has the attribute `error.type`, in spans and metrics, as the semantic conventions have it; that a lock is held is an
 * answer, and no failure.
 *
 * | metric | unit | attributes |
 * |---|---|---|
 * | `leasehold.wait.duration` | s | `leasehold.result`, `error.type` |
 * | `leasehold.hold.duration` | s | |
 * | `leasehold.heartbeat.duration` | s | `leasehold.result`, `error.type` |
 * | `leasehold.renewals` | {renewal} | |
 * | `leasehold.losses` | {lock} | `leasehold.reason` |
 */
export function openTelemetry({ tracerProvider, meterProvider }: OpenTelemetryOptions = {}): Telemetry {
  const tracer = (tracerProvider ?? trace).getTracer(SCOPE);
  const meter = (meterProvider ?? metrics).getMeter(SCOPE);
  const seconds = (name: string, description: string) =>
    meter.createHistogram(`leasehold.${name}.duration`, { unit: "s", description });
  const wait = seconds("wait", "Time from asking for a lock to the answer.");
  const hold = seconds("hold", "Time from a grant to the release or the loss.");
  const heartbeat = seconds("heartbeat", "Time from sending a heartbeat to its answer.");
  const renewals = meter.createCounter("leasehold.renewals", {
    unit: "{renewal}",
    description: "Heartbeats that renewed a lease.",
  });
  const losses = meter.createCounter("leasehold.losses", {
    unit: "{lock}",
    description: "Locks that were lost, by reason.",
  });
  return {
    trace: async (operation, key, work) => {
      const span = tracer.startSpan(`leasehold ${operation}`, {
        kind: SpanKind.CLIENT,
        attributes: key === undefined ? {} : { "leasehold.key": key },
      });
      const headers: Record<string, string> = {};
      const inside = trace.setSpan(context.active(), span);
      propagation.inject(inside, headers);
      try {
        return await context.with(inside, work, undefined, headers);
      } catch (error) {
        const kind = error instanceof LeaseholdError ? error.kind : "aborted";
        span.setAttributes(attributesOf(kind));
        // Held is an answer, and no error.
        if (kind !== "held")
          span.setStatus({
            code: SpanStatusCode.ERROR,
            message: error instanceof Error ? error.message : String(error),
          });
        throw error;
      } finally {
        span.end();
      }
    },
    record: (measurement: Measurement) => {
      switch (measurement.name) {
        case "wait":
          wait.record(measurement.duration / 1000, attributesOf(measurement.result));
          break;
        case "hold":
          hold.record(measurement.duration / 1000);
          break;
        case "heartbeat":
          heartbeat.record(measurement.duration / 1000, attributesOf(measurement.result));
          if (measurement.result === "renewed") renewals.add(1);
          break;
        case "loss":
          losses.add(1, { "leasehold.reason": measurement.reason });
      }
    },
  };
}

function attributesOf(result: string): Record<string, string> {
  const isFailure = !["granted", "held", "renewed"].includes(result);
  return { "leasehold.result": result, ...(isFailure && { "error.type": result }) };
}
