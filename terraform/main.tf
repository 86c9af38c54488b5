# Leasehold: an HTTP API, a function for each of its operations, one DynamoDB table, and state machines.
# scripts/compare_stacks.py compares this module with template.yaml.

data "aws_partition" "current" {}
data "aws_region" "current" {}
data "aws_caller_identity" "current" {}

locals {
  partition = data.aws_partition.current.partition
  region    = data.aws_region.current.region
  account   = data.aws_caller_identity.current.account_id

  # The functions, and their actions on the table.
  all_functions = {
    Acquire    = { handler = "acquire", timeout = 6, actions = ["dynamodb:UpdateItem"] }
    AcquireAll = { handler = "acquire-all", timeout = 6, actions = ["dynamodb:UpdateItem"] }
    Heartbeat  = { handler = "heartbeat", timeout = 6, actions = ["dynamodb:UpdateItem"] }
    Release    = { handler = "release", timeout = 6, actions = ["dynamodb:UpdateItem"] }
    Break      = { handler = "break", timeout = 6, actions = ["dynamodb:UpdateItem"] }
    Get        = { handler = "get", timeout = 6, actions = ["dynamodb:GetItem"] }
    List       = { handler = "list", timeout = 29, actions = ["dynamodb:Scan", "dynamodb:Query"] }
    Health     = { handler = "health", timeout = 6, actions = ["dynamodb:GetItem"] }
    Watch      = { handler = "watch", timeout = 29, actions = ["dynamodb:GetItem"] }
    Semaphore  = { handler = "semaphore", timeout = 6, actions = ["dynamodb:UpdateItem", "dynamodb:GetItem"] }
    Invoke     = { handler = "invoke", timeout = 6, actions = ["dynamodb:UpdateItem", "dynamodb:GetItem"] }
    Cleanup    = { handler = "cleanup", timeout = 30, actions = ["dynamodb:UpdateItem", "dynamodb:GetItem"] }
  }

  # One function for the operations of a holder serves these as well.
  served_by_acquire = var.functions == "one" ? ["Heartbeat", "Release"] : []
  left_out          = var.watch_concurrency > 0 ? local.served_by_acquire : concat(local.served_by_acquire, ["Watch"])
  functions         = { for name, function in local.all_functions : name => function if !contains(local.left_out, name) }
  routes = {
    for route, name in local.all_routes : route => contains(local.served_by_acquire, name) ? "Acquire" : name
    if name != "Watch" || var.watch_concurrency > 0
  }

  # The routes, and the functions that answer them.
  all_routes = {
    "ANY /v1/acquire"     = "Acquire"
    "ANY /v1/want"        = "Acquire"
    "ANY /v1/acquire-all" = "AcquireAll"
    "ANY /v1/heartbeat"   = "Heartbeat"
    "ANY /v1/release"     = "Release"
    "ANY /v1/break"       = "Break"
    "ANY /v1/lock"        = "Get"
    "ANY /v1/locks"       = "List"
    "ANY /v1/health"      = "Health"
    "ANY /v1/watch"       = "Watch"
    "$default"            = "Health"

    "ANY /v1/semaphore"           = "Semaphore"
    "ANY /v1/semaphore/acquire"   = "Semaphore"
    "ANY /v1/semaphore/heartbeat" = "Semaphore"
    "ANY /v1/semaphore/release"   = "Semaphore"
    "ANY /v1/semaphore/enqueue"   = "Semaphore"
    "ANY /v1/semaphore/break"     = "Semaphore"
    "ANY /v1/semaphore/capacity"  = "Semaphore"
  }

  environment = {
    LEASEHOLD_TABLE_NAME           = local.table_name
    LEASEHOLD_PARTITION_KEY        = var.partition_key_name
    LEASEHOLD_SORT_KEY             = var.sort_key_name
    LEASEHOLD_RETENTION_SECONDS    = tostring(var.retention_seconds)
    LEASEHOLD_CLOCK_SKEW_MS        = tostring(var.clock_skew_ms)
    LEASEHOLD_TAKEOVER_CLOCK_CHECK = tostring(var.takeover_clock_check)
    LEASEHOLD_LOG                  = var.log_level
    LEASEHOLD_KEY_SCOPES           = var.key_scopes
    LEASEHOLD_OWNER_BINDING        = tostring(var.owner_binding)
    LEASEHOLD_JWT_CLAIM            = var.jwt_claim
    LEASEHOLD_METRICS              = tostring(var.operation_metrics)
    LEASEHOLD_STACK                = var.name
  }

  # These functions make the lease ids of executions as well.
  execution_environment = {
    LEASEHOLD_EXECUTION_SECRET = random_password.execution.result
  }
  execution_functions = ["Semaphore", "Invoke", "Cleanup"]

  table_name = var.existing_table_name == "" ? aws_dynamodb_table.locks[0].name : var.existing_table_name
  table_arn  = var.existing_table_name == "" ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
}

