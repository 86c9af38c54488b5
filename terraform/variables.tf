variable "name" {
  description = "Prefix of all names; also the dimension `stack` of the metrics"
  type        = string
  default     = "leasehold"

  validation {
    condition     = can(regex("^[a-zA-Z0-9][a-zA-Z0-9-]{0,50}$", var.name))
    error_message = "The name must have at most 51 letters, digits and hyphens."
  }
}

variable "code_directory" {
  description = "The folder that `cargo lambda build --release --output-format zip -p leasehold-functions` filled, such as target/lambda"
  type        = string
}

variable "architecture" {
  description = "The processor that the functions were built for: arm64 or x86_64"
  type        = string
  default     = "x86_64"
}

variable "authorizer" {
  description = "The proof of identity of callers: AWS_IAM, JWT or NONE"
  type        = string
  default     = "AWS_IAM"

  validation {
    condition     = contains(["AWS_IAM", "JWT", "NONE"], var.authorizer)
    error_message = "The authorizer must be AWS_IAM, JWT or NONE."
  }
  validation {
    condition     = var.authorizer != "JWT" || (var.jwt_issuer != "" && length(var.jwt_audience) > 0)
    error_message = "The authorizer JWT needs jwt_issuer and jwt_audience."
  }
}

variable "jwt_issuer" {
  description = "With JWT, the issuer of the tokens"
  type        = string
  default     = ""
}

variable "jwt_audience" {
  description = "With JWT, the audiences or client ids that are accepted"
  type        = list(string)
  default     = []
}

variable "jwt_break_scope" {
  description = "With JWT, the scope that a token needs for what operators change. Empty, every accepted token may"
  type        = string
  default     = ""
}

variable "jwt_claim" {
  description = "With JWT, the claim that names the bearer of a token"
  type        = string
  default     = "sub"
}

variable "key_scopes" {
  description = "Which callers may touch which keys, as JSON. Empty, whoever may call may touch every key"
  type        = string
  default     = ""
}

variable "owner_binding" {
  description = "Whether only the principal that acquired a lock may renew or release it"
  type        = bool
  default     = false

  validation {
    condition     = !var.owner_binding || var.authorizer != "NONE"
    error_message = "owner_binding tells callers apart, which the authorizer NONE does not."
  }
}

variable "existing_table_name" {
  description = "A table of the same account and region to use in place of a new one"
  type        = string
  default     = ""
}

variable "partition_key_name" {
  description = "Name of the table's partition key, a string"
  type        = string
  default     = "key"
}

variable "sort_key_name" {
  description = "Name of the table's sort key, a string. Empty, the table has none"
  type        = string
  default     = ""
}

variable "table_deletion_protection" {
  description = "Whether DynamoDB refuses to delete the tables. Terraform deletes the tables with the module otherwise: turn it on for what should stay"
  type        = bool
  default     = false
}

variable "table_kms_key_arn" {
  description = "Your own KMS key for the table. Empty, the account's aws/dynamodb key"
  type        = string
  default     = ""
}

variable "retention_seconds" {
  description = "How long DynamoDB keeps a lock that nobody touches, beyond its lease"
  type        = number
  default     = 604800
}

variable "clock_skew_ms" {
  description = "How far apart clocks may be, for callers that ask for staleness clock"
  type        = number
  default     = 1000
}

variable "takeover_clock_check" {
  description = "Whether a takeover by an observed version also needs the service's clock to be past the lease, by more than clock_skew_ms. Otherwise the caller's word is enough"
  type        = bool
  default     = false
}

variable "transaction_table_arns" {
  description = "ARNs of your tables that transactions may read and change. Empty, there are no transactions"
  type        = list(string)
  default     = []
}

variable "transaction_idle_seconds" {
  description = "The idle time after which a transaction is rolled back"
  type        = number
  default     = 60
}

variable "transaction_retention_seconds" {
  description = "The time for which the outcome of a transaction is kept"
  type        = number
  default     = 604800
}

variable "transaction_patience_ms" {
  description = "The idle time after which a transaction is rolled back by another one that needs its item"
  type        = number
  default     = 1000
}

variable "jwt_sweep_scope" {
  description = "With JWT, the scope that a token needs to sweep. Empty, every accepted token may"
  type        = string
  default     = ""
}

variable "release" {
  description = "A name of this deployment, such as a commit. With it the functions that hold and ask run as published versions behind an alias. Empty, they do not"
  type        = string
  default     = ""
}

