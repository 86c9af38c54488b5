#!/usr/bin/env bash
# Measures many tasks of one client: 50 that hold one lock for 10 ms each, with the requests of each turn, and 1,000 held locks, with
# their memory and threads. Needs a built `leasehold` (LEASEHOLD_BIN names another one), and clients/python/test.sh and
# clients/typescript/test.sh once. The Rust client is a debug build as well.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/lib/trial.sh
source scripts/lib/trial.sh

python=${CONTEND_PYTHON:-target/python-client/venv/bin/python}

# The requests that the service counted.
requests() {
    python3 - <<'PY'
import os, re, urllib.request
text = urllib.request.urlopen(os.environ["LEASEHOLD_URL"] + "/metrics", timeout=10).read().decode()
print(sum(int(float(number)) for number in re.findall(r"^leasehold_Latency_count\{.*\} (\S+)", text, re.MULTILINE)))
PY
}

herd() {
    local before
    before=$(requests)
    "$@" herd
    printf '  %s requests a turn\n' "$(python3 -c "print(($(requests) - $before) / 50)")"
}

serve "$(realpath "${LEASEHOLD_BIN:-target/debug/leasehold}")"
herd "$python" scripts/herd/herd.py
herd node scripts/herd/herd.mjs
cargo build --quiet --workspace --example herd
herd target/debug/examples/herd
"$python" scripts/herd/herd.py held
"$python" scripts/herd/herd.py held-aio
node scripts/herd/herd.mjs held
target/debug/examples/herd held
