# A lock service with the module's defaults: callers sign their requests.
module "leasehold" {
  source         = "../.."
  name           = "leasehold"
  code_directory = "${path.root}/target/lambda"
  # Afterwards DynamoDB refuses to delete the table.
  table_deletion_protection = true
}

output "api_url" {
  description = "The API's address"
  value       = module.leasehold.api_url
}