# ---- The table ----------------------------------------------------------------------------------------------------

resource "aws_dynamodb_table" "locks" {
  count                       = var.existing_table_name == "" ? 1 : 0
  name                        = var.name
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = var.partition_key_name
  range_key                   = var.sort_key_name == "" ? null : var.sort_key_name
  deletion_protection_enabled = var.table_deletion_protection
  stream_enabled              = var.wake_waiters
  stream_view_type            = var.wake_waiters ? "NEW_IMAGE" : null

  attribute {
    name = var.partition_key_name
    type = "S"
  }

  dynamic "attribute" {
    for_each = var.sort_key_name == "" ? [] : [var.sort_key_name]
    content {
      name = attribute.value
      type = "S"
    }
  }

  ttl {
    attribute_name = "expireAt"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.table_kms_key_arn == "" ? null : var.table_kms_key_arn
  }
}

# ---- The functions ------------------------------------------------------------------------------------------------

resource "random_password" "execution" {
  length  = 48
  special = false
}

# All functions share one binary, which knows them by their handlers.
data "archive_file" "functions" {
  type        = "zip"
  source_file = "${var.code_directory}/leasehold-locks/bootstrap"
  output_path = "${path.root}/.terraform/leasehold/leasehold-locks.zip"
}

resource "aws_iam_role" "function" {
  for_each    = local.functions
  name_prefix = "${substr(var.name, 0, 24)}-${lower(each.key)}-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy_attachment" "function_log" {
  for_each   = local.functions
  role       = aws_iam_role.function[each.key].name
  policy_arn = "arn:${local.partition}:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
}

resource "aws_iam_role_policy" "function_table" {
  for_each = local.functions
  name     = "table"
  role     = aws_iam_role.function[each.key].id
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = each.value.actions, Resource = local.table_arn }]
  })
}

resource "aws_lambda_function" "function" {
  for_each                       = local.functions
  function_name                  = "${var.name}-${lower(each.key)}"
  role                           = aws_iam_role.function[each.key].arn
  runtime                        = "provided.al2023"
  handler                        = each.value.handler
  architectures                  = [var.architecture]
  memory_size                    = var.memory_mb
  timeout                        = each.value.timeout
  filename                       = data.archive_file.functions.output_path
  source_code_hash               = data.archive_file.functions.output_base64sha256
  reserved_concurrent_executions = each.key == "Watch" ? var.watch_concurrency : var.reserved_concurrency

  logging_config {
    log_group        = aws_cloudwatch_log_group.functions.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  environment {
    variables = merge(local.environment, contains(local.execution_functions, each.key) ? local.execution_environment : {})
  }

  depends_on = [aws_iam_role_policy.function_table, aws_iam_role_policy_attachment.function_log]
}

# ---- The API ------------------------------------------------------------------------------------------------------

resource "aws_apigatewayv2_api" "api" {
  name          = var.name
  description   = "Leasehold"
  protocol_type = "HTTP"
}

resource "aws_apigatewayv2_stage" "default" {
  api_id      = aws_apigatewayv2_api.api.id
  name        = "$default"
  auto_deploy = true

  default_route_settings {
    throttling_rate_limit  = var.throttling_rate_limit
    throttling_burst_limit = var.throttling_burst_limit
  }

  access_log_settings {
    destination_arn = aws_cloudwatch_log_group.access.arn
    # Neither bodies nor queries: those hold keys, payloads and lease ids.
    format = jsonencode({
      requestId = "$context.requestId"
      time      = "$context.requestTime"
      route     = "$context.routeKey"
      status    = "$context.status"
      latencyMs = "$context.responseLatency"
      sourceIp  = "$context.identity.sourceIp"
      caller    = "$context.identity.userArn"
      subject   = "$context.authorizer.claims.sub"
      error     = "$context.error.message"
    })
  }
}

resource "aws_apigatewayv2_authorizer" "jwt" {
  count            = var.authorizer == "JWT" ? 1 : 0
  api_id           = aws_apigatewayv2_api.api.id
  name             = "jwt"
  authorizer_type  = "JWT"
  identity_sources = ["$request.header.Authorization"]

  jwt_configuration {
    issuer   = var.jwt_issuer
    audience = var.jwt_audience
  }
}

resource "aws_apigatewayv2_integration" "function" {
  for_each               = toset(values(local.routes))
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = aws_lambda_function.function[each.key].arn
  payload_format_version = "2.0"
}

resource "aws_apigatewayv2_route" "route" {
  for_each           = local.routes
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = each.key
  target             = "integrations/${aws_apigatewayv2_integration.function[each.value].id}"
  authorization_type = var.authorizer
  authorizer_id      = var.authorizer == "JWT" ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_lambda_permission" "route" {
  for_each      = local.routes
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.function[each.value].function_name
  principal     = "apigateway.amazonaws.com"
  source_arn    = each.key == "$default" ? "${aws_apigatewayv2_api.api.execution_arn}/*/$default" : "${aws_apigatewayv2_api.api.execution_arn}/*/*${trimprefix(each.key, "ANY ")}"
}

# Callers need lambda:InvokeFunctionUrl and lambda:InvokeFunction on the function.
resource "aws_lambda_function_url" "acquire" {
  count              = var.function_url ? 1 : 0
  function_name      = aws_lambda_function.function["Acquire"].function_name
  authorization_type = "AWS_IAM"
}

# ---- State machines -----------------------------------------------------------------------------------------------

locals {
  runnable_arn = "arn:${local.partition}:states:${local.region}:${local.account}:stateMachine:${var.runnable_state_machines}"
  child_arn    = "arn:${local.partition}:states:${local.region}:${local.account}:execution:${var.runnable_state_machines}:leasehold-*"
  states_trust = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "states.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role" "cleanup_machine" {
  name_prefix        = "${substr(var.name, 0, 20)}-cleanup-sfn-"
  assume_role_policy = local.states_trust
}

resource "aws_iam_role_policy" "cleanup_machine" {
  name = "clean-up"
  role = aws_iam_role.cleanup_machine.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = ["lambda:InvokeFunction"], Resource = aws_lambda_function.function["Cleanup"].arn },
      { Effect = "Allow", Action = ["states:StopExecution"], Resource = local.child_arn },
    ]
  })
}

