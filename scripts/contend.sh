#!/usr/bin/env bash
# Lets processes of all clients contend for the same locks while everything around them fails, and checks their history.
#
#   scripts/contend.sh [SECONDS [OPTION…]]        60 seconds by default; --help lists the options
#   scripts/contend.sh 3600                       the long run
#   scripts/dynamodb-local.sh scripts/contend.sh 60    on DynamoDB Local instead of a file of the embedded engine
#
# Contenders use the Rust, the Python and the TypeScript client, and `leasehold run`. They acquire locks with changing
# leases, heartbeat with payloads and new leases, release, delete, break, and end without a release. Meanwhile a proxy
# loses, delays, duplicates and reorders requests and answers; contenders and the service are killed; contenders are
# paused for longer than a lease; the wall clocks step by up to an hour (with Debian's faketime).
# scripts/nemesis/checker.py lists the violations of a history.
#
#   scripts/contend.sh transactions [SECONDS [OPTION…]]    items in transactions
#   scripts/contend.sh coordination [SECONDS [OPTION…]]    semaphores, queues, elections, occurrences, several locks, jobs;
#                                                          before them, 40 s of two callers for each lock, who must share it evenly
#   scripts/contend.sh occurrences [SECONDS [OPTION…]]     the same for occurrences alone, with breaks and faults at every turn
#
# These have two services on one DynamoDB, and a proxy before DynamoDB as well. Their agents carry out one order after
# the other; transactions_checker.py and coordination_checker.py know the history alone.
#
#   scripts/contend.sh checkers                            the tests of the checkers and of the proxy alone
#   scripts/contend.sh services [PART OF A NAME…]         each client alone, against scripted services (services.json)
#   scripts/contend.sh lambda [SECONDS [OPTION…]]          functions under a lock, in sandboxes (lambda_nemesis.py)
#
# Needs: cargo build; clients/python/test.sh and clients/typescript/test.sh once (their environments are used).
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
export LEASEHOLD=${LEASEHOLD:-$target/debug/leasehold}
export LEASEHOLD_AGENT=${LEASEHOLD_AGENT:-$target/debug/leasehold-agent}
export CONTEND_RUST=${CONTEND_RUST:-$target/debug/examples/contender}
export CONTEND_RUST_FUNCTION=${CONTEND_RUST_FUNCTION:-$target/debug/examples/function}
export CONTEND_RUST_AGENT=${CONTEND_RUST_AGENT:-$target/debug/examples/agent}
export CONTEND_PYTHON=${CONTEND_PYTHON:-$target/python-client/venv/bin/python}
export PYTHONDONTWRITEBYTECODE=1

missing() {
    echo "contend: there is no $1: $2" >&2
    exit 2
}

# Tests the checkers and the proxy, unless nothing has changed since.
test_checkers() {
    local tested=$target/nemesis-tested
    local files=("$root/scripts/nemesis" "$LEASEHOLD" "$LEASEHOLD_AGENT" "$CONTEND_RUST_FUNCTION")
    if [[ -e $tested && -z $(find "${files[@]}" -type f -newer "$tested" -not -path '*/__pycache__/*' 2>/dev/null) ]]; then
        return
    fi
    python3 -m unittest discover -q -s "$root/scripts/nemesis"
    mkdir -p "$target"
    touch "$tested"
}

if [[ ${1:-} == checkers ]]; then
    test_checkers
    exit
fi
[[ -x $LEASEHOLD ]] || missing "$LEASEHOLD" 'build it with cargo build'
[[ -x $CONTEND_PYTHON ]] || missing "$CONTEND_PYTHON" 'run clients/python/test.sh'
[[ -d $root/clients/typescript/dist ]] || missing clients/typescript/dist 'run clients/typescript/test.sh'
if [[ ${1:-} == lambda ]]; then
    [[ -x $LEASEHOLD_AGENT ]] || missing "$LEASEHOLD_AGENT" 'build it with cargo build --workspace'
    [[ -x $CONTEND_RUST_FUNCTION ]] ||
        (cd "$root" && cargo build --quiet --package leasehold-client --example function --features lambda-runtime)
    test_checkers
    exec python3 "$root/scripts/nemesis/lambda_nemesis.py" "${@:2}"
fi
[[ -x $CONTEND_RUST && -x $CONTEND_RUST_AGENT ]] ||
    (cd "$root" && cargo build --quiet --package leasehold-client --example contender --example agent)

test_checkers
if [[ ${1:-} == coordination ]]; then
    python3 "$root/scripts/nemesis/sharing.py"
fi
if [[ ${1:-} == occurrences ]]; then
    exec python3 "$root/scripts/nemesis/coordination_nemesis.py" "${2:-60}" --only hourly --only once --shells 0 \
        --breaks 50 --faults 25 "${@:3}"
fi
if [[ ${1:-} == transactions || ${1:-} == coordination ]]; then
    exec python3 "$root/scripts/nemesis/$1_nemesis.py" "${@:2}"
fi
if [[ ${1:-} == services ]]; then
    exec python3 "$root/scripts/nemesis/services.py" "${@:2}"
fi
options=()
if [[ -n ${LEASEHOLD_TEST_DYNAMODB_ENDPOINT:-} ]]; then
    export AWS_ACCESS_KEY_ID=${AWS_ACCESS_KEY_ID:-contend} AWS_SECRET_ACCESS_KEY=${AWS_SECRET_ACCESS_KEY:-contend}
    export AWS_REGION=${AWS_REGION:-eu-central-1}
    options=(--dynamodb-endpoint "$LEASEHOLD_TEST_DYNAMODB_ENDPOINT")
fi
exec python3 "$root/scripts/nemesis/nemesis.py" "$@" "${options[@]}"
