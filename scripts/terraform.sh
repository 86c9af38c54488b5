#!/usr/bin/env bash
# Tests the Terraform module: that it is what the SAM template makes, its format, and plans of it with a mock of the provider.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

usage() {
    cat <<EOF2
Usage: scripts/terraform.sh [--generate | --package FOLDER]

Tests the module as it is packaged: in the registry's layout, with the files of the repository that it reads. --package leaves such
a package in FOLDER, to be the root of a repository of its own, and tests nothing. --generate makes main.tf, variables.tf and outputs.tf
out of template.yaml, after a change of it, and tests nothing.

Needs terraform (or tofu, as TERRAFORM), and the provider hashicorp/aws, from the registry or a mirror: one that Terraform finds by
itself (its configuration, or a folder such as /usr/share/terraform/plugins), or the folder TERRAFORM_MIRROR, which has
registry.terraform.io/hashicorp/aws/VERSION/PLATFORM in it. Without one of them it says so, and tests nothing.
EOF2
}

# package FOLDER
package() {
    mkdir -p "$1"
    cp -r terraform/. statemachines LICENSE-APACHE LICENSE-MIT "$1"
    rm "$1/generate.py"
}

generate=--check
case ${1-} in
    --generate) generate= ;;
    --package) [[ -n ${2-} ]] && package "$2" && exit 0 || exit 2 ;;
    "") ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
esac

# Skips the test aloud.
skip() {
    printf '\n!!! NOT TESTED: the Terraform module. %s\n' "$*" >&2
    exit 0
}

export TERRAFORM=${TERRAFORM:-terraform}
begin
install_sam
say "as the SAM template makes it"
# SAM's translator asks for a region.
AWS_DEFAULT_REGION=us-east-1 python3 terraform/generate.py ${generate:+"$generate"}
[[ -n $generate ]] || exit 0
command -v "$TERRAFORM" >/dev/null || skip "There is no $TERRAFORM here."
export TF_DATA_DIR="$work/terraform" TF_IN_AUTOMATION=1
"$TERRAFORM" fmt -check -recursive terraform
package "$work/module"
readonly module="$work/module"
mirror=${TERRAFORM_MIRROR:+-plugin-dir=$(realpath "$TERRAFORM_MIRROR")}
if ! "$TERRAFORM" -chdir="$module" init -backend=false -input=false -no-color ${mirror:+"$mirror"} >"$work/init.log" 2>&1; then
    cat "$work/init.log" >&2
    # Anything else is an error of the module.
    grep -q 'Failed to query available provider packages' "$work/init.log" && skip "There is no provider hashicorp/aws here. TERRAFORM_MIRROR may name a mirror."
    die "terraform init failed"
fi
"$TERRAFORM" -chdir="$module" validate -no-color
for example in "$module"/examples/*; do
    TF_DATA_DIR="$work/${example##*/}" "$TERRAFORM" -chdir="$example" init -backend=false -input=false -no-color ${mirror:+"$mirror"} >>"$work/init.log" 2>&1
    TF_DATA_DIR="$work/${example##*/}" "$TERRAFORM" -chdir="$example" validate -no-color
done
say "plans of the module"
"$TERRAFORM" -chdir="$module" test -no-color
say "all passed"
