#!/usr/bin/env bash
# Tests the Terraform module: its format, plans of it with a mock of the provider, and these beside the SAM template.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

usage() {
    cat <<EOF2
Usage: scripts/terraform.sh

Needs terraform (or tofu, as TERRAFORM), and the provider hashicorp/aws, from the registry or a mirror: one that Terraform finds by
itself (its configuration, or a folder such as /usr/share/terraform/plugins), or the folder TERRAFORM_MIRROR, which has
registry.terraform.io/hashicorp/aws/VERSION/PLATFORM in it. Without one of them it says so, and tests nothing.
EOF2
}

case ${1-} in
    "") ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
esac

# Skips the test aloud.
skip() {
    printf '\n!!! NOT TESTED: the Terraform module. %s\n' "$*" >&2
    exit 0
}

readonly TERRAFORM=${TERRAFORM:-terraform}
command -v "$TERRAFORM" >/dev/null || skip "There is no $TERRAFORM here."
begin
install_sam
export TF_DATA_DIR="$work/terraform" TF_IN_AUTOMATION=1
"$TERRAFORM" fmt -check -recursive terraform
mkdir "$work/module"
cp -r terraform statemachines template.yaml "$work/module"
mirror=${TERRAFORM_MIRROR:+-plugin-dir=$(realpath "$TERRAFORM_MIRROR")}
if ! "$TERRAFORM" -chdir="$work/module/terraform" init -backend=false -input=false -no-color ${mirror:+"$mirror"} >"$work/init.log" 2>&1; then
    cat "$work/init.log" >&2
    # Anything else is an error of the module.
    grep -q 'Failed to query available provider packages' "$work/init.log" && skip "There is no provider hashicorp/aws here. TERRAFORM_MIRROR may name a mirror."
    die "terraform init failed"
fi
"$TERRAFORM" -chdir="$work/module/terraform" validate -no-color
say "plans of the module"
"$TERRAFORM" -chdir="$work/module/terraform" test -json -verbose >"$work/plans.json" || {
    "$TERRAFORM" -chdir="$work/module/terraform" test -no-color
    die "terraform test failed"
}
say "as the SAM template"
AWS_DEFAULT_REGION=us-east-1 python3 terraform/tests/compare.py <"$work/plans.json"
say "all passed"
