// A contender for scripts/contend.sh: acquires locks by the TypeScript client, and records what it believed.
import { appendFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Client, LeaseholdError } from "../../clients/typescript/dist/index.js";

const { LEASEHOLD_URL: url, CONTEND_HISTORY: history, CONTEND_KEYS: keys } = process.env;
const who = `typescript:${process.pid}`;
const random = (from, to) => from + Math.random() * (to - from);
// JSON has no big integers, and a double would round nanoseconds only after 104 days of uptime.
const now = () => Number(process.hrtime.bigint());

function note(event, key, members = {}) {
  appendFileSync(history, `${JSON.stringify({ at: now(), who, event, key, ...members })}\n`);
}

/** Asks the guard repeatedly. Returns false once the guard reports the loss of the lock. */
async function watch(guard, key, milliseconds) {
  const end = performance.now() + milliseconds;
  for (;;) {
    const at = now();
    if (!guard.valid) return false;
    note("believed", key, { at, token: guard.fencingToken });
    if (performance.now() >= end) return true;
    await sleep(20);
  }
}

async function hold(guard, key, found) {
  let data = Number(found ?? 0);
  const token = guard.fencingToken;
  for (let rounds = Math.floor(random(1, 12)); rounds > 0; rounds -= 1) {
    if (!(await watch(guard, key, random(20, 300)))) return;
    if (Math.random() < 0.4) {
      data += 1;
      note("sending", key, { token, data: String(data) });
      const lease = Math.random() < 0.5 ? Math.round(random(600, 2500)) : undefined;
      try {
        await guard.renew({ data: String(data), lease });
      } catch (error) {
        if (error instanceof LeaseholdError) continue;
        throw error;
      }
      note("acked", key, { token, data: String(data) });
    }
  }
  if (Math.random() < 0.15) await sleep(random(0, 3000)); // late to give it back
  const remove = Math.random() < 0.2;
  note("releasing", key, { token, delete: remove });
  await guard.release({ delete: remove });
}

async function contend(client, key) {
  const asked = now();
  const result = await client.acquire(key, { lease: Math.round(random(600, 2500)), wait: 8000 });
  if (result.kind === "held") {
    if (Math.random() < 0.05) {
      note("breaking", key);
      await client.breakLock(key, result.lock.recordVersionNumber);
    }
    return;
  }
  const found = result.data === undefined ? null : new TextDecoder().decode(result.data);
  note("granted", key, { token: result.fencingToken, asked, data: found });
  await hold(result, key, found);
}

const client = new Client({ url, ownerName: who, pollInterval: 100 });
const locks = keys.split(",");
for (;;) {
  try {
    await contend(client, locks[Math.floor(Math.random() * locks.length)]);
  } catch (error) {
    if (!(error instanceof LeaseholdError)) throw error;
    await sleep(100);
  }
}
