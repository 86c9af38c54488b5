// Makes the pictures of the console in docs/images. Run it after a change: npm --prefix console run screenshots.
import { browser as launch, open, serve } from "./test/browser/support.mjs";

const IMAGES = new URL("../docs/images/", import.meta.url).pathname;
const JOBS = [
  ["backup/primary", "db-1", 20_000],
  ["backup/replica", "db-2", 60_000],
  ["billing/close-month", "worker-7f9c", 12_000],
  ["cron/certificates", "eu-west-1/i-0ab3", 300_000],
  ["deploy/production", "ci-runner-12", 45_000],
  ["deploy/staging", "ci-runner-3", 20_000],
  ["etl/customers", "worker-2b11", 20_000],
  ["etl/orders", "worker-7f9c", 30_000],
  ["etl/stock", "worker-2b11", 20_000],
  ["gdpr/erase", "host-1", 8000],
  ["invoice-run", "host-2", 20_000],
  ["mail/digest", "host-1", 60_000],
  ["nightly-export", "host-2", 20_000],
  ["report/weekly", "worker-9d02", 20_000],
  ["search/reindex", "worker-7f9c", 40_000],
  ["thumbnails/0", "lambda/thumbs", 15_000],
];
const DEAD = ["gdpr/erase", "billing/close-month"];
const DONE = ["etl/stock", "report/weekly", "deploy/production"];

const [browser, service] = await Promise.all([launch(), serve()]);
for (const [key, ownerName, leaseDurationMs] of JOBS) {
  const more =
    key === "invoice-run"
      ? { data: '{\n  "step": "collect",\n  "invoices": 1823\n}', attributes: { region: "eu-central-1", attempt: 2 } }
      : {};
  await service.post("/v1/acquire", { key, ownerName, leaseId: `lease-${key}`, leaseDurationMs, ...more });
  if (DONE.includes(key)) await service.post("/v1/release", { key, leaseId: `lease-${key}` });
}
// A semaphore, with holders and a queue.
const permits = { key: "gpu-pool", capacity: 4, leaseDurationMs: 60_000 };
const MEMBERS = [
  ["acquire", "train/resnet", 2],
  ["acquire", "train/bert", 2],
  ["enqueue", "batch/embeddings", 1],
  ["enqueue", "batch/captions", 3],
];
for (const [operation, ownerName, wanted] of MEMBERS) {
  await service.post(`/v1/semaphore/${operation}`, { ...permits, ownerName, permits: wanted, leaseId: ownerName });
}
const living = JOBS.map(([key]) => key).filter((key) => !DEAD.includes(key) && !DONE.includes(key));
const beat = async () => {
  for (const [index, key] of living.entries()) {
    await new Promise((resolve) => setTimeout(resolve, index * 40));
    await service.post("/v1/heartbeat", { key, leaseId: `lease-${key}` });
  }
  await service.post("/v1/semaphore/heartbeat", { key: permits.key, leaseId: "train/resnet" });
};
const views = [
  ["console-light", { colorScheme: "light" }, ""],
  ["console-dark", { colorScheme: "dark" }, "#/lock?key=invoice-run"],
  ["console-semaphore", { colorScheme: "light" }, "#/lock?key=gpu-pool"],
  ["console-narrow", { colorScheme: "light", viewport: { width: 390, height: 760 } }, ""],
];
const pages = await Promise.all(views.map(([, options, place]) => open(browser, service.console + place, options)));
let isOver = false;
const beats = (async () => {
  while (!isOver) await beat();
})();
await Promise.all(
  views.map(async ([name], index) => {
    const page = pages[index];
    await page.locator(".row-stale").nth(1).waitFor({ timeout: 60_000 });
    await new Promise((resolve) => setTimeout(resolve, 2500));
    await page.screenshot({ path: `${IMAGES}${name}.png` });
  }),
);
isOver = true;
await beats;
await browser.close();
await service.end();
