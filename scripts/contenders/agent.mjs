// An agent of the nemesis: carries out orders by the TypeScript client. Each line of the input is an order, each of the output
// its answer: a JSON object, with `error` where it failed. While it waits for a grant it says so five times a second.
import { createInterface } from "node:readline";
import { Client, Election, LeaseholdError } from "../../clients/typescript/dist/index.js";

const { LEASEHOLD_URL: url, CONTEND_TABLE: table } = process.env;
const client = new Client({ url, ownerName: "typescript" });
let held;
let tx;

const say = (answer) => process.stdout.write(`${JSON.stringify(answer)}\n`);
/** The list, or the counter, of an item. */
const shown = (item) => item?.n ?? item?.l ?? null;
const change = ({ amount, value }) =>
  amount
    ? ["ADD n :v", { ":v": amount }]
    : ["SET l = list_append(if_not_exists(l, :none), :v)", { ":none": [], ":v": [value] }];

/** A body was left without success, or goes on. */
class Unfinished extends Error {}
/** Milliseconds for `once` or `lead`, whose body has ended. A leader who lost its lead stands again. */
const ENDS = 20_000;

/**
 * Starts `once` or `lead`. Resolves with the guard of the body, which goes on until `release` says how it ends, or
 * with the outcome, where the body was not called.
 */
async function inside(run) {
  let end;
  let begin;
  const ended = new Promise((resolve) => {
    end = resolve;
  });
  const begun = new Promise((resolve) => {
    begin = resolve;
  });
  const outcome = run(async (guard) => {
    begin(guard);
    if (!(await ended)) throw new Unfinished("left");
  });
  outcome.catch(() => {});
  const guard = await Promise.race([begun, outcome]);
  if (guard?.kind !== "granted") return { kind: "held" };
  return {
    kind: "inside",
    fencingToken: guard.fencingToken,
    get valid() {
      return guard.valid;
    },
    abandon: () => end(false),
    release: async ({ kind, completed }) => {
      end(kind === "lead" || completed !== undefined);
      const late = new Promise((_, reject) => setTimeout(reject, ENDS, new Unfinished("goes on")).unref());
      await Promise.race([outcome, late]);
    },
  };
}

/** Breaks a lock, or one of the holders and waiters of a semaphore. */
async function breakOne({ key, kind, pick }) {
  if (kind === "lock") {
    const lock = await client.get(key);
    if (lock?.state !== "held") return {};
    await client.breakLock(key, lock.recordVersionNumber);
    return { number: lock.fencingToken };
  }
  const view = await client.getSemaphore(key);
  const entries = [
    ...(view?.holders ?? []).map(({ holderId, version, fencingToken }) => [holderId, version, fencingToken]),
    ...(view?.queue ?? []).map(({ ticketId, version, number }) => [ticketId, version, number]),
  ];
  if (entries.length === 0) return {};
  const [id, version, number] = entries[pick % entries.length];
  await client.breakEntry(key, id, version);
  return { number };
}

async function acquire(order) {
  const { kind, keys, claim, permits, capacity, lease, ticketLease, wait, occurrence } = order;
  const { shares = {}, capacities = {} } = order;
  const options = { ownerName: claim, lease: Math.round(lease * 1000) };
  const waiting = { ...options, wait: wait * 1000 };
  if (kind === "semaphore") {
    const semaphore = client.semaphore(keys[0], capacity);
    if (wait === 0) return semaphore.tryAcquire({ ...options, permits });
    return semaphore.acquire({ ...waiting, permits, ticketLease: ticketLease * 1000 });
  }
  if (kind === "all") {
    const wanted = keys.map((key) => (shares[key] ? { key, permits: shares[key], capacity: capacities[key] } : key));
    return client.acquireAll(wanted, waiting);
  }
  if (kind === "election") return new Election(client, keys[0], claim).campaign(waiting);
  if (kind === "lead") return inside((body) => new Election(client, keys[0], claim).lead(body, waiting));
  if (kind === "once") return inside((body) => client.once(keys[0], occurrence, body, waiting));
  if (order.once) return client.tryAcquire(keys[0], options);
  return client.acquire(keys[0], { ...waiting, ...(occurrence && { occurrence }) });
}

async function acquireAloud(order) {
  if (held?.kind === "inside") held.abandon();
  const signs = setInterval(() => say({ waiting: true }), 200);
  try {
    held = await acquire(order);
  } finally {
    clearInterval(signs);
  }
  return held.kind === "held" ? { held: true } : { token: held.fencingToken };
}

const orders = {
  begin: async () => {
    tx = await client.beginTransaction();
    return { id: tx.id };
  },
  get: async ({ key }) => ({ value: shown(await tx.get(table, { id: key })) }),
  change: async (order) => {
    await tx.update(table, { id: order.key }, ...change(order));
  },
  delete: async ({ key }) => {
    await tx.delete(table, { id: key });
  },
  commit: async () => tx.commit(),
  rollback: async () => tx.rollback(),
  look: async ({ key, level }) => ({ value: shown(await client.readItem(table, { id: key }, { isolation: level })) }),
  list: async ({ level }) => {
    const items = {};
    for await (const item of client.listItems(table, { isolation: level })) items[item.id] = shown(item);
    return { items };
  },
  acquire: acquireAloud,
  believe: async () => ({ believed: held.valid }),
  renew: async () => held.renew(),
  keep: async ({ permits }) => held.keep(permits),
  release: async ({ kind, completed, data }) => {
    if (held.kind === "inside") await held.release({ kind, completed });
    else await held.release({ ...(completed && { completed }), ...(data && { data }) });
  },
  break: breakOne,
};

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  try {
    say((await orders[order.do](order)) ?? {});
  } catch (error) {
    if (!(error instanceof LeaseholdError || error instanceof Unfinished)) throw error;
    say({ error: error.constructor.name.replace(/Error$/, ""), detail: error.message });
  }
}
