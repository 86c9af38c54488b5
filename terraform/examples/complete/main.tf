# A service for tokens of a user pool, with transactions over a table of its own, watches, and executions that sleep for a lock.
resource "aws_dynamodb_table" "accounts" {
  name         = "accounts"
  billing_mode = "PAY_PER_REQUEST"
  hash_key     = "id"

  attribute {
    name = "id"
    type = "S"
  }
}

resource "aws_sns_topic" "alarms" {
  name = "leasehold-alarms"
}

module "leasehold" {
  source                    = "../.."
  name                      = "orders-locks"
  code_directory            = var.code_directory
  architecture              = "arm64"
  authorizer                = "JWT"
  jwt_issuer                = var.jwt_issuer
  jwt_audience              = var.jwt_audience
  jwt_break_scope           = "locks/operate"
  jwt_sweep_scope           = "locks/operate"
  transaction_table_arns    = [aws_dynamodb_table.accounts.arn]
  watch_concurrency         = 20
  wake_waiters              = true
  release                   = var.release
  table_deletion_protection = true
  alarm_topic_arn           = aws_sns_topic.alarms.arn
}

variable "code_directory" {
  description = "The folder that cargo lambda filled, for arm64"
  type        = string
  default     = "target/lambda"
}

variable "jwt_issuer" {
  description = "The issuer of the tokens"
  type        = string
}

variable "jwt_audience" {
  description = "The audiences that are accepted"
  type        = list(string)
}

variable "release" {
  description = "The commit that is deployed"
  type        = string
}

output "api_url" {
  description = "The API's address"
  value       = module.leasehold.api_url
}

output "hold_function_name" {
  description = "The name of the function for heartbeats and releases"
  value       = module.leasehold.hold_function_name
}
