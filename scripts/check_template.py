"""Checks the template: the functions' roles against actions.json and attributes.json, which a test of the workspace
compares with what the functions call; the roles of state machines, pipes, rules and the REST API against what these
call; the REST API's routes against the HTTP API's; the routes of a release against those of none; the example of a
deploying role; and rules that an audit of such stacks asks about, one function each.
"""

import fnmatch
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts/lib"))
import stacks  # noqa: E402

ACTIONS = ROOT / "tests/leasehold-tests/actions.json"
ATTRIBUTES = ROOT / "tests/leasehold-tests/attributes.json"
# Everything that the stack can have.
WHOLE = {
    "TransactionTableArns": "arn:aws:dynamodb:eu-west-1:123456789012:table/accounts",
    "WatchConcurrency": "10",
    "WakeWaiters": "true",
    "HistoryDays": "30",
    "AgentLayerBucket": "releases",
    "TerraformStates": "true",
    "TerraformTokens": "[]",
    "RestApi": "regional",
    "MultiRegion": "true",
}
RELEASE = {"Release": "one", "ReleaseShift": "Canary10Percent10Minutes"}
# Resources that call functions by their ARN, and the permissions for it.
CALLERS = ("AWS::ApiGatewayV2::Integration", "AWS::ApiGateway::RestApi", "AWS::Lambda::Permission", "AWS::Lambda::Url")
GLOBAL_TABLE = ROOT / "examples/multi-region/template.yaml"
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
    "AWS::IAM::ManagedPolicy": ("iam:CreatePolicy", "iam:DeletePolicy"),
    "AWS::IAM::Role": ("iam:CreateRole", "iam:DeleteRole"),
    "AWS::KMS::Key": ("kms:CreateKey", "kms:ScheduleKeyDeletion"),
    "AWS::Lambda::Alias": ("lambda:CreateAlias", "lambda:DeleteAlias"),
    "AWS::Lambda::EventSourceMapping": ("lambda:CreateEventSourceMapping", "lambda:DeleteEventSourceMapping"),
    "AWS::Lambda::Function": ("lambda:CreateFunction", "lambda:DeleteFunction"),
    "AWS::Lambda::LayerVersion": ("lambda:PublishLayerVersion", "lambda:DeleteLayerVersion"),
    "AWS::Lambda::Permission": ("lambda:AddPermission", "lambda:RemovePermission"),
    "AWS::Lambda::Url": ("lambda:CreateFunctionUrlConfig", "lambda:DeleteFunctionUrlConfig"),
    "AWS::Lambda::Version": ("lambda:PublishVersion", "lambda:DeleteFunction"),
    "AWS::Logs::LogGroup": ("logs:CreateLogGroup", "logs:DeleteLogGroup"),
    "AWS::Logs::MetricFilter": ("logs:PutMetricFilter", "logs:DeleteMetricFilter"),
    "AWS::Pipes::Pipe": ("pipes:CreatePipe", "pipes:DeletePipe"),
    "AWS::S3::Bucket": (
        "s3:CreateBucket",
        "s3:DeleteBucket",
        "s3:PutBucketVersioning",
        "s3:PutEncryptionConfiguration",
    ),
    "AWS::S3::BucketPolicy": ("s3:PutBucketPolicy", "s3:DeleteBucketPolicy"),
    "AWS::SQS::Queue": ("sqs:CreateQueue", "sqs:DeleteQueue"),
    "AWS::SQS::QueuePolicy": ("sqs:SetQueueAttributes", "sqs:GetQueueAttributes"),
    "AWS::StepFunctions::StateMachine": ("states:CreateStateMachine", "states:DeleteStateMachine"),
    "AWS::WAFv2::WebACLAssociation": ("wafv2:AssociateWebACL", "wafv2:DisassociateWebACL"),
}


def main():
    for check in CHECKS:
        check()


def check_defaults():
    """`sam deploy` asks for no parameter."""
    unset = [name for name, parameter in stacks.read()["Parameters"].items() if "Default" not in parameter]
    assert not unset, f"`sam deploy` would ask for {unset}"


