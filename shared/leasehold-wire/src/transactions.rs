//! What travels about transactions.
//!
//! Around the requests the JSON is in camelCase, as everywhere. The requests themselves are written exactly as the
//! entries of TransactWriteItems and TransactGetItems, names and all, so that what works there can be pasted; and items
//! are in DynamoDB JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Attribute values by name: an item, or its key, or what placeholders stand for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Item(pub BTreeMap<String, AttributeValue>);

impl Item {
    /// Whether it has no attribute.
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

/// One operation on one item: an entry of TransactWriteItems or TransactGetItems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Entry {
    /// Locks the item and reads it.
    Get(Get),
    /// Puts an item in the place of what is there.
    Put(Put),
    /// Changes the item, or makes it.
    Update(Update),
    /// Takes the item away, when the transaction is committed.
    Delete(Delete),
    /// Locks the item and checks a condition.
    ConditionCheck(ConditionCheck),
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
        }
    }
}

/// Locks the item and reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Get {
    /// The table's name; no ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// Which paths to answer with. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_expression: Option<String>,
    /// What the `#names` of the expression stand for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
}

/// Puts an item in the place of what is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Put {
    /// The table's name; no ARN.
    pub table_name: String,
    /// The whole item, key included. Names that begin with `leaseholdTx` are refused, here and in expressions.
    pub item: Item,
    /// What must hold of the item as it was when the transaction locked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition_expression: Option<String>,
    /// What the `#names` of the expressions stand for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// What the `:values` of the expressions stand for.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the problem `condition-failed` shows the item.
    #[serde(default, skip_serializing_if = "ReturnOnFailure::is_none")]
    pub return_values_on_condition_check_failure: ReturnOnFailure,
    /// What to answer with: `NONE`, `ALL_OLD` or `ALL_NEW`.
    #[serde(default, skip_serializing_if = "ReturnValues::is_none")]
    pub return_values: ReturnValues,
}

/// Changes the item, or makes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Update {
    /// The table's name; no ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// What to change.
    pub update_expression: String,
    /// What must hold of the item as it was when the transaction locked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition_expression: Option<String>,
    /// What the `#names` of the expressions stand for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// What the `:values` of the expressions stand for.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the problem `condition-failed` shows the item.
    #[serde(default, skip_serializing_if = "ReturnOnFailure::is_none")]
    pub return_values_on_condition_check_failure: ReturnOnFailure,
    /// What to answer with: `NONE`, `ALL_OLD`, `ALL_NEW`, `UPDATED_OLD` or `UPDATED_NEW`.
    #[serde(default, skip_serializing_if = "ReturnValues::is_none")]
    pub return_values: ReturnValues,
}

/// Takes the item away, when the transaction is committed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Delete {
    /// The table's name; no ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// What must hold of the item as it was when the transaction locked it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition_expression: Option<String>,
    /// What the `#names` of the expression stand for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// What the `:values` of the expression stand for.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the problem `condition-failed` shows the item.
    #[serde(default, skip_serializing_if = "ReturnOnFailure::is_none")]
    pub return_values_on_condition_check_failure: ReturnOnFailure,
    /// What to answer with: `NONE` or `ALL_OLD`.
    #[serde(default, skip_serializing_if = "ReturnValues::is_none")]
    pub return_values: ReturnValues,
}

/// Locks the item and checks a condition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct ConditionCheck {
    /// The table's name; no ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// What must hold of the item, to the end of the transaction.
    pub condition_expression: String,
    /// What the `#names` of the expression stand for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// What the `:values` of the expression stand for.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Whether the problem `condition-failed` shows the item.
    #[serde(default, skip_serializing_if = "ReturnOnFailure::is_none")]
    pub return_values_on_condition_check_failure: ReturnOnFailure,
}

/// Which state of the item to answer a write with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReturnValues {
    /// None.
    #[default]
    None,
    /// The item as it was before the transaction.
    AllOld,
    /// The item as it is after the write.
    AllNew,
    /// The attributes that the update names, as they were before the transaction.
    UpdatedOld,
    /// The attributes that the update names, as they are after it.
    UpdatedNew,
}

