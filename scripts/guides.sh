#!/usr/bin/env bash
# Runs the README and the guides as scripts/lib/guides.py tells, with the command that `cargo build` left.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/tools.sh
source scripts/lib/tools.sh

readonly CHECK_JSONSCHEMA_VERSION=0.39.0
# The pages install their packages here, too.
readonly tools="$PWD/target/tools/guides-$CHECK_JSONSCHEMA_VERSION"

venv "$tools" "check-jsonschema==$CHECK_JSONSCHEMA_VERSION"
export PATH="$tools/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1
# docs/guides/step-functions.md needs the deployed stack: scripts/ministack.sh runs it there.
mapfile -t guides < <(find docs/guides -name "*.md" ! -name step-functions.md | sort)
python scripts/lib/guides.py --leasehold target/debug/leasehold README.md docs/serve.md docs/lambda-functions.md "${guides[@]}"
