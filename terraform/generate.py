"""Makes the module out of template.yaml: main.tf, variables.tf and outputs.tf. --check compares them, and writes none.

Parameters become variables, rules their validations, conditions locals, outputs outputs, and resources those of TYPES.
A type whose shape differs in Terraform has a function of its Terraform's name.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts/lib"))
import stacks  # noqa: E402

# Terraform has no use for these: a plan shows that a table is replaced, no variable may decide a life cycle, and
# CodeDeploy would move aliases behind Terraform's back.
LEFT_OUT = {"KeyNamesGuard", "TableDeletionPolicy", "ReleaseShift"}
LEFT_OUT |= {"ShiftsRelease", "ShiftsReleaseOfEach", "ShiftsReleaseOfOne"}
NO_VALUE = {"Ref": "AWS::NoValue"}

# The type in Terraform, the attribute that `Ref` stands for, the argument for a name, and the end of logical ids that
# labels leave out.
TYPES = {
    "AWS::ApiGateway::Deployment": ("aws_api_gateway_deployment", "id", None, r"Deployment\w+"),
    "AWS::ApiGateway::RestApi": ("aws_api_gateway_rest_api", "id", None, ""),
    "AWS::ApiGateway::Stage": ("aws_api_gateway_stage", "stage_name", None, "liveStage"),
    "AWS::ApiGatewayV2::Api": ("aws_apigatewayv2_api", "id", None, ""),
    "AWS::ApiGatewayV2::ApiMapping": ("aws_apigatewayv2_api_mapping", "id", None, "Mapping"),
    "AWS::ApiGatewayV2::Authorizer": ("aws_apigatewayv2_authorizer", "id", None, "Authorizer"),
    "AWS::ApiGatewayV2::DomainName": ("aws_apigatewayv2_domain_name", "id", None, ""),
    "AWS::ApiGatewayV2::Integration": ("aws_apigatewayv2_integration", "id", None, "Integration"),
    "AWS::ApiGatewayV2::Route": ("aws_apigatewayv2_route", "id", None, "Route"),
    "AWS::ApiGatewayV2::Stage": ("aws_apigatewayv2_stage", "id", None, ""),
    "AWS::CloudWatch::Alarm": ("aws_cloudwatch_metric_alarm", "arn", "alarm_name", "Alarm"),
    "AWS::CloudWatch::Dashboard": ("aws_cloudwatch_dashboard", "dashboard_name", None, ""),
    "AWS::DynamoDB::Table": ("aws_dynamodb_table", "name", "name", "Table"),
    "AWS::Events::Rule": ("aws_cloudwatch_event_rule", "name", "name", "(Rule|FunctionSchedule)"),
    "AWS::IAM::ManagedPolicy": ("aws_iam_policy", "arn", "name", "Policy"),
    "AWS::IAM::Role": ("aws_iam_role", "name", None, "(Function)?Role"),
    "AWS::KMS::Key": ("aws_kms_key", "key_id", None, "Key"),
    "AWS::Lambda::Alias": ("aws_lambda_alias", "arn", None, "Live"),
    "AWS::Lambda::EventSourceMapping": ("aws_lambda_event_source_mapping", "id", None, "Mapping"),
    "AWS::Lambda::Function": ("aws_lambda_function", "function_name", "function_name", "Function"),
    "AWS::Lambda::LayerVersion": ("aws_lambda_layer_version", "arn", None, ""),
    "AWS::Lambda::Permission": ("aws_lambda_permission", "id", None, "Permission"),
    "AWS::Lambda::Url": ("aws_lambda_function_url", "id", None, "FunctionUrl"),
    "AWS::Logs::LogGroup": ("aws_cloudwatch_log_group", "name", None, "Log"),
    "AWS::Logs::MetricFilter": ("aws_cloudwatch_log_metric_filter", "id", "name", "Filter"),
    "AWS::Pipes::Pipe": ("aws_pipes_pipe", "name", "name", "Pipe"),
    "AWS::S3::Bucket": ("aws_s3_bucket", "id", None, "Bucket"),
    "AWS::S3::BucketPolicy": ("aws_s3_bucket_policy", "id", None, "BucketPolicy"),
    "AWS::SQS::Queue": ("aws_sqs_queue", "url", "name", ""),
    "AWS::SQS::QueuePolicy": ("aws_sqs_queue_policy", "id", None, "Policy"),
    "AWS::StepFunctions::StateMachine": ("aws_sfn_state_machine", "arn", "name", "StateMachine"),
    "AWS::WAFv2::WebACLAssociation": ("aws_wafv2_web_acl_association", "id", None, ""),
}
LABELS = {"LockTable": "locks", "TransactionTable": "transactions"}
LABELS |= dict.fromkeys(("StateBucket", "StateBucketPolicy"), "states")
DOCUMENTS = {"AssumeRolePolicyDocument", "Body", "EventPattern", "KeyPolicy", "Policy", "PolicyDocument"}
# Names in Terraform that are not those of CloudFormation in other letters, here or in one type. Terraform does not say
# those without a name.
NAMES = """
    AttributeDefinitions=attribute AttributeType=type AssumeRolePolicyDocument=assume_role_policy
    AuthType=authorization_type DomainNameConfigurations=domain_name_configuration
    DynamoDBStreamParameters=dynamodb_stream_parameters FilterPattern=pattern Filters=filter Id=target_id
    IdentitySource=identity_sources KMSMasterKeyId=kms_key_arn KeyPolicy=policy KeySpec=customer_master_key_spec
    MessageRetentionPeriod=message_retention_seconds MetricTransformations=metric_transformation
    PendingWindowInDays=deletion_window_in_days PointInTimeRecoveryEnabled=enabled
    PointInTimeRecoverySpecification=point_in_time_recovery PolicyDocument=policy SSEEnabled=enabled
    SSESpecification=server_side_encryption SSEType= StateMachineType=type Tags= ApiGateway.RestApi.Parameters=
    ApiGatewayV2.Stage.StageName=name DynamoDB.Table.AttributeName=name
    Lambda.EventSourceMapping.Destination=destination_arn Logs.LogGroup.LogGroupName=name
    Logs.MetricFilter.MetricName=name Logs.MetricFilter.MetricNamespace=namespace
    Logs.MetricFilter.MetricValue=value