variable "rest_api" {
  description = "A REST API beside the HTTP API: none, regional or private"
  type        = string
  default     = "none"

  validation {
    condition     = contains(["none", "regional", "private"], var.rest_api)
    error_message = "The REST API must be none, regional or private."
  }
  validation {
    condition     = var.rest_api == "none" || var.authorizer != "JWT"
    error_message = "A REST API needs the authorizer AWS_IAM or NONE."
  }
  validation {
    condition     = var.rest_api != "private" || length(var.rest_api_vpc_endpoint_ids) > 0
    error_message = "A private REST API needs rest_api_vpc_endpoint_ids."
  }
}

variable "rest_api_vpc_endpoint_ids" {
  description = "With a private REST API, the interface endpoints of execute-api from which it may be called"
  type        = list(string)
  default     = []
}

variable "rest_api_source_ranges" {
  description = "With a regional REST API, the address ranges from which it may be called. Empty, all"
  type        = list(string)
  default     = []
}

variable "rest_api_web_acl_arn" {
  description = "With a REST API, a web ACL of AWS WAF for it. Empty, none"
  type        = string
  default     = ""
}

variable "functions" {
  description = "Whether those who hold and those who ask have a function each, or one serves both: each or one"
  type        = string
  default     = "each"

  validation {
    condition     = contains(["each", "one"], var.functions)
    error_message = "The functions must be each or one."
  }
}

variable "function_url" {
  description = "With functions one, whether what holds and asks can also be reached by a Function URL. Callers sign for the service lambda"
  type        = bool
  default     = false

  validation {
    condition     = !var.function_url || var.functions == "one"
    error_message = "function_url needs functions = \"one\"."
  }
}

variable "watch_concurrency" {
  description = "Watches that may wait at a time, each in an invocation of up to 20 seconds. 0 leaves the route out"
  type        = number
  default     = 0
}

variable "wake_waiters" {
  description = "Whether the stack wakes executions that sleep until a lock is free, by the table's stream"
  type        = bool
  default     = false

  validation {
    condition     = !var.wake_waiters || var.existing_table_name == "" || var.existing_table_stream_label != ""
    error_message = "wake_waiters with existing_table_name needs existing_table_stream_label."
  }
}

variable "existing_table_stream_label" {
  description = "With wake_waiters and existing_table_name, the label of that table's stream of new images"
  type        = string
  default     = ""
}

variable "memory_mb" {
  description = "Memory of each function"
  type        = number
  default     = 256
}

variable "hold_concurrency" {
  description = "Concurrent executions that heartbeats and releases have for themselves, whatever all others use. 0 reserves none, for accounts whose quota leaves less than 100 to others"
  type        = number
  default     = 100
}

variable "reserved_concurrency" {
  description = "Concurrent executions that each other function has for itself, and may not exceed. -1, they share those of the account"
  type        = number
  default     = -1
}

variable "log_level" {
  description = "Level of the functions' log: off, error, warn or info"
  type        = string
  default     = "info"
}

variable "log_retention_days" {
  description = "How long logs are kept"
  type        = number
  default     = 30
}

variable "operation_metrics" {
  description = "Whether the functions print metrics of the operations"
  type        = bool
  default     = true
}

variable "runnable_state_machines" {
  description = "Names of the state machines that run-under-lock may start, with * for any characters"
  type        = string
  default     = "locked-*"
}

variable "late_request_seconds" {
  description = "How long after the end of an execution the clean-up releases its locks once more"
  type        = number
  default     = 60
}

variable "throttling_rate_limit" {
  description = "Requests a second that each route takes on average"
  type        = number
  default     = 1000
}

variable "throttling_burst_limit" {
  description = "Requests that each route takes at once"
  type        = number
  default     = 500
}

variable "hold_rate_limit" {
  description = "The same, on average and at once, for each route of heartbeats and releases"
  type        = number
  default     = 2000
}

variable "operate_rate_limit" {
  description = "The same, on average and at once, for each route of operators, and for listings"
  type        = number
  default     = 50
}

variable "alarm_topic_arn" {
  description = "SNS topic that hears of alarms. Empty, they only show in CloudWatch"
  type        = string
  default     = ""
}

variable "lost_locks_alarm_count" {
  description = "The number of holders that may lose their lock in five minutes before there is an alarm"
  type        = number
  default     = 5
}
