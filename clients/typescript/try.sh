#!/usr/bin/env bash
# Tries the packed package in fresh projects: ESM, CommonJS, Jest, strict types, a bundle; on Node 20.9 and on the newest.
# PACKAGE names a packed package, which is packed otherwise. Needs a built `leasehold` (LEASEHOLD_BIN names another one).
set -euo pipefail
cd "$(dirname "$0")"
# shellcheck source=scripts/lib/trial.sh
source ../../scripts/lib/trial.sh

readonly OLDEST_NODE=20.9.0

if [[ -z ${PACKAGE-} ]]; then
    step 'pack'
    npm pack --silent --pack-destination "$work" >/dev/null
    PACKAGE=$(echo "$work"/leasehold-*.tgz)
fi

serve "${LEASEHOLD_BIN:-$PWD/../../target/debug/leasehold}"

# Makes a project with the package and other packages: project NAME TYPE PACKAGE...
project() {
    local name=$1 type=$2
    shift 2
    mkdir "$work/$name"
    cd "$work/$name"
    printf '{"name":"%s","private":true,"type":"%s"}\n' "$name" "$type" >package.json
    npm install --silent --no-audit --no-fund "$PACKAGE" "$@"
}

step 'two versions of Node'
project nodes commonjs "oldest@npm:node@$OLDEST_NODE" newest@npm:node
oldest=$work/nodes/node_modules/oldest/bin/node
newest=$work/nodes/node_modules/newest/bin/node
"$oldest" --version
"$newest" --version

step 'ESM'
project esm module
cat >main.js <<'JS'
import { Client, LockHeldError } from "leasehold";
const client = new Client({ url: process.env.LEASEHOLD_URL });
const token = await client.withLock("try-esm", async (guard) => {
  const other = new Client({ url: process.env.LEASEHOLD_URL });
  await other.withLock("try-esm", () => {}, { wait: 0 }).catch((error) => {
    if (!(error instanceof LockHeldError)) throw error;
  });
  return guard.fencingToken;
});
if (!Number.isSafeInteger(token)) throw new Error("no token");
console.log("ESM", process.version);
JS
"$oldest" main.js
"$newest" main.js
# A proxy of the environment is not asked for a service on loopback.
NODE_USE_ENV_PROXY=1 HTTP_PROXY=http://127.0.0.1:1 "$newest" main.js

step 'CommonJS'
project cjs commonjs
cat >main.js <<'JS'
const { Client } = require("leasehold");
async function main() {
  const client = new Client({ url: process.env.LEASEHOLD_URL });
  const guard = (await client.acquire("try-cjs")).granted();
  await guard.renew();
  await guard.release();
  await client.close();
  console.log("CommonJS", process.version);
}
main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
JS
"$oldest" main.js
"$newest" main.js

step 'Jest'
project jest commonjs jest
cat >lock.test.js <<'JS'
const { Client, Guard } = require("leasehold");
test("a lock is granted and released", async () => {
  const client = new Client({ url: process.env.LEASEHOLD_URL });
  const guard = (await client.acquire("try-jest")).granted();
  expect(guard).toBeInstanceOf(Guard);
  expect(await guard.release()).toBe("released");
  await client.close();
});
JS
npx --no-install jest --silent

step 'strict types, from ESM and from CommonJS, with the optional peers'
project types module typescript@5.9.3 @types/node@20 @opentelemetry/api @aws-sdk/client-lambda
cat >main.ts <<'TS'
import { Client, type Guard, type Held, type SavedObservation } from "leasehold";
import { lambda } from "leasehold/lambda";
import { openTelemetry } from "leasehold/opentelemetry";
const direct = new Client({ transport: lambda("leasehold-invoke"), telemetry: openTelemetry() });
const result: Guard | Held = await direct.tryAcquire("a", { lease: 1000 });
const token: number = result.granted().fencingToken;
const saved: SavedObservation[] = direct.saveObservations();
// @ts-expect-error -- a lease is a number
void direct.acquire("a", { lease: "20s" });
console.log(token, saved);
TS
cat >main.cts <<'TS'
import leasehold = require("leasehold");
const client: leasehold.Client = new leasehold.Client({ url: "http://127.0.0.1:1" });
void client.close();
TS
npx --no-install tsc --noEmit --strict --exactOptionalPropertyTypes --noUncheckedIndexedAccess --skipLibCheck false \
    --module node16 --target es2022 --lib es2022,dom --types node main.ts main.cts

step 'a bundle'
project bundle module esbuild
cp ../esm/main.js .
npx --no-install esbuild main.js --bundle --minify --platform=node --format=esm --outfile=bundle.mjs --log-level=error
printf 'minified: %s bytes\n' "$(wc -c <bundle.mjs)"
rm -r node_modules/leasehold
"$oldest" bundle.mjs

step 'uninstall'
cd ../cjs
npm uninstall --silent leasehold
[[ ! -e node_modules/leasehold ]]

printf '\nThe package works in fresh projects.\n'
