#!/usr/bin/env bash
# Makes the packages of a release into target/dist, with SHA256SUMS: the crates, the Python client, the npm package.
#
# Times in the packages are those of the commit, so that a repeated run gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TOOLS=(build==1.6.1 twine==7.0.0)

step() {
    printf '\n== %s\n' "$*"
}

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

[[ -z $(git status --porcelain) ]] || fail 'the tree is not clean: a release is made from a commit'

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
readonly version dist=$PWD/target/dist

# All packages have one version.
check_versions() {
    local npm python
    npm=$(node -p 'require("./clients/typescript/package.json").version')
    python=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' clients/python/src/leasehold/_about.py)
    [[ $npm == "$version" ]] || fail "the npm package is $npm, the workspace $version"
    [[ $python == "$version" ]] || fail "the Python package is $python, the workspace $version"
}

tools() {
    local venv=target/tools/dist
    # A changed list makes the environment again.
    if [[ $(cat "$venv/tools" 2>/dev/null) != "${TOOLS[*]}" ]]; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check "${TOOLS[@]}"
        echo "${TOOLS[*]}" >"$venv/tools"
    fi
    export PATH="$PWD/$venv/bin:$PATH"
}

# The packages are not verified, which would compile everything anew; the tests have compiled the same sources.
crates() {
    local name
    cargo package --workspace --locked --no-verify --quiet
    for name in $(cargo metadata --format-version 1 --no-deps --locked |
        python3 -c 'import json, sys; print(*(p["name"] for p in json.load(sys.stdin)["packages"] if p["publish"] is None))'); do
        cp "target/package/$name-$version.crate" "$dist/"
    done
}

step "Leasehold $version of $(git log -1 --format=%h)"
rm -rf "$dist"
mkdir -p "$dist"
check_versions
tools

step 'crates'
crates

step 'Python: the client'
python -m build --outdir "$dist" clients/python >/dev/null

step 'npm: the TypeScript client'
(cd clients/typescript && npm ci --silent && npm pack --silent --pack-destination "$dist" >/dev/null)

step 'checks of the Python packages'
twine check --strict "$dist"/*.whl "$dist/leasehold-$version.tar.gz"

step 'checksums'
(cd "$dist" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
