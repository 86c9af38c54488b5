//! The lengths of texts, and which of them are UUIDs, by the names of members.
//!
//! OpenAPI counts characters, and the service bytes: the largest length here is that of a text of one-byte characters.

use utoipa::Modify;
use utoipa::openapi::path::PathItem;
use utoipa::openapi::schema::{Object, Schema, SchemaFormat};
use utoipa::openapi::{OpenApi, RefOr};

/// Longest owner name, lease id, version or occurrence.
const NAME: usize = 1024;
/// Largest payload of a lock and of a holder of a semaphore, in bytes.
const DATA: usize = 256 * 1024;
const ENTRY_DATA: usize = 256;
/// Schemas of a transaction's requests, which have the names of DynamoDB's.
const ENTRIES: [&str; 6] = ["Get", "Put", "Update", "Delete", "ConditionCheck", "Query"];

/// Writes lengths and formats into a document.
pub(super) struct Lengths;

impl Modify for Lengths {
    fn modify(&self, document: &mut OpenApi) {
        if let Some(components) = &mut document.components {
            for (name, schema) in &mut components.schemas {
                if let Some(object) = object(schema) {
                    of_schema(name, object);
                }
            }
        }
        document.paths.paths.values_mut().for_each(of_parameters);
    }
}

fn of_schema(name: &str, schema: &mut Object) {
    if name == "Secret" {
        bound(schema, 1, NAME);
    }
    // A value that the service made has a format. A row that another client wrote has neither a format nor a length.
    let is_made = name.ends_with("Response") || name == "GrantedLock";
    let is_sent =
        name.ends_with("Request") || ["WantedLock", "ObservedEntry"].contains(&name) || ENTRIES.contains(&name);
    for (member, property) in &mut schema.properties {
        let Some(property) = object(property) else { continue };
        if is_uuid(member) || (is_made && ["recordVersionNumber", "version"].contains(&member.as_str())) {
            property.format = Some(SchemaFormat::Custom("uuid".to_owned()));
        } else if is_sent {
            bound_member(name, member, property);
        }
    }
}

fn of_parameters(path: &mut PathItem) {
    let Some(operation) = &mut path.get else { return };
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let Some(schema) = parameter.schema.as_mut().and_then(object) else { continue };
        if is_uuid(&parameter.name) {
            schema.format = Some(SchemaFormat::Custom("uuid".to_owned()));
        } else if ["key", "sortKey"].contains(&parameter.name.as_str()) {
            bound_member("", &parameter.name, schema);
        }
    }
}

fn object(schema: &mut RefOr<Schema>) -> Option<&mut Object> {
    match schema {
        RefOr::T(Schema::Object(object)) => Some(object),
        _ => None,
    }
}

fn is_uuid(member: &str) -> bool {
    matches!(member, "transactionId" | "publicId" | "retryOf" | "id")
}

fn bound_member(schema: &str, member: &str, property: &mut Object) {
    // A semaphore keeps all its holders in one row, and gives each of them less.
    let is_entry = schema.contains("Permits") || schema == "EnqueueRequest";
    match member {
        "key" => bound(property, 1, 2048),
        "ownerName" if is_entry => bound(property, 1, 128),
        "data" if is_entry => bound(property, 0, ENTRY_DATA),
        "dataBase64" if is_entry => bound(property, 0, in_base64(ENTRY_DATA)),
        "data" => bound(property, 0, DATA),
        "dataBase64" => bound(property, 0, in_base64(DATA)),
        "holderId" | "requestId" | "callId" => bound(property, 1, 64),
        "sortKey"
        | "ownerName"
        | "occurrence"
        | "completed"
        | "lastOccurrence"
        | "expectedVersion"
        | "version"
        | "recordVersionNumber"
        | "observedRecordVersionNumber" => bound(property, 1, NAME),
        "tableName" | "TableName" | "indexName" | "IndexName" => bound(property, 3, 255),
        _ if member.ends_with("Expression") => bound(property, 1, 4096),
        _ => {}
    }
}

const fn in_base64(bytes: usize) -> usize {
    bytes.div_ceil(3) * 4
}

fn bound(text: &mut Object, shortest: usize, longest: usize) {
    text.min_length = Some(shortest);
    text.max_length = Some(longest);
}
