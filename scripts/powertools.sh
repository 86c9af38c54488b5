#!/usr/bin/env bash
# Runs the idempotency suites of Powertools for AWS Lambda, with Leasehold's layer in place of its own.
#
#   scripts/powertools.sh python CLONE [PYTEST OPTION…]        a clone of aws-powertools/powertools-lambda-python
#   scripts/powertools.sh typescript CLONE [VITEST OPTION…]    a clone of aws-powertools/powertools-lambda-typescript
#
# Python: the tests of the layer for Redis, and those of deployed functions, which run in sandboxes here. Not run: the requests that
# Powertools' layer for DynamoDB makes (functional/idempotency/_boto3, by botocore's stub), and what conftest.py names.
# TypeScript: the tests of handler, middleware, decorator and of the base of all layers, with a layer that keeps its records. Not run: those
# of the layers for DynamoDB and for a cache, by stubs, and of deployed functions, which need an account.
# The packages are those of the clients' own tests, from PyPI and npm.
# Needs: cargo build; clients/python/test.sh or clients/typescript/test.sh once.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
target=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")
language=${1:?python or typescript} clone=$(realpath "${2:?the clone}")
shift 2
work=$target/powertools/$language
rm -rf "$work"
mkdir -p "$work"

"${LEASEHOLD_BIN:-$target/debug/leasehold}" serve --memory --listen 127.0.0.1:0 >"$work/service.out" 2>"$work/service.err" &
service=$!
trap 'kill "$service" 2>/dev/null || true' EXIT
for _ in $(seq 300); do
    POWERTOOLS_SERVICE=$(grep -ho 'http://127.0.0.1:[0-9]*' "$work/service.out" "$work/service.err" | head -n 1) || true
    [[ -n $POWERTOOLS_SERVICE ]] && break
    sleep 0.1
done
export POWERTOOLS_SERVICE
echo "powertools: $(git -C "$clone" log -1 --format='%h of %cs')"

case $language in
    python)
        git -C "$clone" archive HEAD tests/functional/idempotency/_redis tests/e2e/idempotency | tar -x -C "$work"
        # Their own preparation deploys stacks.
        find "$work/tests" -name conftest.py -delete
        cp "$root"/scripts/powertools/*.py "$work"
        cd "$work"
        PYTHONPATH=$root/scripts/nemesis PYTHONDONTWRITEBYTECODE=1 "$target/python-client/venv/bin/python" -m pytest \
            -o addopts= -p no:cacheprovider tests/functional/idempotency/_redis/test_redis_layer.py \
            tests/e2e/idempotency/test_idempotency_dynamodb.py "$@"
        ;;
    typescript)
        git -C "$clone" archive HEAD tsconfig.json packages/idempotency packages/testing | tar -x -C "$work"
        cp "$root"/scripts/powertools/{vitest.config.mts,idempotencyUtils.ts} "$work"
        cp "$work/idempotencyUtils.ts" "$work/packages/idempotency/tests/helpers/"
        cd "$work"
        npm init --yes >package.log
        version=$(node -p 'require("./packages/idempotency/package.json").version')
        # The versions that the suite names.
        npm install --silent --no-save --no-audit --no-fund vitest@4 @middy/core@7 aws-sdk-client-mock-vitest \
            "@aws-lambda-powertools/commons@$version" "@aws-lambda-powertools/jmespath@$version"
        LEASEHOLD_CLIENT=$root/clients/typescript npx vitest --run --config vitest.config.mts "$@"
        ;;
    *)
        echo "powertools: python or typescript, not $language" >&2
        exit 2
        ;;
esac
