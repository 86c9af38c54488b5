//! Creates tables, for local runs and tests. A deployment creates its tables with its template.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection, ProjectionType,
    ScalarAttributeType, TableDescription, TableStatus, TimeToLiveSpecification,
};

use crate::{Failure, FailureKind, Regions, pause_for};

/// DynamoDB creates a table in about ten seconds; a minute indicates a fault.
const MAX_LOOKS: u32 = 120;
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The definition of a table.
#[derive(Debug, Clone)]
pub struct TableDefinition<'a> {
    /// The table's name.
    pub name: &'a str,
    /// The partition key, and the sort key if there is one.
    pub keys: Vec<Key<'a>>,
    /// An index that holds the table's keys and its own.
    pub index: Option<Index<'a>>,
    /// The attribute with the time at which DynamoDB may delete a row, in epoch seconds.
    pub expires_at: &'a str,
}

/// A key attribute: its name and its type.
pub type Key<'a> = (&'a str, ScalarAttributeType);

/// A global secondary index.
#[derive(Debug, Clone)]
pub struct Index<'a> {
    /// The index's name.
    pub name: &'a str,
    /// The index's partition key, and its sort key if there is one.
    pub keys: Vec<Key<'a>>,
}

/// Creates the table if it is missing, with TTL, and checks that its keys are those of the definition, and that it is
/// in one region. Returns whether the table was created.
///
/// # Errors
/// Fails if the table cannot be created, has other keys, or has other regions. The message names the table.
pub async fn ensure_table(client: &Client, table: &TableDefinition<'_>) -> Result<bool, Failure> {
    match check(client, table, false).await? {
        Found::Fits => Ok(false),
        Found::Nothing(_) => create(client, table).await.map(|()| true),
    }
}

/// Checks that the table is there, that its keys are those of the definition, and that it may be in several regions.
///
/// # Errors
/// Fails if it is not so. The message names the table.
pub async fn check_table(client: &Client, table: &TableDefinition<'_>) -> Result<(), Failure> {
    match check(client, table, true).await? {
        Found::Fits => Ok(()),
        Found::Nothing(failure) => Err(failure.during(format!(
            "There is no table {} in this region. Make the global table first: no service creates one.",
            table.name
        ))),
    }
}

enum Found {
    Fits,
    Nothing(Failure),
}

async fn check(client: &Client, table: &TableDefinition<'_>, is_multi_region: bool) -> Result<Found, Failure> {
    match client.describe_table().table_name(table.name).send().await.map_err(Failure::from) {
        Ok(output) => {
            check_keys(table, output.table.as_ref())?;
            let regions = output.table.as_ref().map_or(Regions::One, Regions::of);
            regions.check(table.name, is_multi_region).map(|()| Found::Fits)
        }
        Err(failure) if failure.kind() == FailureKind::NoTable => Ok(Found::Nothing(failure)),
        Err(failure) => Err(failure.during(format!("Could not look at the table {}.", table.name))),
    }
}

async fn create(client: &Client, table: &TableDefinition<'_>) -> Result<(), Failure> {
    let failed = |failure: Failure| failure.during(format!("Could not create the table {}.", table.name));
    let request = client
        .create_table()
        .table_name(table.name)
        .billing_mode(BillingMode::PayPerRequest)
        .set_attribute_definitions(Some(attributes(table).map_err(failed)?))
        .set_key_schema(Some(key_schema(&table.keys).map_err(failed)?))
        .set_global_secondary_indexes(
            table.index.as_ref().map(index).transpose().map_err(failed)?.map(|index| vec![index]),
        );
    match request.send().await {
        Ok(_) => {}
        // Another process created the table first.
        Err(error)
            if error.as_service_error().is_some_and(
                aws_sdk_dynamodb::operation::create_table::CreateTableError::is_resource_in_use_exception,
            ) => {}
        Err(error) => return Err(failed(error.into())),
    }
    wait_until_active(client, table.name).await?;
    let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name(table.expires_at).build();
    let request = client.update_time_to_live().table_name(table.name);
    let request = request.time_to_live_specification(ttl.map_err(|error| failed(error.into()))?);
    request.send().await.map(drop).map_err(|error| failed(error.into()))
}

/// The definitions of all key attributes, each once.
fn attributes(table: &TableDefinition<'_>) -> Result<Vec<AttributeDefinition>, Failure> {
    let index = table.index.iter().flat_map(|index| &index.keys);
    let mut definitions = Vec::new();
    for (name, kind) in table.keys.iter().chain(index) {
        let definition = AttributeDefinition::builder().attribute_name(*name).attribute_type(kind.clone()).build()?;
        if !definitions.contains(&definition) {
            definitions.push(definition);
        }
    }
    Ok(definitions)
}

fn key_schema(keys: &[Key<'_>]) -> Result<Vec<KeySchemaElement>, Failure> {
    let types = [KeyType::Hash, KeyType::Range];
    let element = |((name, _), kind): (&Key<'_>, KeyType)| {
        KeySchemaElement::builder().attribute_name(*name).key_type(kind).build()
    };
    keys.iter().zip(types).map(|pair| element(pair).map_err(Failure::from)).collect()
}

fn index(index: &Index<'_>) -> Result<GlobalSecondaryIndex, Failure> {
    let keys_only = Projection::builder().projection_type(ProjectionType::KeysOnly).build();
    let builder = GlobalSecondaryIndex::builder().index_name(index.name).set_key_schema(Some(key_schema(&index.keys)?));
    Ok(builder.projection(keys_only).build()?)
}

async fn wait_until_active(client: &Client, name: &str) -> Result<(), Failure> {
    for _ in 0..MAX_LOOKS {
        let output = client.describe_table().table_name(name).send().await;
        let looked =
            output.map_err(|error| Failure::from(error).during(format!("Could not look at the table {name}.")));
        if looked?.table.and_then(|table| table.table_status) == Some(TableStatus::Active) {
            return Ok(());
        }
        // DynamoDB does not announce it.
        pause_for(LOOK_INTERVAL).await;
    }
    Err(Failure::unavailable(format!("The table {name} did not become active within a minute.")))
}

fn check_keys(expected: &TableDefinition<'_>, table: Option<&TableDescription>) -> Result<(), Failure> {
    let schema = table.map(TableDescription::key_schema).unwrap_or_default();
    let actual: Vec<_> = schema.iter().map(KeySchemaElement::attribute_name).collect();
    let wanted: Vec<_> = expected.keys.iter().map(|(name, _)| *name).collect();
    if actual == wanted {
        return Ok(());
    }
    Err(Failure::misconfigured(format!(
        "The table {} has the keys ({}), not ({}). Name another table, or its keys.",
        expected.name,
        actual.join(", "),
        wanted.join(", ")
    )))
}
