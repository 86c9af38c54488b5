# Made of template.yaml by generate.py: change the template, and run scripts/terraform.sh --generate.

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
  description = "The folder that `cargo lambda build --release --output-format zip -p leasehold-functions` filled"
  type        = string
}

variable "authorizer" {
  description = "The proof of identity of callers. AWS_IAM, a signature and execute-api:Invoke; JWT, a token; NONE, none, so that everyone who can reach the API may call it"
  type        = string
  default     = "AWS_IAM"

  validation {
    condition     = contains(["AWS_IAM", "JWT", "NONE"], var.authorizer)
    error_message = "authorizer must be one of AWS_IAM, JWT, NONE."
  }

  validation {
    condition     = var.authorizer != "JWT" || var.jwt_issuer != ""
    error_message = "authorizer JWT needs jwt_issuer."
  }

  validation {
    condition     = var.authorizer != "JWT" || length(var.jwt_audience) != 0
    error_message = "authorizer JWT needs jwt_audience."
  }
}

variable "jwt_issuer" {
  description = "With JWT, the issuer of the tokens, such as https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_Example"
  type        = string
  default     = ""
}

variable "jwt_audience" {
  description = "With JWT, the audiences (or client ids) that are accepted"
  type        = list(string)
  default     = []
}

variable "jwt_break_scope" {
  description = "With JWT, the scope that a token needs to break a lock. Empty, every accepted token may"
  type        = string
  default     = ""
}

variable "key_scopes" {
  description = "The keys that each caller may touch, as JSON, [{\"principal\": \"arn:aws:iam::123456789012:role/orders-*\", \"prefixes\": [\"orders/\"]}]. Empty, every caller may touch every key"
  type        = string
  default     = ""
}

variable "owner_binding" {
  description = "Whether only the principal that acquired a lock may renew or release it"
  type        = bool
  default     = false

  validation {
    condition     = !var.owner_binding || var.authorizer != "NONE"
    error_message = "owner_binding tells callers apart, which authorizer NONE does not."
  }
}

variable "jwt_claim" {
  description = "With JWT, the claim that names the bearer of a token, for key_scopes and owner_binding"
  type        = string
  default     = "sub"

  validation {
    condition     = var.jwt_claim != ""
    error_message = "jwt_claim must not be empty."
  }
}

variable "existing_table_name" {
  description = "Use this table of the same account and region, such as that of a Java fleet. Empty, the stack makes one"
  type        = string
  default     = ""
}

variable "multi_region" {
  description = "With existing_table_name, whether that is a global table with strong consistency, for stacks of several regions. No transactions then, and the stack removes expired rows itself"
  type        = bool
  default     = false

  validation {
    condition     = !var.multi_region || var.existing_table_name != ""
    error_message = "multi_region needs existing_table_name."
  }

  validation {
    condition     = !var.multi_region || length(var.transaction_table_arns) == 0
    error_message = "multi_region has no transactions."
  }
}

variable "partition_key_name" {
  description = "Name of the table's partition key, a string"
  type        = string
  default     = "key"

  validation {
    condition     = var.partition_key_name != ""
    error_message = "partition_key_name must not be empty."
  }
}

variable "sort_key_name" {
  description = "Name of the table's sort key, a string. Empty, the table has none"
  type        = string
  default     = ""
}

variable "table_deletion_protection" {
  description = "Whether DynamoDB refuses to delete the tables for every caller. Turn it on after the first deployment, whose failure would leave them behind otherwise"
  type        = bool
  default     = false
}

variable "table_kms_key_arn" {
  description = "Your own KMS key for the tables. The stack's roles may use it through DynamoDB, where its policy lets IAM decide. Empty, the account's aws/dynamodb key"
  type        = string
  default     = ""
}

variable "dynamo_db_endpoint_url" {
  description = "Another endpoint of DynamoDB, such as an interface endpoint or DynamoDB Local. Empty, that of the region"
  type        = string
  default     = ""
}

variable "vpc_subnet_ids" {
  description = "Subnets of the functions, for DynamoDB's interface endpoint. Empty, the functions are in no VPC"
  type        = list(string)
  default     = []

  validation {
    condition     = length(var.vpc_subnet_ids) == 0 || length(var.vpc_security_group_ids) != 0
    error_message = "vpc_subnet_ids needs vpc_security_group_ids."
  }
}

variable "vpc_security_group_ids" {
  description = "With vpc_subnet_ids, the security groups of the functions"
  type        = list(string)
  default     = []
}

