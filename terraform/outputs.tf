output "api_url" {
  description = "The API's address, without a slash at the end"
  value       = aws_apigatewayv2_api.api.api_endpoint
}

output "api_arn" {
  description = "The API in policies; add /POST/v1/acquire and the like"
  value       = "${aws_apigatewayv2_api.api.execution_arn}/$default"
}

output "invoke_function_arn" {
  description = "The function for direct invocations"
  value       = aws_lambda_function.function["Invoke"].arn
}

output "run_under_lock_arn" {
  description = "The state machine that runs another one while it holds a lock"
  value       = aws_sfn_state_machine.run_under_lock.arn
}

output "cleanup_state_machine_arn" {
  description = "The target of rules about executions that use the mutex steps"
  value       = aws_sfn_state_machine.cleanup.arn
}

output "table_name" {
  description = "The table of the locks"
  value       = local.table_name
}

output "table_arn" {
  description = "The table of the locks, in policies"
  value       = local.table_arn
}

output "function_names" {
  description = "The name of each function"
  value       = { for name, function in aws_lambda_function.function : name => function.function_name }
}

output "function_url" {
  description = "The Function URL for what holds and asks, with a slash at the end; null without function_url"
  value       = one(aws_lambda_function_url.acquire[*].function_url)
}

output "waiters_table_name" {
  description = "The table in which executions that sleep leave their tokens; null without wake_waiters"
  value       = one(aws_dynamodb_table.waiters[*].name)
}

output "rest_api_url" {
  description = "The REST API's address, without a slash at the end; null without rest_api"
  value       = one(aws_api_gateway_stage.rest[*].invoke_url)
}

output "transaction_table_name" {
  description = "The table of the transactions; null without transaction_table_arns"
  value       = one(aws_dynamodb_table.transactions[*].name)
}
