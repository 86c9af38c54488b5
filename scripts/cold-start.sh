#!/usr/bin/env bash
# Measures cold starts: builds the functions as they are deployed, for this machine, and runs each of them in a sandbox
# on loopback that stands for Lambda.
#
#   scripts/cold-start.sh [FOLDER]...
#
# Each FOLDER has functions that were built before, FOLDER/leasehold-locks/bootstrap and so on, which are measured
# instead, and compared if there are several.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/lib/aws.sh

if (($# == 0)); then
    install_sam
    say "building the functions for $(machine); the first time takes minutes"
    # This is the command of `sam build`, for all functions at once.
    CARGO_TARGET_DIR="$LAMBDA_TARGET" cargo lambda build --release --package leasehold-functions
    set -- "$LAMBDA_TARGET/lambda"
fi
# Cargo runs the benchmark in another folder.
mapfile -t folders < <(realpath -- "$@")
cargo bench --workspace --bench cold_start -- "${folders[@]}"
