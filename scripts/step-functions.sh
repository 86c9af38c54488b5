#!/usr/bin/env bash
# Runs the state machines, with the real binaries of the functions, on a local AWS (ministack).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

readonly ASL_VALIDATOR_VERSION=4.0.0
readonly START_SECONDS=60

usage() {
    cat <<EOF
Usage: scripts/step-functions.sh [STORY...]

Installs ministack and asl-validator under target/tools, checks the definitions in statemachines/, builds the functions,
counts the events of long runs in virtual time (scripts/long_runs.py), starts a ministack of its own, and runs the named
stories of scripts/step_functions.py there, or all of them.
EOF
}

work=
ministack_pid=

cleanup() {
    trap '' INT TERM HUP
    # With it end the functions, which it runs as processes of its own.
    [[ -z $ministack_pid ]] || stop "$ministack_pid"
    rm -rf ${work:+"$work"}
}

check_definitions() {
    local validator="$PWD/target/tools/asl-validator-$ASL_VALIDATOR_VERSION"
    if [[ ! -e $validator/.complete ]]; then
        command -v npm >/dev/null || apt_install nodejs npm
        npm install --silent --no-save --prefix "$validator" "asl-validator@$ASL_VALIDATOR_VERSION"
        touch "$validator/.complete"
    fi
    # One at a time: of several it reads only the first. It takes no partition but AWS's.
    for definition in statemachines/*.asl.json; do
        sed 's/${Partition}/aws/' "$definition" >"$work/definition.asl.json"
        "$validator/node_modules/.bin/asl-validator" --json-path "$work/definition.asl.json" || die "$definition is invalid"
    done
}

start_ministack() {
    port=$(free_port)
    export AWS_ENDPOINT_URL="http://127.0.0.1:$port"
    # Everything that it leaves is in this run's folder. It shall open no other ports, and find no container engine.
    env -u AWS_PROFILE -u AWS_SESSION_TOKEN AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test \
        GATEWAY_PORT="$port" BIND_HOST=127.0.0.1 TMPDIR="$work" STATE_DIR="$work/state" \
        IOT_MTLS_ENABLED=0 SFTP_ENABLED=0 DOCKER_HOST=unix:///nonexistent LOG_LEVEL=WARNING \
        "$MINISTACK_TOOLS/bin/ministack" >"$work/ministack.log" 2>&1 </dev/null &
    ministack_pid=$!
    wait_for "$AWS_ENDPOINT_URL" "$ministack_pid" "$START_SECONDS" || die "ministack did not start"
}

case ${1-} in
    -h | --help)
        usage
        exit 0
        ;;
esac

trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
work=$(mktemp -d)

check_definitions
install_ministack
"$MINISTACK_TOOLS/bin/python" scripts/long_runs.py
cargo build --quiet --workspace --locked
start_ministack
"$MINISTACK_TOOLS/bin/python" scripts/step_functions.py "$@" || {
    tail -n 40 "$work/ministack.log" >&2
    die "failed; above are the last lines of ministack's log"
}
