//! The operations of the DynamoDB API, by name: JSON in, JSON out.

use dynoxide::actions::query::{QueryRequest, QueryResponse};
use dynoxide::{Database, DynoxideError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::transaction;

const UNKNOWN_OPERATION: &str = r#"{"__type":"com.amazon.coral.service#UnknownOperationException"}"#;

/// The operations whose validation errors DynamoDB numbers.
const ENVELOPED: [&str; 3] = ["PutItem", "UpdateItem", "DeleteItem"];

/// The operations that write nothing.
const READS: [&str; 12] = [
    "GetItem",
    "Query",
    "Scan",
    "BatchGetItem",
    "TransactGetItems",
    "DescribeTable",
    "ListTables",
    "DescribeTimeToLive",
    "ListTagsOfResource",
    "DescribeStream",
    "GetRecords",
    "ListStreams",
];

/// The operations that write all or nothing: a refused one has written nothing.
const ALL_OR_NOTHING: [&str; 4] = ["UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems"];

/// The message for a document deeper than the JSON parser's limit, which only nested attribute values reach. DynamoDB
/// stops at 32 levels of them, with these words.
const TOO_DEEP: &str = "Nesting Levels have exceeded supported limits: \
     Attributes in the item have nested levels beyond supported limit";

/// The status and the body of an HTTP response.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// Matches the operation's name with the engine's method of that name.
macro_rules! dispatch {
    ($database:ident, $operation:ident, $body:ident, { $($name:literal => $method:ident,)* }) => {
        match $operation {
            $($name => Some(call($body, |request| $database.$method(request))),)*
            "Query" => Some(call($body, |request| query($database, request))),
            "TransactWriteItems" => Some(call($body, |request| transaction::write($database, request))),
            _ => None,
        }
    };
}

/// Runs the operation that `target` names, such as `DynamoDB_20120810.GetItem`.
pub(crate) fn run(database: &Database, target: &str, body: &[u8]) -> Answer {
    let operation = operation_of(target);
    // The operations of the lock protocol come first; the match runs from top to bottom.
    let result = dispatch!(database, operation, body, {
        "UpdateItem" => update_item,
        "GetItem" => get_item,
        "DeleteItem" => delete_item,
        "PutItem" => put_item,
        "Scan" => scan,
        "BatchGetItem" => batch_get_item,
        "BatchWriteItem" => batch_write_item,
        "TransactGetItems" => transact_get_items,
        "CreateTable" => create_table,
        "DeleteTable" => delete_table,
        "DescribeTable" => describe_table,
        "ListTables" => list_tables,
        "UpdateTable" => update_table,
        "DescribeTimeToLive" => describe_time_to_live,
        "UpdateTimeToLive" => update_time_to_live,
        "ListTagsOfResource" => list_tags_of_resource,
        "TagResource" => tag_resource,
        "UntagResource" => untag_resource,
        "BatchExecuteStatement" => batch_execute_statement,
        "ExecuteStatement" => execute_statement,
        "ExecuteTransaction" => execute_transaction,
        "DescribeStream" => describe_stream,
        "GetRecords" => get_records,
        "GetShardIterator" => get_shard_iterator,
        "ListStreams" => list_streams,
        "SearchVectors" => search_vectors,
    });
    match result {
        Some(Ok(body)) => Answer { status: 200, body },
        Some(Err(failure)) => refusal(operation, failure),
        None => Answer { status: 400, body: UNKNOWN_OPERATION.into() },
    }
}

/// Returns whether an operation with this answer may have changed the data.
pub(crate) fn may_have_written(target: &str, status: u16) -> bool {
    let operation = operation_of(target);
    !(READS.contains(&operation) || status == 400 && ALL_OR_NOTHING.contains(&operation))
}

/// Returns whether the operation creates a table.
pub(crate) fn creates_table(target: &str) -> bool {
    operation_of(target) == "CreateTable"
}

pub(crate) fn operation_of(target: &str) -> &str {
    target.split_once('.').map_or("", |(_, operation)| operation)
}

/// Runs a Query. In a table without a sort key, the one item of a partition is never behind a start key: the engine
/// returns it again, and a reader of page after page would never reach the end.
fn query(database: &Database, request: QueryRequest) -> dynoxide::Result<QueryResponse> {
    let start = request.exclusive_start_key_raw.as_ref().and_then(Value::as_object);
    let is_behind_the_only_item = request.index_name.is_none() && start.is_some_and(|key| key.len() == 1);
    let mut reply = database.query(request)?;
    if is_behind_the_only_item {
        reply.items = reply.items.map(|_| Vec::new());
        (reply.count, reply.scanned_count, reply.last_evaluated_key) = (0, 0, None);
    }
    Ok(reply)
}

/// The reason why there is no result.
enum Failure {
    /// The request could not be read.
    Unreadable(serde_json::Error),
    /// The engine refused the request.
    Refused(DynoxideError),
    /// The result could not be written.
    Unwritable(serde_json::Error),
}

fn call<Request, Reply>(
    body: &[u8],
    method: impl FnOnce(Request) -> dynoxide::Result<Reply>,
) -> Result<Vec<u8>, Failure>
where
    Request: DeserializeOwned,
    Reply: Serialize,
{
    let request = serde_json::from_slice(body).map_err(Failure::Unreadable)?;
    let reply = method(request).map_err(Failure::Refused)?;
    serde_json::to_vec(&reply).map_err(Failure::Unwritable)
}

/// DynamoDB's answer to its own failure.
pub(crate) fn internal_error(message: &str) -> Answer {
    let error = DynoxideError::InternalServerError(message.to_owned());
    Answer { status: error.status_code(), body: error.to_json().into_bytes() }
}

/// DynamoDB's refusal of a request that is wrong in itself.
pub(crate) fn invalid(message: &str) -> Answer {
    let error = DynoxideError::ValidationException(message.to_owned());
    Answer { status: error.status_code(), body: error.to_json().into_bytes() }
}

fn refusal(operation: &str, failure: Failure) -> Answer {
    let error = match failure {
        Failure::Unreadable(error) => unreadable(operation, &error.to_string()),
        // Errors in parts that the engine parses while it runs carry the same markers.
        Failure::Refused(DynoxideError::SerializationException(message)) => unreadable(operation, &message),
        Failure::Refused(error) => error,
        Failure::Unwritable(error) => DynoxideError::InternalServerError(error.to_string()),
    };
    Answer { status: error.status_code(), body: error.to_json().into_bytes() }
}

/// Returns DynamoDB's refusal of a request that did not parse. The engine's request types put a marker before the
/// parser's message, which tells the kind of refusal. No marker may reach the client.
fn unreadable(operation: &str, message: &str) -> DynoxideError {
    use DynoxideError::{SerializationException, ValidationException};

    let bare = without_position(message);
    if let Some(rest) = bare.strip_prefix("VALIDATION_REQUEST:") {
        return ValidationException(if ENVELOPED.contains(&operation) {
            format!("1 validation error detected: {rest}")
        } else {
            rest.to_owned()
        });
    }
    if let Some(rest) = bare.strip_prefix("VALIDATION:") {
        return ValidationException(rest.to_owned());
    }
    if let Some(rest) = bare.strip_prefix("SERIALIZATION:") {
        return SerializationException(rest.to_owned());
    }
    // The position in these is inside a value, and part of DynamoDB's own words.
    if let Some(rest) = message.strip_prefix("VALIDATION_AS_READ:") {
        return ValidationException(rest.to_owned());
    }
    if let Some(rest) = message.strip_prefix("SERIALIZATION_AS_READ:") {
        return SerializationException(rest.to_owned());
    }
    if bare == "recursion limit exceeded" {
        return ValidationException(TOO_DEEP.to_owned());
    }
    if is_validation(bare) {
        return ValidationException(bare.to_owned());
    }
    SerializationException(bare.to_owned())
}

/// Returns whether DynamoDB treats the parser's complaint as a validation error. It does for a missing or an unknown
/// value, but not for a value of the wrong JSON type.
fn is_validation(message: &str) -> bool {
    ["missing field", "unknown variant", "invalid type: null", "Supplied AttributeValue"]
        .iter()
        .any(|part| message.contains(part))
}

/// Returns the message without the " at line 1 column 2" that the parser appends.
fn without_position(message: &str) -> &str {
    match message.rsplit_once(" at line ") {
        Some((text, position)) if position.contains(" column ") => text,
        _ => message,
    }
}
