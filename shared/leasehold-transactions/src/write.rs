//! One conditional write, as a part of a TransactWriteItems call.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::builders::TransactWriteItemBuilder;
use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, Put, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update,
};

use crate::attributes::Item;
use crate::error::Error;
use crate::expression::placeholders;
use crate::key::ItemKey;

/// What is written, where, and on which condition.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    table: String,
    change: Change,
    condition: Option<String>,
    names: HashMap<String, String>,
    values: Item,
}

#[derive(Debug, Clone)]
enum Change {
    Put(Item),
    Update(Item, String),
    Delete(Item),
    Check(Item),
}

impl Write {
    fn new(table: &str, change: Change) -> Self {
        Self { table: table.to_owned(), change, condition: None, names: HashMap::new(), values: Item::new() }
    }

    pub(crate) fn put(table: &str, item: Item) -> Self {
        Self::new(table, Change::Put(item))
    }

    pub(crate) fn update(key: &ItemKey, expression: impl Into<String>) -> Self {
        Self::new(key.table(), Change::Update(key.attributes().clone(), expression.into()))
    }

    pub(crate) fn delete(key: &ItemKey) -> Self {
        Self::new(key.table(), Change::Delete(key.attributes().clone()))
    }

    pub(crate) fn check(key: &ItemKey) -> Self {
        Self::new(key.table(), Change::Check(key.attributes().clone()))
    }

    pub(crate) fn when(mut self, condition: impl Into<String>) -> Self {
        self.condition = Some(condition.into());
        self
    }

    pub(crate) fn name(mut self, placeholder: &str, name: impl Into<String>) -> Self {
        self.names.insert(placeholder.to_owned(), name.into());
        self
    }

    pub(crate) fn value(mut self, placeholder: &str, value: AttributeValue) -> Self {
        self.values.insert(placeholder.to_owned(), value);
        self
    }

    pub(crate) fn text(self, placeholder: &str, value: impl Into<String>) -> Self {
        self.value(placeholder, AttributeValue::S(value.into()))
    }

    pub(crate) fn number(self, placeholder: &str, value: u64) -> Self {
        self.value(placeholder, AttributeValue::N(value.to_string()))
    }

    /// A user's names and values. DynamoDB refuses those that no expression of the write has a use for.
    pub(crate) fn with_users(mut self, names: &HashMap<String, String>, values: &Item) -> Self {
        let expression = match &self.change {
            Change::Update(_, expression) => expression.as_str(),
            Change::Put(_) | Change::Delete(_) | Change::Check(_) => "",
        };
        let condition = self.condition.as_deref().unwrap_or_default();
        for placeholder in placeholders(expression).into_iter().chain(placeholders(condition)) {
            if let Some(name) = names.get(placeholder) {
                self.names.insert(placeholder.to_owned(), name.clone());
            }
            if let Some(value) = values.get(placeholder) {
                self.values.insert(placeholder.to_owned(), value.clone());
            }
        }
        self
    }

    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// As the SDK wants it. A refused condition is always answered with the item: it says who is in the way.
    pub(crate) fn into_sdk(self) -> Result<TransactWriteItem, Error> {
        let names = (!self.names.is_empty()).then_some(self.names);
        let values = (!self.values.is_empty()).then_some(self.values);
        let old = ReturnValuesOnConditionCheckFailure::AllOld;
        let item = TransactWriteItem::builder();
        let built = match self.change {
            Change::Put(content) => Put::builder()
                .table_name(self.table)
                .set_item(Some(content))
                .set_condition_expression(self.condition)
                .set_expression_attribute_names(names)
                .set_expression_attribute_values(values)
                .return_values_on_condition_check_failure(old)
                .build()
                .map(|put| item.put(put)),
            Change::Update(key, expression) => Update::builder()
                .table_name(self.table)
                .set_key(Some(key))
                .update_expression(expression)
                .set_condition_expression(self.condition)
                .set_expression_attribute_names(names)
                .set_expression_attribute_values(values)
                .return_values_on_condition_check_failure(old)
                .build()
                .map(|update| item.update(update)),
            Change::Delete(key) => Delete::builder()
                .table_name(self.table)
                .set_key(Some(key))
                .set_condition_expression(self.condition)
                .set_expression_attribute_names(names)
                .set_expression_attribute_values(values)
                .return_values_on_condition_check_failure(old)
                .build()
                .map(|delete| item.delete(delete)),
            Change::Check(key) => ConditionCheck::builder()
                .table_name(self.table)
                .set_key(Some(key))
                .condition_expression(self.condition.unwrap_or_default())
                .set_expression_attribute_names(names)
                .set_expression_attribute_values(values)
                .return_values_on_condition_check_failure(old)
                .build()
                .map(|check| item.condition_check(check)),
        };
        built.map(TransactWriteItemBuilder::build).map_err(|error| Error::Unavailable(Box::new(error)))
    }
}
