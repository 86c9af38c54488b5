//! Creates the transactions table, for local runs and tests. A deployment creates the table with its template.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::ScalarAttributeType::{N, S};
use leasehold_dynamodb::{Failure, Index, TableDefinition};

use crate::record::{EXPIRE_AT, ROW, SWEEP_AT, SWEEP_INDEX, SWEEP_SHARD, TRANSACTION_ID};

/// Creates the table if it is missing, and checks its keys. Returns whether the table was created.
///
/// # Errors
/// Fails if the table cannot be created, or has other keys.
pub async fn ensure_table(client: &Client, table: &str) -> Result<bool, Failure> {
    let definition = TableDefinition {
        name: table,
        keys: vec![(TRANSACTION_ID, S), (ROW, S)],
        index: Some(Index { name: SWEEP_INDEX, keys: vec![(SWEEP_SHARD, S), (SWEEP_AT, N)] }),
        expires_at: EXPIRE_AT,
    };
    leasehold_dynamodb::ensure_table(client, &definition).await
}
