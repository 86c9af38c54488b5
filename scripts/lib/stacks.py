"""The stack of template.yaml with the parameters of one's choice: its resources after SAM's own translator, a summary
of them, and what state machines, pipes, rules and the REST API call, for comparing with what their roles grant.
"""

import difflib
import json
import pathlib
import re
import sys

# The tables in policies.
TABLES = (
    # The longer name first: the other one is a part of it.
    ("TransactionTableArns", "items"),
    ("TransactionTable", "transactions"),
    ("WaitersTable", "waiters"),
    ("HistoryTable", "history"),
    ("LockTable", "locks"),
)

ROOT = pathlib.Path(__file__).parent.parent.parent
NOTHING = {"Ref": "AWS::NoValue"}


def same(left, right, left_name, right_name):
    """Ends the script with the difference, if there is one."""
    before, after = (json.dumps(side, indent=1, sort_keys=True).splitlines() for side in (left, right))
    difference = list(difflib.unified_diff(before, after, left_name, right_name, lineterm="", n=6))
    if difference:
        sys.exit("\n".join(difference))
    print(f"  {right_name}: as {left_name}")


def read():
    """Reads the template, without any translation."""
    return parsed((ROOT / "template.yaml").read_text())


def parsed(text):
    """SAM's own parser, ten times as fast."""
    import yaml
    from samtranslator.yaml_helper import intrinsics_multi_constructor

    yaml.CSafeLoader.add_multi_constructor("!", intrinsics_multi_constructor)
    return yaml.load(text, yaml.CSafeLoader)


def resources_with(parameters):
    """Returns the resources that these parameters ask for, with the roles that SAM's translator makes."""
    return translate(chosen(read(), parameters))["Resources"]


def translate(template):
    """Returns the template as SAM's translator leaves it, with the state machines' definitions in it. A function's
    bucket is the name of its binary."""
    import boto3
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    del template["Globals"]["Function"]["CodeUri"]
    for resource in template["Resources"].values():
        properties = resource.get("Properties", {})
        match resource["Type"]:
            case "AWS::Serverless::Function":
                binary = resource.pop("Metadata")["BuildProperties"]["Binary"]
                properties["CodeUri"] = {"Bucket": binary, "Key": "bootstrap"}
            case "AWS::Serverless::StateMachine":
                properties["Definition"] = json.loads((ROOT / properties.pop("DefinitionUri")).read_text())
    return Translator({}, Parser(), boto_session=boto3.Session(region_name="us-east-1")).translate(template, {})


def chosen(template, parameters):
    """Returns the template with its conditions decided by these parameters, and the others' defaults."""
    values = {name: str(parameter["Default"]) for name, parameter in template["Parameters"].items()}
    values["AWS::Region"] = "us-east-1"
    assert set(parameters) <= set(values), set(parameters) - set(values)
    values |= parameters

    def holds(condition):
        [(function, operands)] = condition.items()
        match function:
            case "Condition":
                return holds(template["Conditions"][operands])
            case "Fn::Equals":
                left, right = (value(operand) for operand in operands)
                return left == right
            case "Fn::Not":
                return not holds(operands[0])
            case "Fn::And":
                return all(holds(operand) for operand in operands)
            case "Fn::Or":
                return any(holds(operand) for operand in operands)
        raise AssertionError(condition)

    def value(operand):
        if not isinstance(operand, dict):
            return str(operand)
        if "Ref" in operand:
            return values[operand["Ref"]]
        index, values_of_list = operand["Fn::Select"]
        return value(values_of_list).split(",")[index]

    def resolved(part):
        if isinstance(part, list):
            return [found for found in map(resolved, part) if found != NOTHING]
        if not isinstance(part, dict):
            return part
        if set(part) == {"Fn::If"}:
            name, then, otherwise = part["Fn::If"]
            return resolved(then if holds({"Condition": name}) else otherwise)
        members = {name: resolved(member) for name, member in part.items()}
        return {name: member for name, member in members.items() if member != NOTHING}

    def there(parts):
        return resolved(
            {
                name: {member: found for member, found in part.items() if member != "Condition"}
                for name, part in parts.items()
                if holds({"Condition": part["Condition"]} if "Condition" in part else {"Fn::And": []})
            }
        )

    return {
        **template,
        "Globals": resolved(template["Globals"]),
        "Resources": there(template["Resources"]),
        "Outputs": there(template["Outputs"]),
    }


