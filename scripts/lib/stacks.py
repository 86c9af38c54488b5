"""Summaries of stacks, for comparing the ways to deploy: the functions with their actions, environment and routes, and
the roles of the state machines.

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
    ("LockTable", "locks"),
    ("ExistingTableName", "locks"),
)


def read(path):
    """Reads a SAM template, without any translation."""
    from samtranslator.yaml_helper import yaml_parse

    return yaml_parse(path.read_text())


def translate(path):
    """Returns the resources of a SAM template, with the roles and policies that SAM's translator makes."""
    import boto3
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    template = read(path)
    template["Resources"] = by_default(template["Resources"])
    for resource in template["Resources"].values():
        for member in ("CodeUri", "DefinitionUri"):
            if member in resource.get("Properties", {}):
                resource["Properties"][member] = {"Bucket": "bucket", "Key": "key"}
    names = ("AWSLambdaBasicExecutionRole", "AWSLambdaVPCAccessExecutionRole")
    managed = {name: f"arn:aws:iam::aws:policy/service-role/{name}" for name in names}
    translator = Translator(managed, Parser(), boto_session=boto3.Session(region_name="us-east-1"))
    return translator.translate(template, {})["Resources"]


def by_default(value):
    """Returns the default branch of an expression that depends on the parameter Functions."""
    if isinstance(value, list):
        return [by_default(part) for part in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"Fn::If"} and value["Fn::If"][0] == "EachFunction":
        return by_default(value["Fn::If"][1])
    return {name: by_default(part) for name, part in value.items()}


def summary_of_resources(resources):
    """Summarises CloudFormation resources."""
    functions = {}
    for logical_id, resource in of_type(resources, "AWS::Lambda::Function"):
        properties = resource["Properties"]
        role = properties["Role"]["Fn::GetAtt"][0]
        functions[logical_id] = {
            "handler": properties["Handler"],
            "timeout": properties["Timeout"],
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
        routes[properties["RouteKey"]] = names[referenced(uri, resources, "AWS::Lambda::Function")]
    machines = {}
    for logical_id, resource in of_type(resources, "AWS::StepFunctions::StateMachine"):
        role = resource["Properties"]["RoleArn"]["Fn::GetAtt"][0]
        machines[machine_name(logical_id)] = sorted(
            {action for _, actions in statements(role, resources) for action in actions}
        )
    return {
        "functions": {names[logical_id]: function for logical_id, function in functions.items()},
        "routes": routes,
        "stateMachines": machines,
    }


def summary_of_terraform(folder):
    """Summarises the Terraform module's locals, which are literals for this purpose."""
    import hcl2

    with (folder / "main.tf").open() as file:
        module = plain(hcl2.load(file))
    values = {}
    for block in module["locals"]:
        values |= block
    environment = [*values["environment"]]
    functions = {}
    for name, function in values["functions"].items():
        more = [*values["execution_environment"]] if name in values["execution_functions"] else []
        functions[name] = {
            "handler": function["handler"],
            "timeout": function["timeout"],
            "environment": sorted([*environment, *more]),
            "actions": sorted(f"{action.split(':')[1]} on locks" for action in function["actions"]),
            "managedPolicies": ["AWSLambdaBasicExecutionRole"],
        }
    machines = {}
    policies = {}
    for block in module["resource"]:
        for kind, named in block.items():
            for name, body in named.items():
                if kind == "aws_iam_role_policy":
                    policies[name] = body["policy"]
    for role, machine in (("run_under_lock", "RunUnderLock"), ("cleanup_machine", "CleanupStateMachine")):
        machines[machine] = sorted(set(re.findall(r'"((?:states|lambda):\w+)"', policies[role])))
    return {"functions": functions, "routes": values["routes"], "stateMachines": machines}


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
    text = json.dumps(value)
    names = [name for name, _ in of_type(resources, kind) if re.search(rf"\b{name}\b", text)]
    assert len(names) == 1, (value, names)
    return names[0]


def actions_of(role, resources):
    """Returns `UpdateItem on locks` and the like. An action of `*` or of another service is unchanged."""
    return sorted(
        f"{action.removeprefix('dynamodb:')} on {target}"
        for target, actions in statements(role, resources)
        for action in actions
    )


def managed_policies(role):
    """Returns the names of managed policies. A conditional policy has the condition's name before its own."""
    found = []
    for arn in role["Properties"].get("ManagedPolicyArns", []):
        condition = f"{arn['Fn::If'][0]}: " if isinstance(arn, dict) and "Fn::If" in arn else ""
        found.append(condition + re.search(r"(\w+)\"?[\]}]*$", json.dumps(arn).replace(', {"Ref": "AWS::NoValue"}', ""))[1])
    return sorted(found)


def statements(role, resources):
    """Yields (target, actions) of each statement of the role, in its inline and its attached policies."""
    documents = [policy["PolicyDocument"] for policy in resources[role]["Properties"].get("Policies", [])]
    for _, resource in of_type(resources, "AWS::IAM::Policy"):
        if {"Ref": role} in resource["Properties"].get("Roles", []):
            documents.append(resource["Properties"]["PolicyDocument"])
    for document in documents:
        for statement in document["Statement"]:
            assert statement["Effect"] == "Allow" and set(statement) <= {"Effect", "Action", "Resource", "Sid"}, statement
            targets = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
            for target in targets:
                if target != {"Ref": "AWS::NoValue"}:
                    yield table_of(target), as_list(statement["Action"])


def table_of(target):
    text = json.dumps(target)
    index = re.search(r"/index/(\w+)", text)
    for name, table in TABLES:
        if name in text:
            return f"{table}/{index[1]}" if index else table
    return text


def as_list(value):
    return value if isinstance(value, list) else [value]