resource "aws_sfn_state_machine" "cleanup" {
  name     = "${substr(var.name, 0, 60)}-cleanup"
  role_arn = aws_iam_role.cleanup_machine.arn
  definition = templatefile("${path.module}/../statemachines/cleanup.asl.json", {
    CleanupFunctionArn = aws_lambda_function.function["Cleanup"].arn
    LateRequestSeconds = var.late_request_seconds
    Partition          = local.partition
  })
}

resource "aws_iam_role" "run_under_lock" {
  name_prefix        = "${substr(var.name, 0, 20)}-run-sfn-"
  assume_role_policy = local.states_trust
}

resource "aws_iam_role_policy" "run_under_lock" {
  name = "run-under-lock"
  role = aws_iam_role.run_under_lock.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = ["lambda:InvokeFunction"], Resource = aws_lambda_function.function["Invoke"].arn },
      { Effect = "Allow", Action = ["states:StartExecution", "states:DescribeStateMachine"], Resource = local.runnable_arn },
      { Effect = "Allow", Action = ["states:StartExecution"], Resource = aws_sfn_state_machine.cleanup.arn },
      { Effect = "Allow", Action = ["states:DescribeExecution", "states:StopExecution"], Resource = local.child_arn },
    ]
  })
}

resource "aws_sfn_state_machine" "run_under_lock" {
  name     = "${substr(var.name, 0, 60)}-run-under-lock"
  role_arn = aws_iam_role.run_under_lock.arn
  definition = templatefile("${path.module}/../statemachines/run-under-lock.asl.json", {
    InvokeFunctionArn      = aws_lambda_function.function["Invoke"].arn
    CleanupStateMachineArn = aws_sfn_state_machine.cleanup.arn
    Partition              = local.partition
  })
}

resource "aws_cloudwatch_event_rule" "cleanup" {
  name        = "${substr(var.name, 0, 56)}-cleanup"
  description = "Executions of run-under-lock that ended without releasing their lock"
  event_pattern = jsonencode({
    source        = ["aws.states"]
    "detail-type" = ["Step Functions Execution Status Change"]
    detail = {
      stateMachineArn = [aws_sfn_state_machine.run_under_lock.arn]
      "$or" = [
        { status = ["ABORTED", "TIMED_OUT"] },
        { status = ["FAILED"], error = [null, { exists = false }, { prefix = "States." }, "ChildNotStopped", "LockNotReleased"] },
      ]
    }
  })
}

