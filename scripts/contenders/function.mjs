// A function for scripts/contend.sh: works under a lock, by the TypeScript client, and writes to the store of the nemesis.
// The loop at the end is a runtime: it asks for one invocation after the other.
import { setTimeout as sleep } from "node:timers/promises";
import { idempotent, withLock } from "../../clients/typescript/dist/handlers.js";
import { Client } from "../../clients/typescript/dist/index.js";

const { AWS_LAMBDA_RUNTIME_API: api, LAMBDA_SERVICE: url, LAMBDA_STORE: store } = process.env;
const client = new Client({ url, ownerName: `typescript:${process.pid}`, lease: 20_000, pollInterval: 100 });

async function write({ key }, { awsRequestId, leasehold }) {
  const body = { key, who: awsRequestId, token: leasehold.fencingToken };
  await fetch(store, { method: "POST", body: JSON.stringify(body) });
}

/** Work of the kind `overruns` does not look at its guard, and `asynchronous` looks at its signal alone. */
async function work(event, context) {
  const ends = performance.now() + event.seconds * 1000;
  const signal = event.kind === "asynchronous" ? context.leasehold.signal : undefined;
  while (performance.now() < ends && (event.kind !== "stops" || context.leasehold.valid)) {
    await write(event, context);
    await sleep(20, undefined, { signal });
  }
  if (event.kind === "raises") throw new Error("as it was told");
  if (event.kind === "dies") process.exit(1);
}

const wrapped = Object.fromEntries(
  ["raise", "wait", "skip"].map((onContention) => [
    onContention,
    withLock(work, { key: "{key}", client, margin: 600, onContention }),
  ]),
);

async function workOnce(event, context) {
  await work(event, context);
  return context.leasehold.fencingToken;
}

const once = Object.fromEntries(
  ["raise", "wait"].map((onContention) => [
    onContention,
    idempotent(workOnce, { key: "{key}", client, margin: 600, payload: ({ key }) => key, onContention }),
  ]),
);

for (;;) {
  const next = await fetch(`http://${api}/2018-06-01/runtime/invocation/next`);
  const awsRequestId = next.headers.get("lambda-runtime-aws-request-id");
  const deadline = Number(next.headers.get("lambda-runtime-deadline-ms"));
  const context = { awsRequestId, getRemainingTimeInMillis: () => deadline - Date.now() };
  const event = await next.json();
  let [what, answer] = ["response", null];
  try {
    const handler = (event.once ? once : wrapped)[event.contention];
    answer = (await handler(event, context)) ?? null;
  } catch (error) {
    [what, answer] = ["error", { errorType: error.name, errorMessage: error.message }];
  }
  const path = `http://${api}/2018-06-01/runtime/invocation/${awsRequestId}/${what}`;
  await fetch(path, { method: "POST", body: JSON.stringify(answer) });
}
