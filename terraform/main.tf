# Made of template.yaml by generate.py: change the template, and run scripts/terraform.sh --generate.

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
locals {
  lacks_pipes = anytrue([
    local.region == "ap-east-2",
    local.region == "ap-southeast-6",
    local.region == "ap-southeast-4",
    local.region == "ap-southeast-5",
    local.region == "ap-southeast-7",
    local.region == "ca-west-1",
    local.region == "il-central-1",
    local.region == "mx-central-1",
    local.region == "us-gov-east-1",
    local.region == "us-gov-west-1",
  ])
  lacks_function_urls = anytrue([
    local.lacks_pipes,
    local.region == "ap-south-2",
    local.region == "eu-central-2",
    local.region == "me-central-1",
    local.region == "cn-northwest-1",
  ])
  uses_jwt                   = var.authorizer == "JWT"
  break_needs_scope          = local.uses_jwt && var.jwt_break_scope != ""
  makes_table                = var.existing_table_name == ""
  is_multi_region            = var.multi_region
  has_sort_key               = var.sort_key_name != ""
  hides_execute_api_endpoint = !var.execute_api_endpoint
  has_kms_key                = var.table_kms_key_arn != ""
  each_function              = var.functions == "each"
  one_function               = !local.each_function
  has_release                = var.release != ""
  has_release_of_each        = local.has_release && local.each_function
  has_release_of_one         = local.has_release && local.one_function
  has_domain                 = var.domain_name != ""
  has_certificate            = var.domain_certificate_arn != ""
  has_truststore             = var.domain_truststore_uri != ""
  has_rest_api               = var.rest_api != "none"
  rest_api_is_private        = var.rest_api == "private"
  rest_api_is_signed         = var.authorizer == "AWS_IAM"
  has_rest_api_source_ranges = var.rest_api == "regional" && length(var.rest_api_source_ranges) != 0
  has_rest_api_web_acl       = local.has_rest_api && var.rest_api_web_acl_arn != ""
  has_log_kms_key            = var.log_kms_key_arn != ""
  has_environment_kms_key    = var.environment_kms_key_arn != ""
  has_function_url           = var.function_url && !local.lacks_function_urls
  has_vpc                    = length(var.vpc_subnet_ids) != 0
  traces_actively            = var.tracing == "Active"
  has_dynamo_db_endpoint     = var.dynamo_db_endpoint_url != ""
  reserves_concurrency       = var.reserved_concurrency != ""
  reserves_hold              = var.hold_concurrency != 0
  has_watches                = var.watch_concurrency != 0
  has_alarm_topic            = var.alarm_topic_arn != ""
  wakes_waiters              = var.wake_waiters && !local.lacks_pipes
  has_history                = var.history_days != 0
  has_stream                 = local.has_history || local.wakes_waiters
  has_agent_layers           = var.agent_layer_bucket != ""
  has_terraform              = var.terraform_states
  has_terraform_tokens       = local.has_terraform && var.terraform_tokens != ""
  terraform_uses_jwt         = local.uses_jwt && !local.has_terraform_tokens
  terraform_is_signed        = local.rest_api_is_signed && !local.has_terraform_tokens
  has_transactions           = length(var.transaction_table_arns) != 0
  sweep_needs_scope          = local.uses_jwt && var.jwt_sweep_scope != ""
}

resource "aws_dynamodb_table" "locks" {
  count                       = local.makes_table ? 1 : 0
  name                        = var.name
  hash_key                    = var.partition_key_name
  range_key                   = local.has_sort_key ? var.sort_key_name : null
  stream_enabled              = local.has_stream
  stream_view_type            = local.has_stream ? local.has_history ? "NEW_AND_OLD_IMAGES" : "NEW_IMAGE" : null
  billing_mode                = "PAY_PER_REQUEST"
  deletion_protection_enabled = var.table_deletion_protection

  ttl {
    attribute_name = "expireAt"
    enabled        = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = local.has_kms_key ? var.table_kms_key_arn : null
  }

  attribute {
    name = var.partition_key_name
    type = "S"
  }

  dynamic "attribute" {
    for_each = local.has_sort_key ? [1] : []
    content {
      name = var.sort_key_name
      type = "S"
    }
  }

  point_in_time_recovery {
    enabled = true
  }
}

resource "aws_apigatewayv2_api" "api" {
  name                         = var.name
  description                  = "Leasehold"
  protocol_type                = "HTTP"
  disable_execute_api_endpoint = local.hides_execute_api_endpoint ? true : false
}

resource "aws_apigatewayv2_domain_name" "domain" {
  count       = local.has_domain ? 1 : 0
  domain_name = var.domain_name

  domain_name_configuration {
    endpoint_type   = "REGIONAL"
    security_policy = "TLS_1_2"
    certificate_arn = local.has_certificate ? var.domain_certificate_arn : null
  }

  dynamic "mutual_tls_authentication" {
    for_each = local.has_truststore ? [1] : []
    content {
      truststore_uri = var.domain_truststore_uri
    }
  }
}

resource "aws_apigatewayv2_api_mapping" "domain" {
  count       = local.has_domain ? 1 : 0
  api_id      = aws_apigatewayv2_api.api.id
  domain_name = aws_apigatewayv2_domain_name.domain[0].id
  stage       = aws_apigatewayv2_stage.stage.id
}

resource "aws_apigatewayv2_stage" "stage" {
  stage_variables = local.has_transactions ? {
    sweeper = join(",", [
      aws_apigatewayv2_route.list_transactions[0].id,
      aws_apigatewayv2_route.strays[0].id,
      aws_apigatewayv2_route.sweep[0].id,
      aws_apigatewayv2_route.unlock[0].id,
    ])
  } : null
  api_id      = aws_apigatewayv2_api.api.id
  name        = "$default"
  auto_deploy = true

  route_settings {
    route_key              = "ANY /v1/heartbeat"
    throttling_rate_limit  = var.hold_rate_limit
    throttling_burst_limit = var.hold_rate_limit
  }

  route_settings {
    route_key              = "ANY /v1/release"
    throttling_rate_limit  = var.hold_rate_limit
    throttling_burst_limit = var.hold_rate_limit
  }

  route_settings {
    route_key              = "ANY /v1/semaphore/heartbeat"
    throttling_rate_limit  = var.hold_rate_limit
    throttling_burst_limit = var.hold_rate_limit
  }

  route_settings {
    route_key              = "ANY /v1/semaphore/release"
    throttling_rate_limit  = var.hold_rate_limit
    throttling_burst_limit = var.hold_rate_limit
  }

  route_settings {
    route_key              = "ANY /v1/break"
    throttling_rate_limit  = var.operate_rate_limit
    throttling_burst_limit = var.operate_rate_limit
  }

  route_settings {
    route_key              = "ANY /v1/occurrence"
    throttling_rate_limit  = var.operate_rate_limit
    throttling_burst_limit = var.operate_rate_limit
  }

  route_settings {
    route_key              = "ANY /v1/semaphore/break"
    throttling_rate_limit  = var.operate_rate_limit
    throttling_burst_limit = var.operate_rate_limit
  }

  route_settings {
    route_key              = "ANY /v1/semaphore/capacity"
    throttling_rate_limit  = var.operate_rate_limit
    throttling_burst_limit = var.operate_rate_limit
  }

  route_settings {
    route_key              = "ANY /v1/locks"
    throttling_rate_limit  = var.operate_rate_limit
    throttling_burst_limit = var.operate_rate_limit
  }

  dynamic "route_settings" {
    for_each = local.has_transactions ? [1] : []
    content {
      route_key              = "ANY /v1/transactions"
      throttling_rate_limit  = var.operate_rate_limit
      throttling_burst_limit = var.operate_rate_limit
    }
  }

  dynamic "route_settings" {
    for_each = local.has_transactions ? [1] : []
    content {
      route_key              = "ANY /v1/transactions/strays"
      throttling_rate_limit  = var.operate_rate_limit
      throttling_burst_limit = var.operate_rate_limit
    }
  }

  dynamic "route_settings" {
    for_each = local.has_transactions ? [1] : []
    content {
      route_key              = "ANY /v1/transactions/sweep"
      throttling_rate_limit  = var.operate_rate_limit
      throttling_burst_limit = var.operate_rate_limit
    }
  }

  dynamic "route_settings" {
    for_each = local.has_transactions ? [1] : []
    content {
      route_key              = "ANY /v1/transactions/unlock"
      throttling_rate_limit  = var.operate_rate_limit
      throttling_burst_limit = var.operate_rate_limit
    }
  }

  access_log_settings {
    destination_arn = "${aws_cloudwatch_log_group.access.arn}:*"
    format          = "{\"requestId\":\"$context.requestId\",\"time\":\"$context.requestTime\",\"route\":\"$context.routeKey\", \"status\":\"$context.status\",\"latencyMs\":\"$context.responseLatency\", \"integrationLatencyMs\":\"$context.integrationLatency\",\"bytes\":\"$context.responseLength\", \"sourceIp\":\"$context.identity.sourceIp\",\"userAgent\":\"$context.identity.userAgent\", \"caller\":\"$context.identity.userArn\",\"subject\":\"$context.authorizer.claims.sub\", \"error\":\"$context.error.message\",\"integrationError\":\"$context.integrationErrorMessage\"}"
  }

  default_route_settings {
    throttling_rate_limit  = var.throttling_rate_limit
    throttling_burst_limit = var.throttling_burst_limit
  }

  depends_on = [
    aws_apigatewayv2_route.heartbeat,
    aws_apigatewayv2_route.release,
    aws_apigatewayv2_route.semaphore_heartbeat,
    aws_apigatewayv2_route.semaphore_release,
    aws_apigatewayv2_route.break,
    aws_apigatewayv2_route.occurrence,
    aws_apigatewayv2_route.semaphore_break,
    aws_apigatewayv2_route.semaphore_capacity,
    aws_apigatewayv2_route.list,
  ]
}

resource "aws_apigatewayv2_authorizer" "jwt" {
  count            = local.uses_jwt ? 1 : 0
  api_id           = aws_apigatewayv2_api.api.id
  name             = "jwt"
  authorizer_type  = "JWT"
  identity_sources = ["$request.header.Authorization"]

  jwt_configuration {
    issuer   = var.jwt_issuer
    audience = var.jwt_audience
  }
}

resource "aws_iam_role" "hold" {
  count       = local.each_function ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-hold-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "hold_table" {
  count = local.each_function ? 1 : 0
  role  = aws_iam_role.hold[0].id
  name  = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:UpdateItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
        Condition = {
          "ForAllValues:StringNotEquals" = {
            "dynamodb:Attributes" = [
              "brokenVersion",
              "capacity",
              "capacityRequestId",
              "nextTicket",
              "previousLeaseIdHash",
              "previousOccurrence",
              "previousOwnerName",
              "previousReleased",
              "reordered",
            ]
          }
        }
      },
    ]
  })
}

