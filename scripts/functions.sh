#!/usr/bin/env bash
# Builds the functions as stacks get them, for this machine. The scripts that run a stack find them built.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

begin
install_sam
sam_build
