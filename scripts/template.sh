#!/usr/bin/env bash
# Checks the templates: that they are sound, and that template.yaml keeps the rules of check_template.py, each of which must refuse a
# template that breaks it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/lib/aws.sh
source scripts/lib/aws.sh

begin
install_sam
cfn-lint template.yaml guided.yaml examples/consumer-stack/template.yaml examples/multi-region/template.yaml
sam validate --lint --region us-east-1 >/dev/null
python3 scripts/check_template.py
python3 scripts/check_template_mutants.py