"""
ARGUMENTS = dict(word.split("=") for word in NAMES.split())
ATTRIBUTES = {"QueueName": "name", "RegionalDomainName": "domain_name_configuration[0].target_domain_name"}
PSEUDO_PARAMETERS = {
    "AWS::StackName": "var.name",
    "AWS::Partition": "local.partition",
    "AWS::Region": "local.region",
    "AWS::AccountId": "local.account",
    "AWS::URLSuffix": "data.aws_partition.current.dns_suffix",
}

HEADER = "# Made of template.yaml by generate.py: change the template, and run scripts/terraform.sh --generate.\n"
LOCALS = """
data "aws_partition" "current" {}
data "aws_region" "current" {}
data "aws_caller_identity" "current" {}

locals {
  partition = data.aws_partition.current.partition
  region    = data.aws_region.current.id
  account   = data.aws_caller_identity.current.account_id
  # The state machines are beside the module in the repository, and in it where it is packaged.
  files = fileexists("${path.module}/statemachines/cleanup.asl.json") ? path.module : "${path.module}/.."
}

# The conditions of the template.
"""
VARIABLES = """
variable "name" {
  description = "Prefix of all names; also the dimension `stack` of the metrics"
  type        = string
  default     = "leasehold"

  validation {
    condition     = can(regex("^[a-zA-Z0-9][a-zA-Z0-9-]{0,50}$", var.name))
    error_message = "The name must have at most 51 letters, digits and hyphens."
  }
}

