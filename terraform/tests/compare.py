"""Compares the module's plans with template.yaml: functions and their roles, routes, state machines, pipes and alarms.

Standard input: the output of `terraform test -json -verbose`.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts/lib"))
import stacks

# The template's parameters for the variables of a run.
RUNS = {
    "defaults": {},
    "whole": {
        "TransactionTableArns": "arn:aws:dynamodb:eu-west-1:123456789012:table/accounts",
        "RestApi": "regional",
    },
    "shared": {"Functions": "one", "FunctionUrl": "true", "WatchConcurrency": "10", "WakeWaiters": "true"},
}
# The tables by the ends of their ARNs.
TABLES = {"one": "locks", "transactions": "transactions", "sweep": "transactions/sweep", "accounts": "items"}
MACHINES = {"run_under_lock": "RunUnderLock", "cleanup": "CleanupStateMachine", "waker": "Waker"}


class Plan:
    def __init__(self, changes):
        self.changes = changes

    def of_type(self, kind):
        """The resources of a type, by their keys in `for_each`, or by their names."""
        return {
            index if isinstance(index := change.get("index"), str) else change["name"]: change["change"]["after"]
            for change in self.changes
            if change["type"] == kind
        }

    def actions(self, role):
        return sorted({action for statement in self.statements(role) for action in stacks.as_list(statement["Action"])})

    def statements(self, role):
        return [
            statement
            for change in self.changes
            if change["type"] == "aws_iam_role_policy" and change["index"] == role
            for statement in json.loads(change["change"]["after"]["policy"])["Statement"]
        ]

    def summary(self):
        functions = self.of_type("aws_lambda_function")
        behind = {function["arn"]: name for name, function in functions.items()}
        behind |= {alias["arn"]: name for name, alias in self.of_type("aws_lambda_alias").items()}
        integrations = {
            f"integrations/{integration['id']}": behind[integration["integration_uri"]]
            for integration in self.of_type("aws_apigatewayv2_integration").values()
        }
        return {
            "functions": {
                name: {
                    "handler": function["handler"],
                    "timeout": function["timeout"],
                    "reserved": function["reserved_concurrent_executions"] != -1,
                    "environment": sorted(function["environment"][0]["variables"]),
                    "actions": sorted(
                        f"{action.removeprefix('dynamodb:')} on {TABLES[resource.split('/')[-1]]}"
                        for statement in self.statements(role(name))
                        for action in stacks.as_list(statement["Action"])
                        for resource in stacks.as_list(statement["Resource"])
                        if action.startswith("dynamodb:")
                    ),
                    "withheld": [
                        attribute
                        for statement in self.statements(role(name))
                        for condition in statement.get("Condition", {}).values()
                        for attribute in condition.get("dynamodb:Attributes", [])
                    ],
                }
                for name, function in functions.items()
            },
            "routes": {
                key: integrations[route["target"]] for key, route in self.of_type("aws_apigatewayv2_route").items()
            },
            "stateMachines": {
                MACHINES[name]: self.actions(MACHINES[name]) for name in self.of_type("aws_sfn_state_machine")
            },
            "pipes": {
                f"{name}Pipe": {
                    "filters": [one["pattern"] for one in pipe["source_parameters"][0]["filter_criteria"][0]["filter"]],
                    "actions": self.actions("WakerPipes"),
                }
                for name, pipe in self.of_type("aws_pipes_pipe").items()
            },
            "functionUrls": {
                name.capitalize(): url["authorization_type"]
                for name, url in self.of_type("aws_lambda_function_url").items()
            },
            "alarms": {
                name: {
                    "metric": [
                        alarm["namespace"],
                        alarm["metric_name"],
                        alarm["statistic"] or alarm["extended_statistic"],
                    ],
                    "dimensions": sorted(alarm["dimensions"]),
                    "threshold": alarm["threshold"],
                }
                for name, alarm in self.of_type("aws_cloudwatch_metric_alarm").items()
            },
        }


def role(function):
    """The function whose role a function has."""
    return "Invoke" if function == "Semaphore" else function


def summary_of_template(parameters):
    defaults = {name: parameter["Default"] for name, parameter in stacks.read()["Parameters"].items()}
    resources = stacks.resources_with(parameters)
    alarms = {}
    for name, alarm in stacks.of_type(resources, "AWS::CloudWatch::Alarm"):
        namespace, threshold = alarm["Namespace"], alarm["Threshold"]
        alarms[name] = {
            "metric": [
                namespace
                if isinstance(namespace, str)
                else namespace["Fn::Sub"].replace("${AWS::StackName}", "leasehold"),
                alarm["MetricName"],
                alarm.get("ExtendedStatistic") or alarm["Statistic"],
            ],
            "dimensions": sorted(dimension["Name"] for dimension in alarm.get("Dimensions", [])),
            "threshold": defaults[threshold["Ref"]] if isinstance(threshold, dict) else threshold,
        }
    return {**stacks.summary(resources), "alarms": alarms}


def main():
    plans = {
        event["@testrun"]: Plan(event["test_plan"]["resource_changes"])
        for event in map(json.loads, sys.stdin)
        if event["type"] == "test_plan"
    }
    for run, parameters in RUNS.items():
        stacks.same(
            summary_of_template(parameters), plans[run].summary(), "template.yaml", f"the plan of the run {run}"
        )


if __name__ == "__main__":
    main()
