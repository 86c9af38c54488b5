/** Spans, metrics and the trace context, by the real SDK of OpenTelemetry. */
import assert from "node:assert/strict";
import { after, test } from "node:test";
import { context, propagation, SpanStatusCode, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import {
  AggregationTemporality,
  InMemoryMetricExporter,
  MeterProvider,
  PeriodicExportingMetricReader,
} from "@opentelemetry/sdk-metrics";
import { BasicTracerProvider, InMemorySpanExporter, SimpleSpanProcessor } from "@opentelemetry/sdk-trace-base";
import { openTelemetry } from "../dist/opentelemetry.js";
import { aborted, eventually, FaultProxy, freshKey, guardOf, heldOf, LocalService } from "./support.js";

context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
propagation.setGlobalPropagator(new W3CTraceContextPropagator());
const spans = new InMemorySpanExporter();
const tracerProvider = new BasicTracerProvider({ spanProcessors: [new SimpleSpanProcessor(spans)] });
const exporter = new InMemoryMetricExporter(AggregationTemporality.CUMULATIVE);
const reader = new PeriodicExportingMetricReader({ exporter, exportIntervalMillis: 2 ** 31 - 1 });
const meterProvider = new MeterProvider({ readers: [reader] });

const service = await LocalService.start();
const proxy = await FaultProxy.start(service.url);
after(async () => {
  await meterProvider.shutdown();
  await proxy[Symbol.asyncDispose]();
  await service[Symbol.asyncDispose]();
});
const observed = (): ReturnType<LocalService["client"]> =>
  service.client({ url: proxy.url, telemetry: openTelemetry({ tracerProvider, meterProvider }) });

/** A data point of a metric. */
interface Point {
  count?: number;
  sum?: number;
  attributes: Record<string, unknown>;
}

/** Returns the data points of a metric, by the value of their first attribute. */
async function points(name: string): Promise<Map<string, Point>> {
  await meterProvider.forceFlush();
  const metrics =
    exporter
      .getMetrics()
      .at(-1)
      ?.scopeMetrics.flatMap((scope) => scope.metrics) ?? [];
  const found = metrics.find((metric) => metric.descriptor.name === name)?.dataPoints ?? [];
  return new Map(
    found.map(({ attributes, value }) => [
      String(Object.values(attributes)[0] ?? ""),
      { ...(typeof value === "number" ? { sum: value } : (value as { count: number; sum?: number })), attributes },
    ]),
  );
}

test("requests carry the trace of the caller, and are spans in it", async () => {
  const key = freshKey();
  const tracer = tracerProvider.getTracer("caller");
  const traceId = await tracer.startActiveSpan("job", async (span) => {
    const guard = guardOf(await observed().acquire(key));
    await guard.renew();
    await guard.release();
    span.end();
    return span.spanContext().traceId;
  });
  assert.equal(trace.getActiveSpan(), undefined);
  for (const call of ["acquire", "heartbeat", "release"]) {
    const headers = proxy.calls(call).at(-1)?.headers;
    assert.match(String(headers?.["traceparent"]), new RegExp(`^00-${traceId}-[0-9a-f]{16}-01$`), call);
  }
  const named = spans.getFinishedSpans().filter((span) => span.attributes["leasehold.key"] === key);
  assert.deepEqual(
    named.map(({ name }) => name),
    ["leasehold acquire", "leasehold wait", "leasehold heartbeat", "leasehold release"],
  );
  const [acquire, wait] = named;
  assert.equal(acquire?.parentSpanContext?.spanId, wait?.spanContext().spanId, "the request is inside the wait");
});

test("somebody else's lock is a result, and an outage an error", async () => {
  const key = freshKey();
  const holder = guardOf(await service.client().tryAcquire(key));
  heldOf(await observed().tryAcquire(key));
  const held = spans.getFinishedSpans().filter((span) => span.attributes["leasehold.key"] === key);
  assert.deepEqual(
    held.map(({ status }) => status.code),
    [SpanStatusCode.UNSET, SpanStatusCode.UNSET],
  );
  assert.equal(held[0]?.attributes["leasehold.result"], "held");
  assert.equal(held[0].attributes["error.type"], undefined);
  proxy.fault = ({ call }) => (call === "acquire" ? { status: 503, body: "" } : "pass");
  const other = freshKey();
  await assert.rejects(observed().tryAcquire(other));
  const failed = spans.getFinishedSpans().find((span) => span.attributes["leasehold.key"] === other);
  assert.equal(failed?.status.code, SpanStatusCode.ERROR);
  assert.equal(failed.attributes["leasehold.result"], "unavailable");
  assert.equal(failed.attributes["error.type"], "unavailable");
  proxy.fault = () => "pass";
  await holder.release();
});

test("waits, holds, heartbeats, renewals and losses are measured", async () => {
  const before = async (name: string, attribute: string): Promise<number> => {
    const point = (await points(name)).get(attribute);
    return point?.count ?? point?.sum ?? 0;
  };
  const losses = await before("leasehold.losses", "released");
  const renewals = await before("leasehold.renewals", "");
  const holds = await before("leasehold.hold.duration", "");
  const key = freshKey();
  const guard = guardOf(await observed().tryAcquire(key, { heartbeatInterval: false }));
  await guard.renew();
  await service.client().breakLock(key, guard.recordVersionNumber);
  await assert.rejects(guard.renew());
  await aborted(guard.signal);
  await eventually(async () => (await before("leasehold.losses", "released")) === losses + 1, "the loss");
  assert.equal(await before("leasehold.renewals", ""), renewals + 1);
  assert.equal(await before("leasehold.hold.duration", ""), holds + 1);
  const heartbeats = await points("leasehold.heartbeat.duration");
  assert.ok((heartbeats.get("renewed")?.count ?? 0) >= 1);
  assert.equal(heartbeats.get("lost")?.count, 1);
  assert.equal(heartbeats.get("lost")?.attributes["error.type"], "lost");
  assert.equal(heartbeats.get("renewed")?.attributes["error.type"], undefined);
  const waits = await points("leasehold.wait.duration");
  assert.ok((waits.get("granted")?.count ?? 0) >= 2);
  assert.equal(waits.get("held")?.count, 1);
  assert.equal(waits.get("unavailable")?.count, 1);
  assert.ok((waits.get("granted")?.sum ?? 0) < 60, "in seconds");
});
