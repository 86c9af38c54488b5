//! The documents of transactions.
//!
//! The requests' entries are written exactly as those of TransactWriteItems and TransactGetItems, so that entries can
//! be copied from there. Items are in DynamoDB JSON. All other members are in camelCase.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Whether a member has its default, and is left out.
fn is_default<T: Default + PartialEq>(member: &T) -> bool {
    *member == T::default()
}

/// Attribute values by name: an item, a key, or the values of placeholders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Item(pub BTreeMap<String, AttributeValue>);

impl Item {
    /// Whether the item has no attribute.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An attribute's value, in DynamoDB JSON: an object with one member, which names the type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum AttributeValue {
    /// A text.
    S(String),
    /// A number, as a text.
    N(String),
    /// Bytes, in base64.
    B(String),
    /// True or false.
    #[serde(rename = "BOOL")]
    Bool(bool),
    /// Nothing; always true.
    #[serde(rename = "NULL")]
    Null(bool),
    /// A map.
    #[cfg_attr(feature = "openapi", schema(no_recursion))]
    M(Item),
    /// A list.
    #[cfg_attr(feature = "openapi", schema(no_recursion))]
    L(Vec<AttributeValue>),
    /// A set of texts, not empty.
    #[serde(rename = "SS")]
    Ss(Vec<String>),
    /// A set of numbers, as texts, not empty.
    #[serde(rename = "NS")]
    Ns(Vec<String>),
    /// A set of byte strings, in base64, not empty.
    #[serde(rename = "BS")]
    Bs(Vec<String>),
}

/// One operation on one item, an entry of TransactWriteItems or TransactGetItems; or a Query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Entry {
    /// Locks the item and reads it.
    Get(Get),
    /// Puts an item in place of the existing one.
    Put(Put),
    /// Updates or creates the item.
    Update(Update),
    /// Deletes the item, when the transaction is committed.
    Delete(Delete),
    /// Locks the item and checks a condition.
    ConditionCheck(ConditionCheck),
    /// Locks the items that match a key condition and reads them. It goes into an add of its own.
    Query(Query),
}

impl Entry {
    /// The member that names the operation in the JSON document, such as `ConditionCheck`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Get(_) => "Get",
            Self::Put(_) => "Put",
            Self::Update(_) => "Update",
            Self::Delete(_) => "Delete",
            Self::ConditionCheck(_) => "ConditionCheck",
            Self::Query(_) => "Query",
        }
    }

    /// Whether the entry leaves the content of all items, and has no condition that may fail.
    pub const fn only_reads(&self) -> bool {
        matches!(self, Self::Get(_) | Self::Query(_))
    }
}

/// Locks the item and reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Get {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// The paths to return. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_expression: Option<String>,
    /// The `#names` of the expression.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
}

/// Puts an item in place of the existing one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Put {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// The whole item, key included. Names that begin with `leaseholdTx` are refused, here and in expressions.
    pub item: Item,
    /// A condition that must hold for the item as it was when the transaction locked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition_expression: Option<String>,
    /// The `#names` of the expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// The `:values` of the expressions.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the problem `condition-failed` shows the item.
    #[serde(default, skip_serializing_if = "is_default")]
    pub return_values_on_condition_check_failure: ReturnOnFailure,
    /// The state of the item to return: `NONE`, `ALL_OLD` or `ALL_NEW`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub return_values: ReturnValues,
}

/// Updates or creates the item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Update {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// The update expression.
    pub update_expression: String,
    /// A condition that must hold for the item as it was when the transaction locked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition_expression: Option<String>,
    /// The `#names` of the expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// The `:values` of the expressions.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the problem `condition-failed` shows the item.
    #[serde(default, skip_serializing_if = "is_default")]
    pub return_values_on_condition_check_failure: ReturnOnFailure,
    /// The state of the item to return: `NONE`, `ALL_OLD`, `ALL_NEW`, `UPDATED_OLD` or `UPDATED_NEW`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub return_values: ReturnValues,
}

/// Deletes the item, when the transaction is committed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Delete {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// A condition that must hold for the item as it was when the transaction locked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition_expression: Option<String>,
    /// The `#names` of the expression.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// The `:values` of the expression.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the problem `condition-failed` shows the item.
    #[serde(default, skip_serializing_if = "is_default")]
    pub return_values_on_condition_check_failure: ReturnOnFailure,
    /// The state of the item to return: `NONE` or `ALL_OLD`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub return_values: ReturnValues,
}

