#!/usr/bin/env bash
# Builds the functions for arm64, and runs them: on this processor by an emulator, in front of a local AWS (ministack).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

readonly TARGET=aarch64-unknown-linux-gnu
readonly FUNCTIONS="$LAMBDA_TARGET/arm64"
# The dynamic linker and the C library of the emulated processor, where Debian puts them.
readonly SYSROOT=/usr/aarch64-linux-gnu
readonly EMULATOR=/usr/bin/qemu-aarch64
readonly TABLE=arm64

usage() {
    cat <<EOF2
Usage: scripts/arm64.sh [--no-build]

Installs ministack, cargo-lambda and the standard library of $TARGET, builds the functions for it, checks what the binaries
are for, and takes and releases a lock through them, on a ministack of its own. --no-build runs the functions of the last build.
On another processor than arm64 it installs QEMU's emulator.
EOF2
}

build() {
    say "building the functions for arm64; the first time takes minutes"
    rustup target add "$TARGET"
    CARGO_TARGET_DIR=$LAMBDA_TARGET nice cargo lambda build --release --locked --arm64 --package leasehold-functions \
        --lambda-dir "$FUNCTIONS"
}

is_arm64() {
    [[ $(od --address-radix=n --skip-bytes=18 --read-bytes=2 --format=u2 --endian=little "$1" | tr -d ' ') == 183 ]]
}

# package BINARY: makes the zip of a function. Its bootstrap starts the emulator
# where the processor needs one.
package() {
    local folder=$work/$1
    mkdir "$folder"
    if [[ $(machine) == arm64 ]]; then
        cp "$FUNCTIONS/$1/bootstrap" "$folder/bootstrap"
    else
        cp "$FUNCTIONS/$1/bootstrap" "$folder/arm64"
        # shellcheck disable=SC2016 # the written script expands it
        printf '#!/bin/sh\nexec %s -L %s "$(dirname "$0")/arm64"\n' "$EMULATOR" "$SYSROOT" >"$folder/bootstrap"
        chmod +x "$folder/bootstrap"
    fi
    python3 -c 'import shutil, sys; shutil.make_archive(sys.argv[1], "zip", sys.argv[1])' "$folder"
}

# create BINARY HANDLER: a function of this handler.
create() {
    aws lambda create-function --function-name "$2" --handler "$2" --runtime provided.al2023 --architectures arm64 \
        --role arn:aws:iam::000000000000:role/unchecked --timeout 60 --zip-file "fileb://$work/$1.zip" \
        --environment "Variables={LEASEHOLD_TABLE_NAME=$TABLE,LEASEHOLD_TRANSACTION_TABLE_NAME=$TABLE-transactions}" >/dev/null
}

# invoke HANDLER PAYLOAD MEMBER EXPECTED: the answer has this member.
invoke() {
    local found
    aws lambda invoke --function-name "$1" --payload "$2" --cli-read-timeout 120 "$work/answer" >/dev/null
    found=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get(sys.argv[2]))' "$work/answer" "$3")
    [[ $found == "$4" ]] || die "$1 $2: $3 is $found, not $4: $(<"$work/answer")"
}

create_tables() {
    local create=(aws dynamodb create-table --billing-mode PAY_PER_REQUEST)
    "${create[@]}" --table-name "$TABLE" --key-schema AttributeName=key,KeyType=HASH \
        --attribute-definitions AttributeName=key,AttributeType=S >/dev/null
    "${create[@]}" --table-name "$TABLE-transactions" \
        --key-schema AttributeName=transactionId,KeyType=HASH AttributeName=row,KeyType=RANGE \
        --attribute-definitions AttributeName=transactionId,AttributeType=S AttributeName=row,AttributeType=S >/dev/null
}

main() {
    local built=no
    case ${1-} in
        "") ;;
        --no-build) built=yes ;;
        -h | --help) usage && exit 0 ;;
        *) usage >&2 && exit 2 ;;
    esac
    begin
    install_sam
    install_ministack
    [[ $built == yes ]] || build
    for binary in leasehold-locks leasehold-transactions; do
        is_arm64 "$FUNCTIONS/$binary/bootstrap" || die "$binary is not for arm64"
    done
    if [[ $(machine) != arm64 && ! (-x $EMULATOR && -e $SYSROOT/lib/libgcc_s.so.1) ]]; then
        apt_install qemu-user libc6-arm64-cross libgcc-s1-arm64-cross
    fi
    for binary in leasehold-locks leasehold-transactions; do
        package "$binary"
    done
    start_ministack
    create_tables
    create leasehold-locks invoke
    create leasehold-transactions transact
    say "a lock, and a transaction that nobody began"
    invoke invoke '{"action":"acquire","key":"Moe","ownerName":"arm64","leaseId":"one"}' outcome created
    invoke invoke '{"action":"acquire","key":"Moe","ownerName":"other","leaseId":"two"}' errorType LockHeld
    invoke invoke '{"action":"get","key":"Moe"}' state held
    invoke invoke '{"action":"release","key":"Moe","leaseId":"one"}' outcome released
    invoke transact '{"action":"get-transaction","id":"5d8e4c1e-9f0a-4f44-8c0e-3b6f6f1f2a10"}' errorType TransactionNotFound
    say "all passed"
}

main "$@"
