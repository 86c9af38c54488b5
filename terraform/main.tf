# Leasehold: an HTTP API, a function for each family of its operations, one DynamoDB table, and state machines. The module reads the
# functions, routes, events and alarms out of template.yaml; a test compares its plan with that template.

data "aws_partition" "current" {}
data "aws_region" "current" {}
data "aws_caller_identity" "current" {}

locals {
  partition = data.aws_partition.current.partition
  region    = data.aws_region.current.id
  account   = data.aws_caller_identity.current.account_id

  # Without CloudFormation's tags, `!Ref Api` is the text "Api", and `!If [A, B, C]` a list.
  # The files are beside the module in the repository, and in it where it is packaged: scripts/terraform.sh --package.
  files    = fileexists("${path.module}/template.yaml") ? path.module : "${path.module}/.."
  template = yamldecode(replace(file("${local.files}/template.yaml"), "/!\\w+ ?/", ""))
  # The template's conditions. Those that are missing here are about what the module does not have.
  conditions = {
    Always          = true
    EachFunction    = var.functions == "each"
    OneFunction     = var.functions == "one"
    HasWatches      = var.watch_concurrency > 0
    HasTransactions = local.has_transactions
    HasRestApi      = local.has_rest_api
    WakesWaiters    = var.wake_waiters
  }
  resources = {
    for name, resource in local.template.Resources : name => resource
    if lookup(local.conditions, try(resource.Condition, "Always"), false)
  }
  # The template's parameters, and the names that CloudFormation would know.
  parameters = {
    "AWS::StackName"    = var.name
    PartitionKeyName    = var.partition_key_name
    SortKeyName         = var.sort_key_name
    RetentionSeconds    = tostring(var.retention_seconds)
    ClockSkewMs         = tostring(var.clock_skew_ms)
    TakeoverClockCheck  = tostring(var.takeover_clock_check)
    LogLevel            = var.log_level
    KeyScopes           = var.key_scopes
    OwnerBinding        = tostring(var.owner_binding)
    JwtClaim            = var.jwt_claim
    OperationMetrics    = tostring(var.operation_metrics)
    LostLocksAlarmCount = tostring(var.lost_locks_alarm_count)
    HoldRateLimit       = tostring(var.hold_rate_limit)
    OperateRateLimit    = tostring(var.operate_rate_limit)

    TransactionIdleSeconds      = tostring(var.transaction_idle_seconds)
    TransactionRetentionSeconds = tostring(var.transaction_retention_seconds)
    TransactionPatienceMs       = tostring(var.transaction_patience_ms)
  }
  has_transactions = length(var.transaction_table_arns) > 0
  has_rest_api     = var.rest_api != "none"

  functions = {
    for name, resource in local.resources : trimsuffix(name, "Function") => resource.Properties
    if resource.Type == "AWS::Serverless::Function"
  }
  # The function whose role a function has, mostly itself.
  roles = { for name, function in local.functions : name => split("FunctionRole", function.Role)[0] }
  # The concurrent executions of a function: its own, or those that each function has.
  concurrency = {
    for name, function in local.functions : name => (
      !can(function.ReservedConcurrentExecutions) ? var.reserved_concurrency :
      name == "Watch" ? var.watch_concurrency : var.hold_concurrency == 0 ? -1 : var.hold_concurrency
    )
  }
  # A route's target names the integration of the function that answers it, or two: the second one where one function
  # serves those who hold and those who ask.
  integrations = {
    for resource in values(local.resources) :
    resource.Properties.RouteKey => flatten(regexall("(\\w+)Integration", jsonencode(resource.Properties.Target)))
    if resource.Type == "AWS::ApiGatewayV2::Route"
  }
  routes = { for route, names in local.integrations : route => var.functions == "each" ? names[0] : reverse(names)[0] }

  # What calls a function calls its alias, where it has one.
  released = [for name in keys(local.functions) : name if var.release != "" && can(local.template.Resources["${name}Live"])]
  called   = { for name, function in aws_lambda_function.function : name => contains(local.released, name) ? aws_lambda_alias.live[name].arn : function.arn }

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

  dynamic "attribute" {
    for_each = compact([var.partition_key_name, var.sort_key_name])
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

locals {
  # DynamoDB decrypts a table with a key of the user's in the name of its caller.
  through_dynamodb = var.table_kms_key_arn == "" ? [] : [{
    Effect    = "Allow"
    Action    = ["kms:Decrypt"]
    Resource  = var.table_kms_key_arn
    Condition = { StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" } }
  }]
}

# Makes the secret in the lease ids of executions. It never leaves KMS.
resource "aws_kms_key" "execution" {
  description              = local.resources.ExecutionKey.Properties.Description
  customer_master_key_spec = "HMAC_256"
  key_usage                = "GENERATE_VERIFY_MAC"
  deletion_window_in_days  = 7
}

locals {
  # A binary knows its functions by their handlers.
  code = {
    for name in keys(local.functions) :
    name => "${var.code_directory}/${local.template.Resources["${name}Function"].Metadata.BuildProperties.Binary}/bootstrap.zip"
  }
  # What the statements of a function's role are about, by the template's words.
  subjects = {
    "TransactionTable.Arn"                 = one(aws_dynamodb_table.transactions[*].arn)
    "$${TransactionTable.Arn}/index/sweep" = "${local.has_transactions ? aws_dynamodb_table.transactions[0].arn : ""}/index/sweep"
    TransactionTableArns                   = var.transaction_table_arns
  }
  environment = {
    for name, reference in local.template.Globals.Function.Environment.Variables : name => local.parameters[reference]
    if can(local.parameters[reference])
  }
  # The functions that name executions.
  namers = [for name, function in local.functions : name if can(function.Environment.Variables.LEASEHOLD_EXECUTION_KEY)]
}

resource "aws_iam_role" "role" {
  for_each    = merge({ for name in toset(values(local.roles)) : name => "lambda" }, local.services)
  name_prefix = "${substr(var.name, 0, 16)}-${lower(each.key)}-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [merge(
      { Effect = "Allow", Principal = { Service = "${each.value}.amazonaws.com" }, Action = "sts:AssumeRole" },
      # These two do not say for which account they act.
      contains(["lambda", "apigateway"], each.value) ? {} : { Condition = { StringEquals = { "aws:SourceAccount" = local.account } } },
    )]
  })
}

