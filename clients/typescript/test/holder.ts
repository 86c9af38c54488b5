/**
 * A process that holds a lock: `node holder.js MODE URL KEY LEASE`. It prints its fencing token.
 *
 * * `hold`: stays until it is killed;
 * * `forget`: comes to its end without a release;
 * * `release`: releases, and comes to its end;
 * * `lead`: waits, under `withLock`, for nothing but the loss of the lock, and prints the reason.
 */
import { once } from "node:events";
import { Client, LockLostError } from "../dist/index.js";

const [mode, url, key, lease] = process.argv.slice(2);
if (url === undefined || key === undefined) throw new Error("usage: holder MODE URL KEY LEASE");
const client = new Client({ url, ownerName: "holder", lease: Number(lease) });
if (mode === "lead") {
  const lost = client.withLock(key, async (guard) => {
    console.log(guard.fencingToken);
    await once(guard.signal, "abort");
  });
  console.log(await lost.catch((error: unknown) => (error instanceof LockLostError ? error.reason : error)));
} else {
  const guard = (await client.acquire(key)).granted();
  console.log(guard.fencingToken);
  if (mode === "hold") setInterval(() => undefined, 1000);
  if (mode === "release") await guard.release();
}