def check_repository():
    """The Serverless Application Repository finds what it asks for, of this version."""
    application = stacks.read()["Metadata"]["AWS::ServerlessRepo::Application"]
    version = re.search(r'^version = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.M)[1]
    assert application["SemanticVersion"] == version, application
    assert len(application["Description"]) <= 256 and len(application["Labels"]) <= 10, application
    for name in ("LicenseUrl", "ReadmeUrl"):
        assert (ROOT / application[name]).is_file(), application[name]


def check_actions():
    """A function's role allows what its operations call, and no more."""
    found = [stacks.summary(stacks.resources_with(WHOLE | one))["functions"] for one in ({}, {"Functions": "one"})]
    actions = {name: function["actions"] for functions in found for name, function in functions.items()}
    assert actions.pop("Semaphore") == actions["Invoke"], actions
    stacks.same(json.loads(ACTIONS.read_text()), actions, "actions.json", "the functions' roles")


def check_calls():
    """The REST API has the HTTP API's routes, and every other role allows what is called under it, and no more."""
    for parameters in (WHOLE, WHOLE | {"Functions": "one"}, WHOLE | RELEASE):
        resources = stacks.resources_with(parameters)
        routes = stacks.summary(resources)["routes"]
        stacks.same(routes, stacks.routes_of_rest_api(resources), "the HTTP API's", "the REST API's routes")
        calls = stacks.calls(resources)
        what = "what state machines, pipes, rules and the REST API call"
        stacks.same(calls, stacks.grants(resources, calls), what, "their roles")
    whole = stacks.resources_with(WHOLE)
    functions = {function["Role"]["Fn::GetAtt"][0] for _, function in stacks.of_type(whole, "AWS::Lambda::Function")}
    unseen = {name for name, _ in stacks.of_type(whole, "AWS::IAM::Role")} - functions - set(stacks.calls(whole))
    assert not unseen, f"nothing compares the roles {unseen} with what they are for"


def check_regions():
    """Each region knows the types that the stack has there, and none that it has is left out."""
    from cfnlint.helpers import REGIONS
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

    whole = WHOLE | {"Functions": "one", "FunctionUrl": "true"}
    types = {resource["Type"] for resource in stacks.resources_with(whole).values()}
    # The isolated partitions have names like us-iso-east-1.
    for region in {one for one in REGIONS if "iso" not in one}:
        known = set(PROVIDER_SCHEMA_MANAGER.get_resource_types(region))
        there = stacks.chosen(stacks.read(), whole | {"AWS::Region": region})["Resources"].values()
        # SAM's own types stand for those of AWS.
        optional = {"AWS::Lambda::Url", "AWS::Pipes::Pipe"}
        assert types - optional <= known, (region, types - known)
        assert {resource["Type"] for resource in there} & optional == known & optional, region


def check_families():
    """Those who hold have concurrency, routes' throttle and alarms of their own, whatever all others use."""
    for parameters, holds in (({}, "HoldFunction"), ({"Functions": "one"}, "AcquireFunction")):
        resources = stacks.resources_with(WHOLE | parameters)
        functions = dict(stacks.of_type(resources, "AWS::Lambda::Function"))
        assert functions[holds]["ReservedConcurrentExecutions"] == {"Ref": "HoldConcurrency"}, holds
        roles = [
            function["Role"]["Fn::GetAtt"][0] for name, function in functions.items() if name != "SemaphoreFunction"
        ]
        assert len(set(roles)) == len(roles), f"functions share a role: {roles}"
        alarms = [alarm for _, alarm in stacks.of_type(resources, "AWS::CloudWatch::Alarm")]
        for name, function in functions.items():
            metrics = {alarm["MetricName"] for alarm in alarms if stacks.mentions(alarm.get("Dimensions", []), name)}
            # Refusals of direct invocations are errors by design. Step Functions retries the clean-up, and a watch
            # beyond its concurrency is no fault.
            expected = {
                "invoke": {"Throttles"},
                "transact": {"Throttles"},
                "cleanup": set(),
                "watch": set(),
                # What it cannot record waits in its dead-letter queue, which has an alarm.
                "record": set(),
                # It runs by a schedule, one at a time.
                "expire": {"Errors"},
            }.get(function["Handler"], {"Errors", "Throttles"})
            assert metrics == expected, (name, metrics)
        [(_, stage)] = [
            (name, found)
            for name, found in stacks.of_type(resources, "AWS::ApiGatewayV2::Stage")
            if "RouteSettings" in found
        ]
        throttles = {
            route: settings["ThrottlingRateLimit"]["Ref"] for route, settings in stage["RouteSettings"].items()
        }
        routes = stacks.summary(resources)["routes"]
        held = {route for route, function in routes.items() if route.endswith(("/heartbeat", "/release"))}
        operated = {route for route, function in routes.items() if function in ("Operate", "Sweep")} | {"ANY /v1/locks"}
        assert throttles == dict.fromkeys(held, "HoldRateLimit") | dict.fromkeys(operated, "OperateRateLimit"), (
            throttles
        )
        before = resources["Stage"]["DependsOn"] + [
            name for name in resources if stacks.mentions(stage.get("StageVariables", {}), name)
        ]
        known = {resources[name]["Properties"]["RouteKey"] for name in before}
        assert known == set(throttles), "a stage knows no settings of routes that come after it"
    assert (
        "ReservedConcurrentExecutions"
        not in dict(stacks.of_type(stacks.resources_with({"HoldConcurrency": "0"}), "AWS::Lambda::Function"))[
            "HoldFunction"
        ]
    )


def check_attributes():
    """Roles that write no attributes of callers' choice may write none of the protocol that they have no use for."""
    named = json.loads(ATTRIBUTES.read_text())
    everything = {name for names in named.values() for name in names}
    resources = stacks.resources_with(WHOLE)
    for function, like in (("Hold", "Hold"), ("Operate", "Operate"), ("Cleanup", "Hold"), ("Terraform", "Terraform")):
        found = stacks.withheld_from(f"{function}FunctionRole", resources)
        assert found == sorted(everything - set(named[like])), (function, sorted(everything - set(named[like])))


def check_function_roles():
    """Roles of functions write to the stack's log alone, and know traces and a VPC only where a parameter asks."""
    log = {("FunctionLog", "logs:CreateLogStream"), ("FunctionLog", "logs:PutLogEvents")}
    vpc = {
        f"ec2:{verb}{thing}"
        for thing, verbs in {
            "NetworkInterface": ("Create", "Delete"),
            "NetworkInterfaces": ("Describe",),
            "Subnets": ("Describe",),
            "PrivateIpAddresses": ("Assign", "Unassign"),
        }.items()
        for verb in verbs
    }
    for parameters, managed, more in (
        ({}, [], set()),
        ({"Tracing": "Active"}, ["AWSXRayDaemonWriteAccess"], set()),
        ({"VpcSubnetIds": "subnet-1"}, [], {('"*"', action) for action in vpc}),
    ):
        resources = stacks.resources_with(WHOLE | parameters)
        for name, function in stacks.of_type(resources, "AWS::Lambda::Function"):
            role = function["Role"]["Fn::GetAtt"][0]
            assert stacks.managed_policies(resources[role]) == managed, (parameters, name)
            found = {
                (target, action)
                for target, actions in stacks.statements(role, resources)
                for action in actions
                if not action.startswith("dynamodb:")
            }
            key = {("ExecutionKey", "kms:GenerateMac")} if function["Handler"] in ("invoke", "cleanup") else set()
            letters = {("RecordDeadLetters", "sqs:SendMessage")} if function["Handler"] == "record" else set()
            # check_terraform has these.
            states = {one for one in found if one[1].startswith("s3:") and function["Handler"] == "terraform"}
            assert found == log | more | key | letters | states, (parameters, name, found)
            secret = re.search(r"secretsmanager|resolve:", json.dumps(function["Environment"]))
            assert not secret, f"{name} has a secret in its environment"


def check_trust():
    """A service takes a role for this account alone. Lambda and API Gateway do not say for which account they act."""
    for name, role in stacks.of_type(stacks.resources_with(WHOLE | RELEASE), "AWS::IAM::Role"):
        [statement] = role["AssumeRolePolicyDocument"]["Statement"]
        if statement["Principal"]["Service"] not in ("lambda.amazonaws.com", "apigateway.amazonaws.com"):
            condition = {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
            assert statement.get("Condition") == condition, (name, statement)


def check_keys():
    """With KMS keys of the user's, each role for tables or for a function's environment may decrypt with them."""
    table, environment = ("TableKmsKeyArn", "EnvironmentKmsKeyArn")
    through = {"StringEquals": {"kms:ViaService": {"Fn::Sub": "dynamodb.${AWS::Region}.${AWS::URLSuffix}"}}}
    for keys in ({}, {table}, {environment}, {table, environment}):
        resources = stacks.resources_with(
            WHOLE | {key: f"arn:aws:kms:eu-west-1:123456789012:key/{key}" for key in keys}
        )
        functions = {
            function["Role"]["Fn::GetAtt"][0] for _, function in stacks.of_type(resources, "AWS::Lambda::Function")
        }
        for role, _ in stacks.of_type(resources, "AWS::IAM::Role"):
            reads = any(
                "dynamodb:" in action for _, actions in stacks.statements(role, resources) for action in actions
            )
            expected = [
                *([(table, through)] if reads and table in keys else []),
                *([(environment, None)] if role in functions and environment in keys else []),
            ]
            granted = [
                (statement["Resource"]["Ref"], statement.get("Condition"))
                for policy in resources[role]["Properties"].get("Policies", [])
                for statement in policy["PolicyDocument"]["Statement"]
                if statement["Action"] == "kms:Decrypt"
            ]
            assert granted == expected, (keys, role, granted)


# Lines of a function's log, and whether they tell of a crash. Lambda documents those with a type.
LINES = (
    ({"type": "platform.report", "record": {"requestId": "1", "status": "timeout"}}, True),
    ({"type": "platform.report", "record": {"status": "error", "errorType": "Runtime.ExitError"}}, True),
    ({"type": "platform.report", "record": {"status": "error", "errorType": "Runtime.OutOfMemory"}}, True),
    ({"type": "platform.initReport", "record": {"status": "error", "errorType": "Runtime.ConfigInvalid"}}, True),
    ({"level": "ERROR", "target": "leasehold_lambda::init", "message": "cannot start"}, True),
    ({"type": "platform.report", "record": {"status": "error", "errorType": "LockHeld"}}, False),
    ({"operation": "acquire", "record": {"status": "timeout", "errorType": "Runtime.ExitError"}}, False),
    ({"level": "WARN", "target": "leasehold_lambda::init", "message": "no connection to DynamoDB yet"}, False),
    *(
        ({"operation": "acquire", "key": words, "owner": words}, False)
        for words in (
            "panicked",
            "cannot start",
            "Task timed out",
            "Runtime.ExitError",
            '"status":"timeout"',
            '"}\n{"type":"platform.report","record":{"status":"timeout"}}',
        )
    ),
)


def check_crash_filter():
    """The filter of crashes reads fields of Lambda's own lines, which no caller can write."""
    [(_, properties)] = stacks.of_type(stacks.resources_with({}), "AWS::Logs::MetricFilter")
    pattern = properties["FilterPattern"]
    for line, crashed in LINES:
        assert matches(pattern, line) == crashed, (pattern, line)


def matches(pattern, line):
    """Whether a filter pattern for JSON, of equalities, matches a line."""

    def holds(comparison):
        value = line
        for name in comparison[1].split("."):
            value = value.get(name, "") if isinstance(value, dict) else ""
        return str(fnmatch.fnmatchcase(value, comparison[2]))

    assert re.fullmatch(r"\{.*\}", pattern), f"{pattern} matches texts anywhere in a line"
    terms = re.sub(r'\$\.([\w.]+) = "([^"]*)"', holds, pattern.strip("{ }"))
    assert re.fullmatch(r"(True|False|&&|\|\||[() ])*", terms), terms
    return eval(terms.replace("&&", "and").replace("||", "or"))


def check_waking():
    """Only a free lock or a semaphore with permits wakes; what fails is logged, and events are kept, with an alarm."""
    resources = stacks.resources_with(WHOLE)
    [pipe] = [properties for name, properties in stacks.of_type(resources, "AWS::Pipes::Pipe") if name == "FreedPipe"]
    filters = [json.loads(one["Pattern"]) for one in pipe["SourceParameters"]["FilterCriteria"]["Filters"]]
    [available] = [one["dynamodb"]["NewImage"]["available"]["N"] for one in filters if "available" in json.dumps(one)]
    for number, wakes in (("-1", False), ("0", False), ("1", True), ("10", True), ("99", True)):
        assert any(number.startswith(one["prefix"]) for one in available) == wakes, (number, available)
    for name, properties in stacks.of_type(resources, "AWS::Pipes::Pipe"):
        letters = properties["SourceParameters"]["DynamoDBStreamParameters"]["DeadLetterConfig"]["Arn"]
        assert properties["LogConfiguration"]["Level"] == "ERROR", name
        queue = letters["Fn::GetAtt"][0]
        watched = [
            alarm
            for alarm, found in stacks.of_type(resources, "AWS::CloudWatch::Alarm")
            if stacks.mentions(found.get("Dimensions", []), queue)
        ]
        assert watched, f"no alarm about {queue}"
    express = [
        one
        for _, one in stacks.of_type(resources, "AWS::StepFunctions::StateMachine")
        if one["StateMachineType"] == "EXPRESS"
    ]
    assert express and all(one["LoggingConfiguration"]["Level"] == "ERROR" for one in express), express
    # The tokens of waiters are in the data of executions.
    assert not any(one["LoggingConfiguration"]["IncludeExecutionData"] for one in express), express


def check_history():
    """A history is made of both images, loses nothing in silence, and is off by default."""
    resources = stacks.resources_with(WHOLE)
    assert resources["LockTable"]["Properties"]["StreamSpecification"] == {"StreamViewType": "NEW_AND_OLD_IMAGES"}
    [(_, mapping)] = stacks.of_type(resources, "AWS::Lambda::EventSourceMapping")
    assert stacks.function_behind(mapping["FunctionName"], resources) == "RecordFunction", mapping
    assert stacks.target_of(mapping["EventSourceArn"]) == "locks/stream" and mapping["BisectBatchOnFunctionError"]
    assert mapping["StartingPosition"] == "TRIM_HORIZON", mapping
    letters = mapping["DestinationConfig"]["OnFailure"]["Destination"]["Fn::GetAtt"][0]
    alarms = [alarm for _, alarm in stacks.of_type(resources, "AWS::CloudWatch::Alarm")]
    assert any(stacks.mentions(alarm.get("Dimensions", []), letters) for alarm in alarms), letters
    table = resources["HistoryTable"]["Properties"]
    assert table["TimeToLiveSpecification"] == {"AttributeName": "expireAt", "Enabled": True}, table
    for parameters, view in (({}, None), ({"WakeWaiters": "true"}, {"StreamViewType": "NEW_IMAGE"})):
        without = stacks.resources_with(parameters)
        assert without["LockTable"]["Properties"].get("StreamSpecification") == view, parameters
        assert not [name for name in without if "Record" in name or "HistoryTable" in name], parameters


def check_terraform():
    """The bucket of the states is closed, encrypted and kept, and its function reaches nothing else. Off by default."""
    resources = stacks.resources_with(WHOLE)
    [(name, bucket)] = stacks.of_type(resources, "AWS::S3::Bucket")
    kept = resources[name]
    assert kept["DeletionPolicy"] == kept["UpdateReplacePolicy"] == "Retain", kept
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}, bucket
    [encryption] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert encryption["ServerSideEncryptionByDefault"]["SSEAlgorithm"] in ("AES256", "aws:kms"), encryption
    public = bucket["PublicAccessBlockConfiguration"]
    closed = ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets")
    assert [public.get(one) for one in closed] == [True] * 4, public
    [rule] = bucket["LifecycleConfiguration"]["Rules"]
    assert set(rule) == {"Id", "Status", "NoncurrentVersionExpiration"}, "no current version expires"
    [(policy_name, policy)] = stacks.of_type(resources, "AWS::S3::BucketPolicy")
    assert policy["Bucket"] == {"Ref": name} and resources[policy_name]["DeletionPolicy"] == "Retain", policy
    arn = {"Fn::GetAtt": [name, "Arn"]}
    [deny] = policy["PolicyDocument"]["Statement"]
    assert (deny["Effect"], deny["Principal"], deny["Action"]) == ("Deny", "*", "s3:*"), deny
    assert deny["Resource"] == [arn, {"Fn::Sub": f"${{{name}.Arn}}/*"}], deny
    assert deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}, deny
    granted = {
        json.dumps(statement["Resource"]): sorted(statement["Action"])
        for policy in resources["TerraformFunctionRole"]["Properties"]["Policies"]
        for statement in policy["PolicyDocument"]["Statement"]
        if "s3:" in json.dumps(statement["Action"])
    }
    objects = json.dumps({"Fn::Sub": f"${{{name}.Arn}}/states/*"})
    expected = {objects: ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"], json.dumps(arn): ["s3:ListBucket"]}
    assert granted == expected, granted
    # Without tokens its routes are as closed as all others.
    for tokens, authorizer, wanted in (
        ("[]", "AWS_IAM", "NONE"),
        ("[]", "JWT", "NONE"),
        ("", "AWS_IAM", {"Ref": "Authorizer"}),
        ("", "JWT", {"Ref": "Authorizer"}),
    ):
        resources = stacks.resources_with(WHOLE | {"TerraformTokens": tokens, "Authorizer": authorizer})
        routes = [
            route
            for _, route in stacks.of_type(resources, "AWS::ApiGatewayV2::Route")
            if "terraform" in route["RouteKey"]
        ]
        assert len(routes) == 2 and all(route["AuthorizationType"] == wanted for route in routes), (tokens, routes)
        named = {"AuthorizerId": {"Ref": "JwtAuthorizer"}} if authorizer == "JWT" and not tokens else {}
        assert all(named == {key: route[key] for key in route if key == "AuthorizerId"} for route in routes), routes
        [(_, api)] = stacks.of_type(resources, "AWS::ApiGateway::RestApi")
        opened = [path for path, item in api["Body"]["paths"].items() if not secured(item)]
        terraform = ["/v1/terraform", "/v1/terraform-lock"]
        assert authorizer == "JWT" or opened == (terraform if tokens else []), (tokens, opened)
        allowed = [one["Resource"] for one in api["Policy"]["Statement"] if one["Effect"] == "Allow"][1:]
        assert allowed == ([[f"execute-api:/*/*{path}" for path in terraform]] if tokens else []), allowed
    without = stacks.resources_with({"TerraformTokens": "[]"})
    assert not [name for name in without if "Terraform" in name or "StateBucket" in name], "it is off by default"


def secured(item):
    return item["x-amazon-apigateway-any-method"].get("security") == [{"sigv4": []}]


def check_several_regions():
    """A table in several regions is strong, protected and without what such a table cannot have; its stacks know it."""
    table = {"Globals": {}} | stacks.parsed(GLOBAL_TABLE.read_text())
    for witness in ("false", "true"):
        [(_, found)] = stacks.of_type(
            stacks.chosen(table, {"Witness": witness, "AWS::Region": "us-east-1"})["Resources"],
            "AWS::DynamoDB::GlobalTable",
        )
        assert found["MultiRegionConsistency"] == "STRONG", found
        assert not {"TimeToLiveSpecification", "LocalSecondaryIndexes", "GlobalSecondaryIndexes"} & set(found), found
        witnesses, replicas = found.get("GlobalTableWitnesses", []), found["Replicas"]
        assert (len(replicas), len(witnesses)) == ((2, 1) if witness == "true" else (3, 0)), found
        assert all(replica["DeletionProtectionEnabled"] for replica in replicas), replicas
    resources = stacks.resources_with(WHOLE)
    assert all(
        function["Environment"]["Variables"]["LEASEHOLD_MULTI_REGION"] == {"Ref": "MultiRegion"}
        for _, function in stacks.of_type(resources, "AWS::Lambda::Function")
    ), "a function does not know that its table is in several regions"
    [schedule] = [
        rule["ScheduleExpression"]
        for _, rule in stacks.of_type(resources, "AWS::Events::Rule")
        if stacks.mentions(rule["Targets"], "ExpireFunction")
    ]
    assert schedule == "rate(6 hours)", schedule
    assert "ExpireFunction" not in stacks.resources_with(WHOLE | {"MultiRegion": "false"})
    rules = json.dumps(stacks.read()["Rules"]["MultiRegionNeedsAGlobalTable"])
    assert "ExistingTableName" in rules and "TransactionTableArns" in rules, rules


def check_redrives():
    """EventBridge tells the clean-up of each child of run-under-lock that is redriven, and of no other execution."""
    [rule] = [
        rule
        for name, rule in stacks.of_type(stacks.resources_with({}), "AWS::Events::Rule")
        if "redriveCount" in rule["EventPattern"]["detail"]
    ]
    detail = rule["EventPattern"]["detail"]
    assert (detail["status"], detail["redriveCount"]) == (["RUNNING"], [{"numeric": [">", 0]}]), detail
    prepare = json.loads((ROOT / "statemachines/run-under-lock.asl.json").read_text())["States"]["Prepare"]
    [name] = detail["name"]
    assert f"'{name['prefix']}'" in prepare["Assign"]["child"], "the rule is about other names than the children's"
    [machine] = detail["stateMachineArn"]
    assert machine["wildcard"]["Fn::Sub"].endswith(":stateMachine:${RunnableStateMachines}"), machine
    [target] = rule["Targets"]
    assert target["Arn"] == {"Ref": "CleanupStateMachine"}, target
    event = json.loads(target["InputTransformer"]["InputTemplate"].replace("<arn>", '"arn"'))
    assert event == {"detail": {"executionArn": "arn", "status": "RUNNING", "input": "{}"}}, event
    letters = stacks.resources_with({})["CleanupDeadLettersPolicy"]["Properties"]["PolicyDocument"]
    assert stacks.mentions(letters, "RedrivenChildRule"), "an event that starts no clean-up is lost"


def check_children():
    """EventBridge tells run-under-lock the end of each of its children, which it awaits by a token."""
    resources = stacks.resources_with({})
    [rule] = [
        rule
        for _, rule in stacks.of_type(resources, "AWS::Events::Rule")
        if rule["Targets"][0]["Arn"] == {"Ref": "ChildEnded"}
    ]
    detail = rule["EventPattern"]["detail"]
    assert set(detail["status"]) == {"SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED"}, detail
    redriven = resources["RedrivenChildRule"]["Properties"]["EventPattern"]["detail"]
    assert all(detail[name] == redriven[name] for name in ("name", "stateMachineArn")), detail
    event = json.loads(rule["Targets"][0]["InputTransformer"]["InputTemplate"].replace("<arn>", '"arn"'))
    assert event == {"detail": {"executionArn": "arn"}}, event
    states = json.loads((ROOT / "statemachines/run-under-lock.asl.json").read_text())["States"]
    waits = [name for name, state in states.items() if state.get("Resource", "").endswith(".waitForTaskToken")]
    assert [states["StartChild"]["Next"], states["Heartbeat"]["Next"]] == waits * 2, waits
    # Both leave their words in one row.
    mark = json.loads((ROOT / "statemachines/child-ended.asl.json").read_text())["States"]["Mark"]["Arguments"]
    wait = states[waits[0]]["Arguments"]
    assert mark["TableName"] == wait["TableName"] and set(mark["Key"]) == {"child"} and "child" in wait["Item"], wait
    assert wait["ConditionExpression"] == "attribute_not_exists(ended)" and "SET ended" in mark["UpdateExpression"]


def check_exports():
    """Another table changes no export: CloudFormation refuses to change one that another stack imports."""
    before, after = (
        {
            name: output["Value"]
            for name, output in stacks.chosen(stacks.read(), WHOLE | parameters)["Outputs"].items()
            if "Export" in output
        }
        for parameters in ({}, {"ExistingTableName": "fleet", "ExistingTableStreamLabel": "one"})
    )
    stacks.same(before, after, "without", "exports with an existing table")
    named = [
        name for name, value in before.items() if re.search(r"\b(LockTable|TransactionTable)\b", json.dumps(value))
    ]
    assert not named, f"the exports {named} name a table that a rotation replaces"


def check_key_names():
    """An update that changes the key names fails before it replaces the table: its guard has a name of its own."""
    resources = stacks.resources_with({"SortKeyName": "sk"})
    guards = [
        name
        for name in stacks.as_list(resources["LockTable"].get("DependsOn", []))
        if "TableName" in resources[name]["Properties"]
        and resources[name]["Properties"]["KeySchema"] == resources["LockTable"]["Properties"]["KeySchema"]
    ]
    assert guards, "a change of the key names replaces the table"
    existing = stacks.resources_with({"ExistingTableName": "fleet"})
    assert not set(guards) & set(existing), "a rotation to another table is refused"


def check_permissions():
    """API Gateway may call a function before a route leads there."""
    for parameters in (WHOLE, WHOLE | {"Functions": "one"}, WHOLE | RELEASE):
        resources = stacks.resources_with(parameters)
        for name, properties in stacks.of_type(resources, "AWS::ApiGatewayV2::Integration"):
            [first] = stacks.as_list(resources[name].get("DependsOn", []))
            permission = resources[first]["Properties"]
            called = stacks.function_behind(permission["FunctionName"], resources)
            assert called == stacks.function_behind(properties["IntegrationUri"], resources), name


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
        assert served == {f"{without['routes'][f'ANY /v1/{name}']}Function" for name in ("acquire", "heartbeat")}, (
            served
        )
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


CHECKS = [check for name, check in dict(globals()).items() if name.startswith("check_")]

if __name__ == "__main__":
    main()
