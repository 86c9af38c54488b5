//! Checks requests before any write, and finds the items that they name.

use std::collections::{BTreeSet, HashMap};

use crate::attributes::{ItemLock, RESERVED_PREFIX, size, strip};
use crate::error::Error;
use crate::expression::{changed_paths, is_balanced, names_reserved, placeholders, top_level};
use crate::key::{Item, ItemKey};
use crate::model::{Action, Operation, ReturnValues, TransactionRequest};
use crate::projection::{Projection, project};
use crate::record::digest;
use crate::tables::{KeyAttribute, Tables};

/// The maximum number of requests in one call: more would not finish within a gateway's time-out.
pub(crate) const MAX_REQUESTS: usize = 1000;

/// A checked request.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The request's index in its call.
    pub(crate) index: usize,
    pub(crate) key: ItemKey,
    pub(crate) request: TransactionRequest,
    pub(crate) digest: Vec<u8>,
    /// The paths that an update changes, as written in it.
    pub(crate) changed: Vec<String>,
    pub(crate) projection: Option<Projection>,
}

impl Prepared {
    /// The path of the request in its call.
    pub(crate) fn path(&self) -> String {
        self.request.path(self.index)
    }

    pub(crate) const fn operation(&self) -> Operation {
        self.request.action.operation()
    }

    /// Whether the request asks for an item.
    pub(crate) fn wants_item(&self) -> bool {
        self.operation() == Operation::Get || self.request.return_values != ReturnValues::None
    }

    /// The attributes that an update changes.
    pub(crate) fn changed_names(&self) -> BTreeSet<&str> {
        self.changed.iter().map(|path| top_level(path, &self.request.names)).collect()
    }

    /// An estimate of the bytes of its write.
    pub(crate) fn bytes(&self) -> usize {
        let content = match &self.request.action {
            Action::Put { item } => size(item),
            Action::Get { .. } | Action::Check { .. } | Action::Update { .. } | Action::Delete { .. } => {
                size(self.key.attributes())
            }
        };
        content + size(&self.request.values) + 300
    }

    /// Returns the parts of an item that the request asks for.
    pub(crate) fn project(&self, item: Option<Item>) -> Option<Item> {
        Some(project(item?, self.projection.as_ref()))
    }

    /// Returns the item of a failed condition, if the caller asked for it.
    pub(crate) fn shown(&self, item: Option<Item>) -> Option<Item> {
        let is_absent = item.as_ref().and_then(ItemLock::of).is_some_and(|lock| lock.is_absent());
        item.filter(|_| self.request.return_item_on_failure && !is_absent).map(strip)
    }
}

/// Prepares all requests of one call.
///
/// # Errors
/// `InvalidRequest`, with the field at fault.
pub(crate) async fn prepare(
    tables: &Tables,
    requests: Vec<TransactionRequest>,
    call_id: Option<&str>,
) -> Result<Vec<Prepared>, Error> {
    if requests.len() > MAX_REQUESTS {
        return Err(Error::invalid(
            "requests",
            format!("One call takes at most {MAX_REQUESTS} requests: add the rest with another."),
        ));
    }
    let mut seen = BTreeSet::new();
    let mut prepared = Vec::with_capacity(requests.len());
    for (index, request) in requests.into_iter().enumerate() {
        let path = request.path(index);
        let field = |member: &str| format!("{path}.{member}");
        check(tables, &request, field)?;
        let key = key(tables, &request, field).await?;
        if !seen.insert(key.clone()) {
            return Err(Error::invalid(
                field(request.action.key_member()),
                "The same item is in this call twice. Each further request for an item goes into another add.",
            ));
        }
        let projection = match &request.action {
            Action::Get { projection: Some(paths), .. } => Some(
                Projection::parse(paths, &request.names)
                    .map_err(|message| Error::invalid(field("ProjectionExpression"), message))?,
            ),
            Action::Update { expression, .. }
                if matches!(request.return_values, ReturnValues::UpdatedOld | ReturnValues::UpdatedNew) =>
            {
                let paths = changed_paths(expression).join(",");
                Some(
                    Projection::parse(&paths, &request.names)
                        .map_err(|message| Error::invalid(field("UpdateExpression"), message))?,
                )
            }
            _ => None,
        };
        let changed = match &request.action {
            Action::Update { expression, .. } => changed_paths(expression),
            _ => Vec::new(),
        };
        let of_key = changed.iter().map(|path| top_level(path, &request.names));
        if let Some(name) = of_key.into_iter().find(|name| key.attributes().contains_key(*name)) {
            let detail = format!("The attribute {name} is part of the key, which cannot be changed.");
            return Err(Error::invalid(field("UpdateExpression"), detail));
        }
        let digest = digest(&request, call_id);
        prepared.push(Prepared { index, key, request, digest, changed, projection });
    }
    Ok(prepared)
}

