//! Making the transactions table, for local runs and tests. A deployment makes it with its template.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection, ProjectionType,
    ScalarAttributeType, TableStatus, TimeToLiveSpecification,
};

use crate::error::{Error, failure};
use crate::record::{EXPIRE_AT, ROW, SWEEP_AT, SWEEP_INDEX, SWEEP_SHARD, TRANSACTION_ID};

/// Creates the transactions table if it is missing. Returns whether it was created.
///
/// # Errors
/// `Unavailable`, `InvalidRequest` where the table cannot be made.
pub async fn ensure_table(client: &Client, table: &str) -> Result<bool, Error> {
    match client.describe_table().table_name(table).send().await {
        Ok(_) => return Ok(false),
        Err(error) if error.code() == Some("ResourceNotFoundException") => {}
        Err(error) => return Err(failure(error, table)),
    }
    let attribute = |name: &str, kind| AttributeDefinition::builder().attribute_name(name).attribute_type(kind).build();
    let key = |name: &str, kind| KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
    let incomplete = |error: aws_sdk_dynamodb::error::BuildError| Error::Unavailable(Box::new(error));
    let sweep = GlobalSecondaryIndex::builder()
        .index_name(SWEEP_INDEX)
        .key_schema(key(SWEEP_SHARD, KeyType::Hash).map_err(incomplete)?)
        .key_schema(key(SWEEP_AT, KeyType::Range).map_err(incomplete)?)
        .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build())
        .build()
        .map_err(incomplete)?;
    let created = client
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(attribute(TRANSACTION_ID, ScalarAttributeType::S).map_err(incomplete)?)
        .attribute_definitions(attribute(ROW, ScalarAttributeType::S).map_err(incomplete)?)
        .attribute_definitions(attribute(SWEEP_SHARD, ScalarAttributeType::S).map_err(incomplete)?)
        .attribute_definitions(attribute(SWEEP_AT, ScalarAttributeType::N).map_err(incomplete)?)
        .key_schema(key(TRANSACTION_ID, KeyType::Hash).map_err(incomplete)?)
        .key_schema(key(ROW, KeyType::Range).map_err(incomplete)?)
        .global_secondary_indexes(sweep)
        .send()
        .await;
    match created {
        Ok(_) => {}
        // Someone else was faster, which is just as well.
        Err(error) if error.code() == Some("ResourceInUseException") => {}
        Err(error) => return Err(failure(error, table)),
    }
    wait_until_active(client, table).await?;
    let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name(EXPIRE_AT).build().map_err(incomplete)?;
    let updated = client.update_time_to_live().table_name(table).time_to_live_specification(ttl).send().await;
    updated.map(|_| true).map_err(|error| failure(error, table))
}

/// DynamoDB makes a table in about ten seconds; after a minute something is wrong.
#[allow(clippy::disallowed_methods, reason = "polling for a state that DynamoDB does not announce")]
async fn wait_until_active(client: &Client, table: &str) -> Result<(), Error> {
    for _ in 0..120 {
        let output = client.describe_table().table_name(table).send().await.map_err(|error| failure(error, table))?;
        if output.table.and_then(|table| table.table_status) == Some(TableStatus::Active) {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    Err(Error::Unavailable(format!("The table {table} did not become active within a minute.").into()))
}
