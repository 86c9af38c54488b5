"""Summaries of stacks, for comparing the ways to deploy: the functions with their actions, environment and routes, and
the roles of the state machines. And what a stack's state machines, pipes and rules call, for comparing with what their
roles grant.

A summary is made of CloudFormation resources (the SAM template after SAM's own translator, or what the CDK synthesises)
or of the Terraform module's locals.
"""

import json
import re

# The expressions for one table in policies, in each of the three.
TABLES = (
    # The longer name first: the other one is a part of it.
    ("TransactionTableArns", "accounts"),
    ("TransactionTable", "transactions"),
    ("WaitersTable", "waiters"),
    ("LockTable", "locks"),
)

NOTHING = {"Ref": "AWS::NoValue"}


def read(path):
    """Reads a SAM template, without any translation."""
    from samtranslator.yaml_helper import yaml_parse

    return yaml_parse(path.read_text())


def translate(path, parameters):
    """Returns the resources of a SAM template that these parameters ask for, with the roles that SAM makes."""
    import boto3
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    template = chosen(read(path), parameters)
    for resource in template["Resources"].values():
        for member in ("CodeUri", "DefinitionUri"):
            if member in resource.get("Properties", {}):
                resource["Properties"][member] = {"Bucket": "bucket", "Key": "key"}
    names = ("AWSLambdaBasicExecutionRole", "AWSLambdaVPCAccessExecutionRole")
    managed = {name: f"arn:aws:iam::aws:policy/service-role/{name}" for name in names}
    translator = Translator(managed, Parser(), boto_session=boto3.Session(region_name="us-east-1"))
    return translator.translate(template, {})["Resources"]


def chosen(template, parameters):
    """Returns the template with its conditions decided by these parameters, and the others' defaults."""
    values = {name: str(parameter["Default"]) for name, parameter in template["Parameters"].items()}
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

    resources = {
        name: {member: found for member, found in resource.items() if member != "Condition"}
        for name, resource in template["Resources"].items()
        if holds({"Condition": resource["Condition"]} if "Condition" in resource else {"Fn::And": []})
    }
    return {**template, "Globals": resolved(template["Globals"]), "Resources": resolved(resources)}


def summary_of_resources(resources):
    """Summarises CloudFormation resources."""
    functions = {}
    for logical_id, resource in of_type(resources, "AWS::Lambda::Function"):
        properties = resource["Properties"]
        role = properties["Role"]["Fn::GetAtt"][0]
        functions[logical_id] = {
            "handler": properties["Handler"],
            "timeout": properties["Timeout"],
            "reserved": "ReservedConcurrentExecutions" in properties,
            "environment": sorted(properties["Environment"]["Variables"]),
            "actions": actions_of(role, resources),
            "managedPolicies": managed_policies(resources[role]),
        }
    names = {logical_id: function_name(logical_id) for logical_id in functions}
    routes = {}
    for _, resource in of_type(resources, "AWS::ApiGatewayV2::Route"):
        properties = resource["Properties"]
        integration = referenced(properties["Target"], resources, "AWS::ApiGatewayV2::Integration")
        uri = resources[integration]["Properties"]["IntegrationUri"]
        routes[properties["RouteKey"]] = names[function_behind(uri, resources)]
    machines = {}
    for logical_id, resource in of_type(resources, "AWS::StepFunctions::StateMachine"):
        role = resource["Properties"]["RoleArn"]["Fn::GetAtt"][0]
        machines[machine_name(logical_id)] = sorted(
            {action for _, actions in statements(role, resources) for action in actions}
        )
    pipes = {}
    for logical_id, resource in of_type(resources, "AWS::Pipes::Pipe"):
        properties = resource["Properties"]
        filters = properties["SourceParameters"]["FilterCriteria"]["Filters"]
        role = properties["RoleArn"]["Fn::GetAtt"][0]
        pipes[machine_name(logical_id)] = {
            "filters": [one["Pattern"] for one in filters],
            "actions": sorted({action for _, actions in statements(role, resources) for action in actions}),
        }
    urls = {}
    for _, resource in of_type(resources, "AWS::Lambda::Url"):
        properties = resource["Properties"]
        urls[names[function_behind(properties["TargetFunctionArn"], resources)]] = properties["AuthType"]
    return {
        "functions": {names[logical_id]: function for logical_id, function in functions.items()},
        "routes": routes,
        "stateMachines": machines,
        "pipes": pipes,
        "functionUrls": urls,
    }


