// The console with a real service and a real browser.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { browser as launch, consoleOf, each, open, serve } from "./support.mjs";

const axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let browser;
let service;
before(async () => {
  [browser, service] = await Promise.all([launch(), serve()]);
});
after(async () => {
  await browser?.close();
  await service?.end();
});

const acquire = (key, more = {}) =>
  service.post("/v1/acquire", { key, ownerName: "host-1", leaseId: `lease-${key}`, leaseDurationMs: 60_000, ...more });
const at = (key) => `${service.console}#/lock?${new URLSearchParams({ key })}`;

test("lock appears, turns stale and is released", async () => {
  await acquire("short", { leaseDurationMs: 3000 });
  const page = await open(browser, service.console);
  const row = page.locator("[role=row]", { hasText: "short" });
  await row.locator(".chip-held").waitFor();
  await row.locator(".chip-stale").waitFor({ timeout: 10_000 });
  await service.post("/v1/release", { key: "short", leaseId: "lease-short" });
  await row.locator(".chip-released").waitFor();
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test("history of a lock is shown in its order", async () => {
  const keeper = await serve("--history", "1d");
  const turn = (leaseId) => keeper.post("/v1/acquire", { key: "past", ownerName: leaseId, leaseId });
  await turn("first");
  await keeper.post("/v1/release", { key: "past", leaseId: "first" });
  await turn("second");
  const { recordVersionNumber } = await keeper.lock("past");
  await keeper.post("/v1/break", { key: "past", recordVersionNumber });
  const page = await open(browser, `${keeper.console}#/lock?key=past`);
  const events = page.locator("[aria-label=History] .event-name");
  await page.locator("[aria-label=History] .event-broken").waitFor({ timeout: 20_000 });
  const told = ["Broken by an operator", "Acquired", "Released", "Acquired"];
  assert.deepEqual(await events.allTextContents(), told);
  assert.match(await page.locator("[aria-label=History] li").first().textContent(), /second/);
  assert.deepEqual(page.faults, []);
  await page.context().close();
  await keeper.end();
});

test("heartbeat is seen within two seconds", async () => {
  await acquire("alive");
  const page = await open(browser, at("alive"));
  await page.locator(".panel .chip-held").waitFor();
  // A stall of a busy machine may delay some of them. The first may come just before the page looks; the others follow
  // upon a look.
  const delays = [];
  for (let beat = 0; beat < 5; beat += 1) {
    const { recordVersionNumber } = await service.post("/v1/heartbeat", { key: "alive", leaseId: "lease-alive" });
    const started = performance.now();
    await page.locator("[data-version]", { hasText: recordVersionNumber }).waitFor();
    delays.push(Math.round(performance.now() - started));
  }
  console.log(`    heartbeats seen after ${delays.join(", ")} ms`);
  assert.ok(Math.min(...delays.slice(1)) < 2000, `heartbeats seen after ${delays} ms`);
  await page.locator(".event-renewed").first().waitFor();
  await page.context().close();
});

test("break of the shown version frees the lock", async () => {
  await acquire("stuck");
  const { recordVersionNumber } = await service.lock("stuck");
  const page = await open(browser, at("stuck"));
  await page.click("#break");
  assert.equal((await page.textContent("#break-version")).trim(), recordVersionNumber);
  await page.click("#break-confirm");
  await page.locator(".panel .chip-released").waitFor();
  assert.equal((await service.lock("stuck")).state, "released");
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test("break of a changed lock is refused and says so", async () => {
  await acquire("changing");
  const page = await open(browser, at("changing"));
  await page.click("#break");
  await service.post("/v1/heartbeat", { key: "changing", leaseId: "lease-changing" });
  await page.click("#break-confirm");
  await page.locator("dialog .notice-bad", { hasText: "Refused: the lock has changed" }).waitFor();
  assert.equal((await service.lock("changing")).state, "held");
  // The new version can be broken after a second look.
  await page.getByRole("button", { name: "Show its new version" }).click();
  await page.click("#break-confirm");
  await page.locator(".panel .chip-released").waitFor();
  await page.context().close();
});

const permits = (owner, more = {}) => ({
  key: "pool",
  ownerName: owner,
  leaseId: `lease-${owner}`,
  capacity: 3,
  ...more,
});

test("semaphore shows its holders and who waits", async () => {
  await service.post("/v1/semaphore/acquire", permits("steady", { permits: 2, leaseDurationMs: 60_000 }));
  await service.post("/v1/semaphore/acquire", permits("brief", { leaseDurationMs: 3000 }));
  await service.post("/v1/semaphore/enqueue", permits("<b>waiting", { leaseDurationMs: 60_000 }));
  const page = await open(browser, at("pool"));
  await page.locator(".panel .chip-semaphore").waitFor();
  await page.locator(".panel", { hasText: "3 of 3 permits, 1 waits" }).waitFor();
  const holders = page.getByRole("list", { name: "Holders" }).locator(".entry");
  assert.equal(await holders.count(), 2);
  await page.getByRole("list", { name: "Queue" }).locator(".entry", { hasText: "<b>waiting" }).waitFor();
  await holders.filter({ hasText: "brief" }).locator(".chip-stale").waitFor({ timeout: 10_000 });
  assert.equal(await holders.filter({ hasText: "steady" }).locator(".chip-stale").count(), 0);
  await page.locator(".row", { hasText: "3 of 3 permits" }).waitFor();
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document));
  assert.deepEqual(violations, []);
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test("break of a holder spares the others", async () => {
  await service.post("/v1/semaphore/acquire", permits("spared", { key: "trio" }));
  const { holderId } = await service.post("/v1/semaphore/acquire", permits("broken", { key: "trio" }));
  const page = await open(browser, at("trio"));
  await page.getByRole("button", { name: "Break broken…" }).click();
  await page.locator("dialog", { hasText: holderId }).waitFor();
  // The version changes while the dialog shows the old one.
  const beat = { key: "trio", leaseId: "lease-broken" };
  const { version } = await service.post("/v1/semaphore/heartbeat", beat);
  await page.click("#break-confirm");
  await page.locator("dialog .notice-bad", { hasText: "Refused: the holder has changed" }).waitFor();
  await page.getByRole("button", { name: "Show its new version" }).click();
  assert.equal((await page.textContent("#break-version")).trim(), version);
  await page.click("#break-confirm");
  await page.locator(".panel", { hasText: "1 of 3 permits" }).waitFor();
  assert.equal((await service.post("/v1/semaphore/heartbeat", beat)).type, "lost");
  assert.ok((await service.post("/v1/semaphore/heartbeat", { ...beat, leaseId: "lease-spared" })).version);
  await page.context().close();
});

test("hostile text is shown and does nothing", async () => {
  const hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>";
  await acquire(hostile, { ownerName: "\u202etnemyolped\u200b\n<b>x", data: hostile, attributes: { "<i>": hostile } });
  const page = await open(browser, service.console);
  await page.getByText(hostile).first().click();
  await page.locator(".panel .payload", { hasText: hostile }).waitFor();
  await page.locator(".panel .mark", { hasText: "U+202E" }).first().waitFor();
  await page.locator(".panel .mark", { hasText: "U+200B" }).first().waitFor();
  assert.equal(await page.locator("#app img, #app script, #app b:has-text('x')").count(), 0);
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test("keyboard alone finds, opens and closes a lock", async () => {
  await each(["kb-1", "kb-2", "kb-3"], (key) => acquire(key));
  const page = await open(browser, service.console);
  await page.locator(".row").first().waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("KB-");
  await page.locator("[role=grid][aria-rowcount='4']").waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.locator("#lock-title", { hasText: "kb-2" }).waitFor();
  // The title is there before the lock is read.
  await page.locator("#break").waitFor();
  await page.keyboard.press("b");
  await page.locator("dialog[open]").waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await page.locator(".panel").waitFor({ state: "detached" });
  await page.context().close();
});

test("outage is said and turns no lock stale", async () => {
  const own = await serve();
  await own.post("/v1/acquire", { key: "a", ownerName: "o", leaseDurationMs: 2000 });
  const page = await open(browser, own.console);
  await page.locator(".row .chip-held").waitFor();
  await own.end();
  await page.locator(".banner").waitFor();
  await page.waitForTimeout(3000);
  assert.equal(await page.locator(".chip-stale").count(), 0);
  await page.context().close();
});

for (const [name, options, place] of [
  ["the list in light colours", { colorScheme: "light" }, ""],
  ["a lock in dark colours", { colorScheme: "dark" }, "#/lock?key=axe"],
  ["the list on a narrow screen", { viewport: { width: 390, height: 760 } }, ""],
  ["the transactions", {}, "#/transactions"],
]) {
  test(`axe finds nothing in ${name}`, async () => {
    await acquire("axe", { data: "text", attributes: { a: 1 } });
    // The tool is not the page's own script.
    const page = await open(browser, service.console + place, { ...options, bypassCSP: true });
    await page
      .locator(place.includes("transactions") ? ".transactions .empty" : place ? ".panel .chip" : ".row")
      .first()
      .waitFor();
    await page.evaluate(axe);
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    const found = violations.map(
      ({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 160)).join(" | ")}`,
    );
    assert.deepEqual(found, []);
    await page.context().close();
  });
}

test("transaction is found by its id with its items", async () => {
  const { transactionId } = await service.post("/v1/transactions/begin", {});
  const { publicId } = await (await fetch(`${service.url}/v1/transaction?id=${transactionId}`)).json();
  for (const id of [transactionId, publicId]) {
    const page = await open(browser, `${service.console}#/transactions?id=${id}`);
    await page.locator(".transactions .card .chip-pending").waitFor();
    assert.deepEqual(page.faults, []);
    await page.context().close();
  }
});

test("open transactions are listed until they end", async () => {
  const own = await serve("--expose-dynamodb", "0");
  await own.createTable("accounts");
  const begin = async (key) => {
    const Update = {
      TableName: "accounts",
      Key: { id: { S: key } },
      UpdateExpression: "SET balance = :b",
      ExpressionAttributeValues: { ":b": { N: "1" } },
    };
    return (await own.post("/v1/transactions/begin", { requests: [{ Update }] })).transactionId;
  };
  const [first, second] = [await begin("<b>Moe</b>"), await begin("Larry")];
  const page = await open(browser, `${own.console}#/transactions`);
  const rows = page.locator(".transactions .table-frame tbody tr");
  await rows.nth(1).waitFor();
  assert.deepEqual(await rows.locator(".chip").allTextContents(), ["pending", "pending"]);
  assert.deepEqual(await rows.locator("td:nth-child(3)").allTextContents(), ["1", "1"]);
  assert.ok(!(await page.content()).includes(second), "the secret id is not shown");

  await own.post("/v1/transactions/commit", { transactionId: second });
  await rows.nth(1).waitFor({ state: "detached" });
  await rows.locator("a").click();
  await page.locator(".transactions .card td", { hasText: '{"id":{"S":"<b>Moe</b>"}}' }).waitFor();
  await own.post("/v1/transactions/rollback", { transactionId: first });
  await page.locator(".transactions .card .chip-rolled-back").waitFor();
  await page.getByText("No open transactions.").waitFor();
  assert.deepEqual(page.faults, []);
  await page.context().close();
  await own.end();
});

test("leasehold console shows another service by its token only", async () => {
  await acquire("elsewhere");
  const own = await consoleOf(service.url);
  const address = new URL(own.url);
  const without = await fetch(`${address.origin}/v1/locks`);
  assert.equal(without.status, 401);

  const stranger = await open(browser, `${address.origin}/console`);
  await stranger.getByText("asks for a token").waitFor();
  await stranger.context().close();

  const page = await open(browser, own.url);
  await page.locator(".row", { hasText: "elsewhere" }).waitFor();
  assert.ok(!page.url().includes("token"), "the token leaves the address");
  await page.goto(`${address.origin}/console#/lock?key=elsewhere`);
  await page.click("#break");
  await page.click("#break-confirm");
  await page.locator(".panel .chip-released").waitFor();
  assert.deepEqual(page.faults, []);
  await page.context().close();
  await own.end();
});