resource "aws_iam_role" "cleanup_rule" {
  name_prefix = "${substr(var.name, 0, 20)}-rule-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "events.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "cleanup_rule" {
  name = "start-the-clean-up"
  role = aws_iam_role.cleanup_rule.id
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = ["states:StartExecution"], Resource = aws_sfn_state_machine.cleanup.arn }]
  })
}

resource "aws_sqs_queue" "cleanup_dead_letters" {
  name                      = "${substr(var.name, 0, 50)}-cleanup-dead-letters"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue_policy" "cleanup_dead_letters" {
  queue_url = aws_sqs_queue.cleanup_dead_letters.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "events.amazonaws.com" }
      Action    = "sqs:SendMessage"
      Resource  = aws_sqs_queue.cleanup_dead_letters.arn
      Condition = { ArnEquals = { "aws:SourceArn" = aws_cloudwatch_event_rule.cleanup.arn } }
    }]
  })
}

resource "aws_cloudwatch_event_target" "cleanup" {
  rule     = aws_cloudwatch_event_rule.cleanup.name
  arn      = aws_sfn_state_machine.cleanup.arn
  role_arn = aws_iam_role.cleanup_rule.arn

  retry_policy {
    maximum_event_age_in_seconds = 3600
    maximum_retry_attempts       = 60
  }

  dead_letter_config {
    arn = aws_sqs_queue.cleanup_dead_letters.arn
  }
}

# ---- Waking -------------------------------------------------------------------------------------------------------
# Executions that wait for a lock leave a token in a table of their own and sleep. Changes of both tables start the waker.

locals {
  # Rows that are gone or released, and semaphores with permits. A semaphore's heartbeats pass too, while it has some.
  freed_patterns = [
    "{\"eventName\": [\"REMOVE\"]}",
    "{\"dynamodb\": {\"NewImage\": {\"isReleased\": {\"S\": [{\"exists\": true}]}}}}",
    "{\"dynamodb\": {\"NewImage\": {\"leaseholdKind\": {\"S\": [\"semaphore\"]}, \"available\": {\"N\": [{\"anything-but\": {\"prefix\": \"-\"}}]}}}}",
  ]
  sleepers_patterns = ["{\"eventName\": [\"INSERT\", \"MODIFY\"]}"]
  all_pipes = {
    freed    = { source = local.table_stream_arn, patterns = local.freed_patterns }
    sleepers = { source = one(aws_dynamodb_table.waiters[*].stream_arn), patterns = local.sleepers_patterns }
  }
  pipes            = { for name, pipe in local.all_pipes : name => pipe if var.wake_waiters }
  table_stream_arn = var.existing_table_name == "" ? aws_dynamodb_table.locks[0].stream_arn : "${local.table_arn}/stream/${var.existing_table_stream_label}"
}

# Tokens of executions that sleep. Without the tokens a sleep ends by its time-out.
resource "aws_dynamodb_table" "waiters" {
  count            = var.wake_waiters ? 1 : 0
  name             = "${var.name}-waiters"
  billing_mode     = "PAY_PER_REQUEST"
  hash_key         = "lock"
  range_key        = "waiter"
  stream_enabled   = true
  stream_view_type = "KEYS_ONLY"

  attribute {
    name = "lock"
    type = "S"
  }

  attribute {
    name = "waiter"
    type = "S"
  }

  ttl {
    attribute_name = "expireAt"
    enabled        = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = var.table_kms_key_arn == "" ? null : var.table_kms_key_arn
  }
}

resource "aws_iam_role" "waker" {
  count              = var.wake_waiters ? 1 : 0
  name_prefix        = "${substr(var.name, 0, 20)}-waker-sfn-"
  assume_role_policy = local.states_trust
}

resource "aws_iam_role_policy" "waker" {
  count = var.wake_waiters ? 1 : 0
  name  = "waker"
  role  = aws_iam_role.waker[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = ["dynamodb:GetItem"], Resource = local.table_arn },
      { Effect = "Allow", Action = ["dynamodb:Query", "dynamodb:DeleteItem"], Resource = aws_dynamodb_table.waiters[0].arn },
      # Whoever may write tokens into the table of the waiters has them answered.
      { Effect = "Allow", Action = ["states:SendTaskSuccess"], Resource = "arn:${local.partition}:states:${local.region}:${local.account}:stateMachine:*" },
    ]
  })
}

