"""Completes a deployed REST API on ministack, which reads no methods for any HTTP method out of a definition.

Arguments: the stack, and the parameters that it was deployed with, as NAME=VALUE. The methods are those of
template.yaml.
"""

import sys

import boto3

import stacks


def main(stack, *parameters):
    chosen = stacks.resources_with(dict(parameter.split("=", 1) for parameter in parameters))
    [(name, rest)] = stacks.of_type(chosen, "AWS::ApiGateway::RestApi")
    found = boto3.client("cloudformation").describe_stack_resources(StackName=stack)["StackResources"]
    physical = {resource["LogicalResourceId"]: resource["PhysicalResourceId"] for resource in found}
    gateway, functions = boto3.client("apigateway"), boto3.client("lambda")
    api = physical[name]
    resources = {item["path"]: item for item in gateway.get_resources(restApiId=api, limit=500)["items"]}
    for path, item in rest["Body"]["paths"].items():
        method = item["x-amazon-apigateway-any-method"]
        function = stacks.function_of(method["x-amazon-apigateway-integration"])["Ref"]
        arn = functions.get_function(FunctionName=physical[function])["Configuration"]["FunctionArn"]
        place = {"restApiId": api, "resourceId": resources[path]["id"], "httpMethod": "ANY"}
        gateway.put_method(**place, authorizationType="AWS_IAM" if "security" in method else "NONE")
        gateway.put_integration(
            **place,
            type="AWS_PROXY",
            integrationHttpMethod="POST",
            uri=f"arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/{arn}/invocations",
        )
    gateway.create_deployment(restApiId=api, stageName="live")


if __name__ == "__main__":
    main(*sys.argv[1:])