resource "aws_iam_role_policy" "function_table" {
  for_each = toset(values(local.roles))
  name     = "table"
  role     = aws_iam_role.role[each.key].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        for statement in local.resources["${each.key}FunctionRole"].Properties.Policies[0].PolicyDocument.Statement :
        merge(statement, { Resource = try(local.subjects[statement.Resource], local.table_arn) })
      ],
      contains(local.namers, each.key) ? [{ Effect = "Allow", Action = ["kms:GenerateMac"], Resource = aws_kms_key.execution.arn }] : [],
      [{ Effect = "Allow", Action = ["logs:CreateLogStream", "logs:PutLogEvents"], Resource = "${aws_cloudwatch_log_group.functions.arn}:*" }],
      local.through_dynamodb,
    )
  })
}

resource "aws_lambda_function" "function" {
  for_each                       = local.functions
  function_name                  = "${var.name}-${lower(each.key)}"
  role                           = aws_iam_role.role[local.roles[each.key]].arn
  runtime                        = local.template.Globals.Function.Runtime
  handler                        = each.value.Handler
  architectures                  = [var.architecture]
  memory_size                    = var.memory_mb
  timeout                        = try(each.value.Timeout, local.template.Globals.Function.Timeout)
  filename                       = local.code[each.key]
  source_code_hash               = fileexists(local.code[each.key]) ? filebase64sha256(local.code[each.key]) : null
  publish                        = contains(local.released, each.key)
  description                    = contains(local.released, each.key) ? "Leasehold, release ${var.release}" : "Leasehold"
  reserved_concurrent_executions = local.concurrency[each.key]

  logging_config {
    log_group        = aws_cloudwatch_log_group.functions.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  environment {
    variables = merge(
      local.environment,
      { LEASEHOLD_TABLE_NAME = local.table_name },
      contains(local.namers, each.key) ? { LEASEHOLD_EXECUTION_KEY = aws_kms_key.execution.arn } : {},
      contains(["Transact", "Sweep"], each.key) ? {
        for name, reference in each.value.Environment.Variables :
        name => reference == "TransactionTable" ? aws_dynamodb_table.transactions[0].name : local.parameters[reference]
      } : {},
    )
  }

  depends_on = [aws_iam_role_policy.function_table]
}

# A release: what is called is a published version, and a function's change moves the alias to the next one.
resource "aws_lambda_alias" "live" {
  for_each         = toset(local.released)
  name             = "live"
  function_name    = aws_lambda_function.function[each.key].function_name
  function_version = aws_lambda_function.function[each.key].version
}

# ---- The API ------------------------------------------------------------------------------------------------------

resource "aws_apigatewayv2_api" "api" {
  name          = var.name
  description   = "Leasehold"
  protocol_type = "HTTP"
}

# A stage knows the routes that it has settings for.
resource "aws_apigatewayv2_stage" "default" {
  api_id      = aws_apigatewayv2_api.api.id
  name        = "$default"
  auto_deploy = true

  default_route_settings {
    throttling_rate_limit  = var.throttling_rate_limit
    throttling_burst_limit = var.throttling_burst_limit
  }

  dynamic "route_settings" {
    for_each = local.resources.Stage.Properties.RouteSettings
    content {
      route_key              = route_settings.key
      throttling_rate_limit  = local.parameters[route_settings.value.ThrottlingRateLimit]
      throttling_burst_limit = local.parameters[route_settings.value.ThrottlingBurstLimit]
    }
  }

  access_log_settings {
    destination_arn = aws_cloudwatch_log_group.access.arn
    format          = local.resources.Stage.Properties.AccessLogSettings.Format
  }

  depends_on = [aws_apigatewayv2_route.route]
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
  integration_uri        = local.called[each.key]
  payload_format_version = "2.0"
}

resource "aws_apigatewayv2_route" "route" {
  for_each           = local.routes
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = each.key
  target             = "integrations/${aws_apigatewayv2_integration.function[each.value].id}"
  authorization_type = var.authorizer
  authorizer_id      = var.authorizer == "JWT" ? aws_apigatewayv2_authorizer.jwt[0].id : null
  # Operators need the scope of a break, where one is named.
  authorization_scopes = try(compact([{ Operate = var.jwt_break_scope, Sweep = var.jwt_sweep_scope }[each.value]]), null)
}

resource "aws_lambda_permission" "route" {
  for_each      = local.routes
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.function[each.value].function_name
  qualifier     = contains(local.released, each.value) ? aws_lambda_alias.live[each.value].name : null
  principal     = "apigateway.amazonaws.com"
  source_arn    = "${aws_apigatewayv2_api.api.execution_arn}/*/${replace(each.key, "ANY ", "*")}"
}

# Callers need lambda:InvokeFunctionUrl and lambda:InvokeFunction on the function.
resource "aws_lambda_function_url" "acquire" {
  count              = var.function_url ? 1 : 0
  function_name      = aws_lambda_function.function["Acquire"].function_name
  authorization_type = "AWS_IAM"
}

# ---- A REST API ----------------------------------------------------------------------------------------------------
# The same routes, for a resource policy and AWS WAF, or for callers inside of a VPC only.

locals {
  rest_paths = {
    for route, function in local.routes : route == "$default" ? "/{proxy+}" : trimprefix(route, "ANY ") => {
      x-amazon-apigateway-any-method = merge(var.authorizer == "AWS_IAM" ? { security = [{ sigv4 = [] }] } : {}, {
        x-amazon-apigateway-integration = {
          type        = "aws_proxy"
          httpMethod  = "POST"
          credentials = aws_iam_role.role["RestApi"].arn
          uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.called[function]}/invocations"
        }
      })
    } if local.has_rest_api
  }
  rest_deny = { Effect = "Deny", Principal = "*", Action = "execute-api:Invoke", Resource = "execute-api:/*" }
}

