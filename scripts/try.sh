#!/usr/bin/env bash
# Tries the artefacts of target/dist as a new user would: outside of the tree, from nothing but the packages.
#
# scripts/try.sh. The service, the command and the README's session come from the wheel of the command. The clients' own trials run with
# the packages: on the oldest and the newest Python (PYTHONS names others) and Node (npm brings it). A fresh Rust crate depends on the
# packaged crates, the .deb is installed into a root of its own, and the image runs where there is a container engine. Everything that was
# installed is removed again.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/trial.sh
source scripts/lib/trial.sh

readonly root=$PWD dist=$PWD/target/dist
read -r -a pythons <<<"${PYTHONS:-python3.10 python3.13}"
not_tried=()

step 'checksums'
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
cd "$work"

wheel=$(echo "$dist"/leasehold_cli-*"$(uname -m)".whl)
step "the command: ${wheel##*/}"
"${pythons[-1]}" -m venv command
command/bin/pip install --quiet --disable-pip-version-check --no-index "$wheel"
readonly leasehold=$work/command/bin/leasehold
"$leasehold" --version
version=$("$leasehold" --version)
readonly version=${version##* }

step "the README's session"
python3 "$root/scripts/lib/readme_session.py" --leasehold "$leasehold"

step 'the Python client'
WHEEL=$dist/leasehold-$version-py3-none-any.whl LEASEHOLD_BIN=$leasehold "$root/clients/python/try.sh" "${pythons[@]}"

step 'the TypeScript client'
PACKAGE=$dist/leasehold-$version.tgz LEASEHOLD_BIN=$leasehold "$root/clients/typescript/try.sh"

serve "$leasehold"

step 'a Rust worker on the packaged crates'
mkdir -p worker/src
for crate in leasehold-client leasehold-client-core leasehold-wire; do
    tar --extract --gzip --file "$dist/$crate-$version.crate"
done
cp "$root/scripts/trials/worker.rs" worker/src/main.rs
cat >worker/Cargo.toml <<TOML
[package]
name = "worker"
version = "0.0.0"
edition = "2024"

[dependencies]
leasehold-client = "$version"
tokio = { version = "1", features = ["macros", "rt-multi-thread", "time"] }

# The registry has them after the release.
[patch.crates-io]
leasehold-client = { path = "../leasehold-client-$version" }
leasehold-client-core = { path = "../leasehold-client-core-$version" }
leasehold-wire = { path = "../leasehold-wire-$version" }
TOML
# The compiled dependencies are kept for the next trial.
CARGO_TARGET_DIR=$root/target/try-worker CARGO_PROFILE_DEV_DEBUG=0 cargo run --quiet --manifest-path worker/Cargo.toml

if command -v dpkg >/dev/null; then
    step 'the Debian package, in a root of its own'
    deb=$(echo "$dist"/leasehold_*_"$(dpkg --print-architecture)".deb)
    mkdir -p debian/var/lib/dpkg/{info,updates} debian/usr/share
    touch debian/var/lib/dpkg/{status,available}
    dpkg --root="$work/debian" --force-not-root --force-script-chrootless --log=/dev/null --install "$deb"
    for file in man/man1/leasehold.1.gz man/man1/leasehold-run.1.gz bash-completion/completions/leasehold \
        zsh/vendor-completions/_leasehold fish/vendor_completions.d/leasehold.fish doc/leasehold/copyright; do
        [[ -s debian/usr/share/$file ]] || fail "the package has no $file"
    done
    # The environment and the shell of cron.
    for _ in 1 2; do
        env -i HOME=/ LOGNAME=nobody SHELL=/bin/sh PATH="$work/debian/usr/bin:/usr/bin:/bin" LEASEHOLD_URL="$LEASEHOLD_URL" \
            /bin/sh -c "leasehold run try-cron --quiet --once 2026-11-21T02 -- sh -c 'echo \$LEASEHOLD_OCCURRENCE >>$work/ran'"
    done
    [[ $(cat ran) == 2026-11-21T02 ]] || fail "the cron job ran for: $(cat ran)"
    echo 'the cron job ran once'
    dpkg --root="$work/debian" --force-not-root --force-script-chrootless --log=/dev/null --purge leasehold
    [[ ! -e debian/usr/bin/leasehold ]] || fail 'the command is still there'
else
    not_tried+=('the .deb: there is no dpkg')
fi
stop_service

image=$dist/leasehold-$version-oci-$(uname -m).tar
step "the image: ${image##*/}"
status=0
"$root/scripts/try-image.sh" "$image" || status=$?
case $status in
    0) ;;
    77) not_tried+=('the image: the line above says why') ;;
    *) exit "$status" ;;
esac

step 'uninstall the command'
command/bin/pip uninstall --quiet --disable-pip-version-check --yes leasehold-cli
[[ ! -e $leasehold ]] || fail 'the command is still there'

printf '\nThe artefacts install, run and uninstall.\n'
((${#not_tried[@]} == 0)) || printf '!!! NOT TRIED: %s\n' "${not_tried[@]}"
