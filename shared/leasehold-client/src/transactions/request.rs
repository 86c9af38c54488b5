//! Builds one operation on one item, or a query.

use std::collections::BTreeMap;

use leasehold_wire::transactions::{
    ConditionCheck, Delete, Entry, Get, Item, Put, Query, ReturnOnFailure, ReturnValues, Update,
};
use serde::Serialize;

use super::item::{to_item, to_value};
use crate::Error;

/// One operation on one item, like an entry of TransactWriteItems or TransactGetItems; or a query. A value that
/// DynamoDB has no type for is refused when the request is sent.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request(Result<Entry, Error>);

impl From<Entry> for Request {
    fn from(entry: Entry) -> Self {
        Self(Ok(entry))
    }
}

impl Request {
    /// Locks the item and reads it.
    pub fn get(table: impl Into<String>, key: impl Serialize) -> Self {
        let table_name = table.into();
        Self(to_item(key).map(|key| Entry::Get(Get { table_name, key, ..Get::default() })))
    }

    /// Puts an item in place of the existing one.
    pub fn put(table: impl Into<String>, item: impl Serialize) -> Self {
        let table_name = table.into();
        Self(to_item(item).map(|item| Entry::Put(Put { table_name, item, ..Put::default() })))
    }

    /// Updates or creates the item.
    pub fn update(table: impl Into<String>, key: impl Serialize, expression: impl Into<String>) -> Self {
        let (table_name, update_expression) = (table.into(), expression.into());
        Self(to_item(key).map(|key| Entry::Update(Update { table_name, key, update_expression, ..Update::default() })))
    }

    /// Deletes the item, when the transaction is committed.
    pub fn delete(table: impl Into<String>, key: impl Serialize) -> Self {
        let table_name = table.into();
        Self(to_item(key).map(|key| Entry::Delete(Delete { table_name, key, ..Delete::default() })))
    }

    /// Locks the item and checks a condition.
    pub fn check(table: impl Into<String>, key: impl Serialize, condition: impl Into<String>) -> Self {
        let (table_name, condition_expression) = (table.into(), condition.into());
        Self(to_item(key).map(|key| {
            Entry::ConditionCheck(ConditionCheck { table_name, key, condition_expression, ..ConditionCheck::default() })
        }))
    }

    /// Locks the items that match a key condition, at most 100, and reads them: for [`Transaction::query`].
    ///
    /// [`Transaction::query`]: super::Transaction::query
    pub fn query(table: impl Into<String>, key_condition: impl Into<String>) -> Self {
        let (table_name, key_condition_expression) = (table.into(), key_condition.into());
        Self(Ok(Entry::Query(Query { table_name, key_condition_expression, ..Query::default() })))
    }

    /// Finds the items of a query in an index of the table.
    pub fn index(self, name: impl Into<String>) -> Self {
        self.with(|entry| match entry {
            Entry::Query(query) => {
                query.index_name = Some(name.into());
                Ok(())
            }
            _ => Err("index"),
        })
    }

    /// Returns the items of a query by descending sort keys.
    pub fn descending(self) -> Self {
        self.with(|entry| match entry {
            Entry::Query(query) => {
                query.scan_index_forward = Some(false);
                Ok(())
            }
            _ => Err("order"),
        })
    }

    /// Adds a condition to a write, which must hold for the item as it was when the transaction locked it.
    pub fn when(self, condition: impl Into<String>) -> Self {
        self.with(|entry| match entry {
            Entry::Put(Put { condition_expression, .. })
            | Entry::Update(Update { condition_expression, .. })
            | Entry::Delete(Delete { condition_expression, .. }) => {
                *condition_expression = Some(condition.into());
                Ok(())
            }
            Entry::ConditionCheck(_) | Entry::Get(_) | Entry::Query(_) => Err("condition"),
        })
    }

    /// Limits the answer of a get or a query to these paths.
    pub fn project(self, projection: impl Into<String>) -> Self {
        self.with(|entry| match entry {
            Entry::Get(Get { projection_expression: paths, .. })
            | Entry::Query(Query { projection_expression: paths, .. }) => {
                *paths = Some(projection.into());
                Ok(())
            }
            _ => Err("projection"),
        })
    }

    /// Defines a `#name` of the expressions.
    pub fn name(self, placeholder: impl Into<String>, name: impl Into<String>) -> Self {
        self.with(|entry| {
            names(entry).insert(placeholder.into(), name.into());
            Ok(())
        })
    }

    /// Defines a `:value` of the expressions.
    pub fn value(self, placeholder: impl Into<String>, value: impl Serialize) -> Self {
        match to_value(value) {
            Ok(value) => self.with(|entry| {
                values(entry).ok_or("values")?.0.insert(placeholder.into(), value);
                Ok(())
            }),
            Err(error) => Self(self.0.and(Err(error))),
        }
    }

    /// Defines several `:values`: an object whose members have those names.
    pub fn values(self, given: impl Serialize) -> Self {
        match to_item(given) {
            Ok(Item(given)) => self.with(|entry| {
                values(entry).ok_or("values")?.0.extend(given);
                Ok(())
            }),
            Err(error) => Self(self.0.and(Err(error))),
        }
    }