# The values that the module makes of its literals. The summary below does the same.
TERRAFORM_EXPRESSIONS = {
    "served_by_acquire": '${var.functions == "one" ? ["Heartbeat", "Release"] : []}',
    "left_out": '${var.watch_concurrency > 0 ? local.served_by_acquire : concat(local.served_by_acquire, ["Watch"])}',
    "functions": "${{for name, function in local.all_functions : name => function if !contains(local.left_out, name)}}",
    "routes": "${{for route, name in local.all_routes : "
    'route => contains(local.served_by_acquire, name) ? "Acquire" : name'
    ' if name != "Watch" || var.watch_concurrency > 0}}',
}


def summary_of_terraform(folder, variables):
    """Returns the summary of the Terraform module with these variables, from the literals of its locals."""
    import hcl2

    with (folder / "main.tf").open() as file:
        module = plain(hcl2.load(file))
    values = {}
    for block in module["locals"]:
        values |= block
    for name, expression in TERRAFORM_EXPRESSIONS.items():
        assert values[name] == expression, (name, values[name])
    watches, wakes = variables.get("watch_concurrency", 0) > 0, variables.get("wake_waiters", False)
    served = ["Heartbeat", "Release"] if variables.get("functions") == "one" else []
    left_out = served if watches else [*served, "Watch"]
    routes = {
        route: "Acquire" if name in served else name
        for route, name in values["all_routes"].items()
        if name != "Watch" or watches
    }
    environment = [*values["environment"]]
    functions = {}
    for name, function in values["all_functions"].items():
        if name in left_out:
            continue
        more = [*values["execution_environment"]] if name in values["execution_functions"] else []
        functions[name] = {
            "handler": function["handler"],
            "timeout": function["timeout"],
            "reserved": name == "Watch",
            "environment": sorted([*environment, *more]),
            "actions": sorted(f"{action.split(':')[1]} on locks" for action in function["actions"]),
            "managedPolicies": ["AWSLambdaBasicExecutionRole"],
        }
    resources = {
        (kind, name): body
        for block in module["resource"]
        for kind, named in block.items()
        for name, body in named.items()
    }
    policies = {
        name: sorted(set(re.findall(r'"((?:states|lambda|dynamodb):\w+)"', body["policy"])))
        for (kind, name), body in resources.items()
        if kind == "aws_iam_role_policy"
    }
    url = resources["aws_lambda_function_url", "acquire"]
    return {
        "functions": functions,
        "routes": routes,
        "stateMachines": {
            "RunUnderLock": policies["run_under_lock"],
            "CleanupStateMachine": policies["cleanup_machine"],
            **({"Waker": policies["waker"]} if wakes else {}),
        },
        "pipes": {
            pipe: {
                "filters": [json.loads(f'"{pattern}"') for pattern in values[patterns]],
                "actions": policies["waker_pipes"],
            }
            for pipe, patterns in (("FreedPipe", "freed_patterns"), ("SleepersPipe", "sleepers_patterns"))
            if wakes
        },
        "functionUrls": {"Acquire": url["authorization_type"]} if variables.get("function_url") else {},
    }


def plain(value):
    """Removes the quotes and markers that python-hcl2 keeps."""
    if isinstance(value, dict):
        return {unquoted(name): plain(part) for name, part in value.items() if not name.startswith("__")}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return unquoted(value) if isinstance(value, str) else value


def unquoted(text):
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def of_type(resources, kind):
    return [(name, resource) for name, resource in resources.items() if resource.get("Type") == kind]