variable "retention_seconds" {
  description = "The time for which DynamoDB keeps an untouched lock, beyond its lease"
  type        = number
  default     = 604800

  validation {
    condition     = var.retention_seconds >= 1
    error_message = "retention_seconds must be at least 1."
  }

  validation {
    condition     = var.retention_seconds <= 316224000
    error_message = "retention_seconds must be at most 316224000."
  }
}

variable "clock_skew_ms" {
  description = "The largest difference of clocks, for callers that ask for staleness clock"
  type        = number
  default     = 1000

  validation {
    condition     = var.clock_skew_ms >= 1
    error_message = "clock_skew_ms must be at least 1."
  }

  validation {
    condition     = var.clock_skew_ms <= 3600000
    error_message = "clock_skew_ms must be at most 3600000."
  }
}

variable "takeover_clock_check" {
  description = "Whether a takeover by an observed version also needs the service's clock to be more than clock_skew_ms past the lease"
  type        = bool
  default     = false
}

variable "transaction_table_arns" {
  description = "ARNs of your tables that transactions may read and change. Empty, the stack has no transactions"
  type        = list(string)
  default     = []
}

variable "transaction_idle_seconds" {
  description = "The idle time after which a transaction is rolled back"
  type        = number
  default     = 60

  validation {
    condition     = var.transaction_idle_seconds >= 1
    error_message = "transaction_idle_seconds must be at least 1."
  }

  validation {
    condition     = var.transaction_idle_seconds <= 840
    error_message = "transaction_idle_seconds must be at most 840."
  }
}

variable "transaction_retention_seconds" {
  description = "The time for which the outcome of a transaction is kept"
  type        = number
  default     = 604800

  validation {
    condition     = var.transaction_retention_seconds >= 3600
    error_message = "transaction_retention_seconds must be at least 3600."
  }

  validation {
    condition     = var.transaction_retention_seconds <= 316224000
    error_message = "transaction_retention_seconds must be at most 316224000."
  }
}

variable "transaction_patience_ms" {
  description = "The idle time after which a transaction is rolled back by another one that needs its item"
  type        = number
  default     = 1000

  validation {
    condition     = var.transaction_patience_ms >= 1
    error_message = "transaction_patience_ms must be at least 1."
  }

  validation {
    condition     = var.transaction_patience_ms <= 10000
    error_message = "transaction_patience_ms must be at most 10000."
  }
}

variable "jwt_sweep_scope" {
  description = "With JWT, the scope that a token needs to sweep. Empty, every accepted token may"
  type        = string
  default     = ""
}

variable "functions" {
  description = "Whether those who hold and those who ask have a function each. One, AcquireFunction, starts cold once for a quiet cycle"
  type        = string
  default     = "each"

  validation {
    condition     = contains(["each", "one"], var.functions)
    error_message = "functions must be one of each, one."
  }
}

variable "function_url" {
  description = "With functions one, whether what holds and asks has a Function URL, too, which costs nothing a request. Callers sign for the service lambda"
  type        = bool
  default     = false

  validation {
    condition     = !var.function_url || var.functions == "one"
    error_message = "function_url needs functions one."
  }
}

variable "release" {
  description = "A name of this deployment, such as a commit: another one each time. The functions that hold and ask then run as published versions behind an alias"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^([A-Za-z0-9._-]{0,64})$", var.release))
    error_message = "release must match [A-Za-z0-9._-]{0,64}."
  }
}

variable "architecture" {
  description = "The processor of the functions. Build and deploy with the same value"
  type        = string
  default     = "x86_64"

  validation {
    condition     = contains(["x86_64", "arm64"], var.architecture)
    error_message = "architecture must be one of x86_64, arm64."
  }
}

variable "memory_mb" {
  description = "Memory of each function. Lambda deals out processor time in proportion, so less is slower, not only smaller"
  type        = number
  default     = 256

  validation {
    condition     = var.memory_mb >= 128
    error_message = "memory_mb must be at least 128."
  }

  validation {
    condition     = var.memory_mb <= 10240
    error_message = "memory_mb must be at most 10240."
  }
}

variable "hold_concurrency" {
  description = "Concurrent executions that heartbeats and releases have for themselves, whatever all others use. 0 reserves none, for accounts whose quota leaves less than 100 to others"
  type        = number
  default     = 100

  validation {
    condition     = var.hold_concurrency >= 0
    error_message = "hold_concurrency must be at least 0."
  }
}

variable "reserved_concurrency" {
  description = "Concurrent executions that each other function has, and may not exceed. Empty, they share those of the account"
  type        = string
  default     = ""

  validation {
    condition     = can(regex("^(([1-9][0-9]*)?)$", var.reserved_concurrency))
    error_message = "reserved_concurrency must match ([1-9][0-9]*)?."
  }
}

