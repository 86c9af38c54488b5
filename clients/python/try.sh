#!/usr/bin/env bash
# Tries the wheel in fresh environments, as a user's programs do: event loops, pools, forks, strict types; on each Python given,
# by default `python3`. WHEEL names a wheel, which is built otherwise. Needs a built `leasehold` (LEASEHOLD_BIN names another one).
#
#     clients/python/try.sh python3.10 python3.13
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=scripts/lib/trial.sh
source ../../scripts/lib/trial.sh

[[ $# -gt 0 ]] || set -- "${PYTHON:-python3}"
LEASEHOLD_BIN=$(realpath -m "${LEASEHOLD_BIN:-../../target/debug/leasehold}")

if [[ -z ${WHEEL-} ]]; then
    step 'build'
    "$1" -m venv "$work/build"
    "$work/build/bin/pip" install --quiet build
    "$work/build/bin/python" -m build --quiet --wheel --outdir "$work" .
    WHEEL=$(echo "$work"/*.whl)
fi

serve "$LEASEHOLD_BIN"
cp trials/*.py "$work"
cd "$work"

for python in "$@"; do
    venv=$work/venv-$(basename "$python")
    "$python" -m venv "$venv"
    step "$("$venv/bin/python" --version): nothing but the wheel"
    "$venv/bin/pip" install --quiet "$WHEEL"
    for trial in pools forks; do
        "$venv/bin/python" -W error "$trial.py"
    done
    step 'with its extras'
    "$venv/bin/pip" install --quiet "${WHEEL}[aio,aws,opentelemetry]" mypy
    "$venv/bin/python" -W error web_handler.py
    "$venv/bin/mypy" --strict --cache-dir="$venv/mypy" pools.py forks.py web_handler.py
    step 'uninstall'
    "$venv/bin/pip" uninstall --quiet --yes leasehold
    if "$venv/bin/python" -c 'import leasehold' 2>/dev/null; then
        echo 'leasehold is still there' >&2
        exit 1
    fi
done

printf '\nThe wheel works in fresh environments.\n'