resource "aws_api_gateway_rest_api" "rest" {
  count = local.has_rest_api ? 1 : 0
  name  = "${var.name}-rest"
  body = jsonencode({
    swagger             = "2.0"
    info                = { title = "${var.name}-rest", version = "1" }
    securityDefinitions = { sigv4 = { type = "apiKey", name = "Authorization", in = "header", x-amazon-apigateway-authtype = "awsSigv4" } }
    paths               = merge(local.rest_paths, { "/" = local.rest_paths["/{proxy+}"] })
  })
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [{
        Effect    = "Allow"
        Principal = var.authorizer == "AWS_IAM" ? { AWS = "arn:${local.partition}:iam::${local.account}:root" } : { AWS = "*" }
        Action    = "execute-api:Invoke"
        Resource  = "execute-api:/*"
      }],
      var.rest_api == "private" ? [merge(local.rest_deny, { Condition = { StringNotEquals = { "aws:SourceVpce" = var.rest_api_vpc_endpoint_ids } } })] : [],
      var.rest_api == "regional" && length(var.rest_api_source_ranges) > 0 ? [merge(local.rest_deny, { Condition = { NotIpAddress = { "aws:SourceIp" = var.rest_api_source_ranges } } })] : [],
    )
  })

  endpoint_configuration {
    types            = [upper(var.rest_api)]
    vpc_endpoint_ids = var.rest_api == "private" ? var.rest_api_vpc_endpoint_ids : null
  }
}

