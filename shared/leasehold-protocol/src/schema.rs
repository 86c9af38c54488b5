//! Making the table, for local runs and tests. A deployment makes it with its template.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription, TableStatus,
    TimeToLiveSpecification,
};

use crate::error::{Error, ErrorKind};
use crate::item::{EXPIRE_AT, TableSchema};

/// Creates the table if it is missing, with TTL on `expireAt`, and checks that its keys are those of `schema`.
/// Returns whether it was created.
///
/// # Errors
/// `Unavailable`, with a message that says what to do, where the table cannot be made or has other keys.
pub async fn ensure_table(client: &Client, schema: &TableSchema) -> Result<bool, Error> {
    match client.describe_table().table_name(&schema.table_name).send().await {
        Ok(output) => check_keys(schema, output.table.as_ref()).map(|()| false),
        Err(error) if error.code() == Some("ResourceNotFoundException") => create(client, schema).await.map(|()| true),
        Err(error) => Err(failed("look at", schema, error)),
    }
}

async fn create(client: &Client, schema: &TableSchema) -> Result<(), Error> {
    let mut request = client.create_table().table_name(&schema.table_name).billing_mode(BillingMode::PayPerRequest);
    for (name, key_type) in keys(schema) {
        let element = KeySchemaElement::builder().attribute_name(&name).key_type(key_type).build();
        let definition =
            AttributeDefinition::builder().attribute_name(&name).attribute_type(ScalarAttributeType::S).build();
        request = request
            .key_schema(element.map_err(|error| failed("describe", schema, error))?)
            .attribute_definitions(definition.map_err(|error| failed("describe", schema, error))?);
    }
    match request.send().await {
        Ok(_) => {}
        // Someone else was faster, which is just as well.
        Err(error) if error.code() == Some("ResourceInUseException") => {}
        Err(error) => return Err(failed("create", schema, error)),
    }
    wait_until_active(client, schema).await?;
    let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name(EXPIRE_AT).build();
    client
        .update_time_to_live()
        .table_name(&schema.table_name)
        .time_to_live_specification(ttl.map_err(|error| failed("describe", schema, error))?)
        .send()
        .await
        .map(drop)
        .map_err(|error| failed("set the TTL of", schema, error))
}

/// DynamoDB makes a table in about ten seconds; after a minute something is wrong.
#[allow(clippy::disallowed_methods, reason = "polling for a state that DynamoDB does not announce")]
async fn wait_until_active(client: &Client, schema: &TableSchema) -> Result<(), Error> {
    for _ in 0..120 {
        let output = client.describe_table().table_name(&schema.table_name).send().await;
        let table = output.map_err(|error| failed("look at", schema, error))?.table;
        if table.and_then(|table| table.table_status) == Some(TableStatus::Active) {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!("The table {} did not become active within a minute.", schema.table_name),
    ))
}

fn keys(schema: &TableSchema) -> Vec<(String, KeyType)> {
    let partition = (schema.partition_key.clone(), KeyType::Hash);
    let sort = schema.sort_key.clone().map(|name| (name, KeyType::Range));
    std::iter::once(partition).chain(sort).collect()
}

fn check_keys(schema: &TableSchema, table: Option<&TableDescription>) -> Result<(), Error> {
    let actual: Vec<_> = table
        .map(TableDescription::key_schema)
        .unwrap_or_default()
        .iter()
        .map(|element| (element.attribute_name().to_owned(), element.key_type().clone()))
        .collect();
    let expected = keys(schema);
    if actual == expected {
        return Ok(());
    }
    let names = |keys: &[(String, KeyType)]| keys.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    Err(Error::new(
        ErrorKind::Unavailable,
        format!(
            "The table {} has the keys ({}), not ({}). Name another table, or its keys.",
            schema.table_name,
            names(&actual),
            names(&expected)
        ),
    ))
}

fn failed<E>(verb: &str, schema: &TableSchema, error: E) -> Error
where
    E: std::error::Error + Send + Sync + 'static,
{
    Error::new(ErrorKind::Unavailable, format!("Could not {verb} the table {}.", schema.table_name)).with_source(error)
}
