import assert from "node:assert/strict";
import { test } from "node:test";
import { load } from "./load.mjs";

const { view } = await load("view.ts");
const { Observations } = await load("observations.ts");
const { plain } = await load("text.tsx");
const { age, duration } = await load("format.ts");

const all = { key: "", owner: "", state: "all", sort: "key" };

function observed() {
  const page = new Observations();
  const lock = { leaseDurationMs: 1000, recordVersionNumber: "v", attributes: {} };
  page.observe({ ...lock, key: "b/Orders", ownerName: "Host-1", state: "held" }, 0, 10);
  page.observe({ ...lock, key: "a/orders", ownerName: "host-2", state: "released" }, 0, 20);
  page.observe({ ...lock, key: "c", sortKey: "orders", ownerName: "other", state: "held" }, 0, 5);
  page.observe({ ...lock, key: "c", sortKey: "orders", ownerName: "other", state: "held" }, 5000, 5010);
  return page.locks.values();
}

const keys = (filter) => view(observed(), { ...all, ...filter }).rows.map((seen) => seen.lock.key);

test("filters match parts of key and owner in any case", () => {
  assert.deepEqual(keys({}), ["a/orders", "b/Orders", "c"]);
  assert.deepEqual(keys({ key: "ORDERS" }), ["a/orders", "b/Orders", "c"]);
  assert.deepEqual(keys({ key: "a/" }), ["a/orders"]);
  assert.deepEqual(keys({ owner: "host" }), ["a/orders", "b/Orders"]);
  assert.deepEqual(keys({ owner: "host", state: "held" }), ["b/Orders"]);
  assert.deepEqual(keys({ state: "stale" }), ["c"]);
});

test("counts ignore the chosen state", () => {
  assert.deepEqual(view(observed(), { ...all, state: "stale" }).counts, { all: 3, held: 1, stale: 1, released: 1 });
});

test("silence sorts the longest silent holder first", () => {
  assert.deepEqual(keys({ sort: "silence" }), ["c", "b/Orders", "a/orders"]);
});

test("invisible characters are named", () => {
  assert.equal(plain("a\u202eb\u200bc\n\0"), "a⟨U+202E⟩b⟨U+200B⟩c⟨\\n⟩⟨\\0⟩");
  assert.equal(plain("plain äöü 锁 🔒"), "plain äöü 锁 🔒");
});

test("durations are short and exact", () => {
  assert.deepEqual([0, 42_900, 185_000, 7_800_000, 450_000_000].map(age), [
    "0 s",
    "42 s",
    "3 min 05 s",
    "2 h 10 min",
    "5 d 5 h",
  ]);
  assert.deepEqual([250, 1500, 20_000, 60_000, 86_400_000].map(duration), ["250 ms", "1.5 s", "20 s", "1 min", "24 h"]);
});
