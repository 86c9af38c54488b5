//! Checks requests before anything is written, and finds out which items they are about.

use std::collections::BTreeSet;

use crate::attributes::{Item, RESERVED_PREFIX};
use crate::error::Error;
use crate::expression::{names_reserved, placeholders};
use crate::key::ItemKey;
use crate::model::{Action, Request, ReturnValues};
use crate::projection::Projection;
use crate::record::{Effect, digest};
use crate::tables::Tables;

/// More in one call would not fit into a gateway's time-out.
pub(crate) const MAX_REQUESTS: usize = 1000;

/// A request that is fit to be carried out.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Its place among the requests of the call.
    pub(crate) index: usize,
    pub(crate) key: ItemKey,
    pub(crate) request: Request,
    pub(crate) effect: Effect,
    pub(crate) digest: Vec<u8>,
    pub(crate) projection: Option<Projection>,
}

/// Prepares all requests of one call.
///
/// # Errors
/// `InvalidRequest`, with the field at fault.
pub(crate) async fn prepare(
    tables: &Tables,
    protected: &[String],
    requests: Vec<Request>,
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
        let field = |name: &str| format!("requests[{index}].{name}");
        check(&request, protected, field)?;
        let key = key(tables, &request, field).await?;
        if !seen.insert(key.clone()) {
            return Err(Error::invalid(
                field("key"),
                "The same item is in this call twice. A transaction takes one request for an item, and after a get one that writes.",
            ));
        }
        let projection = match &request.action {
            Action::Get { projection: Some(paths), .. } => Some(
                Projection::parse(paths, &request.names)
                    .map_err(|message| Error::invalid(field("projectionExpression"), message))?,
            ),
            _ => None,
        };
        let (effect, digest) = (Effect::of(&request), digest(&request));
        prepared.push(Prepared { index, key, request, effect, digest, projection });
    }
    Ok(prepared)
}

fn check(request: &Request, protected: &[String], field: impl Fn(&str) -> String) -> Result<(), Error> {
    if request.table.is_empty() {
        return Err(Error::invalid(field("tableName"), "tableName must not be empty."));
    }
    let name = request.table.rsplit_once("table/").map_or(request.table.as_str(), |(_, name)| name);
    if protected.iter().any(|own| own == name) {
        return Err(Error::invalid(field("tableName"), format!("The table {name} belongs to the service itself.")));
    }
    if name != request.table {
        return Err(Error::invalid(field("tableName"), "Give the table's name, not its ARN."));
    }
    let (update, projection) = match &request.action {
        Action::Update { expression, .. } => (Some(expression.as_str()), None),
        Action::Get { projection, .. } => (None, projection.as_deref()),
        _ => (None, None),
    };
    let expressions = [
        ("updateExpression", update),
        ("projectionExpression", projection),
        ("conditionExpression", request.condition.as_deref()),
    ];
    let mut used = BTreeSet::new();
    for (name, expression) in expressions {
        let Some(expression) = expression else { continue };
        if names_reserved(expression) {
            return Err(Error::invalid(field(name), reserved()));
        }
        used.extend(placeholders(expression));
    }
    if request.names.values().any(|name| name.starts_with(RESERVED_PREFIX)) {
        return Err(Error::invalid(field("expressionAttributeNames"), reserved()));
    }
    if let Some(name) = request.names.keys().find(|name| !used.contains(name.as_str())) {
        return Err(Error::invalid(field("expressionAttributeNames"), format!("No expression uses {name}.")));
    }
    if let Some(name) = request.values.keys().find(|name| !used.contains(name.as_str())) {
        return Err(Error::invalid(field("expressionAttributeValues"), format!("No expression uses {name}.")));
    }
    match &request.action {
        Action::Put { item } if item.keys().any(|name| name.starts_with(RESERVED_PREFIX)) => {
            Err(Error::invalid(field("item"), reserved()))
        }
        Action::Check { .. } if request.condition.is_none() => {
            Err(Error::invalid(field("conditionExpression"), "A conditionCheck needs its conditionExpression."))
        }
        Action::Get { .. } | Action::Check { .. } if request.return_values != ReturnValues::None => {
            Err(Error::invalid(field("returnValues"), "Only writes have returnValues."))
        }
        Action::Delete { .. } if request.return_values == ReturnValues::AllNew => {
            Err(Error::invalid(field("returnValues"), "A delete returns NONE or ALL_OLD."))
        }
        Action::Put { .. } if request.return_values == ReturnValues::AllNew => {
            Err(Error::invalid(field("returnValues"), "A put returns NONE or ALL_OLD."))
        }
        _ => Ok(()),
    }
}

fn reserved() -> String {
    format!("Attributes whose names begin with {RESERVED_PREFIX} belong to the service.")
}

async fn key(tables: &Tables, request: &Request, field: impl Fn(&str) -> String) -> Result<ItemKey, Error> {
    let names = tables.key_names(&request.table).await?;
    let (source, member): (&Item, _) = match &request.action {
        Action::Put { item } => (item, "item"),
        Action::Get { key, .. } | Action::Update { key, .. } | Action::Delete { key } | Action::Check { key } => {
            (key, "key")
        }
    };
    let attributes: Item = names.iter().filter_map(|name| Some((name.clone(), source.get(name)?.clone()))).collect();
    let is_whole = attributes.len() == names.len() && (member == "item" || source.len() == names.len());
    if is_whole {
        Ok(ItemKey::new(&request.table, attributes))
    } else {
        let detail = format!("The key of the table {} is made of {}.", request.table, names.join(" and "));
        Err(Error::invalid(field(member), detail))
    }
}