fn check(tables: &Tables, request: &TransactionRequest, field: impl Fn(&str) -> String) -> Result<(), Error> {
    tables.check_name(&request.table, field("TableName"))?;
    let (update, projection) = match &request.action {
        Action::Update { expression, .. } => (Some(expression.as_str()), None),
        Action::Get { projection, .. } => (None, projection.as_deref()),
        _ => (None, None),
    };
    let expressions = [
        ("UpdateExpression", update),
        ("ProjectionExpression", projection),
        ("ConditionExpression", request.condition.as_deref()),
    ];
    check_expressions(&expressions, &request.names, &request.values, &field)?;
    if request.condition.as_deref().is_some_and(|condition| !is_balanced(condition)) {
        let detail = "The parentheses of the condition do not match.";
        return Err(Error::invalid(field("ConditionExpression"), detail));
    }
    match &request.action {
        Action::Put { item } if item.keys().any(|name| name.starts_with(RESERVED_PREFIX)) => {
            Err(Error::invalid(field("Item"), reserved()))
        }
        Action::Check { .. } if request.condition.is_none() => {
            Err(Error::invalid(field("ConditionExpression"), "A conditionCheck needs its conditionExpression."))
        }
        Action::Get { .. } if request.condition.is_some() => {
            let detail = "A get has no condition: use a conditionCheck.";
            Err(Error::invalid(field("ConditionExpression"), detail))
        }
        Action::Get { .. } | Action::Check { .. } if request.return_values != ReturnValues::None => {
            Err(Error::invalid(field("ReturnValues"), "Only writes have returnValues."))
        }
        Action::Delete { .. } if !matches!(request.return_values, ReturnValues::None | ReturnValues::AllOld) => {
            Err(Error::invalid(field("ReturnValues"), "A delete returns NONE or ALL_OLD."))
        }
        Action::Put { .. } if matches!(request.return_values, ReturnValues::UpdatedOld | ReturnValues::UpdatedNew) => {
            Err(Error::invalid(field("ReturnValues"), "A put returns NONE, ALL_OLD or ALL_NEW."))
        }
        _ => Ok(()),
    }
}

/// Refuses expressions that name what belongs to the service, and names and values that no expression uses.
///
/// # Errors
/// `InvalidRequest`, with the field at fault.
pub(crate) fn check_expressions(
    expressions: &[(&str, Option<&str>)],
    names: &HashMap<String, String>,
    values: &Item,
    field: impl Fn(&str) -> String,
) -> Result<(), Error> {
    let mut used = BTreeSet::new();
    for (member, expression) in expressions {
        let Some(expression) = expression else { continue };
        if names_reserved(expression) {
            return Err(Error::invalid(field(member), reserved()));
        }
        used.extend(placeholders(expression));
    }
    if names.values().any(|name| name.starts_with(RESERVED_PREFIX)) {
        return Err(Error::invalid(field("ExpressionAttributeNames"), reserved()));
    }
    if let Some(name) = names.keys().find(|name| !used.contains(name.as_str())) {
        return Err(Error::invalid(field("ExpressionAttributeNames"), format!("No expression uses {name}.")));
    }
    if let Some(name) = values.keys().find(|name| !used.contains(name.as_str())) {
        return Err(Error::invalid(field("ExpressionAttributeValues"), format!("No expression uses {name}.")));
    }
    Ok(())
}

fn reserved() -> String {
    format!("Attributes whose names begin with {RESERVED_PREFIX} belong to the service.")
}

async fn key(tables: &Tables, request: &TransactionRequest, field: impl Fn(&str) -> String) -> Result<ItemKey, Error> {
    let (source, is_all): (&Item, _) = match &request.action {
        Action::Put { item } => (item, false),
        Action::Get { key, .. } | Action::Update { key, .. } | Action::Delete { key } | Action::Check { key } => {
            (key, true)
        }
    };
    key_in(tables, &request.table, source, is_all, field(request.action.key_member())).await
}

/// Returns the key of an item of a table: `source` itself, or (unless `is_all`) a part of it.
///
/// # Errors
/// `InvalidRequest`, where it does not have the form of the table's keys.
pub(crate) async fn key_in(
    tables: &Tables,
    table: &str,
    source: &Item,
    is_all: bool,
    field: String,
) -> Result<ItemKey, Error> {
    let pick = |schema: &[KeyAttribute]| -> Option<Item> {
        let part = |attribute: &KeyAttribute| {
            let value = source.get(&attribute.name).filter(|value| attribute.admits(value))?;
            Some((attribute.name.clone(), value.clone()))
        };
        let parts: Item = schema.iter().map(part).collect::<Option<_>>()?;
        (!is_all || parts.len() == source.len()).then_some(parts)
    };
    if let Some(parts) = pick(&tables.key_attributes(table).await?) {
        return Ok(ItemKey::new(table, parts));
    }
    // The table may have been deleted and created anew since its key was last read.
    let schema = tables.describe_key(table).await?;
    let parts = pick(&schema).ok_or_else(|| {
        let parts: Vec<_> = schema.iter().map(|part| format!("{} ({})", part.name, part.kind.as_str())).collect();
        Error::invalid(field, format!("The key of the table {table} is made of {}.", parts.join(" and ")))
    })?;
    Ok(ItemKey::new(table, parts))
}