resource "aws_api_gateway_deployment" "rest" {
  count       = local.has_rest_api ? 1 : 0
  rest_api_id = aws_api_gateway_rest_api.rest[0].id
  triggers    = { definition = sha256("${aws_api_gateway_rest_api.rest[0].body}${aws_api_gateway_rest_api.rest[0].policy}") }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_api_gateway_stage" "rest" {
  count         = local.has_rest_api ? 1 : 0
  rest_api_id   = aws_api_gateway_rest_api.rest[0].id
  deployment_id = aws_api_gateway_deployment.rest[0].id
  stage_name    = "live"
}

resource "aws_api_gateway_method_settings" "rest" {
  count       = local.has_rest_api ? 1 : 0
  rest_api_id = aws_api_gateway_rest_api.rest[0].id
  stage_name  = aws_api_gateway_stage.rest[0].stage_name
  method_path = "*/*"

  settings {
    throttling_rate_limit  = var.throttling_rate_limit
    throttling_burst_limit = var.throttling_burst_limit
  }
}

resource "aws_wafv2_web_acl_association" "rest" {
  count        = local.has_rest_api && var.rest_api_web_acl_arn != "" ? 1 : 0
  resource_arn = aws_api_gateway_stage.rest[0].arn
  web_acl_arn  = var.rest_api_web_acl_arn
}

# ---- Transactions --------------------------------------------------------------------------------------------------
# docs/transactions.md. All of it is there only if transaction_table_arns names a table.

