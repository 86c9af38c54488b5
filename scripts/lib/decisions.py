"""Asks IAM for decisions about the roles of a stack, in one process: the command line would take a minute to start so
often.

Argument: the stack. Standard input: a line for each decision, EXPECTED ROLE ACTION RESOURCE; the role by its name in
the template.
"""

import sys

import boto3


def main(stack):
    cloudformation, iam = boto3.client("cloudformation"), boto3.client("iam")
    found = cloudformation.describe_stack_resources(StackName=stack)["StackResources"]
    names = {resource["LogicalResourceId"]: resource["PhysicalResourceId"] for resource in found}
    roles = {}
    for line in sys.stdin:
        expected, role, action, resource = line.split()
        arn = roles.get(role) or roles.setdefault(role, iam.get_role(RoleName=names[role])["Role"]["Arn"])
        answer = iam.simulate_principal_policy(PolicySourceArn=arn, ActionNames=[action], ResourceArns=[resource])
        [result] = answer["EvaluationResults"]
        decision = result["EvalDecision"]
        assert decision == expected, f"{role}'s {action} on {resource} is {decision}, not {expected}"


if __name__ == "__main__":
    main(sys.argv[1])
