//! Key conditions, evaluated on items that a transaction has locked. DynamoDB evaluates them where it finds the items;
//! an entry of an index may be of an item that has changed since.

use std::cmp::Ordering;
use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use crate::expression::words;
use crate::key::{Item, order};

/// A key condition: all of its tests hold.
#[derive(Debug, PartialEq)]
pub(crate) struct KeyCondition(Vec<Test>);

#[derive(Debug, PartialEq)]
enum Test {
    /// The order of the two is one of these.
    Order(Operand, &'static [Ordering], Operand),
    Between(Operand, Operand, Operand),
    BeginsWith(Operand, Operand),
}

#[derive(Debug, PartialEq)]
enum Operand {
    Attribute(String),
    Value(AttributeValue),
}

impl KeyCondition {
    /// Reads a condition. It need not find every mistake: DynamoDB does.
    pub(crate) fn parse(text: &str, names: &HashMap<String, String>, values: &Item) -> Result<Self, String> {
        // All tests are joined by AND, so that parentheses mean nothing.
        let mut words = words(text).filter(|word| !matches!(*word, "(" | ")" | ",")).peekable();
        let unreadable = || "This is no key condition: comparisons, BETWEEN and begins_with, joined by AND.".to_owned();
        let operand = |word: Option<&str>| {
            let word = word.ok_or_else(unreadable)?;
            Ok::<_, String>(match word.chars().next() {
                Some(':') => Operand::Value(values.get(word).ok_or_else(|| format!("{word} has no value."))?.clone()),
                Some('#') => Operand::Attribute(names.get(word).ok_or_else(|| format!("{word} has no name."))?.clone()),
                _ => Operand::Attribute(word.to_owned()),
            })
        };
        let is = |word: Option<&str>, keyword: &str| word.is_some_and(|word| word.eq_ignore_ascii_case(keyword));
        let mut tests = Vec::new();
        loop {
            let first = words.next();
            if first == Some("begins_with") {
                tests.push(Test::BeginsWith(operand(words.next())?, operand(words.next())?));
            } else {
                let left = operand(first)?;
                let comparator = words.next();
                if is(comparator, "BETWEEN") {
                    let low = operand(words.next())?;
                    if !is(words.next(), "AND") {
                        return Err(unreadable());
                    }
                    tests.push(Test::Between(left, low, operand(words.next())?));
                } else {
                    let or_equal = words.next_if_eq(&"=").is_some();
                    let allowed: &[Ordering] = match (comparator, or_equal) {
                        (Some("="), false) => &[Ordering::Equal],
                        (Some("<"), false) => &[Ordering::Less],
                        (Some("<"), true) => &[Ordering::Less, Ordering::Equal],
                        (Some(">"), false) => &[Ordering::Greater],
                        (Some(">"), true) => &[Ordering::Greater, Ordering::Equal],
                        _ => return Err(unreadable()),
                    };
                    tests.push(Test::Order(left, allowed, operand(words.next())?));
                }
            }
            match words.next() {
                None => return Ok(Self(tests)),
                next if is(next, "AND") => {}
                Some(_) => return Err(unreadable()),
            }
        }
    }

    /// Whether an item matches.
    pub(crate) fn holds_for(&self, item: &Item) -> bool {
        self.0.iter().all(|test| test.holds_for(item))
    }
}

impl Test {
    fn holds_for(&self, item: &Item) -> bool {
        let order = |a: &Operand, b: &Operand| order(a.of(item)?, b.of(item)?);
        match self {
            Self::Order(a, allowed, b) => order(a, b).is_some_and(|order| allowed.contains(&order)),
            Self::Between(a, low, high) => {
                order(low, a).is_some_and(Ordering::is_le) && order(a, high).is_some_and(Ordering::is_le)
            }
            Self::BeginsWith(a, prefix) => match (a.of(item), prefix.of(item)) {
                (Some(AttributeValue::S(text)), Some(AttributeValue::S(prefix))) => text.starts_with(prefix.as_str()),
                (Some(AttributeValue::B(bytes)), Some(AttributeValue::B(prefix))) => {
                    bytes.as_ref().starts_with(prefix.as_ref())
                }
                _ => false,
            },
        }
    }
}

impl Operand {
    fn of<'a>(&'a self, item: &'a Item) -> Option<&'a AttributeValue> {
        match self {
            Self::Attribute(name) => item.get(name),
            Self::Value(value) => Some(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: &str) -> AttributeValue {
        AttributeValue::N(value.into())
    }

    fn text(value: &str) -> AttributeValue {
        AttributeValue::S(value.into())
    }

    #[test]
    fn key_condition_is_evaluated_as_by_dynamodb() {
        let names = HashMap::from([("#at".to_owned(), "at".to_owned())]);
        let values = Item::from([
            (":moe".into(), text("Moe")),
            (":m".into(), text("M")),
            (":low".into(), number("9")),
            (":high".into(), number("10.0")),
        ]);
        let item = Item::from([("who".into(), text("Moe")), ("at".into(), number("10"))]);
        for (condition, holds) in [
            ("who = :moe", true),
            (":moe = who", true),
            ("who = :m", false),
            ("who = :moe AND #at = :high", true),
            ("who = :moe and #at > :low", true),
            ("who = :moe AND at >= :high", true),
            ("who = :moe AND at>:high", false),
            ("who = :moe AND at <= :high", true),
            ("who = :moe AND at < :high", false),
            ("(who = :moe) AND (#at BETWEEN :low AND :high)", true),
            ("who = :moe AND at between :high and :low", false),
            ("begins_with(who, :m) AND who = :moe", true),
            ("who = :moe AND begins_with(who, :low)", false),
            ("who = :moe AND missing = :m", false),
            ("who = :moe AND at = :moe", false),
        ] {
            let read = KeyCondition::parse(condition, &names, &values).expect(condition);
            assert_eq!(read.holds_for(&item), holds, "{condition}");
        }
        for refused in [
            "",
            "who",
            "who =",
            "who = :nobody",
            "#who = :moe",
            "who <> :moe",
            "who = :moe OR at = :low",
            "at BETWEEN :low",
        ] {
            assert!(KeyCondition::parse(refused, &names, &values).is_err(), "{refused}");
        }
    }
}