/// Locks the item and checks a condition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct ConditionCheck {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// A condition that must hold for the item until the end of the transaction.
    pub condition_expression: String,
    /// The `#names` of the expression.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// The `:values` of the expression.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the problem `condition-failed` shows the item.
    #[serde(default, skip_serializing_if = "is_default")]
    pub return_values_on_condition_check_failure: ReturnOnFailure,
}

/// Locks the items that match a key condition and reads them: at most 100.
///
/// The items are found in the table, or in an index, and then locked and read in the table by their keys. No other
/// transaction changes them before the end of this one. Other items that match may come later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Query {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// An index of the table. Default: the table itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_name: Option<String>,
    /// The key condition. There is no filter.
    pub key_condition_expression: String,
    /// The paths to return. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_expression: Option<String>,
    /// The `#names` of the expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// The `:values` of the key condition.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the sort keys ascend. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan_index_forward: Option<bool>,
}

/// The state of the item that a write returns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReturnValues {
    /// No attributes.
    #[default]
    None,
    /// The item as it was before the transaction.
    AllOld,
    /// The item as it is after the write.
    AllNew,
    /// The attributes that the update names, as they were before the transaction.
    UpdatedOld,
    /// The attributes that the update names, as they are after the update.
    UpdatedNew,
}

/// Whether the answer to a failed condition contains the item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReturnOnFailure {
    /// The answer contains no item.
    #[default]
    None,
    /// The answer contains the existing item.
    AllOld,
}

/// Whether an answer tells the capacity that the call consumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReturnConsumedCapacity {
    /// The answer tells nothing.
    #[default]
    None,
    /// The answer tells the units of each table, its indexes included.
    Total,
}

/// The capacity units of one table and its indexes, in the sense of DynamoDB, for all requests that the service made
/// until it answered. DynamoDB tells nothing about requests that it refuses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ConsumedCapacity {
    /// The table's name.
    pub table_name: String,
    /// The read units: multiples of one half.
    pub read_capacity_units: f64,
    /// The write units.
    pub write_capacity_units: f64,
}

/// Opens a transaction. With `requests`, adds them; with `commit`, commits the transaction as well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BeginRequest {
    /// The secret id of the transaction, a UUID. A request with its own id can be repeated safely. The id gives the
    /// right to add, commit and roll back. Generated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction_id: Option<String>,
    /// The `transactionId` of the attempt that this transaction replaces. A retry keeps the age of that attempt. When
    /// two transactions want the same item, the older one goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
    /// The first requests: at most 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<Entry>>,
    /// If true, this call commits the transaction, and the requests are complete. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<bool>,
    /// `TOTAL`: the answer tells the capacity units that the call consumed. Default: `NONE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_consumed_capacity: Option<ReturnConsumedCapacity>,
}

/// The transaction is open or committed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct BeginResponse {
    /// The secret id: the caller's own, or a generated one.
    pub transaction_id: String,
    /// `pending`, or `committed` after a `commit`.
    pub state: TransactionState,
    /// The answers, in the order of the requests, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Vec<Answer>>,
    /// The capacity units that the call consumed, by table, if it asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_capacity: Option<Vec<ConsumedCapacity>>,
}

/// Adds requests to a transaction: locks their items, and applies the requests provisionally.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddRequest {
    /// The secret id of the transaction.
    pub transaction_id: String,
    /// The requests to add: at most 1000. Without requests, the call keeps the transaction alive.
    #[serde(default)]
    pub requests: Vec<Entry>,
    /// A name for this call, such as a counter. A repeat of the call has the same name: what the transaction has from
    /// the call is answered, and not carried out again. A call without a name is a new one each time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// `TOTAL`: the answer tells the capacity units that the call consumed. Default: `NONE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_consumed_capacity: Option<ReturnConsumedCapacity>,
}

/// The requests are part of the transaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AddResponse {
    /// The secret id of the transaction.
    pub transaction_id: String,
    /// The answers, in the order of the requests.
    pub answers: Vec<Answer>,
    /// The capacity units that the call consumed, by table, if it asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_capacity: Option<Vec<ConsumedCapacity>>,
}

/// The answer to one request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The requested item, if it exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<Item>,
    /// The items of a `Query`, in the order of the sort key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<Item>>,
}