variable "watch_concurrency" {
  description = "Watches that may wait at a time, each in an invocation of up to 20 seconds. 0 leaves the route out, and clients poll"
  type        = number
  default     = 0

  validation {
    condition     = var.watch_concurrency >= 0
    error_message = "watch_concurrency must be at least 0."
  }
}

variable "tracing" {
  description = "Whether the functions send traces to X-Ray by themselves (Active) or for callers who do (PassThrough)"
  type        = string
  default     = "PassThrough"

  validation {
    condition     = contains(["PassThrough", "Active"], var.tracing)
    error_message = "tracing must be one of PassThrough, Active."
  }
}

variable "log_level" {
  description = "Level of the functions' log. At info, a line for each operation"
  type        = string
  default     = "info"

  validation {
    condition     = contains(["off", "error", "warn", "info"], var.log_level)
    error_message = "log_level must be one of off, error, warn, info."
  }
}

variable "log_retention_days" {
  description = "The time for which the functions' log and the access log are kept"
  type        = number
  default     = 30

  validation {
    condition = contains([
      1,
      3,
      5,
      7,
      14,
      30,
      60,
      90,
      120,
      150,
      180,
      365,
      400,
      545,
      731,
      1096,
      1827,
      2192,
      2557,
      2922,
      3288,
      3653,
    ], var.log_retention_days)
    error_message = "log_retention_days must be one of 1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653."
  }
}

variable "log_kms_key_arn" {
  description = "Your own KMS key for the two logs; its policy must let CloudWatch Logs use it. Empty, a key of the service's"
  type        = string
  default     = ""
}

variable "environment_kms_key_arn" {
  description = "Your own KMS key for the functions' environment. The functions' roles may decrypt with it, where its policy lets IAM decide. Empty, the account's aws/lambda key"
  type        = string
  default     = ""
}

variable "runnable_state_machines" {
  description = "Names of the state machines that run-under-lock, and so each of its callers, may start, with * for any characters"
  type        = string
  default     = "locked-*"

  validation {
    condition     = can(regex("^([*]|[*]?([A-Za-z0-9_-]+[*]?)+)$", var.runnable_state_machines))
    error_message = "runnable_state_machines must match [*]|[*]?([A-Za-z0-9_-]+[*]?)+."
  }
}

variable "late_request_seconds" {
  description = "The time after the end of an execution at which the clean-up releases its locks again. Longer than a function may run"
  type        = number
  default     = 60

  validation {
    condition     = var.late_request_seconds >= 10
    error_message = "late_request_seconds must be at least 10."
  }

  validation {
    condition     = var.late_request_seconds <= 900
    error_message = "late_request_seconds must be at most 900."
  }
}

variable "wake_waiters" {
  description = "Whether the stack wakes executions that sleep until a lock is free, by the table's stream (docs/step-functions.md)"
  type        = bool
  default     = false

  validation {
    condition     = !(var.wake_waiters && var.existing_table_name != "") || var.existing_table_stream_label != ""
    error_message = "wake_waiters and history_days with existing_table_name need existing_table_stream_label."
  }
}

variable "existing_table_stream_label" {
  description = "With existing_table_name and wake_waiters or history_days, the label of that table's stream, such as 2026-11-22T07:00:00.000. It has new images, and old ones for history_days"
  type        = string
  default     = ""
}

variable "history_days" {
  description = "The days for which the stack keeps who held which lock, when, and how it ended (docs/operations.md). 0, no history"
  type        = number
  default     = 0

  validation {
    condition     = var.history_days >= 0
    error_message = "history_days must be at least 0."
  }

  validation {
    condition     = var.history_days <= 3650
    error_message = "history_days must be at most 3650."
  }

  validation {
    condition     = !(var.history_days != 0 && var.existing_table_name != "") || var.existing_table_stream_label != ""
    error_message = "wake_waiters and history_days with existing_table_name need existing_table_stream_label."
  }
}

variable "agent_layer_bucket" {
  description = "A bucket of this region with the layers of a release, leasehold-agent-layer-0.1.0-x86_64.zip and the one for aarch64. Empty, the stack has no layers"
  type        = string
  default     = ""
}

variable "agent_layer_version" {
  description = "With agent_layer_bucket, the release of the layers"
  type        = string
  default     = "0.1.0"

  validation {
    condition     = can(regex("^([0-9A-Za-z.-]{1,64})$", var.agent_layer_version))
    error_message = "agent_layer_version must match [0-9A-Za-z.-]{1,64}."
  }
}

