#!/usr/bin/env bash
# Runs the state machines, with the real binaries of the functions, on a local AWS (ministack).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

readonly ASL_VALIDATOR_VERSION=4.0.0

usage() {
    cat <<EOF
Usage: scripts/step-functions.sh [STORY...]

Installs ministack and asl-validator under target/tools, checks the definitions in statemachines/, builds the functions,
counts the events of long runs in virtual time (scripts/long_runs.py), cleans up after histories as AWS writes them
(scripts/clean_ups.py), redrives each definition (scripts/redrives.py), starts a ministack of its own, and runs the
named stories of scripts/step_functions.py there, or all of them.
EOF
}

check_definitions() {
    local validator="$PWD/target/tools/asl-validator-$ASL_VALIDATOR_VERSION"
    if [[ ! -e $validator/.complete ]]; then
        command -v npm >/dev/null || apt_install nodejs npm
        npm install --silent --no-save --prefix "$validator" "asl-validator@$ASL_VALIDATOR_VERSION"
        touch "$validator/.complete"
    fi
    # The validator reads only the first of several definitions. It takes no partition but AWS's.
    for definition in statemachines/*.asl.json; do
        # shellcheck disable=SC2016 # the definition has it word for word
        sed 's/${Partition}/aws/' "$definition" >"$work/definition.asl.json"
        "$validator/node_modules/.bin/asl-validator" --json-path "$work/definition.asl.json" || die "$definition is invalid"
    done
}

case ${1-} in
    -h | --help)
        usage
        exit 0
        ;;
esac

begin
check_definitions
install_ministack
"$MINISTACK_TOOLS/bin/python" scripts/long_runs.py
"$MINISTACK_TOOLS/bin/python" scripts/clean_ups.py
"$MINISTACK_TOOLS/bin/python" scripts/redrives.py
cargo build --quiet --workspace --locked
start_ministack
"$MINISTACK_TOOLS/bin/python" scripts/step_functions.py "$@"
