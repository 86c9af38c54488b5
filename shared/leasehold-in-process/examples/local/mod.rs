//! The service for the examples: in this process, on an embedded DynamoDB in memory.
//!
//! An application that may use DynamoDB itself calls `InProcess::connect("leasehold")` instead. One that calls a
//! deployed service, or `leasehold serve`, makes its client from an `HttpTransport`.

use std::error::Error;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType};
use leasehold_engine::Engine;
use leasehold_in_process::InProcess;
use leasehold_protocol::TableSchema;

/// The table of an example's own items, with the key `id`.
pub(crate) const ACCOUNTS: &str = "accounts";

/// Creates the tables, and the service over them.
///
/// # Errors
/// Fails if a table cannot be created.
pub(crate) async fn service() -> Result<InProcess, Box<dyn Error + Send + Sync>> {
    let engine = Engine::memory()?;
    let dynamodb = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let schema = TableSchema::new("leasehold");
    leasehold_protocol::ensure_table(&dynamodb, &schema).await?;
    leasehold_transactions::ensure_table(&dynamodb, "leasehold-transactions").await?;
    dynamodb
        .create_table()
        .table_name(ACCOUNTS)
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build()?)
        .attribute_definitions(
            AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S).build()?,
        )
        .send()
        .await?;
    Ok(InProcess::on_tables(&dynamodb, schema, "leasehold-transactions")?)
}
