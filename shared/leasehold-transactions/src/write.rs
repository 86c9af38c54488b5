//! One conditional write: as a part of a TransactWriteItems call, or by itself.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::builders::TransactWriteItemBuilder;
use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Delete, Put, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update,
};

use crate::error::Error;
use crate::expression::placeholders;
use crate::key::{Item, ItemKey};
use crate::model::Operation;

/// One write: its table, its content and its condition. A `get` writes nothing.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) table: String,
    pub(crate) operation: Operation,
    /// The whole item of a put, the key of all others.
    pub(crate) item: Item,
    /// The update expression of an update.
    pub(crate) update: String,
    pub(crate) condition: Option<String>,
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: Item,
}

impl Write {
    fn new(table: &str, operation: Operation, item: Item) -> Self {
        Self {
            table: table.to_owned(),
            operation,
            item,
            update: String::new(),
            condition: None,
            names: HashMap::new(),
            values: Item::new(),
        }
    }

    pub(crate) fn put(table: &str, item: Item) -> Self {
        Self::new(table, Operation::Put, item)
    }

    pub(crate) fn update(key: &ItemKey, expression: impl Into<String>) -> Self {
        let update = expression.into();
        Self { update, ..Self::new(key.table(), Operation::Update, key.attributes().clone()) }
    }

    pub(crate) fn delete(key: &ItemKey) -> Self {
        Self::new(key.table(), Operation::Delete, key.attributes().clone())
    }

    pub(crate) fn check(key: &ItemKey) -> Self {
        Self::new(key.table(), Operation::Check, key.attributes().clone())
    }

    pub(crate) fn when(mut self, condition: impl Into<String>) -> Self {
        self.condition = Some(condition.into());
        self
    }

    pub(crate) fn name(mut self, placeholder: impl Into<String>, name: impl Into<String>) -> Self {
        self.names.insert(placeholder.into(), name.into());
        self
    }

    pub(crate) fn value(mut self, placeholder: impl Into<String>, value: AttributeValue) -> Self {
        self.values.insert(placeholder.into(), value);
        self
    }

    pub(crate) fn text(self, placeholder: &str, value: impl Into<String>) -> Self {
        self.value(placeholder, AttributeValue::S(value.into()))
    }

    pub(crate) fn number(self, placeholder: &str, value: u64) -> Self {
        self.value(placeholder, AttributeValue::N(value.to_string()))
    }

    /// Adds those of a user's names and values that an expression of the write uses. DynamoDB refuses the others.
    pub(crate) fn with_users(mut self, names: &HashMap<String, String>, values: &Item) -> Self {
        let condition = self.condition.as_deref().unwrap_or_default();
        for placeholder in placeholders(&self.update).into_iter().chain(placeholders(condition)) {
            if let Some(name) = names.get(placeholder) {
                self.names.insert(placeholder.to_owned(), name.clone());
            }
            if let Some(value) = values.get(placeholder) {
                self.values.insert(placeholder.to_owned(), value.clone());
            }
        }
        self
    }

    /// Returns the write in the SDK's form. A failed condition always returns the item, which names the holder.
    pub(crate) fn into_sdk(self) -> Result<TransactWriteItem, Error> {
        let names = (!self.names.is_empty()).then_some(self.names);
        let values = (!self.values.is_empty()).then_some(self.values);
        let old = ReturnValuesOnConditionCheckFailure::AllOld;
        let item = TransactWriteItem::builder();
        let built = match self.operation {
            Operation::Put => Put::builder()
                .table_name(self.table)
                .set_item(Some(self.item))
                .set_condition_expression(self.condition)
                .set_expression_attribute_names(names)
                .set_expression_attribute_values(values)
                .return_values_on_condition_check_failure(old)
                .build()
                .map(|put| item.put(put)),
            Operation::Update => Update::builder()
                .table_name(self.table)
                .set_key(Some(self.item))
                .update_expression(self.update)
                .set_condition_expression(self.condition)
                .set_expression_attribute_names(names)
                .set_expression_attribute_values(values)
                .return_values_on_condition_check_failure(old)
                .build()
                .map(|update| item.update(update)),
            Operation::Delete => Delete::builder()
                .table_name(self.table)
                .set_key(Some(self.item))
                .set_condition_expression(self.condition)
                .set_expression_attribute_names(names)
                .set_expression_attribute_values(values)
                .return_values_on_condition_check_failure(old)
                .build()
                .map(|delete| item.delete(delete)),
            Operation::Check | Operation::Get => ConditionCheck::builder()
                .table_name(self.table)
                .set_key(Some(self.item))
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
