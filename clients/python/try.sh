#!/usr/bin/env bash
# Tries the wheel in fresh environments, as a user's programs do: event loops, pools, forks, strict types; on each Python given,
# by default `python3`. Needs a built `leasehold` (LEASEHOLD_BIN names another one).
#
#     clients/python/try.sh python3.10 python3.13
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

[[ $# -gt 0 ]] || set -- "${PYTHON:-python3}"
LEASEHOLD_BIN=$(realpath -m "${LEASEHOLD_BIN:-../../target/debug/leasehold}")

step() {
    printf '\n== %s\n' "$*"
}

work=$(mktemp -d)
service=
cleanup() {
    [[ -z $service ]] || kill "$service" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

step 'build'
"$1" -m venv "$work/build"
"$work/build/bin/pip" install --quiet build
"$work/build/bin/python" -m build --quiet --wheel --outdir "$work" .
wheel=$(echo "$work"/*.whl)

step 'serve'
"$LEASEHOLD_BIN" serve --memory --listen 127.0.0.1:0 >"$work/serve.log" 2>/dev/null &
service=$!
for _ in $(seq 100); do
    grep -qo 'http:[^ ]*' "$work/serve.log" && break
    sleep 0.1
done
LEASEHOLD_URL=$(grep -o 'http:[^ ]*' "$work/serve.log" | head -n 1)
export LEASEHOLD_URL
cp trials/*.py "$work"
cd "$work"

for python in "$@"; do
    venv=$work/venv-$(basename "$python")
    "$python" -m venv "$venv"
    step "$("$venv/bin/python" --version): nothing but the wheel"
    "$venv/bin/pip" install --quiet "$wheel"
    for trial in pools forks; do
        "$venv/bin/python" -W error "$trial.py"
    done
    step 'with its extras'
    "$venv/bin/pip" install --quiet "$wheel[aio,aws,opentelemetry]" mypy
    "$venv/bin/python" -W error web_handler.py
    "$venv/bin/mypy" --strict --cache-dir="$venv/mypy" pools.py forks.py web_handler.py
    step 'uninstall'
    "$venv/bin/pip" uninstall --quiet --yes leasehold
    ! "$venv/bin/python" -c 'import leasehold' 2>/dev/null
done

printf '\nThe wheel works in fresh environments.\n'
