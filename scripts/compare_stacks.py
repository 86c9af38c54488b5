"""Compares the ways to deploy: the SAM template, the CDK construct and the Terraform module have the same functions,
with the same actions, environments and routes, and state machines with the same permissions.

Usage: compare_stacks.py sam | cdk TEMPLATE.json WHOLE.json | terraform

The CDK construct and the Terraform module are compared as they are by default, and with everything that they can have.

`sam` compares the roles of the template's functions with actions.json, which a test of the workspace compares with what
the functions call; the roles of its state machines, pipes, rules and REST API with what these call; the REST API's
routes with the HTTP API's; and the routes of a release with those of none.
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
    "RestApi": "regional",
}


DEFAULTS = {}
# Everything that the CDK construct and the Terraform module can have, and the latter's variables for it.
SHARED = {"Functions": "one", "FunctionUrl": "true", "WatchConcurrency": "10", "WakeWaiters": "true"}
TERRAFORM_SHARED = {"functions": "one", "function_url": True, "watch_concurrency": 10, "wake_waiters": True}
RELEASE = {"Release": "one", "ReleaseShift": "Canary10Percent10Minutes"}
# Resources that call functions by their ARN, and the permissions for it.
CALLERS = ("AWS::ApiGatewayV2::Integration", "AWS::ApiGateway::RestApi", "AWS::Lambda::Permission", "AWS::Lambda::Url")
DEPLOYING_ROLE = ROOT / "examples/deploying-role/policy.json"
# The actions by which CloudFormation makes and deletes a resource of each type.
MADE_BY = {
    "AWS::ApiGateway::Deployment": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::ApiGateway::RestApi": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::ApiGateway::Stage": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::ApiGatewayV2::Api": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::ApiGatewayV2::ApiMapping": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::ApiGatewayV2::Authorizer": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::ApiGatewayV2::DomainName": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::ApiGatewayV2::Integration": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::ApiGatewayV2::Route": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::ApiGatewayV2::Stage": ("apigateway:POST", "apigateway:DELETE"),
    "AWS::CloudWatch::Alarm": ("cloudwatch:PutMetricAlarm", "cloudwatch:DeleteAlarms"),
    "AWS::CloudWatch::Dashboard": ("cloudwatch:PutDashboard", "cloudwatch:DeleteDashboards"),
    "AWS::CodeDeploy::Application": ("codedeploy:CreateApplication", "codedeploy:DeleteApplication"),
    "AWS::CodeDeploy::DeploymentGroup": (
        "codedeploy:CreateDeploymentGroup",
        "codedeploy:DeleteDeploymentGroup",
        "codedeploy:CreateDeployment",
    ),
    "AWS::DynamoDB::Table": ("dynamodb:CreateTable", "dynamodb:DeleteTable"),
    "AWS::Events::Rule": ("events:PutRule", "events:DeleteRule"),
    "AWS::IAM::Role": ("iam:CreateRole", "iam:DeleteRole"),
    "AWS::Lambda::Alias": ("lambda:CreateAlias", "lambda:DeleteAlias"),
    "AWS::Lambda::Function": ("lambda:CreateFunction", "lambda:DeleteFunction"),
    "AWS::Lambda::Permission": ("lambda:AddPermission", "lambda:RemovePermission"),
    "AWS::Lambda::Url": ("lambda:CreateFunctionUrlConfig", "lambda:DeleteFunctionUrlConfig"),
    "AWS::Lambda::Version": ("lambda:PublishVersion", "lambda:DeleteFunction"),
    "AWS::Logs::LogGroup": ("logs:CreateLogGroup", "logs:DeleteLogGroup"),
    "AWS::Logs::MetricFilter": ("logs:PutMetricFilter", "logs:DeleteMetricFilter"),
    "AWS::Pipes::Pipe": ("pipes:CreatePipe", "pipes:DeletePipe"),
    "AWS::SQS::Queue": ("sqs:CreateQueue", "sqs:DeleteQueue"),
    "AWS::SQS::QueuePolicy": ("sqs:SetQueueAttributes", "sqs:GetQueueAttributes"),
    "AWS::SecretsManager::Secret": ("secretsmanager:CreateSecret", "secretsmanager:DeleteSecret"),
    "AWS::StepFunctions::StateMachine": ("states:CreateStateMachine", "states:DeleteStateMachine"),
    "AWS::WAFv2::WebACLAssociation": ("wafv2:AssociateWebACL", "wafv2:DisassociateWebACL"),
}


def sam(parameters):
    return stacks.translate(ROOT / "template.yaml", parameters)


def check_sam():
    template = stacks.read(ROOT / "template.yaml")
    unset = [name for name, parameter in template["Parameters"].items() if "Default" not in parameter]
    assert not unset, f"`sam deploy` would ask for {unset}"
    functions = stacks.summary_of_resources(sam(WHOLE))["functions"]
    actions = {name: function["actions"] for name, function in functions.items()}
    same(json.loads(ACTIONS.read_text()), actions, "actions.json", "the functions' roles")
    check_managed_policies()
    check_rest_api_policy()
    check_deploying_role()
    for parameters in (WHOLE, WHOLE | {"Functions": "one"}, WHOLE | RELEASE):
        resources = sam(parameters)
        routes = stacks.summary_of_resources(resources)["routes"]
        same(routes, stacks.routes_of_rest_api(resources), "the HTTP API's", "the REST API's routes")
    check_release()

    definitions = {
        name: json.loads((ROOT / resource["Properties"]["DefinitionUri"]).read_text())
        for name, resource in template["Resources"].items()
        if resource["Type"] == "AWS::Serverless::StateMachine"
    }
    for parameters in (WHOLE, WHOLE | RELEASE):
        resources = sam(parameters)
        calls = stacks.calls(resources, definitions)
        same(
            calls,
            stacks.grants(resources, calls),
            "what state machines, pipes, rules and the REST API call",
            "their roles",
        )
    resources = sam(WHOLE)
    others = {
        resource["Properties"]["Role"]["Fn::GetAtt"][0]
        for _, resource in stacks.of_type(resources, "AWS::Lambda::Function")
    }
    unseen = (
        {name for name, _ in stacks.of_type(resources, "AWS::IAM::Role")}
        - others
        - set(stacks.calls(resources, definitions))
    )
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


def check_release():
    """With a release everything calls the holder's operations by aliases; CodeDeploy moves them, and goes back."""
    for parameters in (WHOLE, WHOLE | {"Functions": "one", "FunctionUrl": "true"}):
        resources = sam(parameters | RELEASE)
        without, with_one = (stacks.summary_of_resources(found) for found in (sam(parameters), resources))
        same(without, with_one, "those of none", "a release's functions and routes")
        aliases = stacks.of_type(resources, "AWS::Lambda::Alias")
        served = {function["Properties"]["FunctionName"]["Ref"] for _, function in aliases}
        assert served == {
            f"{without['routes'][f'ANY /v1/{name}']}Function" for name in ("acquire", "heartbeat", "release")
        }, served
        for _, alias in aliases:
            function = alias["Properties"]["FunctionName"]["Ref"]
            callers = [
                name
                for kind in CALLERS
                for name, caller in stacks.of_type(resources, kind)
                if stacks.mentions(caller, function)
            ]
            assert not callers, f"{callers} call {function} past its alias"
            policy = alias["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
            group = resources[policy["DeploymentGroupName"]["Ref"]]["Properties"]
            assert "DEPLOYMENT_STOP_ON_ALARM" in group["AutoRollbackConfiguration"]["Events"], group
            alarms = [resources[alarm["Name"]["Ref"]]["Type"] for alarm in group["AlarmConfiguration"]["Alarms"]]
            assert alarms and set(alarms) == {"AWS::CloudWatch::Alarm"}, alarms


def check_deploying_role():
    """The example role may make and delete each resource of the template, and has no permission for another service."""
    everything = (
        WHOLE
        | RELEASE
        | {
            "FunctionUrl": "true",
            "DomainName": "locks.example.com",
            "RestApiWebAclArn": "arn:aws:wafv2:eu-west-1:123456789012:regional/webacl/one/1",
        }
    )
    types = {
        resource["Type"]
        for authorizer in ("AWS_IAM", "JWT")
        for resource in sam(everything | {"Authorizer": authorizer}).values()
    }
    needed = {action for kind in types for action in MADE_BY[kind]}
    statements = json.loads(DEPLOYING_ROLE.read_text())["Statement"]
    granted = {action for statement in statements for action in stacks.as_list(statement["Action"])}
    assert needed <= granted, needed - granted
    services = {action.split(":")[0] for action in needed} | {"cloudformation", "s3"}
    assert {action.split(":")[0] for action in granted} == services, granted
    trusted = [
        statement["Principal"]["Service"]
        for _, role in stacks.of_type(sam(everything), "AWS::IAM::Role")
        for statement in role["Properties"]["AssumeRolePolicyDocument"]["Statement"]
    ]
    [passes] = [statement for statement in statements if statement["Action"] == "iam:PassRole"]
    passed = set(passes["Condition"]["StringEquals"]["iam:PassedToService"])
    assert passed == {service for principal in trusted for service in stacks.as_list(principal)}, (passed, trusted)


def check_rest_api_policy():
    """Only callers of the named endpoints or ranges reach the REST API; a policy of their own admits signed ones."""
    endpoints = {"RestApi": "private", "RestApiVpcEndpointIds": "vpce-1"}
    account = {"AWS": {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:root"}}
    for parameters, principal, conditions in (
        ({"RestApi": "regional", "Authorizer": "NONE"}, "*", []),
        ({"RestApi": "regional"}, account, []),
        ({"RestApi": "regional", "RestApiSourceRanges": "192.0.2.0/24"}, account, [{"NotIpAddress": "aws:SourceIp"}]),
        (endpoints, account, [{"StringNotEquals": "aws:SourceVpce"}]),
        (endpoints | {"RestApiSourceRanges": "192.0.2.0/24"}, account, [{"StringNotEquals": "aws:SourceVpce"}]),
    ):
        [(_, api)] = stacks.of_type(sam(parameters), "AWS::ApiGateway::RestApi")
        allow, *deny = api["Properties"]["Policy"]["Statement"]
        assert allow["Effect"] == "Allow" and allow["Principal"] == principal, (parameters, allow)
        assert {statement["Effect"] for statement in deny} <= {"Deny"}, (parameters, deny)
        found = [{test: key for test, [key] in statement["Condition"].items()} for statement in deny]
        assert found == conditions, (parameters, deny)


def same(left, right, left_name, right_name):
    before, after = (json.dumps(side, indent=1, sort_keys=True).splitlines() for side in (left, right))
    difference = list(difflib.unified_diff(before, after, left_name, right_name, lineterm="", n=6))
    if difference:
        sys.exit("\n".join(difference))
    print(f"  {right_name}: as {left_name}")


def main(way, *arguments):
    if way == "sam":
        check_sam()
    elif way == "cdk":
        for parameters, template in zip((DEFAULTS, SHARED), arguments, strict=True):
            synthesised = json.loads(pathlib.Path(template).read_text())["Resources"]
            expected = stacks.summary_of_resources(sam(parameters))
            same(expected, stacks.summary_of_resources(synthesised), "template.yaml", "the CDK construct")
    elif way == "terraform":
        for parameters, variables in ((DEFAULTS, {}), (SHARED, TERRAFORM_SHARED)):
            expected = stacks.summary_of_resources(sam(parameters))
            found = stacks.summary_of_terraform(ROOT / "terraform", variables)
            same(expected, found, "template.yaml", "the Terraform module")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
