"""Checks the template: the functions' roles against actions.json, which a test of the workspace compares with what the
functions call; the roles of state machines, pipes, rules and the REST API against what these call; the REST API's
routes against the HTTP API's; the routes of a release against those of none; and the example of a deploying role.
"""

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


def main():
    template = stacks.read()
    unset = [name for name, parameter in template["Parameters"].items() if "Default" not in parameter]
    assert not unset, f"`sam deploy` would ask for {unset}"
    whole = stacks.resources_with(WHOLE)
    actions = {name: function["actions"] for name, function in stacks.summary(whole)["functions"].items()}
    stacks.same(json.loads(ACTIONS.read_text()), actions, "actions.json", "the functions' roles")
    check_managed_policies()
    check_rest_api_policy()
    check_deploying_role()
    check_release()
    check_sweep_time()
    for parameters in (WHOLE, WHOLE | {"Functions": "one"}, WHOLE | RELEASE):
        resources = stacks.resources_with(parameters)
        routes = stacks.summary(resources)["routes"]
        stacks.same(routes, stacks.routes_of_rest_api(resources), "the HTTP API's", "the REST API's routes")
        calls = stacks.calls(resources)
        stacks.same(
            calls,
            stacks.grants(resources, calls),
            "what state machines, pipes, rules and the REST API call",
            "their roles",
        )
    functions = {function["Role"]["Fn::GetAtt"][0] for _, function in stacks.of_type(whole, "AWS::Lambda::Function")}
    unseen = {name for name, _ in stacks.of_type(whole, "AWS::IAM::Role")} - functions - set(stacks.calls(whole))
    assert not unseen, f"nothing compares the roles {unseen} with what they are for"


def check_managed_policies():
    """Roles have the permissions for traces and for a VPC only where a parameter asks for them."""
    for parameters, more in (
        ({}, []),
        ({"Tracing": "Active"}, ["AWSXRayDaemonWriteAccess"]),
        ({"VpcSubnetIds": "subnet-1"}, ["AWSLambdaVPCAccessExecutionRole"]),
    ):
        functions = stacks.summary(stacks.resources_with(WHOLE | parameters))["functions"]
        for name, function in functions.items():
            assert function["managedPolicies"] == sorted([BASIC, *more]), (parameters, name, function)


def check_sweep_time():
    """A process that has just started looks twice at an open transaction, the idle time apart."""
    template = stacks.read()
    idle = template["Parameters"]["TransactionIdleSeconds"]["MaxValue"]
    time = template["Resources"]["SweepFunction"]["Properties"]["Timeout"]
    if time < idle + 30:
        raise SystemExit(f"the sweep ends after {time} s, and cannot look twice at a transaction {idle} s apart")


def check_release():
    """With a release everything calls the holder's operations by aliases; CodeDeploy moves them, and goes back."""
    for parameters in (WHOLE, WHOLE | {"Functions": "one", "FunctionUrl": "true"}):
        resources = stacks.resources_with(parameters | RELEASE)
        without, with_one = (stacks.summary(found) for found in (stacks.resources_with(parameters), resources))
        stacks.same(without, with_one, "those of none", "a release's functions and routes")
        aliases = stacks.of_type(resources, "AWS::Lambda::Alias")
        served = {alias["FunctionName"]["Ref"] for _, alias in aliases}
        assert served == {
            f"{without['routes'][f'ANY /v1/{name}']}Function" for name in ("acquire", "heartbeat", "release")
        }, served
        for name, alias in aliases:
            function = alias["FunctionName"]["Ref"]
            callers = [
                caller
                for kind in CALLERS
                for caller, properties in stacks.of_type(resources, kind)
                if stacks.mentions(properties, function)
            ]
            assert not callers, f"{callers} call {function} past its alias"
            policy = resources[name]["UpdatePolicy"]["CodeDeployLambdaAliasUpdate"]
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
        for resource in stacks.resources_with(everything | {"Authorizer": authorizer}).values()
    }
    needed = {action for kind in types for action in MADE_BY[kind]}
    statements = json.loads(DEPLOYING_ROLE.read_text())["Statement"]
    granted = {action for statement in statements for action in stacks.as_list(statement["Action"])}
    assert needed <= granted, needed - granted
    services = {action.split(":")[0] for action in needed} | {"cloudformation", "s3"}
    assert {action.split(":")[0] for action in granted} == services, granted
    trusted = [
        statement["Principal"]["Service"]
        for _, role in stacks.of_type(stacks.resources_with(everything), "AWS::IAM::Role")
        for statement in role["AssumeRolePolicyDocument"]["Statement"]
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
        [(_, api)] = stacks.of_type(stacks.resources_with(parameters), "AWS::ApiGateway::RestApi")
        allow, *deny = api["Policy"]["Statement"]
        assert allow["Effect"] == "Allow" and allow["Principal"] == principal, (parameters, allow)
        assert {statement["Effect"] for statement in deny} <= {"Deny"}, (parameters, deny)
        found = [{test: key for test, [key] in statement["Condition"].items()} for statement in deny]
        assert found == conditions, (parameters, deny)


if __name__ == "__main__":
    main()
