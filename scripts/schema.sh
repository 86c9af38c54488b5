#!/usr/bin/env bash
# Holds `leasehold serve` to docs/openapi.json: schemathesis makes requests from the document, legal and not, and checks each answer
# against it. Usage: scripts/schema.sh [SECONDS]. The binary is target/debug/leasehold, or $LEASEHOLD_BINARY.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly SCHEMATHESIS_VERSION=4.32.5
readonly seconds=${1:-60}
binary=$(realpath "${LEASEHOLD_BINARY:-target/debug/leasehold}")
tools=target/tools/schemathesis
folder=$(mktemp -d)
serve=
trap '[[ -z $serve ]] || kill "$serve" 2>/dev/null || true; rm -rf "$folder"' EXIT

if ! "$tools/bin/schemathesis" --version 2>/dev/null | grep -qF "$SCHEMATHESIS_VERSION"; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet "schemathesis==$SCHEMATHESIS_VERSION"
fi

"$binary" serve --memory --listen 127.0.0.1:0 >"$folder/out" &
serve=$!
until grep -q '^  stop' "$folder/out"; do
    kill -0 "$serve"
    sleep 0.1
done
url=$(sed -n 's/^Leasehold listens on //p' "$folder/out")

# Without these locks, each read would end with 404.
post() {
    curl --fail --silent --show-error --json "$2" "$url$1" >"$folder/answer"
}
post /v1/acquire '{"key":"held","ownerName":"me","data":"payload"}'
post /v1/semaphore/acquire '{"key":"pool","ownerName":"me","capacity":3,"leaseId":"l"}'
cat >"$folder/schemathesis.toml" <<'END'
[[operations]]
include-path = ["/v1/lock", "/v1/watch"]
parameters = { "query.key" = "held", "query.waitMs" = 0 }

[[operations]]
include-path = "/v1/semaphore"
parameters = { "query.key" = "pool" }
END

# An answer may refuse what the document allows, for reasons that no schema can say (a lease that is over). Every answer has a status, a
# type and a form that the document names, and none is a failure of the server.
"$tools/bin/schemathesis" --config-file "$folder/schemathesis.toml" run docs/openapi.json --url "$url" --workers 1 --max-time "$seconds" --no-color \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance
kill -0 "$serve"

# What schemathesis does not reach, the conformance suite does: each of its answers is valid.
LEASEHOLD_TEST_ANSWERS=$folder/answers cargo test --quiet --workspace --test it -- answers_of_the_conformance_suite
"$tools/bin/python" scripts/lib/answers.py docs/openapi.json "$folder/answers"