resource "aws_dynamodb_table" "transactions" {
  count                       = local.has_transactions ? 1 : 0
  name                        = "${var.name}-transactions"
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = "transactionId"
  range_key                   = "row"
  deletion_protection_enabled = var.table_deletion_protection

  dynamic "attribute" {
    for_each = local.template.Resources.TransactionTable.Properties.AttributeDefinitions
    content {
      name = attribute.value.AttributeName
      type = attribute.value.AttributeType
    }
  }

  # The transactions that a sweeper must examine, and the time from which on.
  global_secondary_index {
    name            = "sweep"
    hash_key        = "sweepShard"
    range_key       = "sweepAt"
    projection_type = "KEYS_ONLY"
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

resource "aws_cloudwatch_event_rule" "sweep" {
  count               = local.has_transactions ? 1 : 0
  name                = "${substr(var.name, 0, 56)}-sweep"
  description         = local.resources.SweepRule.Properties.Description
  schedule_expression = local.resources.SweepRule.Properties.ScheduleExpression
}

resource "aws_cloudwatch_event_target" "sweep" {
  count = local.has_transactions ? 1 : 0
  rule  = aws_cloudwatch_event_rule.sweep[0].name
  arn   = aws_lambda_function.function["Sweep"].arn

  # The next sweep is never far.
  retry_policy {
    maximum_event_age_in_seconds = 60
    maximum_retry_attempts       = 0
  }
}

resource "aws_lambda_permission" "sweep" {
  count         = local.has_transactions ? 1 : 0
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.function["Sweep"].function_name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.sweep[0].arn
}

# ---- State machines -----------------------------------------------------------------------------------------------

locals {
  states_arn = "arn:${local.partition}:states:${local.region}:${local.account}"
  child_arn  = "${local.states_arn}:execution:${var.runnable_state_machines}:leasehold-*"
  # The roles of what is no function: the service that takes them, and what they allow.
  services = merge(
    { RunUnderLock = "states", CleanupStateMachine = "states", CleanupRule = "events" },
    var.wake_waiters ? { Waker = "states", WakerPipes = "pipes" } : {},
    local.has_rest_api ? { RestApi = "apigateway" } : {},
  )
  statements = {
    RunUnderLock = [
      { Action = ["lambda:InvokeFunction"], Resource = aws_lambda_function.function["Invoke"].arn },
      { Action = ["states:StartExecution", "states:DescribeStateMachine"], Resource = "${local.states_arn}:stateMachine:${var.runnable_state_machines}" },
      { Action = ["states:StartExecution"], Resource = aws_sfn_state_machine.cleanup.arn },
      { Action = ["states:DescribeExecution", "states:StopExecution"], Resource = local.child_arn },
    ]
    CleanupStateMachine = [
      { Action = ["lambda:InvokeFunction"], Resource = aws_lambda_function.function["Cleanup"].arn },
      { Action = ["states:StopExecution"], Resource = local.child_arn },
      { Action = ["states:GetExecutionHistory"], Resource = "${local.states_arn}:execution:*" },
    ]
    CleanupRule = [{ Action = ["states:StartExecution"], Resource = aws_sfn_state_machine.cleanup.arn }]
    RestApi     = [{ Action = ["lambda:InvokeFunction"], Resource = [for function in distinct(values(local.routes)) : local.called[function]] }]
    Waker = [
      { Action = ["dynamodb:GetItem"], Resource = local.table_arn },
      { Action = ["dynamodb:Query", "dynamodb:DeleteItem"], Resource = one(aws_dynamodb_table.waiters[*].arn) },
      # Whoever may write tokens into the table of the waiters has them answered.
      { Action = ["states:SendTaskSuccess"], Resource = "${local.states_arn}:stateMachine:*" },
    ]
    WakerPipes = [
      { Action = ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"], Resource = values(local.pipes) },
      { Action = ["dynamodb:ListStreams"], Resource = "*" },
      { Action = ["states:StartExecution"], Resource = one(aws_sfn_state_machine.waker[*].arn) },
      { Action = ["sqs:SendMessage"], Resource = one(aws_sqs_queue.waker_dead_letters[*].arn) },
    ]
  }
}

resource "aws_iam_role_policy" "machine" {
  for_each = local.services
  name     = each.key
  role     = aws_iam_role.role[each.key].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [for statement in local.statements[each.key] : merge({ Effect = "Allow" }, statement)],
      startswith(each.key, "Waker") ? local.through_dynamodb : [],
    )
  })
}