variable "code_directory" {
  description = "The folder that `cargo lambda build --release --output-format zip -p leasehold-functions` filled"
  type        = string
}
"""


class Code(str):
    """Code of Terraform, and no text."""


class Block(dict):
    """A nested block. With a condition it is there only where that holds."""

    condition = None


def snake(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def local(condition):
    return Code(f"local.{snake(condition)}")


def is_optional(value):
    return isinstance(value, dict) and value.get("Fn::If", [None])[-1] == NO_VALUE


def is_literal(value):
    """Whether a value is an object, and no function of CloudFormation."""
    return isinstance(value, dict) and not (len(value) == 1 and re.match("Ref$|Fn::", next(iter(value))))


def text(*parts):
    """The literal of these parts: plain texts, and code that is interpolated."""
    if [part for part in parts if part] == [code := parts[len(parts) // 2]] and isinstance(code, Code):
        return code
    lines = any("\n" in part for part in parts if not isinstance(part, Code))

    def inside(part):
        if isinstance(part, Code):
            return f"${{{part}}}"
        escaped = re.sub(r"([$%])\{", r"\1\1{", part)
        return escaped if lines else json.dumps(escaped, ensure_ascii=False)[1:-1]

    found = "".join(map(inside, parts)).rstrip("\n")
    return Code(f"<<-EOT\n{found}\nEOT\n" if lines else f'"{found}"')


def collection(function, brackets, members):
    """A list or an object. Members with a condition are lists or objects of their own, which the function joins."""
    groups = []
    for condition, member in members:
        if condition or not groups or groups[-1][0]:
            groups.append((condition, []))
        groups[-1][1].append(member)

    def literal(group):
        line, comma = ", ".join(group), "," if brackets == "[]" else ""
        if "\n" in line or len(line) > 100:
            return "\n".join([brackets[0], *(member + comma for member in group), brackets[1]])
        return brackets[0] + line + brackets[1]

    found = [literal(group) if not one else f"{one} ? {literal(group)} : {brackets}" for one, group in groups]
    if len(groups) == 1 and not groups[0][0]:
        return Code(found[0])
    return Code(f"{function}(\n" + ",\n".join(found) + "\n)" if found else brackets)


def written(body):
    arguments, blocks = [], []
    for name, value in body.items():
        if isinstance(value, Block | list):
            for one in value if isinstance(value, list) else [value]:
                there = f"{{\nfor_each = {one.condition} ? [1] : []\ncontent {written(one)}\n}}"
                blocks.append(f'\ndynamic "{name}" {there}' if one.condition else f"\n{name} {written(one)}")
        else:
            code = value if isinstance(value, Code) else text(value) if isinstance(value, str) else json.dumps(value)
            # By custom, `depends_on` is the last.
            if name == "depends_on":
                blocks.append(f"\n{name} = {code}")
            else:
                arguments.append(f"{name} = {code}")
    return "\n".join(["{", *arguments, *blocks, "}"])


def counted(*conditions):
    there = [local(condition) for condition in conditions if condition]
    return {"count": Code(f"{' && '.join(there)} ? 1 : 0")} if there else {}


def block(*words, **body):
    kind, *labels = words
    return " ".join([kind, *map(json.dumps, labels), written(body)]) + "\n"


class Module:
    def __init__(self):
        self.template = stacks.translate(stacks.read())
        self.sources = stacks.read()["Resources"]
        self.parameters = {name: one for name, one in self.template["Parameters"].items() if name not in LEFT_OUT}
        self.all_resources = self.template["Resources"]
        self.resources = {
            name: resource
            for name, resource in self.all_resources.items()
            if not {name, resource.get("Condition")} & LEFT_OUT and resource["Type"] in TYPES
        }

    # ---- Expressions -------------------------------------------------------------------------------------------------

    def code(self, value):
        match value:
            case Code():
                return value
            case str():
                return text(value)
            case None | bool() | int() | float():
                return Code(json.dumps(value))
            case list():
                return collection("concat", "[]", [self.member(one) for one in value])
            case {"Ref": name}:
                return self.reference(name)
            case {"Fn::GetAtt": [name, attribute]}:
                return self.attribute(name, attribute)
            case {"Fn::If": [condition, *sides]}:
                found = ["null" if side == NO_VALUE else self.code(side) for side in sides]
                if NO_VALUE in sides or is_literal(sides[0]) == is_literal(sides[1]):
                    return Code(f"{local(condition)} ? {' : '.join(found)}")
                # Both sides of a conditional expression have one type.
                texts = [f"jsonencode({side})" for side in found]
                return Code(f"jsondecode({local(condition)} ? {' : '.join(texts)})")
            case {"Fn::Join": [separator, parts]}:
                return Code(f"join({text(separator)}, {self.code(parts)})")
            case {"Fn::Sub": [pattern, values]}:
                return text(*self.parts(pattern, values))
            case {"Fn::Sub": pattern}:
                return text(*self.parts(pattern, {}))
        members = {name if re.fullmatch(r"[A-Za-z_]\w*", name) else text(name): one for name, one in value.items()}
        return collection("merge", "{}", [self.member(one, f"{name} = ") for name, one in members.items()])

    def member(self, value, beginning=""):
        """The condition of a member of a list or of an object, if it has one, and its code."""
        if is_optional(value):
            condition, value, _ = value["Fn::If"]
            return local(condition), beginning + self.code(value)
        return None, beginning + self.code(value)

    def reference(self, name):
        if name in self.parameters:
            return Code(f"var.{snake(name)}")
        return Code(PSEUDO_PARAMETERS.get(name) or self.attribute(name, TYPES[self.resources[name]["Type"]][1]))

    def attribute(self, name, attribute):
        resource = self.all_resources[name]
        if resource["Type"] == "AWS::Lambda::Version":
            return self.attribute(resource["Properties"]["FunctionName"]["Ref"], attribute)
        index = "[0]" if "Condition" in resource else ""
        found = Code(f"{self.address(name)}{index}.{ATTRIBUTES.get(attribute, snake(attribute))}")
        # CloudFormation's ARN of a log group ends so, and Terraform's does not.
        return text(found, ":*") if resource["Type"] == "AWS::Logs::LogGroup" and attribute == "Arn" else found

    def parts(self, pattern, values):
        for index, found in enumerate(re.split(r"\$\{([\w:.]+)\}", pattern)):
            match values.get(found):
                case _ if index % 2 == 0:
                    yield found
                case None:
                    yield self.attribute(*found.split(".")) if "." in found else self.reference(found)
                case {"Fn::Sub": [inner, more]}:
                    yield from self.parts(inner, more)
                case {"Fn::Sub": inner}:
                    yield from self.parts(inner, {})
                case value:
                    yield self.code(value)

    def condition(self, condition):
        def part(inner, operators):
            found = self.condition(inner)
            return f"({found})" if re.search(operators, found) and not found.startswith("!(") else found

        match condition:
            case {"Condition": name}:
                return local(name)
            case {"Fn::Not": [{"Fn::Not": [inner]}]}:
                return self.condition(inner)
            case {"Fn::Not": [inner]}:
                found = part(inner, r"&&|\|\|")
                if " == " in found and found[0] != "(":
                    return found.replace(" == ", " != ")
                return f"!{found}".removeprefix("!!")
            case {"Fn::And": parts}:
                return " && ".join(part(one, r"\|\|") for one in parts)
            case {"Fn::Or": parts}:
                found = [self.condition(one) for one in parts]
                return " || ".join(found) if len(found) < 4 else f"anytrue({self.code(list(map(Code, found)))})"
            case {"Fn::Contains": [{"Ref": name}, ""]} | {"Fn::Equals": [{"Fn::Select": [0, {"Ref": name}]}, ""]}:
                return f"length(var.{snake(name)}) == 0"
            case {"Fn::Equals": [{"Ref": name}, "true" | "false" as value]}:
                return self.reference(name) if value == "true" else f"!{self.reference(name)}"
            case {"Fn::Equals": [left, right]}:
                return f"{self.code(left)} == {self.code(right)}"
        raise ValueError(condition)

    # ---- Resources ---------------------------------------------------------------------------------------------------

    def label(self, name):
        suffix = TYPES[self.all_resources[name]["Type"]][3]
        return LABELS.get(name) or snake(re.sub(f"(?<=.){suffix}$", "", name))

    def address(self, name):
        return Code(f"{TYPES[self.all_resources[name]['Type']][0]}.{self.label(name)}")

    def arguments(self, properties, kind=None):
        """The arguments and the blocks for properties."""
        own = f"{(kind or '').removeprefix('AWS::').replace('::', '.')}."
        names = {name: ARGUMENTS.get(own + name, ARGUMENTS.get(name, snake(name))) for name in properties}
        return {
            names[name]: self.argument(name, value, kind)
            for name, value in properties.items()
            if names[name] and value != NO_VALUE
        }

    def argument(self, name, value, kind=None):
        if name in DOCUMENTS:
            return Code(f"jsonencode({self.code(value)})")
        if isinstance(value, list) and is_literal(value[0]):
            return [self.argument(name, one, kind) for one in value]
        condition, inside, _ = value["Fn::If"] if is_optional(value) else (None, value, None)
        if not is_literal(inside):
            return self.code(value)
        found = Block(self.arguments(inside, kind))
        found.condition = condition and local(condition)
        return found

    def resource(self, name):
        """The resource, and those that Terraform has beside it."""
        found, beside = self.all_resources[name], []
        kind, condition = found["Type"], found.get("Condition")
        terraform, _, named, _ = TYPES[kind]
        properties = dict(found["Properties"])
        body = counted(condition)
        if named:
            # The table of the locks has had this name from the beginning.
            label = self.label(name).replace("_", "-")
            body[named] = text(Code("var.name"), *([] if name == "LockTable" else [f"-{label}"]))
        if shape := globals().get(terraform):
            more, beside = shape(self, name, properties)
            body |= more
        body |= self.arguments(properties, kind)
        before = [self.address(one) for one in stacks.as_list(found.get("DependsOn", [])) if one in self.resources]
        if role := properties.get("Role", properties.get("RoleArn")):
            # CloudFormation's roles have their policies in them.
            policies = self.all_resources[role["Fn::GetAtt"][0]]["Properties"]["Policies"]
            before += [
                Code(f"aws_iam_role_policy.{self.label_of_policy(role['Fn::GetAtt'][0], one)}") for one in policies
            ]
        if before:
            body["depends_on"] = self.code(before)
        return block("resource", terraform, self.label(name), **body) + "".join("\n" + one for one in beside)

    def label_of_policy(self, role, policy):
        found = policy["Fn::If"][1] if is_optional(policy) else policy
        return f"{self.label(role)}_{found['PolicyName']}".replace("-", "_")

    def beside(self, kind, name, optional=None, label=None, /, **body):
        """A resource that Terraform has beside this one."""
        there = counted(self.all_resources[name].get("Condition"), optional)
        return block("resource", kind, label or self.label(name), **there, **body)

    def prefix(self, name):
        return text(Code("substr(var.name, 0, 14)"), f"-{self.label(name).replace('_', '-')}-")

    # ---- Files -------------------------------------------------------------------------------------------------------

    def main(self):
        conditions = {
            snake(name): Code(self.condition(one))
            for name, one in self.template["Conditions"].items()
            if name not in LEFT_OUT
        }
        return "\n".join([LOCALS + block("locals", **conditions), *map(self.resource, self.resources)])

    def variables(self):
        return VARIABLES + "".join("\n" + self.variable(name, one) for name, one in self.parameters.items())

    def variable(self, name, parameter):
        switch = parameter.get("AllowedValues") == ["true", "false"]
        kind = "bool" if switch else {"Number": "number", "String": "string"}.get(parameter["Type"], "list(string)")
        default = parameter["Default"] == "true" if switch else [] if kind == "list(string)" else parameter["Default"]
        return block(
            "variable",
            snake(name),
            description=self.in_words(parameter["Description"]),
            type=Code(kind),
            default=self.code(default),
            validation=[
                Block(condition=Code(condition), error_message=f"{message}.")
                for condition, message in self.validations(name, {} if switch else parameter)
            ],
        )

    def validations(self, name, parameter):
        variable, word = f"var.{snake(name)}", snake(name)
        if values := parameter.get("AllowedValues"):
            yield f"contains({self.code(values)}, {variable})", f"{word} must be one of {', '.join(map(str, values))}"
        if pattern := parameter.get("AllowedPattern"):
            yield f"can(regex({text(f'^({pattern})$')}, {variable}))", f"{word} must match {pattern}"
        if "MinLength" in parameter:
            yield f'{variable} != ""', f"{word} must not be empty"
        for bound, sign, words in (("MinValue", ">=", "at least"), ("MaxValue", "<=", "at most")):
            if bound in parameter:
                yield f"{variable} {sign} {parameter[bound]}", f"{word} must be {words} {parameter[bound]}"
        for rule in self.template["Rules"].values():
            if name == re.search(r'"Ref": "(\w+)"', json.dumps(rule["RuleCondition"]))[1]:
                for one in rule["Assertions"]:
                    holds = self.condition({"Fn::Or": [{"Fn::Not": [rule["RuleCondition"]]}, one["Assert"]]})
                    yield holds, self.in_words(one["AssertDescription"])

    def in_words(self, sentence):
        """A sentence with the names of variables and outputs, and without what only the template's lists are."""
        names = self.parameters | self.template["Outputs"]
        found = re.sub(r"\b[A-Z]\w+", lambda word: snake(word[0]) if word[0] in names else word[0], sentence)
        return found.replace(", separated by commas", "")

    def outputs(self):
        def value(output):
            found = self.code(output["Value"])
            return Code(f"{local(output['Condition'])} ? {found} : null") if "Condition" in output else found

        return "".join(
            "\n" + block("output", snake(name), description=self.in_words(one["Description"]), value=value(one))
            for name, one in self.template["Outputs"].items()
        )