impl ReturnValues {
    /// Whether it is the default.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Whether a failed condition is answered with the item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReturnOnFailure {
    /// It is not.
    #[default]
    None,
    /// It is, as it is.
    AllOld,
}

impl ReturnOnFailure {
    /// Whether it is the default.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Opens a transaction; with `requests`, adds them; with `commit`, commits it as well.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BeginRequest {
    /// A UUID of your own makes the request safe to repeat. Keep it secret: whoever knows it can add, commit and roll
    /// back. Generated if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction_id: Option<String>,
    /// The `transactionId` of the attempt that this transaction takes the place of. A retry keeps the age of that
    /// attempt; of two transactions that want the same item the older one goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
    /// What to begin with: at most 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<Entry>>,
    /// If true, the requests are all there is, and the transaction is committed by this call. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<bool>,
}

/// A transaction is open, or over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct BeginResponse {
    /// The secret id: the caller's own, or a generated one. A one-shot without an id of the caller's own may leave no
    /// record of it.
    pub transaction_id: String,
    /// `pending`, or `committed` where that was asked for.
    pub state: TransactionState,
    /// What each request brought, in their order, where there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Vec<Answer>>,
}

/// Adds requests to a transaction: locks their items, and changes them for this transaction's eyes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddRequest {
    /// Which transaction.
    pub transaction_id: String,
    /// What to add: at most 1000. What the transaction has already is answered, and not done again; so the request can
    /// be repeated. Without any, the transaction is kept from being taken for abandoned.
    #[serde(default)]
    pub requests: Vec<Entry>,
    /// A name for this call, such as a counter. A repeat of the call has the same name. With it, an equal request of
    /// another call is carried out as well; without it, an equal request is taken for a repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// The requests are part of the transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct AddResponse {
    /// Which transaction.
    pub transaction_id: String,
    /// What each request brought, in their order.
    pub answers: Vec<Answer>,
}

/// What one request brought.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The item that was asked for, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<Item>,
}

/// Which transaction to bring to its end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndRequest {
    /// Which transaction.
    pub transaction_id: String,
}

/// A transaction is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct EndResponse {
    /// Which one.
    pub transaction_id: String,
    /// `committed` or `rolled-back`, as it was asked for.
    pub state: TransactionState,
}

/// How far a transaction has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum TransactionState {
    /// It is open.
    Pending,
    /// Its changes are, or are becoming, everybody's.
    Committed,
    /// Its changes are, or are being, undone.
    RolledBack,
}

/// Which transaction to look at.
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

/// What is known of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct Transaction {
    /// The secret id, where the caller gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction_id: Option<String>,
    /// The name of the transaction that others may see. It proves nothing.
    pub public_id: String,
    /// How far it has come.
    pub state: TransactionState,
    /// Whether all its items are free again. False for a moment after the decision, or until a sweep.
    pub finished: bool,
    /// Why it was rolled back, for people to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why DynamoDB refuses to free an item of the decided transaction, for an operator to read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<String>,
    /// When it was begun, in epoch milliseconds.
    pub created_at_ms: u64,
    /// When it was last worked on, in epoch milliseconds.
    pub last_worked_at_ms: u64,
    /// What it took part in, in the order in which it was locked.
    pub requests: Vec<Participant>,
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
    /// `get`, `put`, `update`, `delete` or `check`.
    pub operation: String,
}

/// How much a reader outside of transactions wants to see of them. (The third level is a `Get` inside of one.)
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

/// Which items to read: one, by `tableName` and `key`, or several, by `requests`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GetItemsRequest {
    /// Several items: at most 100, each once. Each is read strongly consistent; that they are all of one moment is only
    /// true inside of a transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Vec<ItemRequest>>,
    /// One item: its table's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_name: Option<String>,
    /// One item: its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Item>,
    /// One item: which paths to answer with. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_expression: Option<String>,
    /// One item: what the `#names` of the expression stand for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expression_attribute_names: Option<BTreeMap<String, String>>,
    /// How much to see of transactions. Default: `committed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