/// The transaction to commit, and what the caller knows about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CommitRequest {
    /// The secret id of the transaction.
    pub transaction_id: String,
    /// The number of distinct items of the transaction, those of `Get` and those that a `Query` locked included. An
    /// open transaction with another number is not committed: an `add` that was not answered is missing, or was carried
    /// out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_items: Option<u64>,
    /// The number of requests other than `Get` and `Query` that the caller made, repeats of a call not counted. An open
    /// transaction with fewer is not committed. Other callers may have made more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_writes: Option<u64>,
    /// `TOTAL`: the answer tells the capacity units that the call consumed. Default: `NONE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_consumed_capacity: Option<ReturnConsumedCapacity>,
}

/// The transaction is committed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct CommitResponse {
    /// The secret id of the transaction.
    pub transaction_id: String,
    /// `committed`.
    pub state: TransactionState,
    /// The items that a writer past the protocol deleted or replaced while the transaction held them. The commit is of
    /// the other items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overwritten: Vec<ItemName>,
    /// The capacity units that the call consumed, by table, if it asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_capacity: Option<Vec<ConsumedCapacity>>,
}

/// The name of an item.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ItemName {
    /// The table's name.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
}

/// The transaction to end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndRequest {
    /// The secret id of the transaction.
    pub transaction_id: String,
    /// `TOTAL`: the answer tells the capacity units that the call consumed. Default: `NONE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_consumed_capacity: Option<ReturnConsumedCapacity>,
}

/// The transaction is rolled back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct EndResponse {
    /// The secret id of the transaction.
    pub transaction_id: String,
    /// `rolled-back`.
    pub state: TransactionState,
    /// The capacity units that the call consumed, by table, if it asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_capacity: Option<Vec<ConsumedCapacity>>,
}

/// The progress of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TransactionState {
    /// The transaction is open.
    Pending,
    /// The transaction is committed. Its items are free, or are being freed.
    Committed,
    /// The transaction is rolled back. Its changes are undone, or are being undone.
    RolledBack,
}

/// The transaction to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetTransactionRequest {
    /// The secret id of the transaction. Give this or `publicId`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The public id of the transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_id: Option<String>,
}

/// The state of a transaction, as the service knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Transaction {
    /// The secret id, if the caller named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction_id: Option<String>,
    /// The public id of the transaction, which proves nothing.
    pub public_id: String,
    /// The progress of the transaction.
    pub state: TransactionState,
    /// Whether all its items are free again. False for a moment after the decision, or until a sweep.
    pub finished: bool,
    /// The reason of the rollback, for people to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The item of the decided transaction that DynamoDB refuses to free, and the reason, for an operator to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// The items that a writer past the protocol deleted or replaced before the commit, which is of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overwritten: Vec<ItemName>,
    /// The time of the beginning, in epoch milliseconds.
    pub created_at_ms: u64,
    /// The time of the last work on the transaction, in epoch milliseconds.
    pub last_worked_at_ms: u64,
    /// The items of the transaction, in the order in which they were locked.
    pub requests: Vec<Participant>,
    /// Whether the transaction has more requests than these. A listing shows those that stand in its record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_requests: bool,
}

/// An item that takes, or took, part in a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Participant {
    /// The table's name.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// The operation: `get`, `put`, `update`, `delete` or `check`.
    pub operation: String,
}

/// The isolation level of a read outside of transactions. (A `Get` inside of a transaction is the third level.)
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// The items as the last committed transaction left them.
    #[default]
    Committed,
    /// The items as they are, though they may be undone.
    Uncommitted,
}

/// The items to read: one, by `tableName` and `key`, or several, by `requests`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetItemsRequest {
    /// Several items: at most 100, each once. Each read is strongly consistent. Only a transaction reads them all at
    /// one moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<ItemRequest>>,
    /// One item: the table's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_name: Option<String>,
    /// One item: the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Item>,
    /// One item: the paths to return. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_expression: Option<String>,
    /// One item: the `#names` of the expression.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression_attribute_names: Option<BTreeMap<String, String>>,
    /// The isolation level. Default: `committed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// `TOTAL`: the answer tells the capacity units that the call consumed. Default: `NONE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_consumed_capacity: Option<ReturnConsumedCapacity>,
}

/// An item to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ItemRequest {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// The paths to return. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_expression: Option<String>,
    /// The `#names` of the expression.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
}

