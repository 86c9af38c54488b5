# The commands of this project. `.ci/run` calls the same recipes.

# Lists the recipes.
default:
    @just --list --unsorted

# Checks the format of the code in every language, and the width of the comments in Rust.
fmt:
    cargo fmt --all --check
    scripts/wrap_comments.py --check
    scripts/style.sh check

# Formats the code in every language, and wraps the comments in Rust.
wrap:
    cargo fmt --all
    scripts/wrap_comments.py
    scripts/style.sh format

# Lints the code in every language, warnings as errors.
[parallel]
lint: _style _clippy

_style:
    scripts/style.sh lint

_clippy:
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Builds the documentation of the crates, warnings as errors.
doc:
    RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked

# Runs the Rust tests; arguments go to `cargo test`.
test *args:
    cargo test --workspace {{args}}

# Tests the Python and the TypeScript client at the same time: both wait more than they compute.
clients:
    #!/usr/bin/env bash
    set -euo pipefail
    cargo build --workspace
    log=$(mktemp)
    clients/typescript/test.sh >"$log" 2>&1 &
    typescript=$!
    trap 'kill "$typescript" 2>/dev/null || true; rm -f "$log"' EXIT
    clients/python/test.sh
    status=0
    wait "$typescript" || status=$?
    cat "$log"
    exit "$status"

# Tests the console, in Chromium.
console:
    console/test.sh

# Tests the checkers of histories, and the proxy of the nemesis, if one has changed since.
checkers:
    scripts/contend.sh checkers

# Lets all clients contend for the same locks, while everything around them fails.
contend seconds="60":
    scripts/contend.sh {{seconds}}

# The same for items in transactions.
contend-transactions seconds="60":
    scripts/contend.sh transactions {{seconds}}

# The same for semaphores, queues, elections, occurrences, several locks at once, and jobs under `leasehold run`.
contend-coordination seconds="60":
    scripts/contend.sh coordination {{seconds}}

# The same for occurrences alone, with breaks and faults at every turn.
contend-occurrences seconds="60":
    scripts/contend.sh occurrences {{seconds}}

# Drives each client through the same scripted services, and compares what they do.
services *parts:
    scripts/contend.sh services {{parts}}

# Lets functions contend for locks in sandboxes that are frozen, paused, killed, and given an event twice.
contend-lambda seconds="20":
    scripts/contend.sh lambda {{seconds}}

# Runs the conformance suite and the races on DynamoDB Local.
dynamodb-local:
    scripts/dynamodb-local.sh cargo test --workspace -- --ignored dynamodb_local

# Builds the functions as stacks get them. `local-aws` does it too, where it was not done.
functions:
    scripts/functions.sh

# Runs the state machines, and the stacks, on a local AWS, side by side. `--no-build` deploys the functions of the last build.
local-aws *arguments: && _on-a-local-aws
    {{ if arguments == "--no-build" { "" } else { "scripts/functions.sh" } }}

[parallel]
_on-a-local-aws: _state-machines (_stacks "--life") (_stacks "--others")

_state-machines:
    scripts/step-functions.sh

_stacks which:
    scripts/ministack.sh {{which}} --no-build

# Checks the template: its form, and the rules of scripts/check_template.py.
template:
    scripts/template.sh

# Tests the CDK construct, and deploys it to a local AWS.
cdk:
    scripts/cdk.sh

# Holds the Terraform module to what the template makes, and plans it with a mock of the provider. Skips aloud where Terraform is missing.
terraform:
    scripts/terraform.sh

# Makes the image in which `containers` runs the functions.
container-image:
    scripts/sam-local.sh --image

# Runs the stack in containers, from the functions that `local-aws` built. Exit status 77: this machine has no containers.
containers:
    scripts/sam-local.sh --no-build

# Records the traces of the caller's machines, which the ports replay.
traces:
    cargo run --package leasehold-recorder

# Explores the model of the lock protocol within its larger bounds.
model:
    cargo run --release --package leasehold-model

# Runs the mutants of what differs from a commit: each must make a test fail. Needs cargo-mutants, and ten minutes for the first mutant,
# which compiles a copy of the tree. Tests first without a mutant: cargo-mutants would then test the changed crates alone, and most of
# their tests stand elsewhere.
mutants base="main":
    cargo test --workspace --lib --test it
    git diff {{base}} -- shared > target/mutants.diff
    cargo mutants --workspace --in-diff target/mutants.diff --baseline skip --timeout 1200 --output target

# Runs the idempotency suite of Powertools for a language, from a clone of its repository, with Leasehold's layer.
powertools language clone:
    scripts/powertools.sh {{language}} {{clone}}

# Makes requests of all kinds from docs/openapi.json, legal and not, and holds each answer of `serve` to the document.
schema seconds="60":
    cargo build --workspace
    scripts/schema.sh {{seconds}}

# A bad neighbour beside steady holders of `serve`: heavy, slow, silent and greedy clients, a second service, a broken token file.
neighbour *args:
    scripts/neighbour.py {{args}}

# Makes many requests to `serve`, and shows that it keeps nothing of them. LEASEHOLD_BINARY names a faster build.
leaks requests="300000":
    scripts/leaks.py {{requests}}

# Flips single bits of a database with held locks: the service refuses the file, or each lock is held.
flips count="1000":
    LEASEHOLD_FLIPS={{count}} cargo test --package leasehold-cli --test it -- damage:: --nocapture

# Measures the service; docs/performance.md says what the figures mean.
bench:
    cargo bench --package leasehold-cli --bench service
    scripts/cold-start.sh

# Runs a suite many times, `test` or `clients`, with `load` busy loops beside it, and stops at the first failure.
stress runs="20" load="0" suite="test":
    #!/usr/bin/env bash
    set -euo pipefail
    loops=()
    trap 'kill "${loops[@]}" 2>/dev/null || true' EXIT
    cargo test --workspace --no-run
    for ((i = 0; i < {{load}}; i++)); do
        while :; do :; done &
        loops+=($!)
    done
    for ((run = 1; run <= {{runs}}; run++)); do
        echo "== run $run of {{runs}}, {{load}} busy loops"
        {{just_executable()}} {{suite}}
    done

# Runs each simulation under faults with this number of seeds. A failure prints the seed.
soak seeds="500":
    LEASEHOLD_SEEDS={{seeds}} cargo test --workspace --test it -- under_faults

# Checks licences, bans and sources of the dependencies.
deny:
    cargo deny check licenses bans sources

# Writes the licences of what the released programs contain, and a CycloneDX bill of materials, into target/third-party.
third-party:
    npm --prefix console ci --silent --ignore-scripts
    python3 -m venv target/tools/third-party
    target/tools/third-party/bin/pip install --quiet 'cyclonedx-python-lib[json-validation]==11.12.0'
    target/tools/third-party/bin/python scripts/third-party.py

# Runs the commands and the programs of the README and of the guides; the first session also again, and shuffled.
readme:
    cargo build --workspace --bins --example nightly_export
    python3 scripts/lib/readme_session.py --leasehold target/debug/leasehold
    scripts/guides.sh

# Builds the documentation as a site into target/site. A link that leads nowhere is an error.
site:
    scripts/site.sh

# Makes the files of a release into target/dist: crates, Python client, npm package, and the command for two machines. With `--packages`
# without the command; with a TARGET for that machine alone.
dist *arguments:
    scripts/dist.sh {{arguments}}

# Runs a stranger's three lines in each language with the packages that `just dist --packages` made.
strangers:
    scripts/strangers.sh