def summary(resources):
    """Summarises what a stack does, for comparing it with another one."""
    functions = {
        function_name(name): {
            "handler": properties["Handler"],
            "timeout": properties["Timeout"],
            "reserved": "ReservedConcurrentExecutions" in properties,
            "environment": sorted(properties["Environment"]["Variables"]),
            "actions": actions_of(properties["Role"]["Fn::GetAtt"][0], resources),
            "withheld": withheld_from(properties["Role"]["Fn::GetAtt"][0], resources),
        }
        for name, properties in of_type(resources, "AWS::Lambda::Function")
    }
    routes = {}
    for _, properties in of_type(resources, "AWS::ApiGatewayV2::Route"):
        integration = referenced(properties["Target"], resources, "AWS::ApiGatewayV2::Integration")
        uri = resources[integration]["Properties"]["IntegrationUri"]
        routes[properties["RouteKey"]] = function_name(function_behind(uri, resources))
    return {
        "functions": functions,
        "routes": routes,
        "functionUrls": {
            function_name(function_behind(properties["TargetFunctionArn"], resources)): properties["AuthType"]
            for _, properties in of_type(resources, "AWS::Lambda::Url")
        },
    }


def of_type(resources, kind):
    return [(name, resource.get("Properties", {})) for name, resource in resources.items() if resource["Type"] == kind]


def function_name(logical_id):
    return logical_id.removesuffix("Function")


def referenced(value, resources, kind):
    """Returns the resource of this type that an expression refers to."""
    names = [name for name, _ in of_type(resources, kind) if mentions(value, name)]
    assert len(names) == 1, (value, names)
    return names[0]


def mentions(value, name):
    return re.search(rf"\b{name}\b", json.dumps(value)) is not None


def function_behind(value, resources):
    """Returns the function that an expression refers to, by itself or by an alias of it."""
    aliases = dict(of_type(resources, "AWS::Lambda::Alias"))
    alias = aliases.get(value.get("Ref"))
    return referenced(alias["FunctionName"] if alias else value, resources, "AWS::Lambda::Function")


def actions_of(role, resources):
    """Returns `UpdateItem on locks` and the like: the actions of DynamoDB."""
    return sorted(
        {
            f"{action.removeprefix('dynamodb:')} on {target}"
            for target, actions in statements(role, resources)
            for action in actions
            if action.startswith("dynamodb:")
        }
    )


def withheld_from(role, resources):
    """The attributes that writes under this role may not name."""
    [statement] = [
        statement
        for policy in resources[role]["Properties"]["Policies"]
        for statement in policy["PolicyDocument"]["Statement"]
        if "dynamodb:Attributes" in json.dumps(statement)
    ] or [{"Condition": {"ForAllValues:StringNotEquals": {"dynamodb:Attributes": []}}}]
    return statement["Condition"]["ForAllValues:StringNotEquals"]["dynamodb:Attributes"]


def managed_policies(role):
    """Returns the names of managed policies."""
    return sorted(
        re.search(r"(\w+)\"?[\]}]*$", json.dumps(arn))[1] for arn in role["Properties"].get("ManagedPolicyArns", [])
    )


def statements(role, resources):
    """Yields (target, actions) of each statement of the role."""
    for policy in resources[role]["Properties"].get("Policies", []):
        for statement in policy["PolicyDocument"]["Statement"]:
            assert statement["Effect"] == "Allow", statement
            for target in as_list(statement["Resource"]):
                yield target_of(target), as_list(statement["Action"])


def target_of(target):
    """One name for what a policy, a substitution or a pipe is about."""
    if isinstance(target, dict) and len(target) == 1 and set(target) <= {"Ref", "Fn::GetAtt"}:
        [name] = target.values()
        resource = name if isinstance(name, str) else name[0]
        if not any(table in resource for table, _ in TABLES):
            return resource
    text = json.dumps(target)
    if ":stateMachine:" in text or ":execution:" in text or ":function:*" in text:
        return BY_THE_INPUT
    index = re.search(r"/index/(\w+)", text)
    part = f"/{index[1]}" if index else "/stream" if "StreamArn" in text else ""
    return next((table + part for name, table in TABLES if name in text), text)


def as_list(value):
    return value if isinstance(value, list) else [value]


# The actions that a pipe needs for a stream of DynamoDB, beside the list of all streams.
STREAM_ACTIONS = ("dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator")
# The actions that a state machine needs to write a log.
LOG_ACTIONS = (
    *(f"logs:{verb}LogDelivery" for verb in ("Create", "Get", "Update", "Delete")),
    *("logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:DescribeResourcePolicies", "logs:DescribeLogGroups"),
)
# The arguments of tasks that name what the task is about.
TARGETS = ("FunctionName", "TableName", "StateMachineArn", "ExecutionArn", "TaskToken", "CallbackId")
BY_THE_INPUT = "what the input names"