def function_name(logical_id):
    """Returns the name in `AcquireFunction` of SAM, or in `LeaseholdAcquireFunction1A2B3C4D` of the CDK."""
    return re.fullmatch(r"(?:Leasehold)?(\w+?)Function(?:[0-9A-F]{8})?", logical_id)[1]


def machine_name(logical_id):
    return re.fullmatch(r"(?:Leasehold)?(\w+?)(?:[0-9A-F]{8})?", logical_id)[1]


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
    return referenced(alias["Properties"]["FunctionName"] if alias else value, resources, "AWS::Lambda::Function")


def actions_of(role, resources):
    """Returns `UpdateItem on locks` and the like. An action of `*` or of another service is unchanged."""
    return sorted(
        f"{action.removeprefix('dynamodb:')} on {target}"
        for target, actions in statements(role, resources)
        for action in actions
    )


def managed_policies(role):
    """Returns the names of managed policies."""
    return sorted(
        re.search(r"(\w+)\"?[\]}]*$", json.dumps(arn))[1] for arn in role["Properties"].get("ManagedPolicyArns", [])
    )


def statements(role, resources):
    """Yields (target, actions) of each statement of the role, in its inline and its attached policies."""
    documents = [policy["PolicyDocument"] for policy in resources[role]["Properties"].get("Policies", [])]
    for _, resource in of_type(resources, "AWS::IAM::Policy"):
        if {"Ref": role} in resource["Properties"].get("Roles", []):
            documents.append(resource["Properties"]["PolicyDocument"])
    for document in documents:
        for statement in document["Statement"]:
            assert statement["Effect"] == "Allow" and set(statement) <= {"Effect", "Action", "Resource", "Sid"}, (
                statement
            )
            targets = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            for target in targets:
                yield target_of(target), as_list(statement["Action"])


def target_of(target):
    """One name for what a policy, a substitution or a pipe is about."""
    if isinstance(target, dict) and len(target) == 1 and set(target) <= {"Ref", "Fn::GetAtt"}:
        [name] = target.values()
        resource = name if isinstance(name, str) else name[0]
        if not any(table in resource for table, _ in TABLES):
            return resource
    text = json.dumps(target)
    if ":stateMachine:" in text or ":execution:" in text:
        return BY_THE_INPUT
    index = re.search(r"/index/(\w+)", text)
    part = f"/{index[1]}" if index else "/stream" if "StreamArn" in text else ""
    return next((table + part for name, table in TABLES if name in text), text)


def as_list(value):
    return value if isinstance(value, list) else [value]


# The actions that a pipe needs for a stream of DynamoDB, beside the list of all streams.
STREAM_ACTIONS = ("dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator")
# The arguments of tasks that name what the task is about.
TARGETS = ("FunctionName", "TableName", "StateMachineArn", "ExecutionArn", "TaskToken")
BY_THE_INPUT = "what the input names"


def calls(resources, definitions):
    """The actions that state machines, pipes and rules call, by the role under which they do. `definitions` has the
    definition of each state machine."""
    found = {}
    for name, resource in resources.items():
        properties = resource.get("Properties", {})
        match resource["Type"]:
            case "AWS::StepFunctions::StateMachine":
                add(found, properties, calls_of_machine(definitions[name], properties["DefinitionSubstitutions"]))
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
    [(_, resource)] = of_type(resources, "AWS::ApiGateway::RestApi")
    found = {
        f"ANY {path}": function_name(function_behind(function_of(integration), resources))
        for path, integration in integrations(resource["Properties"])
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
    return {"Ref": re.search(r"functions/\$\{(\w+)(\.Arn)?\}/", integration["uri"]["Fn::Sub"])[1]}


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
        [argument] = [arguments[name] for name in TARGETS if name in arguments]
        placeholder = re.fullmatch(r"\$\{(\w+)\}", argument)
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
    return reads | {'dynamodb:ListStreams on "*"', f"states:{start} on {target_of(properties['Target'])}"}
