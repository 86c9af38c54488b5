#!/usr/bin/env bash
# Builds the documentation as a site into target/site, strictly. mkdocs.yml describes it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/tools.sh
source scripts/lib/tools.sh

readonly MATERIAL_VERSION=9.8.1
readonly MERMAID_VERSION=11.17.2
readonly tools="$PWD/target/tools/site-$MATERIAL_VERSION"
# One file of the package, without the packages that it needs: it has them inside.
export MERMAID="$PWD/target/tools/mermaid-$MERMAID_VERSION.js"

venv "$tools" "mkdocs-material==$MATERIAL_VERSION"
if [[ ! -e $MERMAID ]]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    npm pack --silent --pack-destination "$folder" "mermaid@$MERMAID_VERSION" >/dev/null
    tar --extract --gzip --directory "$folder" --file "$folder/mermaid-$MERMAID_VERSION.tgz" package/dist/mermaid.min.js
    mv "$folder/package/dist/mermaid.min.js" "$MERMAID"
fi
NO_MKDOCS_2_WARNING=1 "$tools/bin/mkdocs" build --quiet --strict
