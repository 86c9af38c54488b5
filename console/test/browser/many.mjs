// Measures the page over a service with many locks.
import { each, open, serve } from "./support.mjs";

const KEY = (index) => `job/${String(index).padStart(5, "0")}`;

/** `leasehold serve` with as many held locks. */
export async function serveMany(count) {
  const service = await serve();
  const numbers = Array.from({ length: count }, (_, index) => index);
  await each(numbers, (index) =>
    service.post("/v1/acquire", {
      key: KEY(index),
      ownerName: `host-${index % 50}`,
      leaseId: `lease-${index}`,
      leaseDurationMs: 3_600_000,
    }),
  );
  return service;
}

/** Types into the filter. Resolves to the longest time until the next frame, in ms. */
export function filterDelay(page) {
  return page.evaluate(async () => {
    const input = document.querySelector("#filter-key");
    const delays = [];
    for (const text of ["job/0123", "7", "", "99", "job/05000", ""]) {
      const begun = performance.now();
      input.value = text;
      input.dispatchEvent(new Event("input", { bubbles: true }));
      await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
      delays.push(performance.now() - begun);
    }
    return Math.max(...delays);
  });
}

/** Scrolls fast. Resolves to the 95th percentile of the times between two frames, in ms. */
function frameTime(page) {
  return page.evaluate(async () => {
    const viewport = document.querySelector("#locks");
    const gaps = [];
    let last = performance.now();
    for (let step = 0; step < 60; step += 1) {
      viewport.scrollTop += 5000;
      await new Promise(requestAnimationFrame);
      gaps.push(performance.now() - last);
      last = performance.now();
    }
    return gaps.sort((a, b) => a - b)[Math.floor(gaps.length * 0.95)];
  });
}

async function heapBytes(page) {
  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  return (await session.send("Runtime.getHeapUsage")).usedSize;
}

/** Time from the answer to a heartbeat until its version is on the page, in ms. */
async function heartbeatSeen(service, page, index) {
  const heartbeat = { key: KEY(index), leaseId: `lease-${index}` };
  const { recordVersionNumber } = await service.post("/v1/heartbeat", heartbeat);
  const answered = performance.now();
  await page.locator("[data-version]", { hasText: recordVersionNumber }).waitFor({ timeout: 10_000 });
  return performance.now() - answered;
}

/** Opens the console over `count` locks. Resolves to the measurements, and to the page. */
export async function measure(browser, service, count) {
  const started = performance.now();
  const page = await open(browser, service.console);
  await page.locator(".row").first().waitFor();
  const firstRows = performance.now() - started;
  const firstPaint = await page.evaluate(
    () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? Number.NaN,
  );
  await page.locator(`[role=grid][aria-rowcount='${count + 1}']`).waitFor({ timeout: 60_000 });
  const allRows = performance.now() - started;
  const rowsInPage = await page.locator(".row").count();
  const filter = await filterDelay(page);
  const frame = await frameTime(page);
  const memory = await heapBytes(page);
  await page.evaluate((key) => (location.hash = `#/lock?${new URLSearchParams({ key })}`), KEY(42));
  await page.locator(".panel .chip-held").waitFor();
  const beats = [];
  for (let beat = 0; beat < 5; beat += 1) beats.push(await heartbeatSeen(service, page, 42));
  beats.sort((a, b) => a - b);
  const heartbeat = { median: beats[2], longest: beats[4] };
  return { page, firstPaint, firstRows, allRows, rowsInPage, filter, frame, memory, heartbeat };
}
