"""Compares the ways to deploy: the SAM template, the CDK construct and the Terraform module have the same functions,
with the same actions, environments and routes, and state machines with the same permissions.

Usage: compare_stacks.py sam | cdk TEMPLATE.json | terraform

`sam` compares the template's roles with actions.json, which a test of the workspace compares with what the functions
call.
"""

import difflib
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts/lib"))
import stacks  # noqa: E402

ACTIONS = ROOT / "tests/leasehold-tests/actions.json"
# Managed policies that a parameter of the SAM template attaches. The CDK and Terraform know no such parameter.
OPTIONAL = {"HasVpc: AWSLambdaVPCAccessExecutionRole", "TracesActively: AWSXRayDaemonWriteAccess"}


def sam():
    return stacks.summary_of_resources(stacks.translate(ROOT / "template.yaml"))


def check_sam():
    parameters = stacks.read(ROOT / "template.yaml")["Parameters"]
    unset = [name for name, parameter in parameters.items() if "Default" not in parameter]
    assert not unset, f"`sam deploy` would ask for {unset}"
    summary = sam()
    actions = {name: function["actions"] for name, function in summary["functions"].items()}
    same(json.loads(ACTIONS.read_text()), actions, "actions.json", "template.yaml")
    for name, function in summary["functions"].items():
        assert set(function["managedPolicies"]) == OPTIONAL | {"AWSLambdaBasicExecutionRole"}, (name, function)


def of_locks():
    """The part of the template that the CDK construct and the Terraform module have: all but transactions, watches and
    the waking of executions."""
    summary = sam()
    for name in ("Transact", "Sweep", "Watch"):
        del summary["functions"][name]
    del summary["stateMachines"]["Waker"]
    summary["routes"] = {key: name for key, name in summary["routes"].items() if name in summary["functions"]}
    for function in summary["functions"].values():
        function["managedPolicies"] = sorted(set(function["managedPolicies"]) - OPTIONAL)
        # The parameter is for a DynamoDB elsewhere, and only SAM has it.
        function["environment"].remove("AWS_ENDPOINT_URL_DYNAMODB")
    return summary


def same(left, right, left_name, right_name):
    texts = [json.dumps(side, indent=1, sort_keys=True).splitlines() for side in (left, right)]
    difference = list(difflib.unified_diff(*texts, left_name, right_name, lineterm="", n=6))
    if difference:
        sys.exit("\n".join(difference))
    print(f"  {right_name} agrees with {left_name}")


def main(way, *arguments):
    if way == "sam":
        check_sam()
    elif way == "cdk":
        synthesised = json.loads(pathlib.Path(arguments[0]).read_text())["Resources"]
        same(of_locks(), stacks.summary_of_resources(synthesised), "template.yaml", "the CDK construct")
    elif way == "terraform":
        same(of_locks(), stacks.summary_of_terraform(ROOT / "terraform"), "template.yaml", "the Terraform module")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
