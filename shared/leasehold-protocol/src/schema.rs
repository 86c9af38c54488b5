//! Creates the lock table, for local runs and tests. A deployment creates the table with its template.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::ScalarAttributeType;
use leasehold_dynamodb::{Failure, TableDefinition};

use crate::item::{EXPIRE_AT, TableSchema};

/// Creates the table if it is missing, with TTL on `expireAt`, and checks that its keys are those of `schema`.
/// Returns whether the table was created.
///
/// # Errors
/// Fails if the table cannot be created, or has other keys.
pub async fn ensure_table(client: &Client, schema: &TableSchema) -> Result<bool, Failure> {
    leasehold_dynamodb::ensure_table(client, &definition(schema)).await
}

/// Checks that the table is there, that its keys are those of `schema`, and that it may be in several regions.
///
/// # Errors
/// Fails if it is not so.
pub async fn check_table(client: &Client, schema: &TableSchema) -> Result<(), Failure> {
    leasehold_dynamodb::check_table(client, &definition(schema)).await
}

fn definition(schema: &TableSchema) -> TableDefinition<'_> {
    let keys = std::iter::once(&schema.partition_key).chain(&schema.sort_key);
    TableDefinition {
        name: &schema.table_name,
        keys: keys.map(|name| (name.as_str(), ScalarAttributeType::S)).collect(),
        index: None,
        expires_at: EXPIRE_AT,
    }
}
