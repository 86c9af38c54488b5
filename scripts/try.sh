#!/usr/bin/env bash
# Tries the artefacts of target/dist as a new user would: outside of the tree, from nothing but the packages.
#
# scripts/try.sh. The service, the command and the README's session come from the wheel of the command; the clients run on the oldest and
# the newest Python and Node that the packages name (PYTHONS and NODES name others; npm brings Node); the .deb is installed into a root
# of its own. Everything that was installed is removed again, and nothing of it stays.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly root=$PWD dist=$PWD/target/dist
read -r -a pythons <<<"${PYTHONS:-python3.10 python3.13}"
read -r -a nodes <<<"${NODES:-20.9.0 latest}"

step() {
    printf '\n== %s\n' "$*"
}

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

work=$(mktemp -d)
service=
cleanup() {
    [[ -z $service ]] || kill "$service" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

step 'checksums'
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
cd "$work"

wheel=$(echo "$dist"/leasehold_cli-*"$(uname -m)".whl)
step "the command: ${wheel##*/}"
"${pythons[-1]}" -m venv command
command/bin/pip install --quiet --disable-pip-version-check --no-index "$wheel"
PATH=$work/command/bin:$PATH
leasehold --version

step "the README's session"
python3 "$root/scripts/lib/readme_session.py" --leasehold command/bin/leasehold

step 'a service for the clients'
leasehold serve --memory --listen 127.0.0.1:0 >serve.log &
service=$!
for _ in $(seq 100); do
    grep -q stop serve.log && break
    sleep 0.1
done
LEASEHOLD_URL=$(sed -n 's/^Leasehold listens on //p' serve.log)
export LEASEHOLD_URL
[[ -n $LEASEHOLD_URL ]] || fail 'the service did not start'

cat >client.py <<'PYTHON'
import os, sys
from leasehold import Client, LockHeld

with Client(os.environ["LEASEHOLD_URL"]) as client, client.lock("try-python") as guard:
    with Client(os.environ["LEASEHOLD_URL"]) as other:
        try:
            with other.lock("try-python", wait=0):
                sys.exit("two have the lock")
        except LockHeld as held:
            assert held.lock.fencing_token == guard.fencing_token, held
print("Python", sys.version.split()[0])
PYTHON
cat >aio.py <<'PYTHON'
import asyncio, os
from leasehold.aio import Client

async def main() -> None:
    async with Client(os.environ["LEASEHOLD_URL"]) as client, client.lock("try-aio") as guard:
        assert guard.fencing_token > 0

asyncio.run(main())
PYTHON
for python in "${pythons[@]}"; do
    step "the Python client: $python"
    "$python" -m venv "venv-$python"
    pip="venv-$python/bin/pip --quiet --disable-pip-version-check"
    $pip install "$(echo "$dist"/leasehold-*-py3-none-any.whl)"
    "venv-$python/bin/python" client.py
    $pip install "$(echo "$dist"/leasehold-*-py3-none-any.whl)[aio]"
    "venv-$python/bin/python" aio.py
    $pip uninstall --yes leasehold
    ! "venv-$python/bin/python" -c 'import leasehold' 2>/dev/null || fail 'the Python client is still there'
done

package=$(echo "$dist"/leasehold-*.tgz)
mkdir npm
cd npm
printf '{"private":true,"type":"module"}\n' >package.json
npm install --silent --no-audit --no-fund "$package" typescript@5.9.3 @types/node@20
cat >esm.js <<'JS'
import { Client, LockHeldError } from "leasehold";
const client = new Client({ url: process.env.LEASEHOLD_URL });
const token = await client.withLock("try-esm", async (guard) => {
  const other = new Client({ url: process.env.LEASEHOLD_URL });
  const second = await other.withLock("try-esm", () => "granted", { wait: 0 }).catch((error) => error);
  if (!(second instanceof LockHeldError)) throw new Error(`two have the lock: ${second}`);
  await other.close();
  return guard.fencingToken;
});
if (!Number.isSafeInteger(token)) throw new Error("no token");
await client.close();
console.log("ESM, Node", process.version);
JS
cat >common.cjs <<'JS'
const { Client } = require("leasehold");
(async () => {
  const client = new Client({ url: process.env.LEASEHOLD_URL });
  const guard = (await client.acquire("try-cjs")).granted();
  await guard.release();
  await client.close();
  console.log("CommonJS, Node", process.version);
})().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
JS
cat >types.ts <<'TS'
import { Client, type Guard, type Held } from "leasehold";
const result: Guard | Held = await new Client({ url: "http://127.0.0.1:1" }).tryAcquire("a", { lease: 1000 });
const token: number = result.granted().fencingToken;
// @ts-expect-error -- a lease is a number
void new Client({ url: "http://127.0.0.1:1" }).acquire("a", { lease: "20s" });
console.log(token);
TS
for version in "${nodes[@]}"; do
    step "the TypeScript client: Node $version"
    npm install --silent --no-audit --no-fund --prefix "$work/node-$version" "node@$version"
    node=$work/node-$version/node_modules/node/bin/node
    "$node" esm.js
    "$node" common.cjs
done
step 'the TypeScript client: strict types'
npx --no-install tsc --noEmit --strict --exactOptionalPropertyTypes --skipLibCheck false --module node16 --target es2022 \
    --lib es2022,dom --types node types.ts
npm uninstall --silent leasehold
[[ ! -e node_modules/leasehold ]] || fail 'the npm package is still there'
cd "$work"

if command -v dpkg >/dev/null; then
    step 'the Debian package, in a root of its own'
    deb=$(echo "$dist"/leasehold_*_"$(dpkg --print-architecture)".deb)
    mkdir -p debian/var/lib/dpkg/{info,updates} debian/usr/share
    touch debian/var/lib/dpkg/{status,available}
    dpkg --root="$work/debian" --force-not-root --force-script-chrootless --log=/dev/null --install "$deb"
    env -i debian/usr/bin/leasehold run --url "$LEASEHOLD_URL" try-deb -- /bin/echo 'from the .deb'
    for file in man/man1/leasehold.1.gz man/man1/leasehold-run.1.gz bash-completion/completions/leasehold \
        zsh/vendor-completions/_leasehold fish/vendor_completions.d/leasehold.fish doc/leasehold/copyright; do
        [[ -s debian/usr/share/$file ]] || fail "the package has no $file"
    done
    dpkg --root="$work/debian" --force-not-root --force-script-chrootless --log=/dev/null --purge leasehold
    [[ ! -e debian/usr/bin/leasehold ]] || fail 'the command is still there'
fi

step 'uninstall the command'
kill "$service"
wait "$service" || true
service=
command/bin/pip uninstall --quiet --disable-pip-version-check --yes leasehold-cli
[[ ! -e command/bin/leasehold ]] || fail 'the command is still there'

printf '\nThe artefacts install, run and uninstall.\n'
