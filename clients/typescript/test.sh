#!/usr/bin/env bash
# Everything that this package has to pass. Needs Node 20.19 or later, and a built `leasehold` (LEASEHOLD_BIN names another one).
set -euo pipefail
cd "$(dirname "$0")"

export LEASEHOLD_BIN="${LEASEHOLD_BIN:-$PWD/../../target/debug/leasehold}"
[[ -x $LEASEHOLD_BIN ]] || { echo "there is no $LEASEHOLD_BIN: cargo build --bin leasehold" >&2; exit 1; }

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

step 'lint, and no cycles of imports'
npm run --silent lint

step 'the package resolves from ESM, from CommonJS and in bundlers'
npm run --silent package:check

step 'tests'
npm test --silent

step 'all passed'