# ---- Shapes that differ ----------------------------------------------------------------------------------------------
# Each takes out of the properties what Terraform says otherwise, and returns it, and the resources beside this one.


def aws_api_gateway_deployment(module, name, properties):
    api = module.attribute(properties.pop("RestApiId")["Ref"], "Id").removesuffix(".id")
    properties.clear()
    definition = Code(f"sha256({text(Code(f'{api}.body'), Code(f'{api}.policy'))})")
    triggers = module.code({"definition": definition})
    return {"rest_api_id": Code(f"{api}.id"), "triggers": triggers, "lifecycle": Block(create_before_destroy=True)}, []


def aws_api_gateway_stage(module, name, properties):
    [settings] = properties.pop("MethodSettings")
    throttling = module.arguments({key: one for key, one in settings.items() if key.startswith("Throttling")})
    body = {"rest_api_id": module.code(properties["RestApiId"]), "stage_name": module.reference(name)}
    body |= {"method_path": "*/*", "settings": Block(throttling)}
    return {}, [module.beside("aws_api_gateway_method_settings", name, **body)]


def aws_apigatewayv2_stage(module, name, properties):
    def settings(route, one):
        found = module.argument("RouteSettings", one)
        named = Block(route_key=route, **found)
        named.condition = found.condition
        return named

    routes = [settings(*one) for one in properties.pop("RouteSettings").items()]
    return {"route_settings": routes, "stage_variables": module.code(properties.pop("StageVariables"))}, []


