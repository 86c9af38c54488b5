#!/usr/bin/env bash
# Makes the wheel of the command, and tries it in a fresh environment. `--release` makes the one to publish.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target/pypi"
work=$(cd "$target/pypi" && pwd)

[ -x "$work/venv/bin/maturin" ] || {
    ${PYTHON:-python3} -m venv "$work/venv"
    "$work/venv/bin/python" -m pip install --quiet 'maturin>=1.7,<2' 'twine>=6'
}
rm -rf "$work/dist" "$work/clean"
cd "$here"
"$work/venv/bin/maturin" build --out "$work/dist" "$@"
"$work/venv/bin/twine" check --strict "$work"/dist/*.whl

"${PYTHON:-python3}" -m venv "$work/clean"
"$work/clean/bin/python" -m pip install --quiet --no-index "$work"/dist/*.whl
leasehold=$work/clean/bin/leasehold
"$leasehold" --version

# One command under a lock, with a service of the same binary.
coproc serve { "$leasehold" serve --memory --listen 127.0.0.1:0 2>/dev/null; }
# shellcheck disable=SC2154 # coproc sets it
trap 'kill "$serve_PID" 2>/dev/null || true' EXIT
read -r first <&"${serve[0]}"
url=${first##* }
[ "$("$leasehold" run --url "$url" a-key -- echo under the lock)" = "under the lock" ]
"$work/clean/bin/python" -m pip uninstall --quiet --yes leasehold-cli
[ ! -e "$leasehold" ]
echo "leasehold-cli: the wheel installs, runs a command under a lock, and uninstalls"
