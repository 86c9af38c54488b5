//! Converts between the wire and the protocol.

use leasehold_transactions::{
    Action, Answer, Error, Isolation, Item, ItemKey, ItemPage, ListRequest, Participant, QueryRequest, ReadRequest,
    ReturnValues, State, Status, Stray, StrayPage, StraysRequest, Swept, TransactionId, TransactionPage,
    TransactionRequest, Units,
};
use leasehold_wire::transactions::{self as wire, Entry, ReturnOnFailure};
use leasehold_wire::{Problem, ProblemType, RefusedItem};

use super::{dynamodb_json, limits};

/// Reads the entries of a request.
pub(super) fn requests(entries: Vec<Entry>) -> Result<Vec<TransactionRequest>, Problem> {
    limits::check_entries(&entries)?;
    entries.into_iter().enumerate().map(|(index, entry)| request(index, entry)).collect()
}

/// The requests of an add.
pub(super) enum Added {
    Requests(Vec<TransactionRequest>),
    Query(QueryRequest),
}

/// Reads the entries of an add: requests, or one Query.
pub(super) fn added(mut entries: Vec<Entry>) -> Result<Added, Problem> {
    if !matches!(entries[..], [Entry::Query(_)]) {
        return requests(entries).map(Added::Requests);
    }
    limits::check_entries(&entries)?;
    let Some(Entry::Query(query)) = entries.pop() else { return Ok(Added::Requests(Vec::new())) };
    Ok(Added::Query(QueryRequest {
        table: query.table_name,
        index: query.index_name,
        key_condition: query.key_condition_expression,
        projection: query.projection_expression,
        names: query.expression_attribute_names.into_iter().collect(),
        values: item("requests[0].Query.ExpressionAttributeValues", query.expression_attribute_values)?,
        forward: query.scan_index_forward.unwrap_or(true),
    }))
}

fn request(index: usize, entry: Entry) -> Result<TransactionRequest, Problem> {
    let place = format!("requests[{index}].{}", entry.name());
    let read = |member: &str, found: wire::Item| item(&format!("{place}.{member}"), found);
    let read_values = |found: wire::Item| read("ExpressionAttributeValues", found);
    Ok(match entry {
        Entry::Get(get) => TransactionRequest {
            table: get.table_name,
            action: Action::Get { key: read("Key", get.key)?, projection: get.projection_expression },
            condition: None,
            names: get.expression_attribute_names.into_iter().collect(),
            values: Item::new(),
            return_values: ReturnValues::None,
            return_item_on_failure: false,
        },
        Entry::Put(put) => TransactionRequest {
            table: put.table_name,
            action: Action::Put { item: read("Item", put.item)? },
            condition: put.condition_expression,
            names: put.expression_attribute_names.into_iter().collect(),
            values: read_values(put.expression_attribute_values)?,
            return_values: return_values(put.return_values),
            return_item_on_failure: put.return_values_on_condition_check_failure == ReturnOnFailure::AllOld,
        },
        Entry::Update(update) => TransactionRequest {
            table: update.table_name,
            action: Action::Update { key: read("Key", update.key)?, expression: update.update_expression },
            condition: update.condition_expression,
            names: update.expression_attribute_names.into_iter().collect(),
            values: read_values(update.expression_attribute_values)?,
            return_values: return_values(update.return_values),
            return_item_on_failure: update.return_values_on_condition_check_failure == ReturnOnFailure::AllOld,
        },
        Entry::Delete(delete) => TransactionRequest {
            table: delete.table_name,
            action: Action::Delete { key: read("Key", delete.key)? },
            condition: delete.condition_expression,
            names: delete.expression_attribute_names.into_iter().collect(),
            values: read_values(delete.expression_attribute_values)?,
            return_values: return_values(delete.return_values),
            return_item_on_failure: delete.return_values_on_condition_check_failure == ReturnOnFailure::AllOld,
        },
        Entry::ConditionCheck(check) => TransactionRequest {
            table: check.table_name,
            action: Action::Check { key: read("Key", check.key)? },
            condition: Some(check.condition_expression),
            names: check.expression_attribute_names.into_iter().collect(),
            values: read_values(check.expression_attribute_values)?,
            return_values: ReturnValues::None,
            return_item_on_failure: check.return_values_on_condition_check_failure == ReturnOnFailure::AllOld,
        },
        Entry::Query(_) => {
            let detail =
                "A Query goes into an add of its own, with nothing beside it, after the transaction was begun.";
            return Err(Problem::invalid(place, detail));
        }
    })
}