def aws_cloudwatch_event_rule(module, name, properties):
    [target] = properties.pop("Targets")
    transformer = target.pop("InputTransformer", {})
    body = {"rule": module.reference(name), **module.arguments(target)}
    if transformer:
        paths, template = map(module.code, (transformer["InputPathsMap"], transformer["InputTemplate"]))
        body["input_transformer"] = Block(input_paths=paths, input_template=template)
    return {}, [module.beside("aws_cloudwatch_event_target", name, **body)]


def aws_cloudwatch_metric_alarm(module, name, properties):
    return {"dimensions": module.code({one["Name"]: one["Value"] for one in properties.pop("Dimensions", [])})}, []


def aws_dynamodb_table(module, name, properties):
    def attribute(key):
        if is_optional(key):
            condition, inside, otherwise = key["Fn::If"]
            return {"Fn::If": [condition, inside["AttributeName"], otherwise]}
        return key["AttributeName"]

    def keys(schema):
        return {end: module.code(attribute(key)) for end, key in zip(("hash_key", "range_key"), schema, strict=False)}

    found, time_to_live = keys(properties.pop("KeySchema")), properties.pop("TimeToLiveSpecification")
    found["ttl"] = Block(attribute_name=time_to_live["AttributeName"], enabled=True)
    stream = properties.pop("StreamSpecification", NO_VALUE)
    if is_optional(stream):
        condition, inside, _ = stream["Fn::If"]
        found["stream_enabled"] = local(condition)
        found["stream_view_type"] = module.code({"Fn::If": [condition, inside["StreamViewType"], NO_VALUE]})
    elif stream != NO_VALUE:
        found |= {"stream_enabled": True, "stream_view_type": stream["StreamViewType"]}
    found["global_secondary_index"] = [
        Block(name=one["IndexName"], **keys(one["KeySchema"]), projection_type=one["Projection"]["ProjectionType"])
        for one in properties.pop("GlobalSecondaryIndexes", [])
    ]
    return found, []


