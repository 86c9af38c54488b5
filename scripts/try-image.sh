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
    engine=(podman --root "$work/images" --runroot "$work/run" --storage-driver vfs --cgroup-manager cgroupfs)
    # crun refuses control groups of both versions side by side.
    ! command -v runc >/dev/null || engine+=(--runtime runc)
    # Lower limits than podman's, which a container inside of another may not set.
    readonly engine run=(run --rm --ulimit nofile=1024:1024 --ulimit nproc=4096:4096)
elif docker info >/dev/null 2>&1; then
    readonly engine=(docker)
    readonly run=(run --rm)
else
    echo "SKIPPED, nothing was tried: there is no podman, and no daemon of docker answers" >&2
    exit "$SKIPPED"
fi

loaded=$("${engine[@]}" load --quiet --input "$1")
readonly image=${loaded##*: }
"${engine[@]}" "${run[@]}" "$image" --version

# The network of this machine, so that the service is reached on loopback.
serve "${engine[@]}" "${run[@]}" --network host "$image"
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