resource "aws_sfn_state_machine" "waker" {
  count    = var.wake_waiters ? 1 : 0
  name     = "${substr(var.name, 0, 60)}-waker"
  type     = "EXPRESS"
  role_arn = aws_iam_role.waker[0].arn
  definition = templatefile("${path.module}/../statemachines/waker.asl.json", {
    TableName        = local.table_name
    PartitionKeyName = var.partition_key_name
    SortKeyName      = var.sort_key_name
    WaitersTableName = aws_dynamodb_table.waiters[0].name
    Partition        = local.partition
  })
}

resource "aws_iam_role" "waker_pipes" {
  count       = var.wake_waiters ? 1 : 0
  name_prefix = "${substr(var.name, 0, 20)}-pipes-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "pipes.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "waker_pipes" {
  count = var.wake_waiters ? 1 : 0
  name  = "streams-to-the-waker"
  role  = aws_iam_role.waker_pipes[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"], Resource = [for pipe in local.pipes : pipe.source] },
      { Effect = "Allow", Action = ["dynamodb:ListStreams"], Resource = "*" },
      { Effect = "Allow", Action = ["states:StartExecution"], Resource = aws_sfn_state_machine.waker[0].arn },
    ]
  })
}

resource "aws_pipes_pipe" "pipe" {
  for_each = local.pipes
  name     = "${substr(var.name, 0, 50)}-${each.key}"
  role_arn = aws_iam_role.waker_pipes[0].arn
  source   = each.value.source
  target   = aws_sfn_state_machine.waker[0].arn

  source_parameters {
    dynamodb_stream_parameters {
      starting_position             = "LATEST"
      batch_size                    = 10
      maximum_retry_attempts        = 3
      maximum_record_age_in_seconds = 300
    }

    filter_criteria {
      dynamic "filter" {
        for_each = each.value.patterns
        content {
          pattern = filter.value
        }
      }
    }
  }

  target_parameters {
    # Of a row nothing but its key.
    input_template = "{\"eventSourceARN\": <$.eventSourceARN>, \"dynamodb\": {\"Keys\": <$.dynamodb.Keys>}}"

    step_function_state_machine_parameters {
      invocation_type = "FIRE_AND_FORGET"
    }
  }

  depends_on = [aws_iam_role_policy.waker_pipes]
}

# ---- Logs ---------------------------------------------------------------------------------------------------------

resource "aws_cloudwatch_log_group" "functions" {
  name              = "/aws/lambda/${var.name}"
  retention_in_days = var.log_retention_days
}

resource "aws_cloudwatch_log_group" "access" {
  name              = "/aws/vendedlogs/${var.name}"
  retention_in_days = var.log_retention_days
}

# ---- Alarms -------------------------------------------------------------------------------------------------------

locals {
  alarms = {
    server-errors = {
      description = "The API answered with 5xx", namespace = "AWS/ApiGateway", metric = "5xx", threshold = 0
      dimensions  = { ApiId = aws_apigatewayv2_api.api.id }
    }
    lost-locks = {
      description = "Holders found at a heartbeat that they had lost their lock", namespace = "Leasehold", metric = "Lost", threshold = var.lost_locks_alarm_count
      dimensions  = { stack = var.name, operation = "heartbeat" }
    }
    unavailable = {
      description = "Heartbeats ended without an answer from DynamoDB", namespace = "Leasehold", metric = "Unavailable", threshold = 0
      dimensions  = { stack = var.name, operation = "heartbeat" }
    }
    table-throttles = {
      description = "DynamoDB refused writes to the table", namespace = "AWS/DynamoDB", metric = "WriteThrottleEvents", threshold = 0
      dimensions  = { TableName = local.table_name }
    }
    clean-up-failed = {
      description = "A clean-up after an execution failed", namespace = "AWS/States", metric = "ExecutionsFailed", threshold = 0
      dimensions  = { StateMachineArn = aws_sfn_state_machine.cleanup.arn }
    }
    waker-failed = {
      description = "The waker failed; executions sleep until their time-out, at most a lease", namespace = "AWS/States", metric = "ExecutionsFailed", threshold = 0
      dimensions  = { StateMachineArn = one(aws_sfn_state_machine.waker[*].arn) }
    }
    clean-up-not-started = {
      description = "No clean-up could be started for an execution that ended", namespace = "AWS/SQS", metric = "ApproximateNumberOfMessagesVisible", threshold = 0
      dimensions  = { QueueName = aws_sqs_queue.cleanup_dead_letters.name }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "alarm" {
  for_each            = { for name, alarm in local.alarms : name => alarm if name != "waker-failed" || var.wake_waiters }
  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.description
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  period              = 300
  statistic           = each.key == "clean-up-not-started" ? "Maximum" : "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
  ok_actions          = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
}