def aws_iam_role(module, name, properties):
    body, found = {"role": module.attribute(name, "Id")}, []
    for policy in properties.pop("Policies"):
        optional, inside, _ = policy["Fn::If"] if is_optional(policy) else (None, policy, None)
        body |= {"name": inside["PolicyName"], "policy": module.argument("PolicyDocument", inside["PolicyDocument"])}
        label = module.label_of_policy(name, policy)
        found.append(module.beside("aws_iam_role_policy", name, optional, label, **body))
    for managed in properties.pop("ManagedPolicyArns", []):
        optional, arn, _ = managed["Fn::If"]
        attached = {"role": body["role"], "policy_arn": module.code(arn)}
        found.append(module.beside("aws_iam_role_policy_attachment", name, optional, **attached))
    return {"name_prefix": module.prefix(name)}, found


def aws_lambda_event_source_mapping(module, name, properties):
    """Lambda reads the stream under the function's role, which must have its policies before."""
    role = module.all_resources[properties["FunctionName"]["Ref"]]["Properties"]["Role"]["Fn::GetAtt"][0]
    policy = next(one for one in module.all_resources[role]["Properties"]["Policies"] if not is_optional(one))
    return {"depends_on": module.code([Code(f"aws_iam_role_policy.{module.label_of_policy(role, policy)}")])}, []


