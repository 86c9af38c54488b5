#!/usr/bin/env bash
# Runs a stranger's three lines in each language, with nothing but the packages of target/dist (scripts/dist.sh --packages) and what they
# depend on. All three take the same lock, one after the other. Needs a built `leasehold` (LEASEHOLD_BIN names another one).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/trial.sh
source scripts/lib/trial.sh

readonly root=$PWD dist=$PWD/target/dist
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
wheel=$(echo "$dist"/leasehold-*-py3-none-any.whl)
package=$(echo "$dist"/leasehold-[0-9]*.tgz)
version=${package##*/leasehold-}
version=${version%.tgz}
serve "$(realpath "${LEASEHOLD_BIN:-target/debug/leasehold}")"
cd "$work"

step "Python: ${wheel##*/}"
"${PYTHON:-python3}" -m venv python
python/bin/pip install --quiet --disable-pip-version-check "$wheel"
cat >three.py <<'PY'
import leasehold, os
with leasehold.Client(os.environ["LEASEHOLD_URL"]).lock("stranger") as guard:
    print(guard.fencing_token)
PY
python/bin/python three.py | tee -a tokens

step "TypeScript: ${package##*/}"
mkdir node
cd node
echo '{"name":"stranger","private":true,"type":"module"}' >package.json
npm install --silent --no-audit --no-fund "$package"
cat >three.js <<'JS'
import { Client } from "leasehold";
const client = new Client({ url: process.env.LEASEHOLD_URL });
await client.withLock("stranger", (guard) => console.log(guard.fencingToken));
JS
node three.js | tee -a ../tokens
cd ..

step "Rust: leasehold-client-$version.crate"
mkdir -p rust/src
for crate in leasehold-client leasehold-client-core leasehold-wire; do
    tar --extract --gzip --file "$dist/$crate-$version.crate"
done
cat >rust/src/main.rs <<'RS'
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = leasehold_client::Client::new(leasehold_client::HttpTransport::new(&std::env::var("LEASEHOLD_URL")?)?);
    client.with_lock("stranger", async |guard| Ok::<_, leasehold_client::Error>(println!("{}", guard.fencing_token()))).await?;
    Ok(())
}
RS
cat >rust/Cargo.toml <<TOML
[package]
name = "stranger"
version = "0.0.0"
edition = "2024"

[dependencies]
leasehold-client = "$version"
tokio = { version = "1", features = ["macros", "rt"] }

# The registry has them after the release.
[patch.crates-io]
leasehold-client = { path = "../leasehold-client-$version" }
leasehold-client-core = { path = "../leasehold-client-core-$version" }
leasehold-wire = { path = "../leasehold-wire-$version" }
TOML
# The compiled dependencies are kept for the next time, and for scripts/try.sh.
CARGO_TARGET_DIR=$root/target/try-worker CARGO_PROFILE_DEV_DEBUG=0 cargo run --quiet --manifest-path rust/Cargo.toml | tee -a tokens

[[ $(sort --numeric-sort --unique tokens | wc -l) == 3 && $(sort --numeric-sort tokens) == "$(cat tokens)" ]] || fail 'the tokens do not rise'
printf '\nThree lines suffice in each language.\n'
