#!/usr/bin/env bash
# Runs an image of scripts/dist.sh: scripts/try-image.sh FILE. Serves from it, acquires a lock over HTTP, and stops it by SIGTERM.
#
# Needs podman, or docker with its daemon. Exits with 77, and has tried nothing, where there is neither.
set -euo pipefail
# shellcheck source=scripts/lib/trial.sh
source "$(dirname "$0")/lib/trial.sh"

readonly SKIPPED=77

if command -v podman >/dev/null; then
    # Storage of its own: nothing stays.
    readonly engine=(podman --root "$work/images" --runroot "$work/run" --storage-driver vfs --cgroup-manager cgroupfs)
elif docker info >/dev/null 2>&1; then
    readonly engine=(docker)
else
    echo "SKIPPED, nothing was tried: there is no podman, and no daemon of docker answers" >&2
    exit "$SKIPPED"
fi

loaded=$("${engine[@]}" load --quiet --input "$1")
readonly image=${loaded##*: }
"${engine[@]}" run --rm "$image" --version

# The network of this machine, so that the service is reached on loopback.
serve "${engine[@]}" run --rm --network host "$image"
answer=$(curl --silent --show-error --fail --header 'content-type: application/json' \
    --data '{"key":"try-image","ownerName":"me"}' "$LEASEHOLD_URL/v1/acquire")
[[ $answer == *'"outcome":"created"'* ]] || fail "not granted: $answer"
kill "$service"
status=0
wait "$service" || status=$?
service=
((status == 0)) || fail "the service ended with status $status"
"${engine[@]}" rmi "$image" >/dev/null
echo 'the image serves, grants a lock, and stops'