resource "aws_sfn_state_machine" "cleanup" {
  name     = "${substr(var.name, 0, 60)}-cleanup"
  role_arn = aws_iam_role.role["CleanupStateMachine"].arn
  definition = templatefile("${local.files}/statemachines/cleanup.asl.json", {
    CleanupFunctionArn = aws_lambda_function.function["Cleanup"].arn
    LateRequestSeconds = var.late_request_seconds
    Partition          = local.partition
  })
}

resource "aws_sfn_state_machine" "run_under_lock" {
  name     = "${substr(var.name, 0, 60)}-run-under-lock"
  role_arn = aws_iam_role.role["RunUnderLock"].arn
  definition = templatefile("${local.files}/statemachines/run-under-lock.asl.json", {
    InvokeFunctionArn      = aws_lambda_function.function["Invoke"].arn
    CleanupStateMachineArn = aws_sfn_state_machine.cleanup.arn
    Partition              = local.partition
  })
}

resource "aws_cloudwatch_event_rule" "cleanup" {
  name        = "${substr(var.name, 0, 56)}-cleanup"
  description = local.resources.CleanupRule.Properties.Description
  event_pattern = jsonencode(merge(local.resources.CleanupRule.Properties.EventPattern, {
    detail = merge(local.resources.CleanupRule.Properties.EventPattern.detail, {
      stateMachineArn = [aws_sfn_state_machine.run_under_lock.arn]
    })
  }))
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
  role_arn = aws_iam_role.role["CleanupRule"].arn

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
  table_stream_arn = var.existing_table_name == "" ? aws_dynamodb_table.locks[0].stream_arn : "${local.table_arn}/stream/${var.existing_table_stream_label}"
  # The pipes, and their streams.
  pipes = var.wake_waiters ? { Freed = local.table_stream_arn, Sleepers = aws_dynamodb_table.waiters[0].stream_arn } : {}
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

  dynamic "attribute" {
    for_each = ["lock", "waiter"]
    content {
      name = attribute.value
      type = "S"
    }
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

resource "aws_sfn_state_machine" "waker" {
  count    = var.wake_waiters ? 1 : 0
  name     = "${substr(var.name, 0, 60)}-waker"
  type     = "EXPRESS"
  role_arn = aws_iam_role.role["Waker"].arn
  definition = templatefile("${local.files}/statemachines/waker.asl.json", {
    TableName        = local.table_name
    PartitionKeyName = var.partition_key_name
    SortKeyName      = var.sort_key_name
    WaitersTableName = aws_dynamodb_table.waiters[0].name
    Partition        = local.partition
  })

  # Without the data of executions: the tokens of the waiters are in them.
  logging_configuration {
    level                  = "ERROR"
    include_execution_data = false
    log_destination        = "${aws_cloudwatch_log_group.waker[0].arn}:*"
  }

  depends_on = [aws_iam_role_policy.waker_log]
}

# Of its own, because a state machine with a log is made only under a role that may write it.
resource "aws_iam_role_policy" "waker_log" {
  for_each = var.wake_waiters ? toset(["Waker"]) : []
  name     = "log"
  role     = aws_iam_role.role[each.key].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect = "Allow"
      Action = [
        "logs:CreateLogDelivery", "logs:GetLogDelivery", "logs:UpdateLogDelivery", "logs:DeleteLogDelivery",
        "logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:DescribeResourcePolicies", "logs:DescribeLogGroups",
      ]
      # These actions take no resource.
      Resource = "*"
    }]
  })
}

# Changes that did not reach the waker. The waiters' sleep ends by its time-out.
resource "aws_sqs_queue" "waker_dead_letters" {
  count                     = var.wake_waiters ? 1 : 0
  name                      = "${substr(var.name, 0, 50)}-waker-dead-letters"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
}

