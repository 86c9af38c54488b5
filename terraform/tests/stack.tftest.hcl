# Plans of the module, without an account. tests/compare.py compares the first three with template.yaml.

mock_provider "aws" {
  # So that plans know what an account would make up.
  override_during = plan

  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_region" {
    defaults = { id = "eu-west-1" }
  }
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  # Of these, each has a name of its own.
  mock_resource "aws_lambda_function" {}
  mock_resource "aws_lambda_alias" {}
  mock_resource "aws_apigatewayv2_integration" {}
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/one" }
  }
  mock_resource "aws_dynamodb_table" {
    defaults = {
      arn        = "arn:aws:dynamodb:eu-west-1:123456789012:table/one"
      stream_arn = "arn:aws:dynamodb:eu-west-1:123456789012:table/one/stream/1"
    }
  }
  mock_resource "aws_sfn_state_machine" {
    defaults = { arn = "arn:aws:states:eu-west-1:123456789012:stateMachine:one" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-west-1:123456789012:log-group:one" }
  }
  mock_resource "aws_cloudwatch_event_rule" {
    defaults = { arn = "arn:aws:events:eu-west-1:123456789012:rule/one" }
  }
  mock_resource "aws_sqs_queue" {
    defaults = { arn = "arn:aws:sqs:eu-west-1:123456789012:one", url = "https://sqs.eu-west-1.amazonaws.com/123456789012/one" }
  }
  mock_resource "aws_kms_key" {
    defaults = { arn = "arn:aws:kms:eu-west-1:123456789012:key/one" }
  }
  mock_resource "aws_apigatewayv2_api" {
    defaults = { id = "api1", execution_arn = "arn:aws:execute-api:eu-west-1:123456789012:api1" }
  }
}

variables {
  code_directory = "target/lambda"
}

override_resource {
  target          = aws_dynamodb_table.transactions[0]
  override_during = plan
  values          = { arn = "arn:aws:dynamodb:eu-west-1:123456789012:table/transactions" }
}

override_resource {
  target          = aws_lambda_function.function["Sweep"]
  override_during = plan
  values          = { arn = "arn:aws:lambda:eu-west-1:123456789012:function:sweep" }
}

run "defaults" {
  command = plan

  assert {
    condition     = length(aws_apigatewayv2_route.route) == 18
    error_message = "By default there are 18 routes, of them none of watches and transactions."
  }
  assert {
    condition     = alltrue([for route in aws_apigatewayv2_route.route : route.authorization_type == "AWS_IAM"])
    error_message = "Callers sign by default."
  }
  assert {
    condition     = !aws_dynamodb_table.locks[0].deletion_protection_enabled
    error_message = "The default of deletion protection is that of the template and of the construct."
  }
}

run "shared" {
  command = plan
  variables {
    functions         = "one"
    function_url      = true
    watch_concurrency = 10
    wake_waiters      = true
  }

  assert {
    condition     = !contains(keys(aws_lambda_function.function), "Hold") && contains(keys(aws_lambda_function.function), "Watch")
    error_message = "One function serves those who hold and those who ask, and watches have one of their own."
  }
}

run "whole" {
  command = plan
  variables {
    transaction_table_arns = ["arn:aws:dynamodb:eu-west-1:123456789012:table/accounts"]
    rest_api               = "regional"
    rest_api_source_ranges = ["192.0.2.0/24"]
    release                = "one"
  }

  assert {
    condition     = join(",", keys(aws_lambda_alias.live)) == "Ask,Hold" && aws_lambda_function.function["Hold"].publish && !aws_lambda_function.function["Read"].publish
    error_message = "With a release those who hold and those who ask call published versions."
  }
  assert {
    condition     = toset([for path, item in jsondecode(aws_api_gateway_rest_api.rest[0].body).paths : path]) == toset(concat(["/", "/{proxy+}"], [for route in keys(aws_apigatewayv2_route.route) : trimprefix(route, "ANY ") if route != "$default"]))
    error_message = "The REST API has the HTTP API's routes."
  }
  assert {
    condition     = jsondecode(aws_api_gateway_rest_api.rest[0].policy).Statement[1].Condition.NotIpAddress["aws:SourceIp"] == ["192.0.2.0/24"]
    error_message = "Callers outside of the ranges are refused."
  }
}

run "tokens" {
  command = plan
  variables {
    authorizer      = "JWT"
    jwt_issuer      = "https://issuer"
    jwt_audience    = ["locks"]
    jwt_break_scope = "locks/break"
  }

  assert {
    condition     = sort([for key, route in aws_apigatewayv2_route.route : key if try(length(route.authorization_scopes), 0) > 0]) == tolist(["ANY /v1/break", "ANY /v1/occurrence", "ANY /v1/semaphore/break", "ANY /v1/semaphore/capacity"])
    error_message = "Operators need a scope."
  }

  assert {
    condition     = alltrue([for route in aws_apigatewayv2_route.route : route.authorization_type == "JWT"])
    error_message = "Every route needs a token."
  }
}

run "parameters" {
  command = plan
  variables {
    name                   = "orders"
    existing_table_name    = "fleet"
    lost_locks_alarm_count = 7
    log_level              = "warn"
  }

  assert {
    condition     = length(aws_dynamodb_table.locks) == 0
    error_message = "An existing table is used, and none is made."
  }
  assert {
    condition     = alltrue([for function in aws_lambda_function.function : function.environment[0].variables.LEASEHOLD_TABLE_NAME == "fleet" && function.environment[0].variables.LEASEHOLD_STACK == "orders" && function.environment[0].variables.LEASEHOLD_LOG == "warn"])
    error_message = "Functions know the table, the stack and the level of the log."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.alarm["LostLocksAlarm"].threshold == 7
    error_message = "The threshold of an alarm is the template's parameter."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.alarm["LostLocksAlarm"].dimensions == tomap({ stack = "orders", operation = "heartbeat" })
    error_message = "Alarms watch the metrics of this stack."
  }
}

run "unsafe_combinations" {
  command = plan
  variables {
    authorizer    = "NONE"
    owner_binding = true
    function_url  = true
  }
  expect_failures = [var.owner_binding, var.function_url]
}

run "tokens_need_an_issuer" {
  command = plan
  variables {
    authorizer = "JWT"
  }
  expect_failures = [var.authorizer]
}

run "rest_api_takes_no_tokens" {
  command = plan
  variables {
    authorizer   = "JWT"
    jwt_issuer   = "https://issuer"
    jwt_audience = ["locks"]
    rest_api     = "regional"
  }
  expect_failures = [var.rest_api]
}

run "waking_needs_a_stream" {
  command = plan
  variables {
    existing_table_name = "fleet"
    wake_waiters        = true
  }
  expect_failures = [var.wake_waiters]
}
