#!/usr/bin/env bash
# Tests the CDK construct: synthesises it, compares it with the SAM template, and deploys it to a local AWS (ministack).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

readonly START_SECONDS=60

usage() {
    cat <<EOF2
Usage: scripts/cdk.sh

Builds the functions for this machine, unoptimised, and the construct; installs what it needs under target/tools and
cdk/node_modules; runs the construct's tests; compares what it synthesises with template.yaml; and deploys it to a ministack
of its own.
EOF2
}

work=
ministack_pid=

cleanup() {
    trap '' INT TERM HUP
    [[ -z $ministack_pid ]] || stop "$ministack_pid"
    rm -rf ${work:+"$work"}
}

# Each function in a folder of its own, as cargo-lambda leaves them.
collect_functions() {
    local function
    for function in acquire acquire-all heartbeat release break get list health semaphore invoke cleanup; do
        mkdir -p "$work/functions/leasehold-$function"
        strip -o "$work/functions/leasehold-$function/bootstrap" "target/debug/leasehold-$function"
    done
}

start_ministack() {
    port=$(free_port)
    export AWS_ENDPOINT_URL="http://127.0.0.1:$port" AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
    export AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1
    unset AWS_PROFILE AWS_SESSION_TOKEN
    env GATEWAY_PORT="$port" BIND_HOST=127.0.0.1 TMPDIR="$work" STATE_DIR="$work/state" S3_DATA_DIR="$work/s3" \
        IOT_MTLS_ENABLED=0 SFTP_ENABLED=0 DOCKER_HOST=unix:///nonexistent LOG_LEVEL=WARNING \
        "$MINISTACK_TOOLS/bin/ministack" >"$work/ministack.log" 2>&1 </dev/null &
    ministack_pid=$!
    wait_for "$AWS_ENDPOINT_URL" "$ministack_pid" "$START_SECONDS" || die "ministack did not start"
}

case ${1-} in
    "") ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
esac
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
work=$(mktemp -d)
install_sam
install_ministack
command -v npm >/dev/null || apt_install nodejs npm
cargo build --quiet --workspace --locked
collect_functions
say "the construct and its tests"
(cd cdk && npm ci --silent && npm test --silent)
say "as the SAM template"
node cdk/test/app.js "$work/functions" "$work/cdk" artifacts
AWS_DEFAULT_REGION=us-east-1 python3 scripts/compare_stacks.py cdk "$work/cdk/Test.template.json"
start_ministack
say "on a local AWS"
"$MINISTACK_TOOLS/bin/python" scripts/deploy_cdk.py "$work/cdk" || {
    tail -n 40 "$work/ministack.log" >&2
    die "failed; above are the last lines of ministack's log"
}
say "all passed"
