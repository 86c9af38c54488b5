#!/usr/bin/env bash
# Everything that this package has to pass. Needs Node 20.19 or later, and the built workspace: `leasehold` and the functions
# beside it (LEASEHOLD_BIN names another one).
set -euo pipefail
cd "$(dirname "$0")"

export LEASEHOLD_BIN="${LEASEHOLD_BIN:-$PWD/../../target/debug/leasehold}"
for binary in leasehold leasehold-locks leasehold-transactions; do
    [[ -x $(dirname "$LEASEHOLD_BIN")/$binary ]] || {
        echo "there is no $binary beside $LEASEHOLD_BIN: cargo build --workspace" >&2
        exit 1
    }
done

step() {
    printf '\n== %s\n' "$*"
}

step 'development dependencies'
installed=node_modules/.package-lock.sha256
if ! sha256sum --check --status "$installed" 2>/dev/null; then
    npm ci --silent
    sha256sum package.json package-lock.json >"$installed"
fi

step 'the types of the wire are current'
npm run --silent wire:check

step 'types'
npm run --silent typecheck

step 'the package resolves from ESM, from CommonJS and in bundlers'
npm run --silent package:check

step 'tests'
npm test --silent

step 'all passed'
