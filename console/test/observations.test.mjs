import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { Observations, stateOf } = await load("observations.ts");

const lock = (changes = {}) => ({
  key: "Moe",
  state: "held",
  ownerName: "host-1",
  recordVersionNumber: "v1",
  leaseDurationMs: 10_000,
  fencingToken: 7,
  attributes: {},
  ...changes,
});

test("lock is stale only when a later request confirms it", () => {
  const page = new Observations();
  const seen = page.observe(lock(), 0, 100);
  page.observe(lock(), 10_000, 10_120);
  assert.equal(stateOf(seen), "held");
  page.observe(lock(), 10_109, 99_999);
  assert.equal(stateOf(seen), "held", "the drift of a thousandth is not over");
  page.observe(lock(), 10_110, 10_200);
  assert.equal(stateOf(seen), "stale");
});

test("heartbeat starts the count anew", () => {
  const page = new Observations();
  const seen = page.observe(lock(), 0, 100);
  page.observe(lock({ recordVersionNumber: "v2" }), 9000, 9100);
  page.observe(lock({ recordVersionNumber: "v2" }), 10_200, 10_300);
  assert.equal(seen.since, 9100);
  assert.equal(stateOf(seen), "held");
  assert.equal(seen.olderThanSeen, false);
});

test("late answer to an earlier request changes nothing", () => {
  const page = new Observations();
  const seen = page.observe(lock({ recordVersionNumber: "v2" }), 500, 600);
  page.observe(lock({ recordVersionNumber: "v1" }), 400, 900);
  assert.equal(seen.lock.recordVersionNumber, "v2");
  assert.equal(seen.since, 600);
});

test("timeline names each change and counts renewals", () => {
  const page = new Observations();
  page.endListing(0, 1);
  const seen = page.observe(lock(), 10, 20);
  page.observe(lock({ recordVersionNumber: "v2" }), 30, 40);
  page.observe(lock({ recordVersionNumber: "v3" }), 50, 60);
  page.observe(lock({ recordVersionNumber: "v3" }), 20_000, 20_010);
  page.observe(lock({ recordVersionNumber: "v4", ownerName: "host-2", fencingToken: 8 }), 20_020, 20_030);
  page.observe(lock({ recordVersionNumber: "v5", ownerName: "host-3", fencingToken: 9 }), 20_040, 20_050);
  page.observe(
    lock({ recordVersionNumber: "v6", ownerName: "host-3", fencingToken: 9, state: "released" }),
    20_060,
    20_070,
  );
  page.observe(lock({ recordVersionNumber: "v7", ownerName: "host-3", fencingToken: 10 }), 20_080, 20_090);
  page.observe(lock({ recordVersionNumber: "v8", ownerName: "host-3", fencingToken: 11 }), 20_100, 20_110);
  assert.deepEqual(
    seen.events.map(({ kind, count }) => [kind, count]),
    [
      ["acquired", 1],
      ["renewed", 2],
      ["taken over", 1],
      ["changed hands", 1],
      ["released", 1],
      ["acquired", 1],
      ["reacquired", 1],
    ],
  );
  assert.equal(seen.events[2].previousOwnerName, "host-1");
});

test("lock is gone when a whole listing does not show it", () => {
  const page = new Observations();
  const seen = page.observe(lock(), 0, 10);
  page.endListing(0, 20);
  assert.equal(page.locks.size, 1);
  assert.equal(seen.events[0].kind, "seen");
  page.endListing(30, 40);
  assert.equal(page.locks.size, 0);
  assert.equal(seen.gone, true);
  assert.equal(seen.events.at(-1).kind, "gone");
});

test("sort keys keep locks of one key apart", () => {
  const page = new Observations();
  page.observe(lock({ sortKey: "a" }), 0, 10);
  page.observe(lock({ sortKey: "b" }), 0, 10);
  assert.equal(page.locks.size, 2);
});

test("timeline stays bounded", () => {
  const page = new Observations();
  const seen = page.observe(lock(), 0, 10);
  for (let i = 0; i < 1000; i += 1) {
    page.observe(lock({ recordVersionNumber: `r${i}`, fencingToken: i }), 20 + i, 21 + i);
  }
  assert.equal(seen.events.length, 100);
});

test("semaphore is held while it has holders and never stale", () => {
  const semaphore = (version, names) =>
    lock({
      recordVersionNumber: version,
      kind: "semaphore",
      ownerName: "row",
      holders: names.map((ownerName) => ({ ownerName })),
    });
  const page = new Observations();
  const seen = page.observe(semaphore("v1", ["a", "b"]), 0, 10);
  page.observe(semaphore("v1", ["a", "b"]), 1e9, 1e9);
  assert.equal(stateOf(seen), "held");
  assert.equal(seen.searchOwner, "a, b");
  page.observe(semaphore("v2", ["b"]), 2e9, 2e9);
  page.observe(semaphore("v3", ["b"]), 3e9, 3e9);
  assert.deepEqual(
    seen.events.map(({ kind, count, ownerName }) => [kind, count, ownerName]),
    [
      ["seen", 1, "a, b"],
      ["changed", 2, "b"],
    ],
  );
  page.observe(semaphore("v4", []), 4e9, 4e9);
  assert.equal(stateOf(seen), "released");
});