def aws_lambda_function(module, name, properties):
    zip_file = text(Code("var.code_directory"), f"/{properties.pop('Code')['S3Bucket']}/bootstrap.zip")
    hashed = Code(f"fileexists({zip_file}) ? filebase64sha256({zip_file}) : null")
    environment = Block(variables=module.code(properties.pop("Environment")["Variables"]))
    versions = [
        resource["Condition"]
        for resource in module.all_resources.values()
        if resource["Type"] == "AWS::Lambda::Version" and resource["Properties"]["FunctionName"] == {"Ref": name}
    ]
    published = {"publish": local(versions[0])} if versions else {}
    return {"filename": zip_file, "source_code_hash": hashed, **published, "environment": environment}, []


def aws_lambda_layer_version(module, name, properties):
    return module.arguments(properties.pop("Content")), []


def aws_lambda_permission(module, name, properties):
    """Terraform calls an alias by a qualifier."""
    target = properties.pop("FunctionName", None) or properties.pop("TargetFunctionArn")
    match target:
        case {"Fn::If": [condition, {"Ref": alias}, {"Ref": function} | {"Fn::GetAtt": [function, _]}]}:
            qualifier = Code(f"{local(condition)} ? {module.attribute(alias, 'Name')} : null")
            return {"function_name": module.reference(function), "qualifier": qualifier}, []
    return {"function_name": module.code(target)}, []


