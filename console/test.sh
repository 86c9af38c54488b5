#!/usr/bin/env bash
# Checks that console/dist is what console/src gives, and tests the page: rules in Node, and the page in Chromium.
# The binary is target/debug/leasehold, or $LEASEHOLD_BINARY.
set -euo pipefail
cd "$(dirname "$0")"

npm ci --silent --ignore-scripts
npm run --silent check
npm test --silent
if [[ -z ${CHROMIUM:-} ]] && ! command -v chromium >/dev/null; then
    sudo=
    [[ $EUID -eq 0 ]] || sudo=sudo
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends chromium fonts-dejavu >/dev/null
fi
export CHROMIUM=${CHROMIUM:-$(command -v chromium)}
npm run --silent test:browser
