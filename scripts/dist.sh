#!/usr/bin/env bash
# Makes the files of a release into target/dist, with SHA256SUMS: scripts/dist.sh [--packages | [--layers] TARGET...]
#
# The crates, the Python client and the npm package belong to no target; `--packages` makes these alone. For each TARGET (both musl targets
# unless named) the script builds the command once, as a static binary, and packs it as a wheel, an archive, a .deb and an OCI image; and the
# agent once, as a layer of Lambda; `--layers` makes these layers alone. The man pages and completions come from the binary for this machine, so its target must be among them.
#
# The same commit gives the same bytes, in any folder: times are those of the commit, and no path or user is recorded.
set -euo pipefail
cd "$(dirname "$0")/.."

TOOLS=(build==1.6.1 twine==7.0.0)
# Debian's name of each machine.
readonly -A DEBIAN=(["x86_64"]=amd64 ["aarch64"]=arm64)

step() {
    printf '\n== %s\n' "$*"
}

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

packages_only=
if [[ ${1-} == --packages ]]; then
    packages_only=yes
    shift
fi
layers_only=
if [[ ${1-} == --layers ]]; then
    layers_only=yes
    shift
fi
[[ -n $packages_only ]] || TOOLS+=(cargo-zigbuild==0.24.1 maturin==1.16.0 wheel==0.45.1 ziglang==0.17.1)
readonly TOOLS
targets=("$@")
((${#targets[@]})) || targets=(x86_64-unknown-linux-musl aarch64-unknown-linux-musl)
native=$(uname -m)-unknown-linux-musl
[[ -n $packages_only || -n $layers_only || " ${targets[*]} " == *" $native "* ]] ||
    fail "the man pages come from the command for $native, which is not among ${targets[*]}"
[[ -n $packages_only ]] || for target in "${targets[@]}"; do
    [[ -d $(rustc --print target-libdir --target "$target") ]] ||
        fail "Rust's standard library for $target is missing: rustup target add $target"
done
[[ -z $(git status --porcelain) ]] || fail 'the tree is not clean: a release is made from a commit'

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
readonly version root=$PWD dist=$PWD/target/dist work=$PWD/target/dist-work
readonly documents=$work/documents

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
    export PATH="$root/$venv/bin:$PATH"
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

# No path and no time of this build reaches a binary: mimalloc names the time of its compilation.
anonymous() {
    local rust c cargo_home=${CARGO_HOME:-$HOME/.cargo}
    rust="--remap-path-prefix=$root=/leasehold --remap-path-prefix=$cargo_home=/cargo"
    c="${rust//--remap-path-prefix/-ffile-prefix-map} -Wno-builtin-macro-redefined -D__DATE__=\"\" -D__TIME__=\"\""
    RUSTFLAGS=$rust CFLAGS=$c CARGO_TARGET_DIR=$root/target "$@"
}

# is_static BINARY
is_static() {
    ! LC_ALL=C file --brief "$1" | grep -q 'dynamically linked' || fail "$1 is not static"
}

# binary TARGET: builds the command, as a wheel; the binary is below target/TARGET. Zig is the C compiler and the linker.
binary() {
    (cd packaging/pypi && CARGO_PROFILE_RELEASE_STRIP=symbols \
        anonymous maturin build --quiet --release --zig --target "$1" --out "$dist")
    # The static binary runs beside any C library.
    python -m wheel tags --remove --platform-tag "manylinux2014_${1%%-*}.musllinux_1_1_${1%%-*}" \
        "$dist"/leasehold_cli-*-musllinux_*"_${1%%-*}.whl" >/dev/null
    is_static "target/$1/release/leasehold"
}

# layer TARGET: the agent as a layer of Lambda, which starts each file of extensions/ as an extension.
layer() {
    local name=leasehold-agent-layer-$version-${1%%-*} agent=target/$1/extension/leasehold-agent
    anonymous cargo zigbuild --quiet --profile extension --locked --package leasehold-agent --target "$1"
    is_static "$agent"
    (($(stat --format=%s "$agent") <= 8000000)) || fail "$agent has more than 8 MB"
    python packaging/layer/layer.py "$agent" "$dist/$name.zip"
}

# write_documents BINARY
write_documents() {
    mkdir -p "$documents"
    "$1" man "$documents/man1"
    "$1" completions bash >"$documents/leasehold.bash"
    "$1" completions zsh >"$documents/_leasehold"
    "$1" completions fish >"$documents/leasehold.fish"
}

# archive TARGET
archive() {
    local name=leasehold-$version-$1
    mkdir "$work/$name"
    install -m 755 "target/$1/release/leasehold" "$work/$name/"
    cp -r "$documents"/* LICENSE-APACHE LICENSE-MIT cli/README.md "$work/$name/"
    tar --create --directory "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
        "$name" | gzip --no-name --best >"$dist/$name.tar.gz"
}

# debian TARGET: a package that depends on nothing, because the binary is static.
debian() {
    local machine=${DEBIAN[${1%%-*}]} tree=$work/debian-$1 share
    share=$tree/usr/share
    install -D -m 755 "target/$1/release/leasehold" "$tree/usr/bin/leasehold"
    install -D -m 644 -t "$share/man/man1" "$documents"/man1/*.1
    gzip --no-name --best "$share"/man/man1/*.1
    install -D -m 644 "$documents/leasehold.bash" "$share/bash-completion/completions/leasehold"
    install -D -m 644 "$documents/_leasehold" "$share/zsh/vendor-completions/_leasehold"
    install -D -m 644 "$documents/leasehold.fish" "$share/fish/vendor_completions.d/leasehold.fish"
    install -D -m 644 -t "$tree/usr/lib/systemd/system" packaging/systemd/*
    install -D -m 644 LICENSE-MIT "$share/doc/leasehold/copyright"
    mkdir "$tree/DEBIAN"
    sed -e "s/@VERSION@/$version/" -e "s/@MACHINE@/$machine/" packaging/deb/control >"$tree/DEBIAN/control"
    # The packages of two users are the same.
    chmod -R u=rwX,go=rX "$tree"
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$dist/leasehold_${version}_$machine.deb" >/dev/null
}

step "Leasehold $version of $(git log -1 --format=%h)"
rm -rf "$dist" "$work"
mkdir -p "$dist" "$work"
check_versions
tools

if [[ -n $layers_only ]]; then
    for target in "${targets[@]}"; do
        step "the agent for $target: layer of Lambda"
        layer "$target"
    done
    exit
fi

step 'crates'
crates

step 'Python: the client'
python -m build --outdir "$dist" clients/python >/dev/null

step 'npm: the TypeScript client'
(cd clients/typescript && npm ci --silent && npm pack --silent --pack-destination "$dist" >/dev/null)

if [[ -z $packages_only ]]; then
    for target in "${targets[@]}"; do
        step "the command for $target: static binary and wheel"
        binary "$target"
        step "the agent for $target: layer of Lambda"
        layer "$target"
    done
    write_documents "target/$native/release/leasehold"
    for target in "${targets[@]}"; do
        step "the command for $target: archive, .deb, image"
        archive "$target"
        debian "$target"
        python packaging/oci/image.py "target/$target/release/leasehold" "${target%%-*}" "$version" \
            "$dist/leasehold-$version-oci-${target%%-*}.tar"
    done
fi

step 'checks of the Python packages'
twine check --strict "$dist"/*.whl "$dist/leasehold-$version.tar.gz"

step 'checksums'
rm -rf "$work"
(cd "$dist" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
