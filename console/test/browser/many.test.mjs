// Ten thousand locks: the page stays quick. Prints the figures of docs/performance.md.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { browser as launch, each, open, serve } from "./support.mjs";

const COUNT = 10_000;

let browser;
let service;
before(async () => {
  [browser, service] = await Promise.all([launch(), serve()]);
  const numbers = Array.from({ length: COUNT }, (_, index) => index);
  await each(numbers, (index) =>
    service.post("/v1/acquire", {
      key: `job/${String(index).padStart(5, "0")}`,
      ownerName: `host-${index % 50}`,
      leaseId: `lease-${index}`,
      leaseDurationMs: 3_600_000,
    }),
  );
});
after(async () => {
  await browser?.close();
  await service?.end();
});

test("ten thousand locks stay smooth", async () => {
  const started = performance.now();
  const page = await open(browser, service.console);
  await page.locator(".row").first().waitFor();
  const firstRows = performance.now() - started;
  const paint = await page.evaluate(
    () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? Number.NaN,
  );
  await page.locator(`[role=grid][aria-rowcount='${COUNT + 1}']`).waitFor({ timeout: 60_000 });
  const allRows = performance.now() - started;
  assert.ok((await page.locator(".row").count()) < 60, "only the rows of the window are there");

  const filter = await page.evaluate(async () => {
    const input = document.querySelector("#filter-key");
    const grid = document.querySelector("[role=grid]");
    const delays = [];
    for (const text of ["job/0123", "7", "", "99", "job/05000", ""]) {
      const begun = performance.now();
      input.value = text;
      input.dispatchEvent(new Event("input", { bubbles: true }));
      await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
      delays.push(performance.now() - begun);
    }
    return { worst: Math.max(...delays), rows: grid.getAttribute("aria-rowcount") };
  });
  assert.equal(filter.rows, String(COUNT + 1));

  const frames = await page.evaluate(async () => {
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
  const end = page.locator(".row", { hasText: "job/07" });
  await end.first().waitFor();

  const session = await page.context().newCDPSession(page);
  await session.send("HeapProfiler.collectGarbage");
  const { usedSize } = await session.send("Runtime.getHeapUsage");

  // A heartbeat among ten thousand is seen, too.
  await page.evaluate(() => (location.hash = "#/lock?key=job/00042"));
  await page.locator(".panel .chip-held").waitFor();
  await service.post("/v1/heartbeat", { key: "job/00042", leaseId: "lease-42" });
  const beat = performance.now();
  await page.locator(".event-renewed").waitFor({ timeout: 10_000 });
  const seen = performance.now() - beat;

  const whole = Math.round;
  console.log(`    first contentful paint ${whole(paint)} ms, first rows ${whole(firstRows)} ms, all rows ${whole(allRows)} ms`);
  console.log(`    filter ${whole(filter.worst)} ms, frame of a fast scroll ${whole(frames)} ms (95th percentile)`);
  console.log(`    memory of the page ${(usedSize / 1e6).toFixed(1)} MB, heartbeat seen after ${whole(seen)} ms`);
  assert.ok(filter.worst < 1000, `a filter takes ${filter.worst} ms`);
  assert.ok(usedSize < 100e6, `the page takes ${usedSize} bytes`);
  assert.deepEqual(page.faults, []);
});
