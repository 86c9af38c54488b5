#!/usr/bin/env bash
# Tests the CDK construct, in TypeScript and in Python, and deploys it to a local AWS (ministack).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

# What the package for Python runs with. Its CDK is the one of package.json, which PyPI has later than npm.
readonly JSII_VERSION=1.142.0

usage() {
    cat <<EOF2
Usage: scripts/cdk.sh

Builds the functions for this machine, unoptimised, and the construct; installs what it needs under target/tools and
cdk/node_modules; runs the construct's tests; makes the package for Python, and synthesises the same app with it: the template must be
the same. Deploys it, with everything that the test can reach, to a ministack of its own.
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
say "the construct for Python"
rm -rf cdk/dist
(cd cdk && npm run --silent python)
version=$(node -p 'require("./cdk/package.json").devDependencies["aws-cdk-lib"]')
python="$PWD/target/tools/cdk-$version"
venv "$python" "aws-cdk-lib==$version" "jsii==$JSII_VERSION"
"$python/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps cdk/dist/python/*.whl
"$python/bin/pip" check
node cdk/test/app.js "$work/functions" "$work/stack" artifacts
"$python/bin/python" cdk/test/app.py "$work/functions" "$work/python" artifacts
diff "$work/stack/Test.template.json" "$work/python/Test.template.json" || die "Python makes another template than TypeScript"
start_ministack
say "on a local AWS"
"$MINISTACK_TOOLS/bin/python" cdk/test/deploy.py "$work/stack"
say "all passed"