    /// Sets the state of the item that a write returns. Default: none.
    pub fn returning(self, wanted: ReturnValues) -> Self {
        self.with(|entry| match entry {
            Entry::Put(Put { return_values, .. })
            | Entry::Update(Update { return_values, .. })
            | Entry::Delete(Delete { return_values, .. }) => {
                *return_values = wanted;
                Ok(())
            }
            Entry::ConditionCheck(_) | Entry::Get(_) | Entry::Query(_) => Err("returned values"),
        })
    }

    /// Adds the item to [`crate::ErrorKind::ConditionFailed`], if the condition does not hold.
    pub fn show_on_failure(self) -> Self {
        self.with(|entry| match entry {
            Entry::Put(Put { return_values_on_condition_check_failure: shown, .. })
            | Entry::Update(Update { return_values_on_condition_check_failure: shown, .. })
            | Entry::Delete(Delete { return_values_on_condition_check_failure: shown, .. })
            | Entry::ConditionCheck(ConditionCheck { return_values_on_condition_check_failure: shown, .. }) => {
                *shown = ReturnOnFailure::AllOld;
                Ok(())
            }
            Entry::Get(_) | Entry::Query(_) => Err("condition"),
        })
    }

    /// Returns the wire's entry.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidRequest`]: a value that DynamoDB has no type for, or a part that does not belong to
    /// this operation.
    pub(crate) fn entry(self) -> Result<Entry, Error> {
        self.0
    }

    fn with(mut self, change: impl FnOnce(&mut Entry) -> Result<(), &'static str>) -> Self {
        if let Ok(entry) = &mut self.0
            && let Err(member) = change(entry)
        {
            let message = format!("a {} takes no further {member}", entry.name());
            self.0 = Err(Error::invalid("requests", message));
        }
        self
    }
}

fn names(entry: &mut Entry) -> &mut BTreeMap<String, String> {
    match entry {
        Entry::Get(Get { expression_attribute_names: names, .. })
        | Entry::Put(Put { expression_attribute_names: names, .. })
        | Entry::Update(Update { expression_attribute_names: names, .. })
        | Entry::Delete(Delete { expression_attribute_names: names, .. })
        | Entry::ConditionCheck(ConditionCheck { expression_attribute_names: names, .. })
        | Entry::Query(Query { expression_attribute_names: names, .. }) => names,
    }
}

fn values(entry: &mut Entry) -> Option<&mut Item> {
    match entry {
        Entry::Put(Put { expression_attribute_values: values, .. })
        | Entry::Update(Update { expression_attribute_values: values, .. })
        | Entry::Delete(Delete { expression_attribute_values: values, .. })
        | Entry::ConditionCheck(ConditionCheck { expression_attribute_values: values, .. })
        | Entry::Query(Query { expression_attribute_values: values, .. }) => Some(values),
        Entry::Get(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(request: Request) -> Value {
        serde_json::to_value(request.entry().expect("complete")).expect("JSON")
    }

    #[test]
    fn requests_are_entries_of_dynamodb() {
        let key = json!({"id": "a"});
        let update = Request::update("t", &key, "ADD #b :x")
            .name("#b", "balance")
            .value(":x", -30)
            .values(json!({":min": 30}))
            .when("#b >= :min")
            .returning(ReturnValues::AllNew)
            .show_on_failure();
        assert_eq!(
            written(update),
            json!({"Update": {
                "TableName": "t", "Key": {"id": {"S": "a"}}, "UpdateExpression": "ADD #b :x",
                "ConditionExpression": "#b >= :min", "ExpressionAttributeNames": {"#b": "balance"},
                "ExpressionAttributeValues": {":x": {"N": "-30"}, ":min": {"N": "30"}},
                "ReturnValues": "ALL_NEW", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"
            }})
        );
        let get = Request::get("t", &key).project("#b").name("#b", "balance");
        assert_eq!(
            written(get),
            json!({"Get": {
                "TableName": "t", "Key": {"id": {"S": "a"}}, "ProjectionExpression": "#b",
                "ExpressionAttributeNames": {"#b": "balance"}
            }})
        );
        let query = Request::query("t", "#c = :c").name("#c", "customer").value(":c", 7);
        assert_eq!(
            written(query.index("by-customer").descending().project("#c")),
            json!({"Query": {
                "TableName": "t", "IndexName": "by-customer", "KeyConditionExpression": "#c = :c",
                "ProjectionExpression": "#c", "ExpressionAttributeNames": {"#c": "customer"},
                "ExpressionAttributeValues": {":c": {"N": "7"}}, "ScanIndexForward": false
            }})
        );
        let check = Request::check("t", &key, "attribute_exists(id)");
        assert_eq!(
            written(check),
            json!({"ConditionCheck": {
                "TableName": "t", "Key": {"id": {"S": "a"}}, "ConditionExpression": "attribute_exists(id)"
            }})
        );
    }

    #[test]
    fn foreign_parts_are_refused_and_not_left_out() {
        for request in [
            Request::get("t", json!({"id": 1})).when("a = b"),
            Request::get("t", json!({"id": 1})).value(":a", 1),
            Request::get("t", json!({"id": 1})).index("i"),
            Request::put("t", json!({"id": 1})).descending(),
            Request::query("t", "a = :a").when("a = b"),
            Request::get("t", "no key"),
            Request::put("t", json!({"id": 1})).project("a"),
            Request::check("t", json!({"id": 1}), "a = b").returning(ReturnValues::AllOld),
            Request::delete("t", json!({"id": 1})).values("no object").when("later"),
        ] {
            assert!(matches!(request.entry(), Err(error) if !error.to_string().is_empty()));
        }
    }
}