resource "aws_iam_role_policy" "hold_function" {
  count = local.each_function ? 1 : 0
  role  = aws_iam_role.hold[0].id
  name  = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "hold" {
  count      = local.each_function && local.traces_actively ? 1 : 0
  role       = aws_iam_role.hold[0].id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_apigatewayv2_integration" "hold" {
  count                  = local.each_function ? 1 : 0
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = local.has_release ? aws_lambda_alias.hold[0].arn : aws_lambda_function.hold[0].arn
  payload_format_version = "2.0"

  depends_on = [aws_lambda_permission.hold]
}

resource "aws_lambda_permission" "hold" {
  count         = local.each_function ? 1 : 0
  function_name = aws_lambda_function.hold[0].function_name
  qualifier     = local.has_release ? aws_lambda_alias.hold[0].name : null
  action        = "lambda:InvokeFunction"
  principal     = "apigateway.amazonaws.com"
  source_arn    = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/*"
}

resource "aws_apigatewayv2_route" "heartbeat" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "ANY /v1/heartbeat"
  target = join("/", [
    "integrations",
    local.each_function ? aws_apigatewayv2_integration.hold[0].id : aws_apigatewayv2_integration.acquire[0].id,
  ])
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "release" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "ANY /v1/release"
  target = join("/", [
    "integrations",
    local.each_function ? aws_apigatewayv2_integration.hold[0].id : aws_apigatewayv2_integration.acquire[0].id,
  ])
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "semaphore_heartbeat" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "ANY /v1/semaphore/heartbeat"
  target = join("/", [
    "integrations",
    local.each_function ? aws_apigatewayv2_integration.hold[0].id : aws_apigatewayv2_integration.acquire[0].id,
  ])
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "semaphore_release" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "ANY /v1/semaphore/release"
  target = join("/", [
    "integrations",
    local.each_function ? aws_apigatewayv2_integration.hold[0].id : aws_apigatewayv2_integration.acquire[0].id,
  ])
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_iam_role" "ask" {
  count       = local.each_function ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-ask-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "ask_table" {
  count = local.each_function ? 1 : 0
  role  = aws_iam_role.ask[0].id
  name  = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:UpdateItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
      },
    ]
  })
}

resource "aws_iam_role_policy" "ask_function" {
  count = local.each_function ? 1 : 0
  role  = aws_iam_role.ask[0].id
  name  = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "ask" {
  count      = local.each_function && local.traces_actively ? 1 : 0
  role       = aws_iam_role.ask[0].id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_apigatewayv2_integration" "ask" {
  count                  = local.each_function ? 1 : 0
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = local.has_release ? aws_lambda_alias.ask[0].arn : aws_lambda_function.ask[0].arn
  payload_format_version = "2.0"

  depends_on = [aws_lambda_permission.ask]
}

resource "aws_lambda_permission" "ask" {
  count         = local.each_function ? 1 : 0
  function_name = aws_lambda_function.ask[0].function_name
  qualifier     = local.has_release ? aws_lambda_alias.ask[0].name : null
  action        = "lambda:InvokeFunction"
  principal     = "apigateway.amazonaws.com"
  source_arn    = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/*"
}

resource "aws_apigatewayv2_route" "acquire" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "ANY /v1/acquire"
  target = join("/", [
    "integrations",
    local.each_function ? aws_apigatewayv2_integration.ask[0].id : aws_apigatewayv2_integration.acquire[0].id,
  ])
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "acquire_all" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "ANY /v1/acquire-all"
  target = join("/", [
    "integrations",
    local.each_function ? aws_apigatewayv2_integration.ask[0].id : aws_apigatewayv2_integration.acquire[0].id,
  ])
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "want" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "ANY /v1/want"
  target = join("/", [
    "integrations",
    local.each_function ? aws_apigatewayv2_integration.ask[0].id : aws_apigatewayv2_integration.acquire[0].id,
  ])
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "semaphore_acquire" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "ANY /v1/semaphore/acquire"
  target = join("/", [
    "integrations",
    local.each_function ? aws_apigatewayv2_integration.ask[0].id : aws_apigatewayv2_integration.acquire[0].id,
  ])
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "semaphore_enqueue" {
  api_id    = aws_apigatewayv2_api.api.id
  route_key = "ANY /v1/semaphore/enqueue"
  target = join("/", [
    "integrations",
    local.each_function ? aws_apigatewayv2_integration.ask[0].id : aws_apigatewayv2_integration.acquire[0].id,
  ])
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_iam_role" "acquire" {
  count       = local.one_function ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-acquire-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "acquire_table" {
  count = local.one_function ? 1 : 0
  role  = aws_iam_role.acquire[0].id
  name  = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:UpdateItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
      },
    ]
  })
}

resource "aws_iam_role_policy" "acquire_function" {
  count = local.one_function ? 1 : 0
  role  = aws_iam_role.acquire[0].id
  name  = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "acquire" {
  count      = local.one_function && local.traces_actively ? 1 : 0
  role       = aws_iam_role.acquire[0].id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_apigatewayv2_integration" "acquire" {
  count                  = local.one_function ? 1 : 0
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn
  payload_format_version = "2.0"

  depends_on = [aws_lambda_permission.acquire]
}

resource "aws_lambda_permission" "acquire" {
  count         = local.one_function ? 1 : 0
  function_name = aws_lambda_function.acquire[0].function_name
  qualifier     = local.has_release ? aws_lambda_alias.acquire[0].name : null
  action        = "lambda:InvokeFunction"
  principal     = "apigateway.amazonaws.com"
  source_arn    = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/*"
}

resource "aws_lambda_function_url" "acquire" {
  count              = local.has_function_url ? 1 : 0
  function_name      = aws_lambda_function.acquire[0].function_name
  qualifier          = local.has_release ? aws_lambda_alias.acquire[0].name : null
  authorization_type = "AWS_IAM"
}

resource "aws_iam_role" "read" {
  name_prefix = "${substr(var.name, 0, 14)}-read-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "read_table" {
  role = aws_iam_role.read.id
  name = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["dynamodb:DescribeTable", "dynamodb:GetItem", "dynamodb:Query", "dynamodb:Scan"]
          Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
        },
      ],
      local.has_history ? [{ Effect = "Allow", Action = ["dynamodb:Query"], Resource = aws_dynamodb_table.history[0].arn }] : []
    )
  })
}

resource "aws_iam_role_policy" "read_function" {
  role = aws_iam_role.read.id
  name = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "read" {
  count      = local.traces_actively ? 1 : 0
  role       = aws_iam_role.read.id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_apigatewayv2_integration" "read" {
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = aws_lambda_function.read.arn
  payload_format_version = "2.0"

  depends_on = [aws_lambda_permission.read]
}

resource "aws_lambda_permission" "read" {
  function_name = aws_lambda_function.read.function_name
  action        = "lambda:InvokeFunction"
  principal     = "apigateway.amazonaws.com"
  source_arn    = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/*"
}

resource "aws_apigatewayv2_route" "get" {
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/lock"
  target             = "integrations/${aws_apigatewayv2_integration.read.id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "list" {
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/locks"
  target             = "integrations/${aws_apigatewayv2_integration.read.id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "history" {
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/history"
  target             = "integrations/${aws_apigatewayv2_integration.read.id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "health" {
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/health"
  target             = "integrations/${aws_apigatewayv2_integration.read.id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "semaphore" {
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/semaphore"
  target             = "integrations/${aws_apigatewayv2_integration.read.id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "unknown" {
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "$default"
  target             = "integrations/${aws_apigatewayv2_integration.read.id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_iam_role" "operate" {
  name_prefix = "${substr(var.name, 0, 14)}-operate-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "operate_table" {
  role = aws_iam_role.operate.id
  name = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:UpdateItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
        Condition = {
          "ForAllValues:StringNotEquals" = {
            "dynamodb:Attributes" = [
              "completedOccurrence",
              "data",
              "fencingToken",
              "leaseDuration",
              "leaseIdHash",
              "leaseMs",
              "leaseRequestId",
              "leaseSequence",
              "leaseholdWanted",
              "nextTicket",
              "ownerPrincipal",
              "previousLeaseIdHash",
              "previousOccurrence",
              "previousOwnerName",
              "previousReleased",
              "runningOccurrence",
              "staleAt",
            ]
          }
        }
      },
    ]
  })
}

resource "aws_iam_role_policy" "operate_function" {
  role = aws_iam_role.operate.id
  name = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "operate" {
  count      = local.traces_actively ? 1 : 0
  role       = aws_iam_role.operate.id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_apigatewayv2_integration" "operate" {
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = aws_lambda_function.operate.arn
  payload_format_version = "2.0"

  depends_on = [aws_lambda_permission.operate]
}

resource "aws_lambda_permission" "operate" {
  function_name = aws_lambda_function.operate.function_name
  action        = "lambda:InvokeFunction"
  principal     = "apigateway.amazonaws.com"
  source_arn    = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/*"
}

resource "aws_apigatewayv2_route" "break" {
  api_id               = aws_apigatewayv2_api.api.id
  route_key            = "ANY /v1/break"
  target               = "integrations/${aws_apigatewayv2_integration.operate.id}"
  authorization_type   = var.authorizer
  authorizer_id        = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
  authorization_scopes = local.break_needs_scope ? [var.jwt_break_scope] : null
}

resource "aws_apigatewayv2_route" "occurrence" {
  api_id               = aws_apigatewayv2_api.api.id
  route_key            = "ANY /v1/occurrence"
  target               = "integrations/${aws_apigatewayv2_integration.operate.id}"
  authorization_type   = var.authorizer
  authorizer_id        = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
  authorization_scopes = local.break_needs_scope ? [var.jwt_break_scope] : null
}

resource "aws_apigatewayv2_route" "semaphore_break" {
  api_id               = aws_apigatewayv2_api.api.id
  route_key            = "ANY /v1/semaphore/break"
  target               = "integrations/${aws_apigatewayv2_integration.operate.id}"
  authorization_type   = var.authorizer
  authorizer_id        = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
  authorization_scopes = local.break_needs_scope ? [var.jwt_break_scope] : null
}

resource "aws_apigatewayv2_route" "semaphore_capacity" {
  api_id               = aws_apigatewayv2_api.api.id
  route_key            = "ANY /v1/semaphore/capacity"
  target               = "integrations/${aws_apigatewayv2_integration.operate.id}"
  authorization_type   = var.authorizer
  authorizer_id        = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
  authorization_scopes = local.break_needs_scope ? [var.jwt_break_scope] : null
}

resource "aws_iam_role" "watch" {
  count       = local.has_watches ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-watch-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "watch_table" {
  count = local.has_watches ? 1 : 0
  role  = aws_iam_role.watch[0].id
  name  = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:GetItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
      },
    ]
  })
}

resource "aws_iam_role_policy" "watch_function" {
  count = local.has_watches ? 1 : 0
  role  = aws_iam_role.watch[0].id
  name  = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "watch" {
  count      = local.has_watches && local.traces_actively ? 1 : 0
  role       = aws_iam_role.watch[0].id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_apigatewayv2_integration" "watch" {
  count                  = local.has_watches ? 1 : 0
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = aws_lambda_function.watch[0].arn
  payload_format_version = "2.0"

  depends_on = [aws_lambda_permission.watch]
}

resource "aws_lambda_permission" "watch" {
  count         = local.has_watches ? 1 : 0
  function_name = aws_lambda_function.watch[0].function_name
  action        = "lambda:InvokeFunction"
  principal     = "apigateway.amazonaws.com"
  source_arn    = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/*"
}

resource "aws_apigatewayv2_route" "watch" {
  count              = local.has_watches ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/watch"
  target             = "integrations/${aws_apigatewayv2_integration.watch[0].id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_iam_role" "invoke" {
  name_prefix = "${substr(var.name, 0, 14)}-invoke-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "invoke_table" {
  role = aws_iam_role.invoke.id
  name = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:GetItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
      },
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:UpdateItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
      },
    ]
  })
}

resource "aws_iam_role_policy" "invoke_execution_key" {
  role = aws_iam_role.invoke.id
  name = "execution-key"
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "kms:GenerateMac", Resource = aws_kms_key.execution.arn }]
  })
}

resource "aws_iam_role_policy" "invoke_function" {
  role = aws_iam_role.invoke.id
  name = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "invoke" {
  count      = local.traces_actively ? 1 : 0
  role       = aws_iam_role.invoke.id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_iam_role" "cleanup" {
  name_prefix = "${substr(var.name, 0, 14)}-cleanup-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "cleanup_table" {
  role = aws_iam_role.cleanup.id
  name = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:GetItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
      },
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:UpdateItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
        Condition = {
          "ForAllValues:StringNotEquals" = {
            "dynamodb:Attributes" = [
              "brokenVersion",
              "capacity",
              "capacityRequestId",
              "nextTicket",
              "previousLeaseIdHash",
              "previousOccurrence",
              "previousOwnerName",
              "previousReleased",
              "reordered",
            ]
          }
        }
      },
    ]
  })
}

resource "aws_iam_role_policy" "cleanup_execution_key" {
  role = aws_iam_role.cleanup.id
  name = "execution-key"
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "kms:GenerateMac", Resource = aws_kms_key.execution.arn }]
  })
}

resource "aws_iam_role_policy" "cleanup_function" {
  role = aws_iam_role.cleanup.id
  name = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "cleanup" {
  count      = local.traces_actively ? 1 : 0
  role       = aws_iam_role.cleanup.id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_iam_role" "rest_api" {
  count       = local.has_rest_api ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-rest-api-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "apigateway.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "rest_api_functions" {
  count = local.has_rest_api ? 1 : 0
  role  = aws_iam_role.rest_api[0].id
  name  = "functions"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect = "Allow"
        Action = "lambda:InvokeFunction"
        Resource = concat(
          [
            local.each_function ? local.has_release ? aws_lambda_alias.hold[0].arn : aws_lambda_function.hold[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn,
          ],
          local.each_function ? [local.has_release ? aws_lambda_alias.ask[0].arn : aws_lambda_function.ask[0].arn] : [],
          [aws_lambda_function.read.arn, aws_lambda_function.operate.arn],
          local.has_watches ? [aws_lambda_function.watch[0].arn] : [],
          local.has_terraform ? [aws_lambda_function.terraform[0].arn] : [],
          local.has_transactions ? [aws_lambda_function.transact[0].arn] : [],
          local.has_transactions ? [aws_lambda_function.sweep[0].arn] : []
        )
      },
    ]
  })
}

resource "aws_wafv2_web_acl_association" "rest_api_web_acl" {
  count        = local.has_rest_api_web_acl ? 1 : 0
  resource_arn = "arn:${local.partition}:apigateway:${local.region}::/restapis/${aws_api_gateway_rest_api.rest[0].id}/stages/${aws_api_gateway_stage.rest[0].stage_name}"
  web_acl_arn  = var.rest_api_web_acl_arn
}

resource "aws_lambda_alias" "hold" {
  count            = local.has_release_of_each ? 1 : 0
  name             = "live"
  function_name    = aws_lambda_function.hold[0].function_name
  function_version = aws_lambda_function.hold[0].version
}

resource "aws_lambda_alias" "ask" {
  count            = local.has_release_of_each ? 1 : 0
  name             = "live"
  function_name    = aws_lambda_function.ask[0].function_name
  function_version = aws_lambda_function.ask[0].version
}

resource "aws_lambda_alias" "acquire" {
  count            = local.has_release_of_one ? 1 : 0
  name             = "live"
  function_name    = aws_lambda_function.acquire[0].function_name
  function_version = aws_lambda_function.acquire[0].version
}

resource "aws_kms_key" "execution" {
  description              = "Makes the lease ids of Step Functions executions"
  customer_master_key_spec = "HMAC_256"
  key_usage                = "GENERATE_VERIFY_MAC"
  deletion_window_in_days  = 7
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { AWS = "arn:${local.partition}:iam::${local.account}:root" }
        Action    = "kms:*"
        Resource  = "*"
      },
    ]
  })
}

resource "aws_iam_role" "run_under_lock" {
  name_prefix = "${substr(var.name, 0, 14)}-run-under-lock-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "states.amazonaws.com" }
        Action    = "sts:AssumeRole"
        Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
      },
    ]
  })
}

resource "aws_iam_role_policy" "run_under_lock_tasks" {
  role = aws_iam_role.run_under_lock.id
  name = "tasks"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        { Effect = "Allow", Action = "lambda:InvokeFunction", Resource = aws_lambda_function.invoke.arn },
        {
          Effect   = "Allow"
          Action   = ["states:StartExecution", "states:DescribeStateMachine"]
          Resource = "arn:${local.partition}:states:${local.region}:${local.account}:stateMachine:${var.runnable_state_machines}"
        },
        { Effect = "Allow", Action = "states:StartExecution", Resource = aws_sfn_state_machine.cleanup.arn },
        {
          Effect   = "Allow"
          Action   = ["states:DescribeExecution", "states:StopExecution"]
          Resource = "arn:${local.partition}:states:${local.region}:${local.account}:execution:${var.runnable_state_machines}:leasehold-*"
        },
        { Effect = "Allow", Action = "dynamodb:PutItem", Resource = aws_dynamodb_table.children.arn },
      ],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : []
    )
  })
}

resource "aws_dynamodb_table" "children" {
  name         = "${var.name}-children"
  hash_key     = "child"
  billing_mode = "PAY_PER_REQUEST"

  ttl {
    attribute_name = "expireAt"
    enabled        = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = local.has_kms_key ? var.table_kms_key_arn : null
  }

  attribute {
    name = "child"
    type = "S"
  }
}

resource "aws_iam_role" "child_ended" {
  name_prefix = "${substr(var.name, 0, 14)}-child-ended-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "states.amazonaws.com" }
        Action    = "sts:AssumeRole"
        Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
      },
    ]
  })
}

resource "aws_iam_role_policy" "child_ended_tasks" {
  role = aws_iam_role.child_ended.id
  name = "tasks"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        { Effect = "Allow", Action = "dynamodb:UpdateItem", Resource = aws_dynamodb_table.children.arn },
        {
          Effect   = "Allow"
          Action   = "states:SendTaskSuccess"
          Resource = aws_sfn_state_machine.run_under_lock.arn
        },
        {
          Effect = "Allow"
          Action = [
            "logs:CreateLogDelivery",
            "logs:GetLogDelivery",
            "logs:UpdateLogDelivery",
            "logs:DeleteLogDelivery",
            "logs:ListLogDeliveries",
            "logs:PutResourcePolicy",
            "logs:DescribeResourcePolicies",
            "logs:DescribeLogGroups",
          ]
          Resource = "*"
        },
      ],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : []
    )
  })
}

resource "aws_cloudwatch_event_rule" "child_ended" {
  name        = "${var.name}-child-ended"
  description = "Children of run-under-lock that have ended"
  event_pattern = jsonencode({
    source        = ["aws.states"]
    "detail-type" = ["Step Functions Execution Status Change"]
    detail = {
      stateMachineArn = [
        {
          wildcard = "arn:${local.partition}:states:${local.region}:${local.account}:stateMachine:${var.runnable_state_machines}"
        },
      ]
      name   = [{ prefix = "leasehold-" }]
      status = ["SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED"]
    }
  })
}

resource "aws_cloudwatch_event_target" "child_ended" {
  rule      = aws_cloudwatch_event_rule.child_ended.name
  target_id = "wake"
  arn       = aws_sfn_state_machine.child_ended.arn
  role_arn  = aws_iam_role.child_ended_rule.arn

  retry_policy {
    maximum_event_age_in_seconds = 3600
    maximum_retry_attempts       = 60
  }

  input_transformer {
    input_paths    = { arn = "$.detail.executionArn" }
    input_template = "{\"detail\": {\"executionArn\": <arn>}}"
  }
}

resource "aws_iam_role" "child_ended_rule" {
  name_prefix = "${substr(var.name, 0, 14)}-child-ended-rule-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sts:AssumeRole"
        Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
      },
    ]
  })
}

resource "aws_iam_role_policy" "child_ended_rule_wake_the_execution" {
  role = aws_iam_role.child_ended_rule.id
  name = "wake-the-execution"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = "states:StartExecution", Resource = aws_sfn_state_machine.child_ended.arn },
    ]
  })
}

resource "aws_iam_role" "cleanup_state_machine" {
  name_prefix = "${substr(var.name, 0, 14)}-cleanup-state-machine-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "states.amazonaws.com" }
        Action    = "sts:AssumeRole"
        Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
      },
    ]
  })
}

resource "aws_iam_role_policy" "cleanup_state_machine_tasks" {
  role = aws_iam_role.cleanup_state_machine.id
  name = "tasks"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = "lambda:InvokeFunction", Resource = aws_lambda_function.cleanup.arn },
      {
        Effect   = "Allow"
        Action   = "states:StopExecution"
        Resource = "arn:${local.partition}:states:${local.region}:${local.account}:execution:${var.runnable_state_machines}:leasehold-*"
      },
      {
        Effect   = "Allow"
        Action   = "states:GetExecutionHistory"
        Resource = "arn:${local.partition}:states:${local.region}:${local.account}:execution:*"
      },
    ]
  })
}

resource "aws_cloudwatch_event_rule" "cleanup" {
  name        = "${var.name}-cleanup"
  description = "Executions of run-under-lock that ended without releasing their lock"
  event_pattern = jsonencode({
    source        = ["aws.states"]
    "detail-type" = ["Step Functions Execution Status Change"]
    detail = {
      stateMachineArn = [aws_sfn_state_machine.run_under_lock.arn]
      "$or" = [
        { status = ["ABORTED", "TIMED_OUT"] },
        {
          status = ["FAILED"]
          error  = [null, { exists = false }, { prefix = "States." }, "ChildNotStopped", "LockNotReleased"]
        },
      ]
    }
  })
}

resource "aws_cloudwatch_event_target" "cleanup" {
  rule      = aws_cloudwatch_event_rule.cleanup.name
  arn       = aws_sfn_state_machine.cleanup.arn
  role_arn  = aws_iam_role.cleanup_rule.arn
  target_id = "cleanup"

  retry_policy {
    maximum_event_age_in_seconds = 3600
    maximum_retry_attempts       = 60
  }

  dead_letter_config {
    arn = aws_sqs_queue.cleanup_dead_letters.arn
  }
}

resource "aws_cloudwatch_event_rule" "redriven_child" {
  name        = "${var.name}-redriven-child"
  description = "Children of run-under-lock that were redriven, without the lock"
  event_pattern = jsonencode({
    source        = ["aws.states"]
    "detail-type" = ["Step Functions Execution Status Change"]
    detail = {
      stateMachineArn = [
        {
          wildcard = "arn:${local.partition}:states:${local.region}:${local.account}:stateMachine:${var.runnable_state_machines}"
        },
      ]
      name         = [{ prefix = "leasehold-" }]
      status       = ["RUNNING"]
      redriveCount = [{ numeric = [">", 0] }]
    }
  })
}

resource "aws_cloudwatch_event_target" "redriven_child" {
  rule      = aws_cloudwatch_event_rule.redriven_child.name
  arn       = aws_sfn_state_machine.cleanup.arn
  role_arn  = aws_iam_role.cleanup_rule.arn
  target_id = "stop"

  retry_policy {
    maximum_event_age_in_seconds = 3600
    maximum_retry_attempts       = 60
  }

  dead_letter_config {
    arn = aws_sqs_queue.cleanup_dead_letters.arn
  }

  input_transformer {
    input_paths    = { arn = "$.detail.executionArn" }
    input_template = "{\"detail\": {\"executionArn\": <arn>, \"status\": \"RUNNING\", \"input\": \"{}\"}}"
  }
}

resource "aws_iam_role" "cleanup_rule" {
  name_prefix = "${substr(var.name, 0, 14)}-cleanup-rule-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sts:AssumeRole"
        Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
      },
    ]
  })
}

resource "aws_iam_role_policy" "cleanup_rule_start_the_clean_up" {
  role = aws_iam_role.cleanup_rule.id
  name = "start-the-clean-up"
  policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "states:StartExecution", Resource = aws_sfn_state_machine.cleanup.arn }]
  })
}

resource "aws_sqs_queue" "cleanup_dead_letters" {
  name                      = "${var.name}-cleanup-dead-letters"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
}

resource "aws_sqs_queue_policy" "cleanup_dead_letters" {
  queue_url = aws_sqs_queue.cleanup_dead_letters.url
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "events.amazonaws.com" }
        Action    = "sqs:SendMessage"
        Resource  = aws_sqs_queue.cleanup_dead_letters.arn
        Condition = {
          ArnEquals = {
            "aws:SourceArn" = [aws_cloudwatch_event_rule.cleanup.arn, aws_cloudwatch_event_rule.redriven_child.arn]
          }
        }
      },
    ]
  })
}

resource "aws_dynamodb_table" "waiters" {
  count            = local.wakes_waiters ? 1 : 0
  name             = "${var.name}-waiters"
  hash_key         = "lock"
  range_key        = "waiter"
  stream_enabled   = true
  stream_view_type = "KEYS_ONLY"
  billing_mode     = "PAY_PER_REQUEST"

  ttl {
    attribute_name = "expireAt"
    enabled        = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = local.has_kms_key ? var.table_kms_key_arn : null
  }

  attribute {
    name = "lock"
    type = "S"
  }

  attribute {
    name = "waiter"
    type = "S"
  }
}

resource "aws_iam_role" "waker" {
  count       = local.wakes_waiters ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-waker-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "states.amazonaws.com" }
        Action    = "sts:AssumeRole"
        Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
      },
    ]
  })
}

resource "aws_iam_role_policy" "waker_tasks" {
  count = local.wakes_waiters ? 1 : 0
  role  = aws_iam_role.waker[0].id
  name  = "tasks"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = "dynamodb:GetItem"
          Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
        },
        {
          Effect   = "Allow"
          Action   = ["dynamodb:Query", "dynamodb:DeleteItem"]
          Resource = aws_dynamodb_table.waiters[0].arn
        },
        {
          Effect   = "Allow"
          Action   = "states:SendTaskSuccess"
          Resource = "arn:${local.partition}:states:${local.region}:${local.account}:stateMachine:*"
        },
        {
          Effect   = "Allow"
          Action   = "lambda:SendDurableExecutionCallbackSuccess"
          Resource = "arn:${local.partition}:lambda:${local.region}:${local.account}:function:*"
        },
        {
          Effect = "Allow"
          Action = [
            "logs:CreateLogDelivery",
            "logs:GetLogDelivery",
            "logs:UpdateLogDelivery",
            "logs:DeleteLogDelivery",
            "logs:ListLogDeliveries",
            "logs:PutResourcePolicy",
            "logs:DescribeResourcePolicies",
            "logs:DescribeLogGroups",
          ]
          Resource = "*"
        },
      ],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : []
    )
  })
}

resource "aws_sqs_queue" "waker_dead_letters" {
  count                     = local.wakes_waiters ? 1 : 0
  name                      = "${var.name}-waker-dead-letters"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
}

resource "aws_pipes_pipe" "freed" {
  count       = local.wakes_waiters ? 1 : 0
  name        = "${var.name}-freed"
  description = "Locks that became free, to the waker"
  role_arn    = aws_iam_role.waker_pipes[0].arn
  source      = local.makes_table ? aws_dynamodb_table.locks[0].stream_arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}/stream/${var.existing_table_stream_label}"
  target      = aws_sfn_state_machine.waker[0].arn

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

      filter {
        pattern = "{\"eventName\": [\"REMOVE\"]}"
      }

      filter {
        pattern = "{\"dynamodb\": {\"NewImage\": {\"isReleased\": {\"S\": [{\"exists\": true}]}}}}"
      }

      filter {
        pattern = "{\"dynamodb\": {\"NewImage\": {\"leaseholdKind\": {\"S\": [\"semaphore\"]}, \"available\": {\"N\": [{\"prefix\": \"1\"}, {\"prefix\": \"2\"}, {\"prefix\": \"3\"}, {\"prefix\": \"4\"}, {\"prefix\": \"5\"}, {\"prefix\": \"6\"}, {\"prefix\": \"7\"}, {\"prefix\": \"8\"}, {\"prefix\": \"9\"}]}}}}"
      }
    }
  }

  log_configuration {
    level = "ERROR"

    cloudwatch_logs_log_destination {
      log_group_arn = "${aws_cloudwatch_log_group.waker[0].arn}:*"
    }
  }

  target_parameters {
    input_template = "{\"eventSourceARN\": <$.eventSourceARN>, \"dynamodb\": {\"Keys\": <$.dynamodb.Keys>}}"

    step_function_state_machine_parameters {
      invocation_type = "FIRE_AND_FORGET"
    }
  }

  depends_on = [aws_iam_role_policy.waker_pipes_streams_to_the_waker]
}

resource "aws_pipes_pipe" "sleepers" {
  count       = local.wakes_waiters ? 1 : 0
  name        = "${var.name}-sleepers"
  description = "Executions that have begun to sleep, to the waker"
  role_arn    = aws_iam_role.waker_pipes[0].arn
  source      = aws_dynamodb_table.waiters[0].stream_arn
  target      = aws_sfn_state_machine.waker[0].arn

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

      filter {
        pattern = "{\"eventName\": [\"INSERT\", \"MODIFY\"]}"
      }
    }
  }

  log_configuration {
    level = "ERROR"

    cloudwatch_logs_log_destination {
      log_group_arn = "${aws_cloudwatch_log_group.waker[0].arn}:*"
    }
  }

  target_parameters {
    input_template = "{\"eventSourceARN\": <$.eventSourceARN>, \"dynamodb\": {\"Keys\": <$.dynamodb.Keys>}}"

    step_function_state_machine_parameters {
      invocation_type = "FIRE_AND_FORGET"
    }
  }

  depends_on = [aws_iam_role_policy.waker_pipes_streams_to_the_waker]
}

resource "aws_iam_role" "waker_pipes" {
  count       = local.wakes_waiters ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-waker-pipes-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Allow"
        Principal = { Service = "pipes.amazonaws.com" }
        Action    = "sts:AssumeRole"
        Condition = { StringEquals = { "aws:SourceAccount" = local.account } }
      },
    ]
  })
}

resource "aws_iam_role_policy" "waker_pipes_streams_to_the_waker" {
  count = local.wakes_waiters ? 1 : 0
  role  = aws_iam_role.waker_pipes[0].id
  name  = "streams-to-the-waker"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect = "Allow"
          Action = ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"]
          Resource = [
            local.makes_table ? aws_dynamodb_table.locks[0].stream_arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}/stream/${var.existing_table_stream_label}",
            aws_dynamodb_table.waiters[0].stream_arn,
          ]
        },
        { Effect = "Allow", Action = "dynamodb:ListStreams", Resource = "*" },
        { Effect = "Allow", Action = "states:StartExecution", Resource = aws_sfn_state_machine.waker[0].arn },
        { Effect = "Allow", Action = "sqs:SendMessage", Resource = aws_sqs_queue.waker_dead_letters[0].arn },
      ],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : []
    )
  })
}

resource "aws_dynamodb_table" "history" {
  count        = local.has_history ? 1 : 0
  name         = "${var.name}-history"
  hash_key     = "lock"
  range_key    = "at"
  billing_mode = "PAY_PER_REQUEST"

  ttl {
    attribute_name = "expireAt"
    enabled        = true
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = local.has_kms_key ? var.table_kms_key_arn : null
  }

  attribute {
    name = "lock"
    type = "S"
  }

  attribute {
    name = "at"
    type = "S"
  }
}

resource "aws_iam_role" "record" {
  count       = local.has_history ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-record-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "record_history" {
  count = local.has_history ? 1 : 0
  role  = aws_iam_role.record[0].id
  name  = "history"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = ["dynamodb:BatchWriteItem"], Resource = aws_dynamodb_table.history[0].arn },
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
      },
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].stream_arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}/stream/${var.existing_table_stream_label}"
      },
      { Effect = "Allow", Action = ["dynamodb:ListStreams"], Resource = "*" },
      { Effect = "Allow", Action = ["sqs:SendMessage"], Resource = aws_sqs_queue.record_dead_letters[0].arn },
    ]
  })
}

resource "aws_iam_role_policy" "record_function" {
  count = local.has_history ? 1 : 0
  role  = aws_iam_role.record[0].id
  name  = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "record" {
  count      = local.has_history && local.traces_actively ? 1 : 0
  role       = aws_iam_role.record[0].id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_lambda_event_source_mapping" "record" {
  count                              = local.has_history ? 1 : 0
  function_name                      = aws_lambda_function.record[0].function_name
  event_source_arn                   = local.makes_table ? aws_dynamodb_table.locks[0].stream_arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}/stream/${var.existing_table_stream_label}"
  starting_position                  = "TRIM_HORIZON"
  batch_size                         = 100
  maximum_batching_window_in_seconds = 1
  bisect_batch_on_function_error     = true
  maximum_retry_attempts             = 100

  depends_on = [aws_iam_role_policy.record_history]

  destination_config {

    on_failure {
      destination_arn = aws_sqs_queue.record_dead_letters[0].arn
    }
  }
}

resource "aws_sqs_queue" "record_dead_letters" {
  count                     = local.has_history ? 1 : 0
  name                      = "${var.name}-record-dead-letters"
  message_retention_seconds = 1209600
  sqs_managed_sse_enabled   = true
}

resource "aws_lambda_layer_version" "agent_layer" {
  count                    = local.has_agent_layers ? 1 : 0
  s3_bucket                = var.agent_layer_bucket
  s3_key                   = "leasehold-agent-layer-${var.agent_layer_version}-x86_64.zip"
  layer_name               = "${var.name}-agent-x86-64"
  description              = "Leasehold: the agent, an extension that holds locks for any language, ${var.agent_layer_version}"
  compatible_architectures = ["x86_64"]
  license_info             = "MIT OR Apache-2.0"
}

resource "aws_lambda_layer_version" "agent_layer_arm64" {
  count                    = local.has_agent_layers ? 1 : 0
  s3_bucket                = var.agent_layer_bucket
  s3_key                   = "leasehold-agent-layer-${var.agent_layer_version}-aarch64.zip"
  layer_name               = "${var.name}-agent-arm64"
  description              = "Leasehold: the agent, an extension that holds locks for any language, ${var.agent_layer_version}"
  compatible_architectures = ["arm64"]
  license_info             = "MIT OR Apache-2.0"
}

resource "aws_iam_policy" "holder" {
  name        = "${var.name}-holder"
  description = "Acquire, renew and release locks of Leasehold, by the API or by direct invocation"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect = "Allow"
        Action = "execute-api:Invoke"
        Resource = [
          "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/$default/POST/v1/acquire",
          "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/$default/POST/v1/heartbeat",
          "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/$default/POST/v1/release",
          "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/$default/GET/v1/lock",
        ]
      },
      { Effect = "Allow", Action = "lambda:InvokeFunction", Resource = aws_lambda_function.invoke.arn },
    ]
  })
}

resource "aws_s3_bucket" "states" {
  count         = local.has_terraform ? 1 : 0
  bucket_prefix = lower("${substr(var.name, 0, 14)}-states-")
}

resource "aws_s3_bucket_server_side_encryption_configuration" "states" {
  count  = local.has_terraform ? 1 : 0
  bucket = aws_s3_bucket.states[0].id

  rule {

    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_versioning" "states" {
  count  = local.has_terraform ? 1 : 0
  bucket = aws_s3_bucket.states[0].id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_public_access_block" "states" {
  count                   = local.has_terraform ? 1 : 0
  bucket                  = aws_s3_bucket.states[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "states" {
  count  = local.has_terraform ? 1 : 0
  bucket = aws_s3_bucket.states[0].id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "states" {
  count  = local.has_terraform ? 1 : 0
  bucket = aws_s3_bucket.states[0].id

  rule {
    id     = "removed-states"
    status = "Enabled"

    filter {
    }

    noncurrent_version_expiration {
      noncurrent_days = 90
    }
  }
}

resource "aws_s3_bucket_policy" "states" {
  count  = local.has_terraform ? 1 : 0
  bucket = aws_s3_bucket.states[0].id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [aws_s3_bucket.states[0].arn, "${aws_s3_bucket.states[0].arn}/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
    ]
  })
}

resource "aws_iam_role" "terraform" {
  count       = local.has_terraform ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-terraform-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "terraform_table" {
  count = local.has_terraform ? 1 : 0
  role  = aws_iam_role.terraform[0].id
  name  = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:GetItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
      },
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DescribeTable", "dynamodb:UpdateItem"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
        Condition = {
          "ForAllValues:StringNotEquals" = {
            "dynamodb:Attributes" = [
              "available",
              "capacity",
              "capacityRequestId",
              "capacityVersion",
              "changed",
              "ended",
              "holders",
              "nextTicket",
              "queue",
              "reordered",
              "spentHolders",
              "spentTickets",
              "tickets",
              "tokens",
            ]
          }
        }
      },
    ]
  })
}

resource "aws_iam_role_policy" "terraform_states" {
  count = local.has_terraform ? 1 : 0
  role  = aws_iam_role.terraform[0].id
  name  = "states"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
        Resource = "${aws_s3_bucket.states[0].arn}/states/*"
      },
      { Effect = "Allow", Action = ["s3:ListBucket"], Resource = aws_s3_bucket.states[0].arn },
    ]
  })
}

resource "aws_iam_role_policy" "terraform_function" {
  count = local.has_terraform ? 1 : 0
  role  = aws_iam_role.terraform[0].id
  name  = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "terraform" {
  count      = local.has_terraform && local.traces_actively ? 1 : 0
  role       = aws_iam_role.terraform[0].id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_apigatewayv2_integration" "terraform" {
  count                  = local.has_terraform ? 1 : 0
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = aws_lambda_function.terraform[0].arn
  payload_format_version = "2.0"

  depends_on = [aws_lambda_permission.terraform]
}

resource "aws_lambda_permission" "terraform" {
  count         = local.has_terraform ? 1 : 0
  function_name = aws_lambda_function.terraform[0].function_name
  action        = "lambda:InvokeFunction"
  principal     = "apigateway.amazonaws.com"
  source_arn    = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/*"
}

resource "aws_apigatewayv2_route" "terraform" {
  count              = local.has_terraform ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/terraform"
  target             = "integrations/${aws_apigatewayv2_integration.terraform[0].id}"
  authorization_type = local.has_terraform_tokens ? "NONE" : var.authorizer
  authorizer_id      = local.terraform_uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "terraform_lock" {
  count              = local.has_terraform ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/terraform-lock"
  target             = "integrations/${aws_apigatewayv2_integration.terraform[0].id}"
  authorization_type = local.has_terraform_tokens ? "NONE" : var.authorizer
  authorizer_id      = local.terraform_uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_dynamodb_table" "transactions" {
  count                       = local.has_transactions ? 1 : 0
  name                        = "${var.name}-transactions"
  hash_key                    = "transactionId"
  range_key                   = "row"
  billing_mode                = "PAY_PER_REQUEST"
  deletion_protection_enabled = var.table_deletion_protection

  ttl {
    attribute_name = "expireAt"
    enabled        = true
  }

  global_secondary_index {
    name            = "sweep"
    hash_key        = "sweepShard"
    range_key       = "sweepAt"
    projection_type = "KEYS_ONLY"
  }

  server_side_encryption {
    enabled     = true
    kms_key_arn = local.has_kms_key ? var.table_kms_key_arn : null
  }

  attribute {
    name = "transactionId"
    type = "S"
  }

  attribute {
    name = "row"
    type = "S"
  }

  attribute {
    name = "sweepShard"
    type = "S"
  }

  attribute {
    name = "sweepAt"
    type = "N"
  }

  point_in_time_recovery {
    enabled = true
  }
}

resource "aws_iam_role" "transact" {
  count       = local.has_transactions ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-transact-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "transact_tables" {
  count = local.has_transactions ? 1 : 0
  role  = aws_iam_role.transact[0].id
  name  = "tables"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:GetItem", "dynamodb:Query"]
        Resource = aws_dynamodb_table.transactions[0].arn
      },
      {
        Effect = "Allow"
        Action = [
          "dynamodb:PutItem",
          "dynamodb:UpdateItem",
          "dynamodb:DeleteItem",
          "dynamodb:PartiQLUpdate",
          "dynamodb:PartiQLDelete",
          "dynamodb:ConditionCheckItem",
          "dynamodb:GetItem",
          "dynamodb:BatchGetItem",
          "dynamodb:Query",
          "dynamodb:Scan",
          "dynamodb:DescribeTable",
        ]
        Resource = var.transaction_table_arns
      },
    ]
  })
}

resource "aws_iam_role_policy" "transact_function" {
  count = local.has_transactions ? 1 : 0
  role  = aws_iam_role.transact[0].id
  name  = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "transact" {
  count      = local.has_transactions && local.traces_actively ? 1 : 0
  role       = aws_iam_role.transact[0].id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_apigatewayv2_route" "begin" {
  count              = local.has_transactions ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/transactions/begin"
  target             = "integrations/${aws_apigatewayv2_integration.transact[0].id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "add" {
  count              = local.has_transactions ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/transactions/add"
  target             = "integrations/${aws_apigatewayv2_integration.transact[0].id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "commit" {
  count              = local.has_transactions ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/transactions/commit"
  target             = "integrations/${aws_apigatewayv2_integration.transact[0].id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "rollback" {
  count              = local.has_transactions ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/transactions/rollback"
  target             = "integrations/${aws_apigatewayv2_integration.transact[0].id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "transaction" {
  count              = local.has_transactions ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/transaction"
  target             = "integrations/${aws_apigatewayv2_integration.transact[0].id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "items_get" {
  count              = local.has_transactions ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/items/get"
  target             = "integrations/${aws_apigatewayv2_integration.transact[0].id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_route" "items_list" {
  count              = local.has_transactions ? 1 : 0
  api_id             = aws_apigatewayv2_api.api.id
  route_key          = "ANY /v1/items/list"
  target             = "integrations/${aws_apigatewayv2_integration.transact[0].id}"
  authorization_type = var.authorizer
  authorizer_id      = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
}

resource "aws_apigatewayv2_integration" "transact" {
  count                  = local.has_transactions ? 1 : 0
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = aws_lambda_function.transact[0].arn
  payload_format_version = "2.0"

  depends_on = [aws_lambda_permission.transact]
}

resource "aws_lambda_permission" "transact" {
  count         = local.has_transactions ? 1 : 0
  function_name = aws_lambda_function.transact[0].function_name
  action        = "lambda:InvokeFunction"
  principal     = "apigateway.amazonaws.com"
  source_arn    = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/*"
}

resource "aws_iam_role" "sweep" {
  count       = local.has_transactions ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-sweep-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "sweep_tables" {
  count = local.has_transactions ? 1 : 0
  role  = aws_iam_role.sweep[0].id
  name  = "tables"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:UpdateItem", "dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"]
        Resource = aws_dynamodb_table.transactions[0].arn
      },
      {
        Effect   = "Allow"
        Action   = "dynamodb:Query"
        Resource = "${aws_dynamodb_table.transactions[0].arn}/index/sweep"
      },
      {
        Effect = "Allow"
        Action = [
          "dynamodb:PutItem",
          "dynamodb:UpdateItem",
          "dynamodb:DeleteItem",
          "dynamodb:PartiQLUpdate",
          "dynamodb:PartiQLDelete",
          "dynamodb:GetItem",
          "dynamodb:BatchGetItem",
          "dynamodb:Scan",
          "dynamodb:DescribeTable",
        ]
        Resource = var.transaction_table_arns
      },
    ]
  })
}

resource "aws_iam_role_policy" "sweep_function" {
  count = local.has_transactions ? 1 : 0
  role  = aws_iam_role.sweep[0].id
  name  = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "sweep" {
  count      = local.has_transactions && local.traces_actively ? 1 : 0
  role       = aws_iam_role.sweep[0].id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_apigatewayv2_route" "sweep" {
  count                = local.has_transactions ? 1 : 0
  api_id               = aws_apigatewayv2_api.api.id
  route_key            = "ANY /v1/transactions/sweep"
  target               = "integrations/${aws_apigatewayv2_integration.sweep[0].id}"
  authorization_type   = var.authorizer
  authorizer_id        = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
  authorization_scopes = local.sweep_needs_scope ? [var.jwt_sweep_scope] : null
}

resource "aws_apigatewayv2_route" "list_transactions" {
  count                = local.has_transactions ? 1 : 0
  api_id               = aws_apigatewayv2_api.api.id
  route_key            = "ANY /v1/transactions"
  target               = "integrations/${aws_apigatewayv2_integration.sweep[0].id}"
  authorization_type   = var.authorizer
  authorizer_id        = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
  authorization_scopes = local.sweep_needs_scope ? [var.jwt_sweep_scope] : null
}

resource "aws_apigatewayv2_route" "strays" {
  count                = local.has_transactions ? 1 : 0
  api_id               = aws_apigatewayv2_api.api.id
  route_key            = "ANY /v1/transactions/strays"
  target               = "integrations/${aws_apigatewayv2_integration.sweep[0].id}"
  authorization_type   = var.authorizer
  authorizer_id        = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
  authorization_scopes = local.sweep_needs_scope ? [var.jwt_sweep_scope] : null
}

resource "aws_apigatewayv2_route" "unlock" {
  count                = local.has_transactions ? 1 : 0
  api_id               = aws_apigatewayv2_api.api.id
  route_key            = "ANY /v1/transactions/unlock"
  target               = "integrations/${aws_apigatewayv2_integration.sweep[0].id}"
  authorization_type   = var.authorizer
  authorizer_id        = local.uses_jwt ? aws_apigatewayv2_authorizer.jwt[0].id : null
  authorization_scopes = local.sweep_needs_scope ? [var.jwt_sweep_scope] : null
}

resource "aws_apigatewayv2_integration" "sweep" {
  count                  = local.has_transactions ? 1 : 0
  api_id                 = aws_apigatewayv2_api.api.id
  integration_type       = "AWS_PROXY"
  integration_uri        = aws_lambda_function.sweep[0].arn
  payload_format_version = "2.0"

  depends_on = [aws_lambda_permission.sweep]
}

resource "aws_lambda_permission" "sweep" {
  count         = local.has_transactions ? 1 : 0
  function_name = aws_lambda_function.sweep[0].function_name
  action        = "lambda:InvokeFunction"
  principal     = "apigateway.amazonaws.com"
  source_arn    = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/*"
}

resource "aws_iam_role" "expire" {
  count       = local.is_multi_region ? 1 : 0
  name_prefix = "${substr(var.name, 0, 14)}-expire-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role_policy" "expire_table" {
  count = local.is_multi_region ? 1 : 0
  role  = aws_iam_role.expire[0].id
  name  = "table"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = ["dynamodb:DeleteItem", "dynamodb:DescribeTable", "dynamodb:Scan"]
        Resource = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
      },
    ]
  })
}

resource "aws_iam_role_policy" "expire_function" {
  count = local.is_multi_region ? 1 : 0
  role  = aws_iam_role.expire[0].id
  name  = "function"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect   = "Allow"
          Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
          Resource = "${aws_cloudwatch_log_group.function.arn}:*"
        },
      ],
      local.has_vpc ? [
        {
          Effect = "Allow"
          Action = [
            "ec2:CreateNetworkInterface",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSubnets",
            "ec2:DeleteNetworkInterface",
            "ec2:AssignPrivateIpAddresses",
            "ec2:UnassignPrivateIpAddresses",
          ]
          Resource = "*"
        },
      ] : [],
      local.has_kms_key ? [
        {
          Effect   = "Allow"
          Action   = "kms:Decrypt"
          Resource = var.table_kms_key_arn
          Condition = {
            StringEquals = { "kms:ViaService" = "dynamodb.${local.region}.${data.aws_partition.current.dns_suffix}" }
          }
        },
      ] : [],
      local.has_environment_kms_key ? [{ Effect = "Allow", Action = "kms:Decrypt", Resource = var.environment_kms_key_arn }] : []
    )
  })
}

resource "aws_iam_role_policy_attachment" "expire" {
  count      = local.is_multi_region && local.traces_actively ? 1 : 0
  role       = aws_iam_role.expire[0].id
  policy_arn = "arn:${local.partition}:iam::aws:policy/AWSXRayDaemonWriteAccess"
}

resource "aws_cloudwatch_log_group" "function" {
  name              = "/aws/lambda/${var.name}"
  kms_key_id        = local.has_log_kms_key ? var.log_kms_key_arn : null
  retention_in_days = var.log_retention_days
}

resource "aws_cloudwatch_log_group" "access" {
  name              = "/aws/vendedlogs/${var.name}"
  kms_key_id        = local.has_log_kms_key ? var.log_kms_key_arn : null
  retention_in_days = var.log_retention_days
}

resource "aws_cloudwatch_log_group" "child_ended" {
  name              = "/aws/vendedlogs/${var.name}-child-ended"
  kms_key_id        = local.has_log_kms_key ? var.log_kms_key_arn : null
  retention_in_days = var.log_retention_days
}

resource "aws_cloudwatch_log_group" "waker" {
  count             = local.wakes_waiters ? 1 : 0
  name              = "/aws/vendedlogs/${var.name}-waker"
  kms_key_id        = local.has_log_kms_key ? var.log_kms_key_arn : null
  retention_in_days = var.log_retention_days
}

resource "aws_cloudwatch_log_metric_filter" "crash" {
  name           = "${var.name}-crash"
  log_group_name = aws_cloudwatch_log_group.function.name
  pattern        = "{ ($.type = \"platform.*\" && ($.record.status = \"timeout\" || $.record.errorType = \"Runtime.*\")) || ($.target = \"leasehold_lambda::init\" && $.level = \"ERROR\") }"

  metric_transformation {
    namespace     = "Leasehold/${var.name}"
    name          = "Crashes"
    value         = "1"
    default_value = 0
  }
}

resource "aws_cloudwatch_metric_alarm" "crashes" {
  alarm_name          = "${var.name}-crashes"
  dimensions          = {}
  alarm_description   = "A function crashed, ran out of time or did not start; those of direct invocations and of the clean-up included"
  namespace           = "Leasehold/${var.name}"
  metric_name         = "Crashes"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "read_errors" {
  alarm_name          = "${var.name}-read-errors"
  dimensions          = { FunctionName = aws_lambda_function.read.function_name }
  alarm_description   = "This function crashed, ran out of time or did not start"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "hold_errors" {
  count               = local.each_function ? 1 : 0
  alarm_name          = "${var.name}-hold-errors"
  dimensions          = { FunctionName = aws_lambda_function.hold[0].function_name }
  alarm_description   = "This function crashed, ran out of time or did not start"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "ask_errors" {
  count               = local.each_function ? 1 : 0
  alarm_name          = "${var.name}-ask-errors"
  dimensions          = { FunctionName = aws_lambda_function.ask[0].function_name }
  alarm_description   = "This function crashed, ran out of time or did not start"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "acquire_errors" {
  count               = local.one_function ? 1 : 0
  alarm_name          = "${var.name}-acquire-errors"
  dimensions          = { FunctionName = aws_lambda_function.acquire[0].function_name }
  alarm_description   = "This function crashed, ran out of time or did not start"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "operate_errors" {
  alarm_name          = "${var.name}-operate-errors"
  dimensions          = { FunctionName = aws_lambda_function.operate.function_name }
  alarm_description   = "This function crashed, ran out of time or did not start"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "terraform_errors" {
  count               = local.has_terraform ? 1 : 0
  alarm_name          = "${var.name}-terraform-errors"
  dimensions          = { FunctionName = aws_lambda_function.terraform[0].function_name }
  alarm_description   = "This function crashed, ran out of time or did not start"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "sweep_errors" {
  count               = local.has_transactions ? 1 : 0
  alarm_name          = "${var.name}-sweep-errors"
  dimensions          = { FunctionName = aws_lambda_function.sweep[0].function_name }
  alarm_description   = "The sweeper of transactions crashed, ran out of time or did not start; items of callers that died stay locked"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "expire_errors" {
  count               = local.is_multi_region ? 1 : 0
  alarm_name          = "${var.name}-expire-errors"
  dimensions          = { FunctionName = aws_lambda_function.expire[0].function_name }
  alarm_description   = "This function crashed, ran out of time or did not start"
  namespace           = "AWS/Lambda"
  metric_name         = "Errors"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "read_throttles" {
  alarm_name          = "${var.name}-read-throttles"
  dimensions          = { FunctionName = aws_lambda_function.read.function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "hold_throttles" {
  count               = local.each_function ? 1 : 0
  alarm_name          = "${var.name}-hold-throttles"
  dimensions          = { FunctionName = aws_lambda_function.hold[0].function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "ask_throttles" {
  count               = local.each_function ? 1 : 0
  alarm_name          = "${var.name}-ask-throttles"
  dimensions          = { FunctionName = aws_lambda_function.ask[0].function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "acquire_throttles" {
  count               = local.one_function ? 1 : 0
  alarm_name          = "${var.name}-acquire-throttles"
  dimensions          = { FunctionName = aws_lambda_function.acquire[0].function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "operate_throttles" {
  alarm_name          = "${var.name}-operate-throttles"
  dimensions          = { FunctionName = aws_lambda_function.operate.function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "invoke_throttles" {
  alarm_name          = "${var.name}-invoke-throttles"
  dimensions          = { FunctionName = aws_lambda_function.invoke.function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "semaphore_throttles" {
  alarm_name          = "${var.name}-semaphore-throttles"
  dimensions          = { FunctionName = aws_lambda_function.semaphore.function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "terraform_throttles" {
  count               = local.has_terraform ? 1 : 0
  alarm_name          = "${var.name}-terraform-throttles"
  dimensions          = { FunctionName = aws_lambda_function.terraform[0].function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "transact_throttles" {
  count               = local.has_transactions ? 1 : 0
  alarm_name          = "${var.name}-transact-throttles"
  dimensions          = { FunctionName = aws_lambda_function.transact[0].function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "sweep_throttles" {
  count               = local.has_transactions ? 1 : 0
  alarm_name          = "${var.name}-sweep-throttles"
  dimensions          = { FunctionName = aws_lambda_function.sweep[0].function_name }
  alarm_description   = "Lambda refused to run this function; its concurrency, or the account's, is used up"
  namespace           = "AWS/Lambda"
  metric_name         = "Throttles"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "server_errors" {
  alarm_name          = "${var.name}-server-errors"
  dimensions          = { ApiId = aws_apigatewayv2_api.api.id }
  alarm_description   = "The API answered with 5xx; the failures of all its functions are among them"
  namespace           = "AWS/ApiGateway"
  metric_name         = "5xx"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "rest_api_server_errors" {
  count               = local.has_rest_api ? 1 : 0
  alarm_name          = "${var.name}-rest-api-server-errors"
  dimensions          = { ApiName = "${var.name}-rest" }
  alarm_description   = "The REST API answered with 5xx"
  namespace           = "AWS/ApiGateway"
  metric_name         = "5XXError"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "lost_locks" {
  alarm_name          = "${var.name}-lost-locks"
  dimensions          = { stack = var.name, operation = "heartbeat" }
  alarm_description   = "Holders found at a heartbeat that they had lost their lock; heartbeats are late, or someone breaks locks"
  namespace           = "Leasehold"
  metric_name         = "Lost"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.lost_locks_alarm_count
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "stuck_transactions" {
  count               = local.has_transactions ? 1 : 0
  alarm_name          = "${var.name}-stuck-transactions"
  dimensions          = { stack = var.name, operation = "sweep" }
  alarm_description   = "DynamoDB refuses to free an item of a transaction; `leasehold transactions ls --stuck` names the item"
  namespace           = "Leasehold"
  metric_name         = "StuckTransactions"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "unavailable" {
  alarm_name          = "${var.name}-unavailable"
  dimensions          = { stack = var.name, operation = "heartbeat" }
  alarm_description   = "Heartbeats ended without an answer from DynamoDB; holders will give up when their leases are over"
  namespace           = "Leasehold"
  metric_name         = "Unavailable"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "latency" {
  alarm_name          = "${var.name}-latency"
  dimensions          = { stack = var.name, operation = "heartbeat" }
  alarm_description   = "The slowest hundredth of heartbeats takes too long. Watches wait on purpose, so the API's own latency says nothing"
  namespace           = "Leasehold"
  metric_name         = "Latency"
  period              = 300
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.latency_alarm_ms
  evaluation_periods  = 3
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  extended_statistic  = "p99"
}

resource "aws_cloudwatch_metric_alarm" "table_throttles" {
  alarm_name          = "${var.name}-table-throttles"
  dimensions          = { TableName = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name }
  alarm_description   = "DynamoDB refused writes to the table; one key may be too hot, at about 1000 writes a second"
  namespace           = "AWS/DynamoDB"
  metric_name         = "WriteThrottleEvents"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "transaction_table_throttles" {
  count               = local.has_transactions ? 1 : 0
  alarm_name          = "${var.name}-transaction-table-throttles"
  dimensions          = { TableName = aws_dynamodb_table.transactions[0].name }
  alarm_description   = "DynamoDB refused writes to the table of the transactions; one transaction may have too many calls"
  namespace           = "AWS/DynamoDB"
  metric_name         = "WriteThrottleEvents"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "cleanup_failed" {
  alarm_name          = "${var.name}-cleanup-failed"
  dimensions          = { StateMachineArn = aws_sfn_state_machine.cleanup.arn }
  alarm_description   = "A clean-up after an execution failed. Its lock is free one lease after the last heartbeat"
  namespace           = "AWS/States"
  metric_name         = "ExecutionsFailed"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "waker_failed" {
  count               = local.wakes_waiters ? 1 : 0
  alarm_name          = "${var.name}-waker-failed"
  dimensions          = { StateMachineArn = aws_sfn_state_machine.waker[0].arn }
  alarm_description   = "The waker failed; executions sleep until their time-out, at most a lease"
  namespace           = "AWS/States"
  metric_name         = "ExecutionsFailed"
  period              = 300
  statistic           = "Sum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "cleanup_not_started" {
  alarm_name          = "${var.name}-cleanup-not-started"
  dimensions          = { QueueName = aws_sqs_queue.cleanup_dead_letters.name }
  alarm_description   = "No clean-up could be started for an execution that ended; the event is in the dead-letter queue"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  period              = 300
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "waker_not_started" {
  count               = local.wakes_waiters ? 1 : 0
  alarm_name          = "${var.name}-waker-not-started"
  dimensions          = { QueueName = aws_sqs_queue.waker_dead_letters[0].name }
  alarm_description   = "Changes did not reach the waker; they are in its dead-letter queue, and executions sleep until their time-out"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  period              = 300
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_metric_alarm" "not_recorded" {
  count               = local.has_history ? 1 : 0
  alarm_name          = "${var.name}-not-recorded"
  dimensions          = { QueueName = aws_sqs_queue.record_dead_letters[0].name }
  alarm_description   = "Changes of locks are not in the history; their place in the stream is in the dead-letter queue"
  namespace           = "AWS/SQS"
  metric_name         = "ApproximateNumberOfMessagesVisible"
  period              = 300
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  evaluation_periods  = 1
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.has_alarm_topic ? [var.alarm_topic_arn] : null
  ok_actions          = local.has_alarm_topic ? [var.alarm_topic_arn] : null
}

resource "aws_cloudwatch_dashboard" "dashboard" {
  dashboard_name = "${var.name}-${local.region}"
  dashboard_body = <<-EOT
{"widgets":[
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"What came of acquires","stat":"Sum","metrics":[
  ["Leasehold","Granted","stack","${var.name}","operation","acquire",{"label":"granted"}],
  [".","Held",".",".",".",".",{"label":"held"}],
  [".","TakenOver",".",".",".",".",{"label":"taken over"}]]}},
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Trouble","stat":"Sum","metrics":[
  ["Leasehold","Lost","stack","${var.name}","operation","heartbeat",{"label":"heartbeat Lost"}],
  ["...","release",{"label":"release Lost"}],
  [".","Broken",".",".",".","break",{"label":"break Broken"}],
  [".","Forbidden",".",".",".","acquire",{"label":"acquire Forbidden"}],
  ["...","heartbeat",{"label":"heartbeat Forbidden"}],
  [".","Unavailable",".",".",".","acquire",{"label":"acquire Unavailable"}],
  ["...","heartbeat",{"label":"heartbeat Unavailable"}],["...","release",{"label":"release Unavailable"}],
  ["...","break",{"label":"break Unavailable"}],["...","get",{"label":"get Unavailable"}],
  ["...","list",{"label":"list Unavailable"}]]}},
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Latency of operations, p50","stat":"p50",
  "yAxis":{"left":{"label":"ms","showUnits":false}},"metrics":[["Leasehold","Latency","stack","${var.name}","operation","acquire",{"label":"acquire"}], ["...","heartbeat",{"label":"heartbeat"}],["...","release",{"label":"release"}],["...","break",{"label":"break"}], ["...","get",{"label":"get"}],["...","list",{"label":"list"}]]}},
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Latency of operations, p99","stat":"p99",
  "yAxis":{"left":{"label":"ms","showUnits":false}},"metrics":[["Leasehold","Latency","stack","${var.name}","operation","acquire",{"label":"acquire"}], ["...","heartbeat",{"label":"heartbeat"}],["...","release",{"label":"release"}],["...","break",{"label":"break"}], ["...","get",{"label":"get"}],["...","list",{"label":"list"}]]}},
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Requests to the API","stat":"Sum","metrics":[
  ["AWS/ApiGateway","Count","ApiId","${aws_apigatewayv2_api.api.id}"],[".","4xx",".","."],[".","5xx",".","."]]}},
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Latency of the API","stat":"p99","metrics":[
  ["AWS/ApiGateway","Latency","ApiId","${aws_apigatewayv2_api.api.id}",{"stat":"p50"}],["..."],[".","IntegrationLatency",".","."]]}},
{"type":"metric","width":8,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Errors of functions","stat":"Sum","metrics":[["AWS/Lambda","Errors","FunctionName","${local.each_function ? aws_lambda_function.hold[0].function_name : aws_lambda_function.acquire[0].function_name}",{"label":"hold"}],["...","${local.each_function ? aws_lambda_function.ask[0].function_name : aws_lambda_function.acquire[0].function_name}",{"label":"ask"}],["...","${aws_lambda_function.read.function_name}",{"label":"read"}], ["...","${aws_lambda_function.operate.function_name}",{"label":"operate"}],["...","${aws_lambda_function.invoke.function_name}",{"label":"invoke"}], ["...","${aws_lambda_function.cleanup.function_name}",{"label":"cleanup"}]]}},
{"type":"metric","width":8,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Throttled invocations","stat":"Sum","metrics":[["AWS/Lambda","Throttles","FunctionName","${local.each_function ? aws_lambda_function.hold[0].function_name : aws_lambda_function.acquire[0].function_name}",{"label":"hold"}],["...","${local.each_function ? aws_lambda_function.ask[0].function_name : aws_lambda_function.acquire[0].function_name}",{"label":"ask"}],["...","${aws_lambda_function.read.function_name}",{"label":"read"}], ["...","${aws_lambda_function.operate.function_name}",{"label":"operate"}],["...","${aws_lambda_function.invoke.function_name}",{"label":"invoke"}], ["...","${aws_lambda_function.cleanup.function_name}",{"label":"cleanup"}]]}},
{"type":"metric","width":8,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Concurrent executions","stat":"Maximum","metrics":[["AWS/Lambda","ConcurrentExecutions","FunctionName","${local.each_function ? aws_lambda_function.hold[0].function_name : aws_lambda_function.acquire[0].function_name}",{"label":"hold"}],["...","${local.each_function ? aws_lambda_function.ask[0].function_name : aws_lambda_function.acquire[0].function_name}",{"label":"ask"}],["...","${aws_lambda_function.read.function_name}",{"label":"read"}], ["...","${aws_lambda_function.operate.function_name}",{"label":"operate"}],["...","${aws_lambda_function.invoke.function_name}",{"label":"invoke"}], ["...","${aws_lambda_function.cleanup.function_name}",{"label":"cleanup"}]]}},
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Capacity used of the table","stat":"Sum","metrics":[
  ["AWS/DynamoDB","ConsumedWriteCapacityUnits","TableName","${local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name}"],[".","ConsumedReadCapacityUnits",".","."]]}},
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Throttled by the table","stat":"Sum","metrics":[
  ["AWS/DynamoDB","WriteThrottleEvents","TableName","${local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name}"],[".","ReadThrottleEvents",".","."]]}},
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Executions under a lock","stat":"Sum","metrics":[
  ["AWS/States","ExecutionsStarted","StateMachineArn","${aws_sfn_state_machine.run_under_lock.arn}",{"label":"started"}],
  [".","ExecutionsSucceeded",".",".",{"label":"succeeded"}],[".","ExecutionsFailed",".",".",{"label":"failed"}],
  [".","ExecutionsAborted",".",".",{"label":"aborted"}],[".","ExecutionsTimedOut",".",".",{"label":"timed out"}]]}},
{"type":"metric","width":12,"height":6,"properties":{"region":"${local.region}","period":60,"title":"Clean-ups after executions","stat":"Sum","metrics":[
  ["AWS/States","ExecutionsStarted","StateMachineArn","${aws_sfn_state_machine.cleanup.arn}",{"label":"started"}],
  [".","ExecutionsFailed",".",".",{"label":"failed"}],
  ["AWS/SQS","ApproximateNumberOfMessagesVisible","QueueName","${aws_sqs_queue.cleanup_dead_letters.name}",
    {"stat":"Maximum","label":"not started"}]]}}]}
EOT

}

resource "aws_lambda_function" "hold" {
  count                          = local.each_function ? 1 : 0
  function_name                  = "${var.name}-hold"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  publish                        = local.has_release_of_each
  description                    = join(" ", ["Leasehold: renew a lease, or give a lock or permits back", var.release])
  handler                        = "hold"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.hold[0].arn
  runtime                        = "provided.al2023"
  timeout                        = 6
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_hold ? var.hold_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {}
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.hold_table, aws_iam_role_policy.hold_function]
}

resource "aws_lambda_function" "ask" {
  count                          = local.each_function ? 1 : 0
  function_name                  = "${var.name}-ask"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  publish                        = local.has_release_of_each
  description                    = join(" ", ["Leasehold: acquire locks or permits, take over stale ones, wait in a queue", var.release])
  handler                        = "ask"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.ask[0].arn
  runtime                        = "provided.al2023"
  timeout                        = 6
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {}
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.ask_table, aws_iam_role_policy.ask_function]
}

resource "aws_lambda_function" "acquire" {
  count                          = local.one_function ? 1 : 0
  function_name                  = "${var.name}-acquire"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  publish                        = local.has_release_of_one
  description                    = join(" ", ["Leasehold: acquire, renew and release", var.release])
  handler                        = "acquire"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.acquire[0].arn
  runtime                        = "provided.al2023"
  timeout                        = 6
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_hold ? var.hold_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {}
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.acquire_table, aws_iam_role_policy.acquire_function]
}

resource "aws_lambda_function" "read" {
  function_name                  = "${var.name}-read"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  description                    = "Leasehold: look at locks and semaphores, and at the table's health"
  handler                        = "read"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.read.arn
  runtime                        = "provided.al2023"
  timeout                        = 29
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {}
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.read_table, aws_iam_role_policy.read_function]
}

resource "aws_lambda_function" "operate" {
  function_name                  = "${var.name}-operate"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  description                    = "Leasehold: an operator's changes"
  handler                        = "operate"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.operate.arn
  runtime                        = "provided.al2023"
  timeout                        = 6
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {}
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.operate_table, aws_iam_role_policy.operate_function]
}

resource "aws_lambda_function" "watch" {
  count                          = local.has_watches ? 1 : 0
  function_name                  = "${var.name}-watch"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  description                    = "Leasehold: wait until a lock changes"
  handler                        = "watch"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.watch[0].arn
  runtime                        = "provided.al2023"
  timeout                        = 29
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = var.watch_concurrency
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {}
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.watch_table, aws_iam_role_policy.watch_function]
}

resource "aws_lambda_function" "invoke" {
  function_name                  = "${var.name}-invoke"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  description                    = "Leasehold: all operations on locks and semaphores, for direct invocations"
  handler                        = "invoke"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.invoke.arn
  runtime                        = "provided.al2023"
  timeout                        = 6
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {},
      { LEASEHOLD_EXECUTION_KEY = aws_kms_key.execution.arn }
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [
    aws_iam_role_policy.invoke_table,
    aws_iam_role_policy.invoke_execution_key,
    aws_iam_role_policy.invoke_function,
  ]
}

resource "aws_lambda_function" "semaphore" {
  function_name                  = "${var.name}-semaphore"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  description                    = "Leasehold: all operations on locks and semaphores, for direct invocations"
  handler                        = "invoke"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.invoke.arn
  runtime                        = "provided.al2023"
  timeout                        = 6
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {},
      { LEASEHOLD_EXECUTION_KEY = aws_kms_key.execution.arn }
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [
    aws_iam_role_policy.invoke_table,
    aws_iam_role_policy.invoke_execution_key,
    aws_iam_role_policy.invoke_function,
  ]
}

resource "aws_lambda_function" "cleanup" {
  function_name                  = "${var.name}-cleanup"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  description                    = "Leasehold: releases what an execution of Step Functions held that ended without doing so"
  handler                        = "cleanup"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.cleanup.arn
  runtime                        = "provided.al2023"
  timeout                        = 30
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {},
      { LEASEHOLD_EXECUTION_KEY = aws_kms_key.execution.arn }
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [
    aws_iam_role_policy.cleanup_table,
    aws_iam_role_policy.cleanup_execution_key,
    aws_iam_role_policy.cleanup_function,
  ]
}

resource "aws_lambda_function" "record" {
  count                          = local.has_history ? 1 : 0
  function_name                  = "${var.name}-record"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  description                    = "Leasehold: record who held which lock"
  handler                        = "record"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.record[0].arn
  runtime                        = "provided.al2023"
  timeout                        = 29
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {}
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.record_history, aws_iam_role_policy.record_function]
}

resource "aws_lambda_function" "terraform" {
  count                          = local.has_terraform ? 1 : 0
  function_name                  = "${var.name}-terraform"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  description                    = "Leasehold: states of Terraform, each under its lock"
  handler                        = "terraform"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.terraform[0].arn
  runtime                        = "provided.al2023"
  timeout                        = 29
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {},
      {
        LEASEHOLD_TERRAFORM_BUCKET = aws_s3_bucket.states[0].id
        LEASEHOLD_TERRAFORM_TOKENS = var.terraform_tokens
      }
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [
    aws_iam_role_policy.terraform_table,
    aws_iam_role_policy.terraform_states,
    aws_iam_role_policy.terraform_function,
  ]
}

resource "aws_lambda_function" "transact" {
  count                          = local.has_transactions ? 1 : 0
  function_name                  = "${var.name}-transact"
  filename                       = "${var.code_directory}/leasehold-transactions/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-transactions/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-transactions/bootstrap.zip") : null
  description                    = "Leasehold: transactions, over HTTP and for direct invocations"
  handler                        = "transact"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.transact[0].arn
  runtime                        = "provided.al2023"
  timeout                        = 29
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {},
      {
        LEASEHOLD_TRANSACTION_TABLE_NAME        = aws_dynamodb_table.transactions[0].name
        LEASEHOLD_TRANSACTION_IDLE_SECONDS      = var.transaction_idle_seconds
        LEASEHOLD_TRANSACTION_RETENTION_SECONDS = var.transaction_retention_seconds
        LEASEHOLD_TRANSACTION_PATIENCE_MS       = var.transaction_patience_ms
      }
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.transact_tables, aws_iam_role_policy.transact_function]
}

resource "aws_lambda_function" "sweep" {
  count                          = local.has_transactions ? 1 : 0
  function_name                  = "${var.name}-sweep"
  filename                       = "${var.code_directory}/leasehold-transactions/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-transactions/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-transactions/bootstrap.zip") : null
  description                    = "Leasehold: finishes what transactions leave behind"
  handler                        = "sweep"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.sweep[0].arn
  runtime                        = "provided.al2023"
  timeout                        = 900
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {},
      {
        LEASEHOLD_TRANSACTION_TABLE_NAME        = aws_dynamodb_table.transactions[0].name
        LEASEHOLD_TRANSACTION_IDLE_SECONDS      = var.transaction_idle_seconds
        LEASEHOLD_TRANSACTION_RETENTION_SECONDS = var.transaction_retention_seconds
        LEASEHOLD_TRANSACTION_PATIENCE_MS       = var.transaction_patience_ms
      }
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.sweep_tables, aws_iam_role_policy.sweep_function]
}

resource "aws_cloudwatch_event_rule" "sweep" {
  count               = local.has_transactions ? 1 : 0
  name                = "${var.name}-sweep"
  description         = "A sweep of transactions"
  schedule_expression = "rate(1 minute)"
}

resource "aws_cloudwatch_event_target" "sweep" {
  count     = local.has_transactions ? 1 : 0
  rule      = aws_cloudwatch_event_rule.sweep[0].name
  arn       = aws_lambda_function.sweep[0].arn
  target_id = "SweepFunctionScheduleLambdaTarget"

  retry_policy {
    maximum_event_age_in_seconds = 60
    maximum_retry_attempts       = 0
  }
}

resource "aws_lambda_permission" "sweep_function_schedule" {
  count         = local.has_transactions ? 1 : 0
  function_name = aws_lambda_function.sweep[0].function_name
  action        = "lambda:InvokeFunction"
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.sweep[0].arn
}

resource "aws_lambda_function" "expire" {
  count                          = local.is_multi_region ? 1 : 0
  function_name                  = "${var.name}-expire"
  filename                       = "${var.code_directory}/leasehold-locks/bootstrap.zip"
  source_code_hash               = fileexists("${var.code_directory}/leasehold-locks/bootstrap.zip") ? filebase64sha256("${var.code_directory}/leasehold-locks/bootstrap.zip") : null
  description                    = "Leasehold: removes expired rows"
  handler                        = "expire"
  memory_size                    = var.memory_mb
  role                           = aws_iam_role.expire[0].arn
  runtime                        = "provided.al2023"
  timeout                        = 900
  kms_key_arn                    = local.has_environment_kms_key ? var.environment_kms_key_arn : null
  reserved_concurrent_executions = local.reserves_concurrency ? var.reserved_concurrency : null
  architectures                  = [var.architecture]

  environment {
    variables = merge(
      {
        LEASEHOLD_TABLE_NAME           = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
        LEASEHOLD_PARTITION_KEY        = var.partition_key_name
        LEASEHOLD_SORT_KEY             = var.sort_key_name
        LEASEHOLD_RETENTION_SECONDS    = var.retention_seconds
        LEASEHOLD_CLOCK_SKEW_MS        = var.clock_skew_ms
        LEASEHOLD_TAKEOVER_CLOCK_CHECK = var.takeover_clock_check
        LEASEHOLD_MULTI_REGION         = var.multi_region
        LEASEHOLD_LOG                  = var.log_level
        LEASEHOLD_KEY_SCOPES           = var.key_scopes
        LEASEHOLD_OWNER_BINDING        = var.owner_binding
        LEASEHOLD_JWT_CLAIM            = var.jwt_claim
        LEASEHOLD_METRICS              = var.operation_metrics
        LEASEHOLD_STACK                = var.name
      },
      local.has_history ? { LEASEHOLD_HISTORY_TABLE_NAME = aws_dynamodb_table.history[0].name } : {},
      local.has_history ? { LEASEHOLD_HISTORY_DAYS = var.history_days } : {},
      local.has_dynamo_db_endpoint ? { AWS_ENDPOINT_URL_DYNAMODB = var.dynamo_db_endpoint_url } : {}
    )
  }

  dynamic "vpc_config" {
    for_each = local.has_vpc ? [1] : []
    content {
      subnet_ids         = var.vpc_subnet_ids
      security_group_ids = var.vpc_security_group_ids
    }
  }

  tracing_config {
    mode = var.tracing
  }

  logging_config {
    log_group        = aws_cloudwatch_log_group.function.name
    log_format       = "JSON"
    system_log_level = "WARN"
  }

  depends_on = [aws_iam_role_policy.expire_table, aws_iam_role_policy.expire_function]
}

resource "aws_cloudwatch_event_rule" "expire" {
  count               = local.is_multi_region ? 1 : 0
  name                = "${var.name}-expire"
  description         = "A removal of expired rows"
  schedule_expression = "rate(6 hours)"
}

resource "aws_cloudwatch_event_target" "expire" {
  count     = local.is_multi_region ? 1 : 0
  rule      = aws_cloudwatch_event_rule.expire[0].name
  arn       = aws_lambda_function.expire[0].arn
  target_id = "ExpireFunctionScheduleLambdaTarget"

  retry_policy {
    maximum_event_age_in_seconds = 60
    maximum_retry_attempts       = 0
  }
}

resource "aws_lambda_permission" "expire_function_schedule" {
  count         = local.is_multi_region ? 1 : 0
  function_name = aws_lambda_function.expire[0].function_name
  action        = "lambda:InvokeFunction"
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.expire[0].arn
}

resource "aws_sfn_state_machine" "run_under_lock" {
  name = "${var.name}-run-under-lock"
  definition = templatefile("${local.files}/statemachines/run-under-lock.asl.json", {
    InvokeFunctionArn      = aws_lambda_function.invoke.arn
    CleanupStateMachineArn = aws_sfn_state_machine.cleanup.arn
    ChildrenTableName      = aws_dynamodb_table.children.name
    Partition              = local.partition
  })
  role_arn = aws_iam_role.run_under_lock.arn
  type     = "STANDARD"

  depends_on = [aws_iam_role_policy.run_under_lock_tasks]
}

resource "aws_sfn_state_machine" "child_ended" {
  name       = "${var.name}-child-ended"
  definition = templatefile("${local.files}/statemachines/child-ended.asl.json", { ChildrenTableName = aws_dynamodb_table.children.name, Partition = local.partition })
  role_arn   = aws_iam_role.child_ended.arn
  type       = "EXPRESS"

  logging_configuration {
    level                  = "ERROR"
    include_execution_data = false
    log_destination        = "${aws_cloudwatch_log_group.child_ended.arn}:*"
  }

  depends_on = [aws_iam_role_policy.child_ended_tasks]
}

resource "aws_sfn_state_machine" "cleanup" {
  name = "${var.name}-cleanup"
  definition = templatefile("${local.files}/statemachines/cleanup.asl.json", {
    CleanupFunctionArn = aws_lambda_function.cleanup.arn
    LateRequestSeconds = var.late_request_seconds
    Partition          = local.partition
  })
  role_arn = aws_iam_role.cleanup_state_machine.arn
  type     = "STANDARD"

  depends_on = [aws_iam_role_policy.cleanup_state_machine_tasks]
}

resource "aws_sfn_state_machine" "waker" {
  count = local.wakes_waiters ? 1 : 0
  name  = "${var.name}-waker"
  definition = templatefile("${local.files}/statemachines/waker.asl.json", {
    TableName        = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
    PartitionKeyName = var.partition_key_name
    SortKeyName      = var.sort_key_name
    WaitersTableName = aws_dynamodb_table.waiters[0].name
    Partition        = local.partition
  })
  role_arn = aws_iam_role.waker[0].arn
  type     = "EXPRESS"

  logging_configuration {
    level                  = "ERROR"
    include_execution_data = false
    log_destination        = "${aws_cloudwatch_log_group.waker[0].arn}:*"
  }

  depends_on = [aws_iam_role_policy.waker_tasks]
}

resource "aws_api_gateway_rest_api" "rest" {
  count = local.has_rest_api ? 1 : 0
  body = jsonencode({
    swagger = "2.0"
    info    = { title = "${var.name}-rest", version = "1" }
    securityDefinitions = {
      sigv4 = { type = "apiKey", name = "Authorization", in = "header", "x-amazon-apigateway-authtype" = "awsSigv4" }
    }
    paths = merge(
      {
        "/v1/heartbeat" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.each_function ? local.has_release ? aws_lambda_alias.hold[0].arn : aws_lambda_function.hold[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn}/invocations"
              }
            }
          )
        }
        "/v1/release" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.each_function ? local.has_release ? aws_lambda_alias.hold[0].arn : aws_lambda_function.hold[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn}/invocations"
              }
            }
          )
        }
        "/v1/semaphore/heartbeat" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.each_function ? local.has_release ? aws_lambda_alias.hold[0].arn : aws_lambda_function.hold[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn}/invocations"
              }
            }
          )
        }
        "/v1/semaphore/release" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.each_function ? local.has_release ? aws_lambda_alias.hold[0].arn : aws_lambda_function.hold[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn}/invocations"
              }
            }
          )
        }
        "/v1/acquire" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.each_function ? local.has_release ? aws_lambda_alias.ask[0].arn : aws_lambda_function.ask[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn}/invocations"
              }
            }
          )
        }
        "/v1/acquire-all" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.each_function ? local.has_release ? aws_lambda_alias.ask[0].arn : aws_lambda_function.ask[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn}/invocations"
              }
            }
          )
        }
        "/v1/want" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.each_function ? local.has_release ? aws_lambda_alias.ask[0].arn : aws_lambda_function.ask[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn}/invocations"
              }
            }
          )
        }
        "/v1/semaphore/acquire" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.each_function ? local.has_release ? aws_lambda_alias.ask[0].arn : aws_lambda_function.ask[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn}/invocations"
              }
            }
          )
        }
        "/v1/semaphore/enqueue" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${local.each_function ? local.has_release ? aws_lambda_alias.ask[0].arn : aws_lambda_function.ask[0].arn : local.has_release ? aws_lambda_alias.acquire[0].arn : aws_lambda_function.acquire[0].arn}/invocations"
              }
            }
          )
        }
        "/v1/break" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.operate.arn}/invocations"
              }
            }
          )
        }
        "/v1/occurrence" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.operate.arn}/invocations"
              }
            }
          )
        }
        "/v1/semaphore/break" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.operate.arn}/invocations"
              }
            }
          )
        }
        "/v1/semaphore/capacity" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.operate.arn}/invocations"
              }
            }
          )
        }
        "/v1/lock" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.read.arn}/invocations"
              }
            }
          )
        }
        "/v1/locks" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.read.arn}/invocations"
              }
            }
          )
        }
        "/v1/history" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.read.arn}/invocations"
              }
            }
          )
        }
        "/v1/health" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.read.arn}/invocations"
              }
            }
          )
        }
        "/v1/semaphore" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.read.arn}/invocations"
              }
            }
          )
        }
        "/" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.read.arn}/invocations"
              }
            }
          )
        }
        "/{proxy+}" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.read.arn}/invocations"
              }
            }
          )
        }
      },
      local.has_watches ? {
        "/v1/watch" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.watch[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_terraform ? {
        "/v1/terraform" = {
          "x-amazon-apigateway-any-method" = merge(
            local.terraform_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.terraform[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_terraform ? {
        "/v1/terraform-lock" = {
          "x-amazon-apigateway-any-method" = merge(
            local.terraform_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.terraform[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/transactions/begin" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.transact[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/transactions/add" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.transact[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/transactions/commit" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.transact[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/transactions/rollback" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.transact[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/transaction" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.transact[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/items/get" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.transact[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/items/list" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.transact[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/transactions" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.sweep[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/transactions/sweep" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.sweep[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/transactions/strays" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.sweep[0].arn}/invocations"
              }
            }
          )
        }
      } : {},
      local.has_transactions ? {
        "/v1/transactions/unlock" = {
          "x-amazon-apigateway-any-method" = merge(
            local.rest_api_is_signed ? { security = [{ sigv4 = [] }] } : {},
            {
              "x-amazon-apigateway-integration" = {
                type        = "aws_proxy"
                httpMethod  = "POST"
                credentials = aws_iam_role.rest_api[0].arn
                uri         = "arn:${local.partition}:apigateway:${local.region}:lambda:path/2015-03-31/functions/${aws_lambda_function.sweep[0].arn}/invocations"
              }
            }
          )
        }
      } : {}
    )
  })
  name = "${var.name}-rest"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      [
        {
          Effect    = "Allow"
          Principal = jsondecode(local.rest_api_is_signed ? jsonencode({ AWS = "arn:${local.partition}:iam::${local.account}:root" }) : jsonencode("*"))
          Action    = "execute-api:Invoke"
          Resource  = "execute-api:/*"
        },
      ],
      local.has_terraform_tokens ? [
        {
          Effect    = "Allow"
          Principal = "*"
          Action    = "execute-api:Invoke"
          Resource  = ["execute-api:/*/*/v1/terraform", "execute-api:/*/*/v1/terraform-lock"]
        },
      ] : [],
      local.rest_api_is_private ? [
        {
          Effect    = "Deny"
          Principal = "*"
          Action    = "execute-api:Invoke"
          Resource  = "execute-api:/*"
          Condition = { StringNotEquals = { "aws:SourceVpce" = var.rest_api_vpc_endpoint_ids } }
        },
      ] : [],
      local.has_rest_api_source_ranges ? [
        {
          Effect    = "Deny"
          Principal = "*"
          Action    = "execute-api:Invoke"
          Resource  = "execute-api:/*"
          Condition = { NotIpAddress = { "aws:SourceIp" = var.rest_api_source_ranges } }
        },
      ] : []
    )
  })

  endpoint_configuration {
    types            = [local.rest_api_is_private ? "PRIVATE" : "REGIONAL"]
    vpc_endpoint_ids = local.rest_api_is_private ? var.rest_api_vpc_endpoint_ids : null
  }
}

resource "aws_api_gateway_deployment" "rest" {
  count       = local.has_rest_api ? 1 : 0
  rest_api_id = aws_api_gateway_rest_api.rest[0].id
  triggers = {
    definition = sha256("${aws_api_gateway_rest_api.rest[0].body}${aws_api_gateway_rest_api.rest[0].policy}")
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_api_gateway_stage" "rest" {
  count         = local.has_rest_api ? 1 : 0
  deployment_id = aws_api_gateway_deployment.rest[0].id
  rest_api_id   = aws_api_gateway_rest_api.rest[0].id
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
