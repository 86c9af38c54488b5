# shellcheck shell=bash
# Shared by the scripts that try what is installed: a folder and a service that go with the script. To be sourced.

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
    stop_service
    rm -rf "$work"
}
trap cleanup EXIT

# serve COMMAND...: starts `COMMAND... serve` in memory, and exports its address as LEASEHOLD_URL.
serve() {
    "$@" serve --memory --listen 127.0.0.1:0 >"$work/serve.log" 2>"$work/serve.err" &
    service=$!
    for _ in $(seq 300); do
        LEASEHOLD_URL=$(sed -n 's/^Leasehold listens on //p' "$work/serve.log")
        if [[ -n $LEASEHOLD_URL ]] || ! kill -0 "$service" 2>/dev/null; then break; fi
        sleep 0.1
    done
    [[ -n $LEASEHOLD_URL ]] || fail "the service did not start: $(cat "$work/serve.err")"
    export LEASEHOLD_URL
}

# Stops the service by SIGTERM.
stop_service() {
    [[ -z $service ]] || kill "$service" 2>/dev/null || true
    wait
    service=
}