variable "terraform_states" {
  description = "Whether the stack keeps states of Terraform in a bucket, each written only under its lock. docs/terraform-state.md"
  type        = bool
  default     = false
}

variable "terraform_tokens" {
  description = "With terraform_states, the tokens that its routes ask for in place of authorizer, as in the file of `leasehold token`, which has their hashes only. Terraform cannot sign. Empty, authorizer decides"
  type        = string
  default     = ""
}

variable "operation_metrics" {
  description = "Whether the functions print metrics of the operations, which alarms and the dashboard are about"
  type        = bool
  default     = true
}

variable "domain_name" {
  description = "A domain of your own for the API, such as locks.example.com, for the output domain_target. Empty, the API has its own alone"
  type        = string
  default     = ""

  validation {
    condition     = var.domain_name == "" || var.domain_certificate_arn != ""
    error_message = "domain_name needs domain_certificate_arn."
  }
}

variable "domain_certificate_arn" {
  description = "With domain_name, its certificate in ACM, of this region"
  type        = string
  default     = ""
}

variable "domain_truststore_uri" {
  description = "With domain_name, the authorities of client certificates, as s3://bucket/key (mutual TLS). Empty, callers show none"
  type        = string
  default     = ""
}

variable "execute_api_endpoint" {
  description = "With domain_name or rest_api, whether the HTTP API also answers at its own address"
  type        = bool
  default     = true

  validation {
    condition     = var.execute_api_endpoint || var.domain_name != "" || var.rest_api != "none"
    error_message = "execute_api_endpoint false needs domain_name or rest_api."
  }
}

variable "throttling_rate_limit" {
  description = "Requests a second that each route takes on average; more are answered with 429"
  type        = number
  default     = 1000

  validation {
    condition     = var.throttling_rate_limit >= 1
    error_message = "throttling_rate_limit must be at least 1."
  }
}

variable "throttling_burst_limit" {
  description = "Requests that each route takes at once"
  type        = number
  default     = 500

  validation {
    condition     = var.throttling_burst_limit >= 1
    error_message = "throttling_burst_limit must be at least 1."
  }
}

variable "hold_rate_limit" {
  description = "The same, on average and at once, for each route of heartbeats and releases"
  type        = number
  default     = 2000

  validation {
    condition     = var.hold_rate_limit >= 1
    error_message = "hold_rate_limit must be at least 1."
  }
}

variable "operate_rate_limit" {
  description = "The same, on average and at once, for each route of operators, and for listings"
  type        = number
  default     = 50

  validation {
    condition     = var.operate_rate_limit >= 1
    error_message = "operate_rate_limit must be at least 1."
  }
}

variable "rest_api" {
  description = "A REST API beside the HTTP API, for a resource policy and AWS WAF (regional), or for callers in a VPC only (private)"
  type        = string
  default     = "none"

  validation {
    condition     = contains(["none", "regional", "private"], var.rest_api)
    error_message = "rest_api must be one of none, regional, private."
  }

  validation {
    condition     = var.rest_api == "none" || var.authorizer != "JWT"
    error_message = "rest_api needs authorizer AWS_IAM or NONE."
  }

  validation {
    condition     = var.rest_api != "private" || length(var.rest_api_vpc_endpoint_ids) != 0
    error_message = "rest_api private needs rest_api_vpc_endpoint_ids."
  }
}

variable "rest_api_vpc_endpoint_ids" {
  description = "With rest_api private, the interface endpoints of execute-api from which it may be called"
  type        = list(string)
  default     = []
}

variable "rest_api_source_ranges" {
  description = "With rest_api regional, the address ranges that may call it, such as 192.0.2.0/24. Empty, all"
  type        = list(string)
  default     = []
}

variable "rest_api_web_acl_arn" {
  description = "With rest_api, a web ACL of AWS WAF for it, of this region. Empty, none"
  type        = string
  default     = ""
}

variable "alarm_topic_arn" {
  description = "SNS topic for alarms. Empty, alarms only show in CloudWatch"
  type        = string
  default     = ""
}

variable "latency_alarm_ms" {
  description = "The slowest hundredth of heartbeats may take this long before there is an alarm"
  type        = number
  default     = 1000

  validation {
    condition     = var.latency_alarm_ms >= 1
    error_message = "latency_alarm_ms must be at least 1."
  }
}

variable "lost_locks_alarm_count" {
  description = "The number of holders that may lose their lock in five minutes before there is an alarm"
  type        = number
  default     = 5

  validation {
    condition     = var.lost_locks_alarm_count >= 0
    error_message = "lost_locks_alarm_count must be at least 0."
  }
}