def calls(resources):
    """The actions that state machines, pipes, rules and the REST API call, by the role under which they do."""
    found = {}
    for resource in resources.values():
        properties = resource.get("Properties", {})
        match resource["Type"]:
            case "AWS::StepFunctions::StateMachine":
                definition = json.loads("\n".join(properties["DefinitionString"]["Fn::Join"][1]))
                add(found, properties, calls_of_machine(definition, properties["DefinitionSubstitutions"]))
                if "LoggingConfiguration" in properties:
                    add(found, properties, {f'{action} on "*"' for action in LOG_ACTIONS})
            case "AWS::Pipes::Pipe":
                add(found, properties, calls_of_pipe(properties))
            case "AWS::ApiGateway::RestApi":
                for _, integration in integrations(properties):
                    called = target_of(function_of(integration))
                    add(found, {"RoleArn": integration["credentials"]}, {f"lambda:InvokeFunction on {called}"})
            case "AWS::Events::Rule":
                for target in properties["Targets"]:
                    if "RoleArn" in target:
                        add(found, target, {f"states:StartExecution on {target_of(target['Arn'])}"})
    return {role: sorted(actions) for role, actions in found.items()}


def routes_of_rest_api(resources):
    """The routes of the REST API, in the words of the HTTP API."""
    [(_, properties)] = of_type(resources, "AWS::ApiGateway::RestApi")
    found = {
        f"ANY {path}": function_name(function_behind(function_of(integration), resources))
        for path, integration in integrations(properties)
    }
    # Its proxy route has any path but the shortest.
    found["$default"] = found.pop("ANY /{proxy+}")
    assert found.pop("ANY /") == found["$default"], found
    return found


def integrations(properties):
    for path, item in properties["Body"]["paths"].items():
        yield path, item["x-amazon-apigateway-any-method"]["x-amazon-apigateway-integration"]


def function_of(integration):
    """A reference to the function, or to the alias, that an integration of the REST API calls."""
    [name] = integration["uri"]["Fn::Sub"][1]["Function"].values()
    return {"Ref": name if isinstance(name, str) else name[0]}


def grants(resources, roles):
    """The actions that these roles grant."""
    return {
        role: sorted(f"{action} on {target}" for target, actions in statements(role, resources) for action in actions)
        for role in roles
    }


def add(found, properties, actions):
    role = properties["RoleArn"]["Fn::GetAtt"][0]
    found.setdefault(role, set()).update(actions)


def calls_of_machine(definition, substitutions):
    found = set()
    for task in tasks(definition):
        arguments = task["Arguments"]
        # Arguments in one expression name their target there.
        expression = isinstance(arguments, str)
        [argument] = [arguments] if expression else [arguments[name] for name in TARGETS if name in arguments]
        placeholder = re.fullmatch(r"\$\{(\w+)\}", argument)
        if "TaskToken" in arguments and "ChildrenTableName" in substitutions:
            target = "RunUnderLock"  # It alone leaves tokens there.
        else:
            target = target_of(substitutions[placeholder[1]]) if placeholder else BY_THE_INPUT
        found.add(f"{action_of(task['Resource'])} on {target}")
    return found


def tasks(part):
    """The Task states of a definition, however deep."""
    if isinstance(part, list):
        return [task for member in part for task in tasks(member)]
    if not isinstance(part, dict):
        return []
    inner = [task for member in part.values() for task in tasks(member)]
    return [part, *inner] if part.get("Type") == "Task" else inner


def action_of(integration):
    """`arn:${Partition}:states:::aws-sdk:sfn:stopExecution` calls `states:StopExecution`."""
    service, api = integration.split(":::")[1].removeprefix("aws-sdk:").split(".")[0].split(":")
    if (service, api) == ("lambda", "invoke"):
        return "lambda:InvokeFunction"
    return f"{'states' if service == 'sfn' else service}:{api[0].upper()}{api[1:]}"


def calls_of_pipe(properties):
    invocation = properties["TargetParameters"]["StepFunctionStateMachineParameters"]["InvocationType"]
    start = {"FIRE_AND_FORGET": "StartExecution", "REQUEST_RESPONSE": "StartSyncExecution"}[invocation]
    stream = target_of(properties["Source"])
    reads = {f"{action} on {stream}" for action in STREAM_ACTIONS}
    letters = properties["SourceParameters"]["DynamoDBStreamParameters"]["DeadLetterConfig"]["Arn"]
    reads.add(f"sqs:SendMessage on {target_of(letters)}")
    return reads | {'dynamodb:ListStreams on "*"', f"states:{start} on {target_of(properties['Target'])}"}
