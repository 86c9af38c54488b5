# Plans of the module, without an account: that what the template makes of it is what a user of Terraform asks for.

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
  mock_resource "aws_s3_bucket" {
    defaults = { id = "states", arn = "arn:aws:s3:::states" }
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
  target          = aws_lambda_function.sweep[0]
  override_during = plan
  values          = { arn = "arn:aws:lambda:eu-west-1:123456789012:function:sweep" }
}

run "defaults" {
  command = plan

  assert {
    condition     = aws_apigatewayv2_route.heartbeat.route_key == "ANY /v1/heartbeat" && aws_apigatewayv2_route.heartbeat.authorization_type == "AWS_IAM"
    error_message = "Callers sign by default."
  }
  assert {
    condition     = length(aws_apigatewayv2_route.watch) == 0 && length(aws_apigatewayv2_route.begin) == 0 && length(aws_lambda_function.transact) == 0
    error_message = "By default there are no watches and no transactions."
  }
  assert {
    condition     = length(aws_s3_bucket.states) == 0 && length(aws_lambda_function.terraform) == 0 && length(aws_apigatewayv2_route.terraform) == 0
    error_message = "By default there are no states of Terraform."
  }
  assert {
    condition     = aws_lambda_function.hold[0].handler == "hold" && aws_lambda_function.hold[0].reserved_concurrent_executions == 100
    error_message = "Those who hold have a function and concurrency of their own."
  }
  assert {
    condition     = aws_apigatewayv2_route.heartbeat.target == "integrations/${aws_apigatewayv2_integration.hold[0].id}" && aws_apigatewayv2_integration.hold[0].integration_uri == aws_lambda_function.hold[0].arn
    error_message = "A heartbeat leads to the function of those who hold."
  }
  assert {
    condition     = jsondecode(aws_iam_role_policy.hold_table[0].policy).Statement[0].Action == ["dynamodb:DescribeTable", "dynamodb:UpdateItem"] && contains(jsondecode(aws_iam_role_policy.hold_table[0].policy).Statement[0].Condition["ForAllValues:StringNotEquals"]["dynamodb:Attributes"], "capacity")
    error_message = "The role of those who hold may write, and not the attributes of others."
  }
  assert {
    condition     = toset(jsondecode(aws_iam_role_policy.read_table.policy).Statement[0].Action) == toset(["dynamodb:DescribeTable", "dynamodb:GetItem", "dynamodb:Query", "dynamodb:Scan"])
    error_message = "The function that reads may do no more."
  }
  assert {
    condition     = length(jsondecode(aws_iam_role_policy.hold_function[0].policy).Statement) == 1 && length(aws_lambda_function.hold[0].vpc_config) == 0
    error_message = "Roles know no VPC and no keys where nobody asks for them."
  }
  assert {
    condition     = !aws_dynamodb_table.locks[0].deletion_protection_enabled && aws_dynamodb_table.locks[0].name == "leasehold" && aws_dynamodb_table.locks[0].range_key == null
    error_message = "The table has the module's name, no sort key, and the default of the template and of the construct."
  }
  assert {
    condition     = jsondecode(aws_cloudwatch_event_rule.cleanup.event_pattern).detail["$or"][1].error[0] == null
    error_message = "The rule of the clean-up has the template's pattern."
  }
  assert {
    condition     = length(jsondecode(aws_cloudwatch_dashboard.dashboard.dashboard_body).widgets) == 13
    error_message = "The dashboard has the template's widgets."
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
    condition     = length(aws_lambda_function.hold) == 0 && length(aws_lambda_function.acquire) == 1 && aws_lambda_function.watch[0].reserved_concurrent_executions == 10
    error_message = "One function serves those who hold and those who ask, and watches have one of their own."
  }
  assert {
    condition     = aws_apigatewayv2_route.heartbeat.target == "integrations/${aws_apigatewayv2_integration.acquire[0].id}"
    error_message = "A heartbeat leads to the one function."
  }
  assert {
    condition     = aws_lambda_function_url.acquire[0].function_name == aws_lambda_function.acquire[0].function_name && aws_lambda_function_url.acquire[0].authorization_type == "AWS_IAM"
    error_message = "The Function URL leads to the one function, for callers who sign."
  }
  assert {
    condition     = aws_dynamodb_table.locks[0].stream_view_type == "NEW_IMAGE" && length(aws_pipes_pipe.freed[0].source_parameters[0].filter_criteria[0].filter) == 3
    error_message = "The table's stream wakes who waits, where a lock became free."
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
    condition     = aws_lambda_function.hold[0].publish && aws_lambda_function.ask[0].publish && aws_apigatewayv2_integration.hold[0].integration_uri == aws_lambda_alias.hold[0].arn
    error_message = "With a release those who hold and those who ask call published versions."
  }
  assert {
    condition     = aws_lambda_permission.hold[0].qualifier == "live" && aws_lambda_permission.read.qualifier == null
    error_message = "API Gateway may call the alias, where there is one."
  }
  assert {
    condition     = alltrue([for path in ["/", "/{proxy+}", "/v1/heartbeat", "/v1/transactions/begin"] : contains(keys(jsondecode(aws_api_gateway_rest_api.rest[0].body).paths), path)]) && !contains(keys(jsondecode(aws_api_gateway_rest_api.rest[0].body).paths), "/v1/watch")
    error_message = "The REST API has the HTTP API's routes."
  }
  assert {
    condition     = jsondecode(aws_api_gateway_rest_api.rest[0].body).paths["/v1/heartbeat"]["x-amazon-apigateway-any-method"].security == [{ sigv4 = [] }]
    error_message = "Callers of the REST API sign."
  }
  assert {
    condition     = jsondecode(aws_api_gateway_rest_api.rest[0].policy).Statement[1].Condition.NotIpAddress["aws:SourceIp"] == ["192.0.2.0/24"]
    error_message = "Callers outside of the ranges are refused."
  }
  assert {
    condition     = aws_lambda_function.sweep[0].environment[0].variables.LEASEHOLD_TRANSACTION_TABLE_NAME == "leasehold-transactions" && aws_cloudwatch_event_target.sweep[0].arn == aws_lambda_function.sweep[0].arn
    error_message = "The sweep knows the table of the transactions, and runs by the clock."
  }
}