resource "aws_pipes_pipe" "pipe" {
  for_each = local.pipes
  name     = "${substr(var.name, 0, 50)}-${lower(each.key)}"
  role_arn = aws_iam_role.role["WakerPipes"].arn
  source   = each.value
  target   = aws_sfn_state_machine.waker[0].arn

  source_parameters {
    dynamodb_stream_parameters {
      starting_position             = "LATEST"
      batch_size                    = 10
      maximum_retry_attempts        = 3
      maximum_record_age_in_seconds = 300

      dead_letter_config {
        arn = aws_sqs_queue.waker_dead_letters[0].arn
      }
    }

    filter_criteria {
      dynamic "filter" {
        for_each = local.resources["${each.key}Pipe"].Properties.SourceParameters.FilterCriteria.Filters
        content {
          pattern = filter.value.Pattern
        }
      }
    }
  }

  log_configuration {
    level = "ERROR"

    cloudwatch_logs_log_destination {
      log_group_arn = aws_cloudwatch_log_group.waker[0].arn
    }
  }

  target_parameters {
    input_template = local.resources["${each.key}Pipe"].Properties.TargetParameters.InputTemplate

    step_function_state_machine_parameters {
      invocation_type = "FIRE_AND_FORGET"
    }
  }

  depends_on = [aws_iam_role_policy.machine]
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

resource "aws_cloudwatch_log_group" "waker" {
  count             = var.wake_waiters ? 1 : 0
  name              = "/aws/vendedlogs/${var.name}-waker"
  retention_in_days = var.log_retention_days
}

# ---- Alarms -------------------------------------------------------------------------------------------------------

resource "aws_cloudwatch_log_metric_filter" "crashes" {
  name           = "${var.name}-crashes"
  log_group_name = aws_cloudwatch_log_group.functions.name
  pattern        = local.resources.CrashFilter.Properties.FilterPattern

  metric_transformation {
    namespace     = "Leasehold/${var.name}"
    name          = "Crashes"
    value         = "1"
    default_value = "0"
  }
}

locals {
  # What the dimensions of alarms name.
  physical = merge({ for name, function in aws_lambda_function.function : "${name}Function" => function.function_name }, {
    "AWS::StackName"               = var.name
    Api                            = aws_apigatewayv2_api.api.id
    CleanupStateMachine            = aws_sfn_state_machine.cleanup.arn
    TransactionTable               = one(aws_dynamodb_table.transactions[*].name)
    "$${AWS::StackName}-rest"      = "${var.name}-rest"
    Waker                          = one(aws_sfn_state_machine.waker[*].arn)
    "CleanupDeadLetters.QueueName" = aws_sqs_queue.cleanup_dead_letters.name
    "WakerDeadLetters.QueueName"   = one(aws_sqs_queue.waker_dead_letters[*].name)
  })
}

resource "aws_cloudwatch_metric_alarm" "alarm" {
  for_each            = { for name, resource in local.resources : name => resource.Properties if resource.Type == "AWS::CloudWatch::Alarm" }
  alarm_name          = "${var.name}-${lower(replace(trimsuffix(each.key, "Alarm"), "/([a-z])([A-Z])/", "$1-$2"))}"
  alarm_description   = each.value.AlarmDescription
  namespace           = replace(each.value.Namespace, "$${AWS::StackName}", var.name)
  metric_name         = each.value.MetricName
  dimensions          = { for dimension in try(each.value.Dimensions, []) : dimension.Name => dimension.Name == "TableName" && !can(tostring(dimension.Value)) ? local.table_name : lookup(local.physical, dimension.Value, dimension.Value) }
  period              = each.value.Period
  statistic           = can(each.value.ExtendedStatistic) ? null : each.value.Statistic
  extended_statistic  = try(each.value.ExtendedStatistic, null)
  comparison_operator = each.value.ComparisonOperator
  threshold           = try(local.parameters[each.value.Threshold], local.template.Parameters[each.value.Threshold].Default, each.value.Threshold)
  evaluation_periods  = each.value.EvaluationPeriods
  treat_missing_data  = each.value.TreatMissingData
  alarm_actions       = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
  ok_actions          = var.alarm_topic_arn == "" ? [] : [var.alarm_topic_arn]
}