/// The items.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct GetItemsResponse {
    /// The answers for several items, in the order of the requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Vec<Answer>>,
    /// The answer for one item, if it exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<Item>,
    /// The capacity units that the call consumed, by table, if it asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_capacity: Option<Vec<ConsumedCapacity>>,
}

/// The items to list: a Query with a `keyConditionExpression`, a Scan without.
///
/// Filter and limit apply to the items as they are. An item with an uncommitted change is found by its new content, and
/// returned with its old one. An item that such a change moved out of the filter is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListItemsRequest {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// An index of the table, which must project all attributes. Default: the table itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_name: Option<String>,
    /// The key condition of a Query. Without it, the listing is a Scan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_condition_expression: Option<String>,
    /// A condition that the listed items fulfil.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_expression: Option<String>,
    /// The paths to return. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_expression: Option<String>,
    /// The `#names` of the expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// The `:values` of the expressions.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the sort keys of a Query ascend. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan_index_forward: Option<bool>,
    /// The largest number of items to examine. A page ends at 1 MB in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: Option<u32>,
    /// The `lastEvaluatedKey` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_start_key: Option<Item>,
    /// The isolation level. Default: `committed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// `TOTAL`: the answer tells the capacity units that the call consumed. Default: `NONE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_consumed_capacity: Option<ReturnConsumedCapacity>,
}

/// One page of items.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListItemsResponse {
    /// The items. A page may have none, and still not be the last.
    pub items: Vec<Item>,
    /// The start of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_evaluated_key: Option<Item>,
    /// The capacity units that the call consumed, by table, if it asked for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed_capacity: Option<Vec<ConsumedCapacity>>,
}

/// Ends idle transactions, or one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SweepRequest {
    /// The largest number of transactions to examine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, default = 100))]
    pub limit: Option<u32>,
    /// The public id of one transaction to end, whatever its age: an open one is rolled back, a decided one is
    /// completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_id: Option<String>,
}

/// The counts of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SweepResponse {
    /// The number of transactions that were examined.
    pub examined: u64,
    /// The number of idle transactions: rolled back.
    pub rolled_back: u64,
    /// The number of decided transactions whose items were still locked: completed.
    pub completed: u64,
    /// The number of decided transactions of which DynamoDB refuses to free an item: an operator must look at them.
    pub stuck: u64,
    /// The number of open transactions that this process has not yet seen unchanged for long enough.
    #[serde(default)]
    pub watched: u64,
    /// The number of transactions that failed this time; the service's log says why.
    pub failed: u64,
    /// Whether more transactions are due.
    pub more: bool,
}

/// The filters of a listing of transactions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListTransactionsRequest {
    /// If true, lists only the transactions of which DynamoDB refuses to free an item. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<bool>,
    /// The largest number of transactions to examine.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    pub limit: Option<u32>,
    /// The `nextCursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of transactions that are open, or decided with items that are still locked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListTransactionsResponse {
    /// The transactions. After very many examined ones, a page may be empty and not the last.
    pub transactions: Vec<Transaction>,
    /// The start of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The items to examine for strays: locked items whose transaction is unknown or finished, such as items from a backup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StraysRequest {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// The public id of the transaction whose items are wanted. Default: those of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_id: Option<String>,
    /// The largest number of items to examine. A page ends at 1 MB in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, default = 1000))]
    pub limit: Option<u32>,
    /// The `lastEvaluatedKey` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_start_key: Option<Item>,
}

/// One page of a scan for strays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct StraysResponse {
    /// The number of items that were examined.
    pub examined: u64,
    /// The strays among them. A page may have none, and still not be the last.
    pub strays: Vec<Stray>,
    /// The start of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_evaluated_key: Option<Item>,
}

/// A locked item that no known transaction will free.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Stray {
    /// The item's key.
    pub key: Item,
    /// The item's `leaseholdTxId`, for an unlock.
    pub lock: String,
    /// The public id of the transaction that the lock names.
    pub public_id: String,
}

/// Unlocks an item whose transaction is unknown, such as an item from a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnlockRequest {
    /// The table's name, not an ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// The item's `leaseholdTxId` as the operator saw it. An item with another lock is left alone.
    pub lock: String,
    /// The outcome of the transaction. `rolled-back`: the item is restored to its state before the transaction.
    /// `committed`: the item keeps the transaction's changes.
    pub outcome: TransactionState,
}

/// The item is free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct UnlockResponse {
    /// `rolled-back` or `committed`, as the request asked.
    pub outcome: TransactionState,
}
