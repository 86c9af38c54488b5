"""Compares the ways to deploy: the SAM template, the CDK construct and the Terraform module have the same functions,
with the same actions, environments and routes, and state machines with the same permissions.

Usage: compare_stacks.py sam | cdk TEMPLATE.json | terraform

`sam` compares the roles of the template's functions with actions.json, which a test of the workspace compares with what the
functions call, and the roles of its state machines, pipes and rules with what these call.
"""

import difflib
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts/lib"))
import stacks  # noqa: E402

ACTIONS = ROOT / "tests/leasehold-tests/actions.json"
BASIC = "AWSLambdaBasicExecutionRole"
# Everything that the stack can have.
WHOLE = {
    "TransactionTableArns": "arn:aws:dynamodb:eu-west-1:123456789012:table/accounts",
    "WatchConcurrency": "10",
    "WakeWaiters": "true",
}


def sam(parameters):
    return stacks.translate(ROOT / "template.yaml", parameters)


def check_sam():
    template = stacks.read(ROOT / "template.yaml")
    unset = [name for name, parameter in template["Parameters"].items() if "Default" not in parameter]
    assert not unset, f"`sam deploy` would ask for {unset}"
    resources = sam(WHOLE)
    functions = stacks.summary_of_resources(resources)["functions"]
    actions = {name: function["actions"] for name, function in functions.items()}
    same(json.loads(ACTIONS.read_text()), actions, "actions.json", "the functions' roles")
    check_managed_policies()

    definitions = {
        name: json.loads((ROOT / resource["Properties"]["DefinitionUri"]).read_text())
        for name, resource in template["Resources"].items()
        if resource["Type"] == "AWS::Serverless::StateMachine"
    }
    calls = stacks.calls(resources, definitions)
    same(calls, stacks.grants(resources, calls), "what state machines, pipes and rules call", "their roles")
    others = {resource["Properties"]["Role"]["Fn::GetAtt"][0] for _, resource in stacks.of_type(resources, "AWS::Lambda::Function")}
    unseen = {name for name, _ in stacks.of_type(resources, "AWS::IAM::Role")} - others - set(calls)
    assert not unseen, f"nothing compares the roles {unseen} with what they are for"


def check_managed_policies():
    """Roles have the permissions for traces and for a VPC only where a parameter asks for them."""
    for parameters, more in (
        ({}, []),
        ({"Tracing": "Active"}, ["AWSXRayDaemonWriteAccess"]),
        ({"VpcSubnetIds": "subnet-1"}, ["AWSLambdaVPCAccessExecutionRole"]),
    ):
        functions = stacks.summary_of_resources(sam(WHOLE | parameters))["functions"]
        for name, function in functions.items():
            assert function["managedPolicies"] == sorted([BASIC, *more]), (parameters, name, function)


def same(left, right, left_name, right_name):
    texts = [json.dumps(side, indent=1, sort_keys=True).splitlines() for side in (left, right)]
    difference = list(difflib.unified_diff(*texts, left_name, right_name, lineterm="", n=6))
    if difference:
        sys.exit("\n".join(difference))
    print(f"  {right_name}: as {left_name}")


def main(way, *arguments):
    if way == "sam":
        check_sam()
    elif way == "cdk":
        synthesised = json.loads(pathlib.Path(arguments[0]).read_text())["Resources"]
        same(stacks.summary_of_resources(sam({})), stacks.summary_of_resources(synthesised), "template.yaml", "the CDK construct")
    elif way == "terraform":
        same(stacks.summary_of_resources(sam({})), stacks.summary_of_terraform(ROOT / "terraform"), "template.yaml", "the Terraform module")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