run "own" {
  command = plan
  variables {
    domain_name             = "locks.example.com"
    domain_certificate_arn  = "arn:aws:acm:eu-west-1:123456789012:certificate/one"
    domain_truststore_uri   = "s3://trust/authorities.pem"
    execute_api_endpoint    = false
    vpc_subnet_ids          = ["subnet-1"]
    vpc_security_group_ids  = ["sg-1"]
    table_kms_key_arn       = "arn:aws:kms:eu-west-1:123456789012:key/table"
    environment_kms_key_arn = "arn:aws:kms:eu-west-1:123456789012:key/environment"
    log_kms_key_arn         = "arn:aws:kms:eu-west-1:123456789012:key/log"
    dynamo_db_endpoint_url  = "https://vpce-1.dynamodb.eu-west-1.vpce.amazonaws.com"
    tracing                 = "Active"
    reserved_concurrency    = 5
    latency_alarm_ms        = 300
  }

  assert {
    condition     = aws_apigatewayv2_domain_name.domain[0].mutual_tls_authentication[0].truststore_uri == "s3://trust/authorities.pem" && aws_apigatewayv2_api.api.disable_execute_api_endpoint
    error_message = "The API is behind a domain of one's own, with mutual TLS, and there alone."
  }
  assert {
    condition     = aws_lambda_function.read.vpc_config[0].subnet_ids == toset(["subnet-1"]) && jsondecode(aws_iam_role_policy.read_function.policy).Statement[1].Resource == "*"
    error_message = "The functions run in the subnets, and their roles may enter them."
  }
  assert {
    condition     = [for one in jsondecode(aws_iam_role_policy.read_function.policy).Statement : one.Resource if one.Action == "kms:Decrypt"] == [var.table_kms_key_arn, var.environment_kms_key_arn] && aws_dynamodb_table.locks[0].server_side_encryption[0].kms_key_arn == var.table_kms_key_arn
    error_message = "The tables have one's own key, and the roles may decrypt with both."
  }
  assert {
    condition     = aws_lambda_function.read.kms_key_arn == var.environment_kms_key_arn && aws_cloudwatch_log_group.function.kms_key_id == var.log_kms_key_arn
    error_message = "Environment and logs have keys of one's own."
  }
  assert {
    condition     = aws_lambda_function.read.environment[0].variables.AWS_ENDPOINT_URL_DYNAMODB == var.dynamo_db_endpoint_url
    error_message = "The functions use the other endpoint."
  }
  assert {
    condition     = aws_lambda_function.read.tracing_config[0].mode == "Active" && length(aws_iam_role_policy_attachment.read) == 1
    error_message = "The functions send traces, and may."
  }
  assert {
    condition     = aws_lambda_function.read.reserved_concurrent_executions == 5 && aws_lambda_function.hold[0].reserved_concurrent_executions == 100
    error_message = "Each function has its concurrency, and those who hold theirs."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.latency.threshold == 300 && aws_cloudwatch_metric_alarm.latency.extended_statistic == "p99"
    error_message = "The alarm looks at the slowest hundredth."
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
    condition = alltrue([
      for route in [aws_apigatewayv2_route.break, aws_apigatewayv2_route.occurrence, aws_apigatewayv2_route.semaphore_break, aws_apigatewayv2_route.semaphore_capacity] :
      route.authorization_scopes == toset(["locks/break"])
    ]) && aws_apigatewayv2_route.acquire.authorization_scopes == null
    error_message = "Operators need a scope."
  }
  assert {
    condition     = aws_apigatewayv2_route.acquire.authorization_type == "JWT" && aws_apigatewayv2_route.unknown.authorization_type == "JWT"
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
    condition     = aws_lambda_function.read.environment[0].variables.LEASEHOLD_TABLE_NAME == "fleet" && aws_lambda_function.read.environment[0].variables.LEASEHOLD_STACK == "orders" && aws_lambda_function.read.environment[0].variables.LEASEHOLD_LOG == "warn"
    error_message = "Functions know the table, the stack and the level of the log."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.lost_locks.threshold == 7
    error_message = "The threshold of an alarm is the variable."
  }
  assert {
    condition     = aws_cloudwatch_metric_alarm.lost_locks.dimensions == tomap({ stack = "orders", operation = "heartbeat" })
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

run "numbers_have_bounds" {
  command = plan
  variables {
    memory_mb          = 64
    log_retention_days = 2
    release            = "feature/one"
  }
  expect_failures = [var.memory_mb, var.log_retention_days, var.release]
}

run "terraform_states" {
  command = plan

  variables {
    terraform_states = true
    terraform_tokens = "[]"
  }
  assert {
    condition     = length(aws_s3_bucket_versioning.states) == 1 && aws_s3_bucket_public_access_block.states[0].block_public_policy && length(aws_s3_bucket_policy.states) == 1
    error_message = "The bucket of the states keeps versions, is closed, and asks for TLS."
  }
  assert {
    condition     = aws_apigatewayv2_route.terraform[0].authorization_type == "NONE" && aws_lambda_function.terraform[0].environment[0].variables.LEASEHOLD_TERRAFORM_BUCKET == "states"
    error_message = "The function of the states asks for the tokens by itself."
  }
}

run "terraform_states_without_tokens" {
  command = plan

  variables {
    terraform_states = true
  }
  assert {
    condition     = aws_apigatewayv2_route.terraform_lock[0].authorization_type == "AWS_IAM"
    error_message = "Without tokens the API's authorizer decides."
  }
}