fn return_values(wanted: wire::ReturnValues) -> ReturnValues {
    match wanted {
        wire::ReturnValues::None => ReturnValues::None,
        wire::ReturnValues::AllOld => ReturnValues::AllOld,
        wire::ReturnValues::AllNew => ReturnValues::AllNew,
        wire::ReturnValues::UpdatedOld => ReturnValues::UpdatedOld,
        wire::ReturnValues::UpdatedNew => ReturnValues::UpdatedNew,
    }
}

pub(super) fn item(field: &str, found: wire::Item) -> Result<Item, Problem> {
    dynamodb_json::item(found).map_err(|fault| Problem::invalid(format!("{field}{}", fault.path), fault.detail))
}

pub(super) fn isolation(isolation: wire::Isolation) -> Isolation {
    match isolation {
        wire::Isolation::Committed => Isolation::Committed,
        wire::Isolation::Uncommitted => Isolation::Uncommitted,
    }
}

/// Reads the items that a request names. The flag marks a single item that is named without a list.
pub(super) fn reads(request: wire::GetItemsRequest) -> Result<(Vec<ReadRequest>, bool), Problem> {
    limits::check_reads(&request)?;
    let wire::GetItemsRequest { requests, table_name, key, projection_expression, expression_attribute_names, .. } =
        request;
    let is_single = table_name.is_some()
        || key.is_some()
        || projection_expression.is_some()
        || expression_attribute_names.is_some();
    match (requests, is_single) {
        (Some(_), true) => {
            Err(Problem::invalid("requests", "Name one item by tableName and key, or several in requests; not both."))
        }
        (Some(requests), false) => {
            let read = |(index, request)| read(&format!("requests[{index}]."), request);
            Ok((requests.into_iter().enumerate().map(read).collect::<Result<_, _>>()?, false))
        }
        (None, _) => {
            let missing = |name: &str| Problem::invalid(name, format!("{name} is missing."));
            let request = wire::ItemRequest {
                table_name: table_name.ok_or_else(|| missing("tableName"))?,
                key: key.ok_or_else(|| missing("key"))?,
                projection_expression,
                expression_attribute_names: expression_attribute_names.unwrap_or_default(),
            };
            Ok((vec![read("", request)?], true))
        }
    }
}

fn read(place: &str, request: wire::ItemRequest) -> Result<ReadRequest, Problem> {
    Ok(ReadRequest {
        table: request.table_name,
        key: item(&format!("{place}key"), request.key)?,
        projection: request.projection_expression,
        names: request.expression_attribute_names.into_iter().collect(),
    })
}

/// Names the field at fault in a request for a single item, which has no list.
pub(super) fn without_index(mut problem: Problem) -> Problem {
    if let Some(field) = &mut problem.field
        && let Some(member) = field.strip_prefix("requests[0].")
    {
        *field = member.to_owned();
    }
    problem
}

pub(super) fn items(items: Vec<Option<Item>>, is_single: bool) -> wire::GetItemsResponse {
    let mut shown = items.into_iter().map(|item| item.map(dynamodb_json::show));
    if is_single {
        return wire::GetItemsResponse { item: shown.next().flatten(), ..wire::GetItemsResponse::default() };
    }
    let answers = Some(shown.map(|item| wire::Answer { item, items: None }).collect());
    wire::GetItemsResponse { answers, ..wire::GetItemsResponse::default() }
}

