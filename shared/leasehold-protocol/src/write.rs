//! A conditional write, and the builder that assembles one from conditions and assignments.
//!
//! In conditions and assignments, a word after `#` is an attribute of that name, since many of them are reserved words.
//! A placeholder that is bound to another name keeps that name.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

use crate::model::LeaseIdHash;

pub(crate) fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

pub(crate) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(crate) fn bytes(value: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

/// A conditional update of one row.
#[derive(Debug, Clone, Default)]
pub(crate) struct Write {
    pub(crate) condition: String,
    pub(crate) update: String,
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: HashMap<String, AttributeValue>,
}

impl Write {
    pub(crate) fn name(&mut self, placeholder: &str, name: &str) {
        self.names.insert(placeholder.to_owned(), name.to_owned());
    }

    pub(crate) fn value(&mut self, placeholder: &str, value: AttributeValue) {
        self.values.insert(placeholder.to_owned(), value);
    }

    pub(crate) fn text(&mut self, placeholder: &str, value: &str) {
        self.value(placeholder, text(value));
    }

    pub(crate) fn number(&mut self, placeholder: &str, value: u64) {
        self.value(placeholder, number(value));
    }

    pub(crate) fn hash(&mut self, hash: &LeaseIdHash) {
        self.value(":leaseIdHash", bytes(&hash.0));
    }

    /// Binds the names of the attributes behind the words that begin with `#`.
    pub(crate) fn bind_words(&mut self) {
        let text = format!("{} {}", self.condition, self.update);
        for part in text.split('#').skip(1) {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(part.len());
            let name = &part[..end];
            self.names.entry(format!("#{name}")).or_insert_with(|| name.to_owned());
        }
    }
}

/// Assembles a write, all of whose conditions must hold.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    pub(crate) write: Write,
    conditions: Vec<String>,
    assignments: Vec<String>,
    pub(crate) gone: Vec<String>,
}

impl Builder {
    pub(crate) fn condition(&mut self, condition: impl Into<String>) {
        self.conditions.push(condition.into());
    }

    pub(crate) fn set(&mut self, assignment: impl Into<String>) {
        self.assignments.push(assignment.into());
    }

    /// Assigns a value to an attribute. The value's placeholder has the attribute's name.
    pub(crate) fn put(&mut self, attribute: &str, value: AttributeValue) {
        let placeholder = format!(":{}", attribute.trim_start_matches('#'));
        self.set(format!("{attribute} = {placeholder}"));
        self.write.value(&placeholder, value);
    }

    pub(crate) fn remove(&mut self, path: impl Into<String>) {
        self.gone.push(path.into());
    }

    /// Assembles a write that also creates the row where it is missing. `key` is the name of the partition key.
    pub(crate) fn build_or_create(mut self, key: &str) -> Write {
        self.write.name("#key", key);
        self.conditions = vec![format!("attribute_not_exists(#key) OR ({})", self.conditions.join(" AND "))];
        self.build()
    }

    pub(crate) fn build(mut self) -> Write {
        self.gone.sort();
        let parts = [("SET", self.assignments), ("REMOVE", self.gone)].into_iter();
        let parts = parts.filter(|(_, paths)| !paths.is_empty());
        let parts: Vec<_> = parts.map(|(clause, paths)| format!("{clause} {}", paths.join(", "))).collect();
        let mut write = self.write;
        write.condition = self.conditions.join(" AND ");
        write.update = parts.join(" ");
        write.bind_words();
        write
    }
}
