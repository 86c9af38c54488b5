# Made of template.yaml by generate.py: change the template, and run scripts/terraform.sh --generate.

output "api_url" {
  description = "The address of the API, without a slash at the end"
  value       = aws_apigatewayv2_api.api.api_endpoint
}

output "rest_api_url" {
  description = "Where the REST API is, without a slash at the end"
  value       = local.has_rest_api ? "https://${aws_api_gateway_rest_api.rest[0].id}.execute-api.${local.region}.${data.aws_partition.current.dns_suffix}/live" : null
}

output "rest_api_arn" {
  description = "The REST API in policies; add /POST/v1/acquire and the like"
  value       = local.has_rest_api ? "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_api_gateway_rest_api.rest[0].id}/live" : null
}

output "domain_target" {
  description = "The target of the alias record of domain_name"
  value       = local.has_domain ? aws_apigatewayv2_domain_name.domain[0].domain_name_configuration[0].target_domain_name : null
}

output "api_arn" {
  description = "The API in policies; add /POST/v1/acquire and the like"
  value       = "arn:${local.partition}:execute-api:${local.region}:${local.account}:${aws_apigatewayv2_api.api.id}/$default"
}

output "invoke_function_arn" {
  description = "The function for direct invocations, of all operations on locks and semaphores"
  value       = aws_lambda_function.invoke.arn
}

output "semaphore_function_arn" {
  description = "The same function under another name"
  value       = aws_lambda_function.semaphore.arn
}

output "agent_layer_arn" {
  description = "The agent as a layer for functions on x86_64"
  value       = local.has_agent_layers ? aws_lambda_layer_version.agent_layer[0].arn : null
}

output "agent_layer_arm64_arn" {
  description = "The agent as a layer for functions on arm64"
  value       = local.has_agent_layers ? aws_lambda_layer_version.agent_layer_arm64[0].arn : null
}

output "holder_policy_arn" {
  description = "The managed policy of functions that hold locks, and of any other caller"
  value       = aws_iam_policy.holder.arn
}

output "waiters_table_name" {
  description = "Name of the table with the tokens of sleeping executions"
  value       = local.wakes_waiters ? aws_dynamodb_table.waiters[0].name : null
}

output "waiters_table_arn" {
  description = "The same, in policies"
  value       = local.wakes_waiters ? aws_dynamodb_table.waiters[0].arn : null
}

output "run_under_lock_arn" {
  description = "The state machine that runs another one while holding a lock"
  value       = aws_sfn_state_machine.run_under_lock.arn
}

output "cleanup_state_machine_arn" {
  description = "The state machine that rules for other state machines have as target"
  value       = aws_sfn_state_machine.cleanup.arn
}

output "table_name" {
  description = "The table of the locks"
  value       = local.makes_table ? aws_dynamodb_table.locks[0].name : var.existing_table_name
}

output "table_arn" {
  description = "The same, in policies"
  value       = local.makes_table ? aws_dynamodb_table.locks[0].arn : "arn:${local.partition}:dynamodb:${local.region}:${local.account}:table/${var.existing_table_name}"
}

output "dashboard_url" {
  description = "The dashboard"
  value       = "https://${local.region}.console.aws.amazon.com/cloudwatch/home?region=${local.region}#dashboards/dashboard/${aws_cloudwatch_dashboard.dashboard.dashboard_name}"
}

output "function_log_name" {
  description = "The log group of all functions"
  value       = aws_cloudwatch_log_group.function.name
}

output "access_log_name" {
  description = "The log group of the API"
  value       = aws_cloudwatch_log_group.access.name
}

output "transact_function_arn" {
  description = "The function of transactions, for direct invocations"
  value       = local.has_transactions ? aws_lambda_function.transact[0].arn : null
}

output "sweep_function_arn" {
  description = "The sweeper, for operators"
  value       = local.has_transactions ? aws_lambda_function.sweep[0].arn : null
}

output "transaction_table_name" {
  description = "The table of the transactions"
  value       = local.has_transactions ? aws_dynamodb_table.transactions[0].name : null
}

output "hold_function_name" {
  description = "The name of HoldFunction"
  value       = local.each_function ? aws_lambda_function.hold[0].function_name : null
}

output "ask_function_name" {
  description = "The name of AskFunction"
  value       = local.each_function ? aws_lambda_function.ask[0].function_name : null
}

output "acquire_function_name" {
  description = "The name of AcquireFunction"
  value       = local.one_function ? aws_lambda_function.acquire[0].function_name : null
}

output "read_function_name" {
  description = "The name of ReadFunction"
  value       = aws_lambda_function.read.function_name
}

output "operate_function_name" {
  description = "The name of OperateFunction"
  value       = aws_lambda_function.operate.function_name
}

output "invoke_function_name" {
  description = "The name of InvokeFunction"
  value       = aws_lambda_function.invoke.function_name
}

output "semaphore_function_name" {
  description = "The name of SemaphoreFunction"
  value       = aws_lambda_function.semaphore.function_name
}

output "cleanup_function_name" {
  description = "The name of CleanupFunction"
  value       = aws_lambda_function.cleanup.function_name
}

output "record_function_name" {
  description = "The name of RecordFunction"
  value       = local.has_history ? aws_lambda_function.record[0].function_name : null
}

output "history_table_name" {
  description = "The table of the history"
  value       = local.has_history ? aws_dynamodb_table.history[0].name : null
}

output "terraform_function_name" {
  description = "The name of TerraformFunction"
  value       = local.has_terraform ? aws_lambda_function.terraform[0].function_name : null
}

output "state_bucket_name" {
  description = "The bucket of the states of Terraform"
  value       = local.has_terraform ? aws_s3_bucket.states[0].id : null
}

output "function_url" {
  description = "Where the operations of AcquireFunction can be reached without the API, with a slash at the end"
  value       = local.has_function_url ? aws_lambda_function_url.acquire[0].function_url : null
}

output "transact_function_name" {
  description = "The name of TransactFunction"
  value       = local.has_transactions ? aws_lambda_function.transact[0].function_name : null
}

output "sweep_function_name" {
  description = "The name of SweepFunction"
  value       = local.has_transactions ? aws_lambda_function.sweep[0].function_name : null
}
