#!/usr/bin/env bash
# Tests the CDK construct, and deploys it to a local AWS (ministack).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

usage() {
    cat <<EOF2
Usage: scripts/cdk.sh

Builds the functions for this machine, unoptimised, and the construct; installs what it needs under target/tools and
cdk/node_modules; runs the construct's tests; and deploys it, with everything that the test can reach, to a ministack of its own.
EOF2
}

case ${1-} in
    "") ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
esac
begin
install_sam
install_ministack
command -v npm >/dev/null || apt_install nodejs npm
cargo build --quiet --workspace --locked
# cargo-lambda leaves the functions in this layout.
mkdir -p "$work/functions/leasehold-locks"
strip -o "$work/functions/leasehold-locks/bootstrap" target/debug/leasehold-locks
say "the construct and its tests"
(cd cdk && npm ci --silent && npm test --silent)
start_ministack
say "on a local AWS"
node cdk/test/app.js "$work/functions" "$work/stack" artifacts
"$MINISTACK_TOOLS/bin/python" cdk/test/deploy.py "$work/stack"
say "all passed"