/// Which item to read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ItemRequest {
    /// The table's name; no ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// Which paths to answer with. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_expression: Option<String>,
    /// What the `#names` of the expression stand for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
}

/// The items.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct GetItemsResponse {
    /// Of several: each item that there is, in the order of the requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<Vec<Answer>>,
    /// Of one: the item, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<Item>,
}

/// Which items to list: a Query with a `keyConditionExpression`, a Scan without.
///
/// Filter and limit go by the items as they are. So an item whose change is not committed is found by what it is
/// changed to and answered as it was; and one that such a change took out of reach is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListItemsRequest {
    /// The table's name; no ARN.
    pub table_name: String,
    /// An index of the table, which must project all attributes. Default: the table itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_name: Option<String>,
    /// Only the items under this key: a Query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_condition_expression: Option<String>,
    /// Only the items of which this holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_expression: Option<String>,
    /// Which paths to answer with. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_expression: Option<String>,
    /// What the `#names` of the expressions stand for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expression_attribute_names: BTreeMap<String, String>,
    /// What the `:values` of the expressions stand for.
    #[serde(default, skip_serializing_if = "Item::is_empty")]
    pub expression_attribute_values: Item,
    /// Of a Query: whether sort keys ascend. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scan_index_forward: Option<bool>,
    /// How many items to look at, at most. A page ends at 1 MB in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
    pub limit: Option<u32>,
    /// `lastEvaluatedKey` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive_start_key: Option<Item>,
    /// How much to see of transactions. Default: `committed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

/// One page of items.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListItemsResponse {
    /// The items. A page may have none, and still not be the last.
    pub items: Vec<Item>,
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_evaluated_key: Option<Item>,
}

/// Finishes what is left of transactions that nobody works on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SweepRequest {
    /// How many transactions to look at, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, default = 100))]
    pub limit: Option<u32>,
    /// The public id of one transaction that is brought to its end, whatever its age: an open one is rolled back, a
    /// decided one is completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub public_id: Option<String>,
}

/// What a sweep did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct SweepResponse {
    /// Transactions that were looked at.
    pub examined: u64,
    /// Of these, open ones that nobody worked on: rolled back.
    pub rolled_back: u64,
    /// Decided ones whose items were still locked: completed.
    pub completed: u64,
    /// Decided ones of which DynamoDB refuses to free an item: an operator must look at them.
    pub stuck: u64,
    /// Ones that could not be dealt with this time; the service's log says why.
    pub failed: u64,
    /// Whether there is more to do.
    pub more: bool,
}

/// Which transactions to list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "openapi", into_params(parameter_in = Query))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListTransactionsRequest {
    /// If true, only the transactions of which DynamoDB refuses to free an item. Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stuck: Option<bool>,
    /// How many transactions to look at, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 1000, default = 100))]
    pub limit: Option<u32>,
    /// `nextCursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of transactions that are open, or decided with items that are still locked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListTransactionsResponse {
    /// The transactions. Only where very many were looked at, a page has none and is not the last.
    pub transactions: Vec<Transaction>,
    /// For the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Unlocks an item whose transaction is unknown, such as one that came with a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UnlockRequest {
    /// The table's name; no ARN.
    pub table_name: String,
    /// The item's key.
    pub key: Item,
    /// The item's `leaseholdTxId` as the operator saw it. An item with another lock is left alone.
    pub lock: String,
    /// `rolled-back`: the item becomes what it was before the transaction. `committed`: what the transaction made of
    /// it.
    pub outcome: TransactionState,
}

/// The item is free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct UnlockResponse {
    /// `rolled-back` or `committed`, as it was asked for.
    pub outcome: TransactionState,
}