pub(super) fn list(request: wire::ListItemsRequest, limit: Option<u32>) -> Result<ListRequest, Problem> {
    limits::check_list(&request)?;
    if request.scan_index_forward.is_some() && request.key_condition_expression.is_none() {
        return Err(Problem::invalid("scanIndexForward", "Only a Query has an order: give a keyConditionExpression."));
    }
    Ok(ListRequest {
        table: request.table_name,
        index: request.index_name,
        key_condition: request.key_condition_expression,
        filter: request.filter_expression,
        projection: request.projection_expression,
        names: request.expression_attribute_names.into_iter().collect(),
        values: item("expressionAttributeValues", request.expression_attribute_values)?,
        forward: request.scan_index_forward,
        limit: limit.map(|limit| i32::try_from(limit).unwrap_or(i32::MAX)),
        start: request.exclusive_start_key.map(|key| item("exclusiveStartKey", key)).transpose()?,
    })
}

pub(super) fn page(page: ItemPage) -> wire::ListItemsResponse {
    wire::ListItemsResponse {
        items: page.items.into_iter().map(dynamodb_json::show).collect(),
        last_evaluated_key: page.next.map(dynamodb_json::show),
        consumed_capacity: None,
    }
}

pub(super) fn consumed_capacity((table_name, units): (String, Units)) -> wire::ConsumedCapacity {
    wire::ConsumedCapacity { table_name, read_capacity_units: units.read, write_capacity_units: units.write }
}

pub(super) fn strays_request(request: wire::StraysRequest, limit: u32) -> Result<StraysRequest, Problem> {
    Ok(StraysRequest {
        table: request.table_name,
        holder: request.public_id.as_deref().map(super::public_id).transpose()?,
        limit: i32::try_from(limit).unwrap_or(i32::MAX),
        start: request.exclusive_start_key.map(|key| item("exclusiveStartKey", key)).transpose()?,
    })
}

pub(super) fn strays(page: StrayPage) -> wire::StraysResponse {
    let stray = |stray: Stray| wire::Stray {
        key: dynamodb_json::show(stray.key.attributes().clone()),
        lock: stray.lock,
        public_id: stray.holder.to_string(),
    };
    wire::StraysResponse {
        examined: page.examined as u64,
        strays: page.strays.into_iter().map(stray).collect(),
        last_evaluated_key: page.next.map(dynamodb_json::show),
    }
}

pub(super) fn answer(answer: Answer) -> wire::Answer {
    wire::Answer { item: answer.item.map(dynamodb_json::show), items: None }
}

/// The answer to a Query.
pub(super) fn found(items: Vec<Item>) -> wire::Answer {
    wire::Answer { item: None, items: Some(items.into_iter().map(dynamodb_json::show).collect()) }
}

pub(super) fn status(status: Status, id: Option<&TransactionId>) -> wire::Transaction {
    wire::Transaction {
        transaction_id: id.map(|id| id.reveal().to_owned()),
        public_id: status.id.to_string(),
        state: state(status.state),
        finished: status.finished,
        reason: status.reason,
        stuck: status.stuck,
        overwritten: status.overwritten.iter().map(item_name).collect(),
        created_at_ms: status.created_at,
        last_worked_at_ms: status.last_worked_at,
        requests: status.requests.iter().map(participant).collect(),
        more_requests: status.more_requests,
    }
}

fn state(state: State) -> wire::TransactionState {
    match state {
        State::Pending => wire::TransactionState::Pending,
        State::Committed => wire::TransactionState::Committed,
        State::RolledBack => wire::TransactionState::RolledBack,
    }
}

/// Reads the outcome that an operator gives a transaction.
pub(super) fn outcome(state: wire::TransactionState) -> Result<State, Problem> {
    match state {
        wire::TransactionState::Committed => Ok(State::Committed),
        wire::TransactionState::RolledBack => Ok(State::RolledBack),
        wire::TransactionState::Pending => {
            Err(Problem::invalid("outcome", "outcome must be committed or rolled-back."))
        }
    }
}

pub(super) fn transactions(page: TransactionPage) -> wire::ListTransactionsResponse {
    wire::ListTransactionsResponse {
        transactions: page.transactions.into_iter().map(|found| status(found, None)).collect(),
        next_cursor: page.next,
    }
}

