// What many tasks of one TypeScript client cost: herd.mjs herd | held. herd.sh runs it.
import { readdirSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Client } from "../../clients/typescript/dist/index.js";

const url = process.env.LEASEHOLD_URL;
const [TASKS, WORK, LOCKS] = [50, 10, 1000];
const megabytes = () => process.memoryUsage().rss / 2 ** 20;

async function herd() {
  const client = new Client({ url });
  const began = performance.now();
  const task = () => client.withLock("herd", () => sleep(WORK), { wait: 60_000 });
  await Promise.all(Array.from({ length: TASKS }, task));
  return (performance.now() - began) / 1000;
}

/** 1,000 locks that one client holds, and keeps by heartbeats. */
async function held() {
  const client = new Client({ url, lease: 120_000 });
  (await client.acquire("first")).granted();
  const before = megabytes();
  const guards = [];
  for (let number = 0; number < LOCKS; number += 1) guards.push((await client.acquire(`held-${number}`)).granted());
  // Each has had a heartbeat by then.
  await sleep(35_000);
  if (!guards.every(({ valid }) => valid)) throw new Error("one is lost");
  const threads = readdirSync("/proc/self/task").length;
  console.log(
    `TypeScript: 1,000 held locks: ${(megabytes() - before).toFixed(1)} MB, ${threads} threads of the process`,
  );
  await client.close();
}

if (process.argv[2] === "herd")
  console.log(`TypeScript: 50 tasks, 10 ms each, under one lock: ${(await herd()).toFixed(2)} s`);
else await held();
