// One more contender for scripts/contend.sh: runs $CONTEND_JOB under the lock $CONTEND_KEY, once.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { Client } from "../../clients/typescript/dist/index.js";

const { LEASEHOLD_URL: url, CONTEND_KEY: key, CONTEND_JOB: job } = process.env;
const client = new Client({ url, ownerName: "typescript", lease: 1000 });
const guard = await client.acquire(key, { wait: 10_000 });
if (guard.kind === "held") process.exit(75);
const child = spawn(job, { env: { ...process.env, LEASEHOLD_FENCING_TOKEN: String(guard.fencingToken) } });
await once(child, "exit");
await guard.release();
await client.close();