aws_lambda_function_url = aws_lambda_permission


def aws_s3_bucket(module, name, properties):
    """Terraform has a resource for each part of a bucket. It deletes none that has objects."""
    [encryption] = properties.pop("BucketEncryption")["ServerSideEncryptionConfiguration"]
    [owner] = properties.pop("OwnershipControls")["Rules"]
    [rule] = properties.pop("LifecycleConfiguration")["Rules"]
    by_default = Block(sse_algorithm=encryption["ServerSideEncryptionByDefault"]["SSEAlgorithm"])
    versioning = Block(module.arguments(properties.pop("VersioningConfiguration")))
    expiration = Block(module.arguments(rule["NoncurrentVersionExpiration"]))
    removed = Block(id=rule["Id"], status=rule["Status"], filter=Block(), noncurrent_version_expiration=expiration)
    parts = {
        "server_side_encryption_configuration": {"rule": Block(apply_server_side_encryption_by_default=by_default)},
        "versioning": {"versioning_configuration": versioning},
        "public_access_block": module.arguments(properties.pop("PublicAccessBlockConfiguration")),
        "ownership_controls": {"rule": Block(module.arguments(owner))},
        "lifecycle_configuration": {"rule": removed},
    }
    bucket = module.reference(name)
    found = [module.beside(f"aws_s3_bucket_{kind}", name, bucket=bucket, **body) for kind, body in parts.items()]
    return {"bucket_prefix": Code(f"lower({module.prefix(name)})")}, found


def aws_sfn_state_machine(module, name, properties):
    properties.pop("DefinitionString")
    file = text(Code("local.files"), "/" + module.sources[name]["Properties"]["DefinitionUri"])
    if logging := properties.get("LoggingConfiguration"):
        [destination] = logging.pop("Destinations")
        logging["LogDestination"] = destination["CloudWatchLogsLogGroup"]["LogGroupArn"]
    return {"definition": Code(f"templatefile({file}, {module.code(properties.pop('DefinitionSubstitutions'))})")}, []


def aws_sqs_queue_policy(module, name, properties):
    return {"queue_url": module.code(*properties.pop("Queues"))}, []


def written_by_terraform(code):
    """The code as `terraform fmt` leaves it."""
    command = [os.environ.get("TERRAFORM", "terraform"), "fmt", "-"]
    return subprocess.run(command, input=code, stdout=subprocess.PIPE, text=True, check=True).stdout


def lines(code):
    """What `terraform fmt` leaves alone, which is all but white space."""
    return [found for line in code.splitlines() if (found := "".join(line.split()))]


def main(*options):
    module = Module()
    for name in ("main", "variables", "outputs"):
        made, file = HEADER + getattr(module, name)(), HERE / f"{name}.tf"
        if options == ("--check",):
            stacks.same(lines(made), lines(file.read_text()), "template.yaml", file.name)
        else:
            file.write_text(written_by_terraform(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