/// The name of an item, as callers read it.
pub(super) fn item_name(key: &ItemKey) -> wire::ItemName {
    wire::ItemName { table_name: key.table().to_owned(), key: dynamodb_json::show(key.attributes().clone()) }
}

fn refused_item(key: &ItemKey, holder_age_ms: Option<u64>) -> RefusedItem {
    let wire::ItemName { table_name, key } = item_name(key);
    RefusedItem { table_name, key, holder_age_ms }
}

/// The problem of a caller that named no id, where the failure leaves nothing behind.
pub(super) fn without_id(problem: Problem) -> Problem {
    match problem.problem_type {
        ProblemType::Throttled | ProblemType::Unavailable if problem.transaction_id.is_none() => {
            let detail = "The tables are busy, or did not answer. Nothing was changed: try again.";
            Problem { detail: detail.to_owned(), ..problem }
        }
        _ => problem,
    }
}

fn participant(participant: &Participant) -> wire::Participant {
    wire::Participant {
        table_name: participant.key.table().to_owned(),
        key: dynamodb_json::show(participant.key.attributes().clone()),
        operation: participant.operation.as_str().to_owned(),
    }
}

pub(super) fn swept(swept: &Swept) -> wire::SweepResponse {
    wire::SweepResponse {
        examined: swept.examined as u64,
        rolled_back: swept.rolled_back as u64,
        completed: swept.completed as u64,
        stuck: swept.stuck as u64,
        watched: swept.watched as u64,
        failed: swept.failed as u64,
        more: swept.more,
    }
}

/// Returns the problem that the caller reads. The log reads [`Error::for_log`].
pub(super) fn problem(error: &Error) -> Problem {
    let plain = |kind| Problem::new(kind, error.to_string());
    match error {
        Error::InvalidRequest { field, message } => Problem::invalid(field.as_str(), message.as_str()),
        Error::NotFound => plain(ProblemType::TransactionNotFound),
        Error::RolledBack { .. } => plain(ProblemType::RolledBack),
        Error::Committed => plain(ProblemType::Committed),
        Error::Contended { other, key, age_ms } => Problem {
            public_id: Some(other.as_str().into()),
            refused_item: Some(Box::new(refused_item(key, Some(*age_ms)))),
            ..plain(ProblemType::Contended)
        },
        Error::ConditionFailed { request, key, item } => Problem {
            refused_item: Some(Box::new(refused_item(key, None))),
            request: u16::try_from(*request).ok(),
            item: item.clone().map(|item| Box::new(dynamodb_json::show(item))),
            ..plain(ProblemType::ConditionFailed)
        },
        Error::TooLarge(_) => plain(ProblemType::TooLarge),
        Error::Forbidden { .. } => plain(ProblemType::Forbidden),
        Error::Misconfigured(_) => crate::convert::misconfigured(),
        Error::Corrupt { message, key } => Problem {
            refused_item: key.as_ref().map(|key| Box::new(refused_item(key, None))),
            ..Problem::new(ProblemType::CorruptRecord, format!("{message} An operator must look at it."))
        },
        Error::Unknown { id, source } => Problem {
            transaction_id: Some(id.reveal().into()),
            ..Problem::new(
                if matches!(**source, Error::Throttled(_)) { ProblemType::Throttled } else { ProblemType::Unavailable },
                "The tables did not answer, and nobody knows yet whether the transaction is committed. Repeat the call with \
                 the transactionId in this answer, or roll it back: the answer says whether it is committed, and a late \
                 copy of this call then changes nothing.",
            )
        },
        Error::Throttled(_) => Problem::new(
            ProblemType::Throttled,
            "The tables are busy. Try again, with the same transactionId: the call goes on where it stopped.",
        ),
        Error::Unavailable(_) => Problem::new(
            ProblemType::Unavailable,
            "The tables did not answer, and nobody knows whether they did what was asked. Try again, with the same \
             transactionId: the call goes on where it stopped.",
        ),
    }
}
