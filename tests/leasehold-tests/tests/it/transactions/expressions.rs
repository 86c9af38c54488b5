//! Conditions and projections as in the SDK: the same expression, sent to DynamoDB by itself and inside transactions,
//! has the same result.

use std::collections::HashMap;

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::{AttributeValue, ReturnValuesOnConditionCheckFailure};
use leasehold_tests::bank::{ACCOUNTS, Bank, begin, key, request};
use leasehold_transactions::{Action, Error, Isolation, Item, ReadRequest, TransactionRequest};

/// What came of a request.
#[derive(Debug, Clone, PartialEq)]
enum Told {
    Done(Option<Item>),
    /// The condition failed, with this item.
    Failed(Option<Item>),
    Refused,
}

impl Told {
    /// DynamoDB answers sets in any order.
    fn sorted(self) -> Self {
        let sorted = |item: Option<Item>| {
            let mut item = item?;
            for value in item.values_mut() {
                if let AttributeValue::Ss(members) | AttributeValue::Ns(members) = value {
                    members.sort();
                }
            }
            Some(item)
        };
        match self {
            Self::Done(item) => Self::Done(sorted(item)),
            Self::Failed(item) => Self::Failed(sorted(item)),
            Self::Refused => Self::Refused,
        }
    }
}

/// Conditions on [`everything`], and on an item that is not there.
const CONDITIONS: &[&str] = &[
    "attribute_exists(id)",
    "attribute_not_exists(id)",
    "attribute_exists(m.deep.l[1])",
    "attribute_not_exists(m.deep.l[9])",
    "attribute_exists(#name)",
    "attribute_type(s, :S)",
    "attribute_type(n, :S)",
    "attribute_type(m, :M)",
    "attribute_type(nothing, :S)",
    "begins_with(s, :te)",
    "begins_with(n, :te)",
    "begins_with(b, :te)",
    "contains(s, :ex)",
    "contains(ss, :text)",
    "contains(l, :one)",
    "contains(ns, :one)",
    "contains(nothing, :one)",
    "size(s) = :four",
    "size(ss) >= :one",
    "size(m) < :one",
    "size(b) <> :one",
    "size(n) > :one",
    "size(nothing) > :one",
    "n = :one",
    "n <> :one",
    "n = :text",
    "nothing = :one",
    "nothing <> :one",
    "n < :four",
    "n <= :one",
    "n > :four",
    "n >= :one",
    "s > :one",
    "n BETWEEN :one AND :four",
    "s BETWEEN :ex AND :text",
    "nothing BETWEEN :one AND :four",
    "s IN (:ex, :text)",
    "n IN (:text, :one)",
    "nothing IN (:one)",
    "NOT n = :one",
    "NOT nothing = :one",
    "not (s = :text or n = :one)",
    "n = :one AND s = :text",
    "n = :four OR s = :text AND yes = :yes",
    "(n = :four OR s = :text) AND none = :yes",
    "s = :ex OR (NOT (n < :one))",
    "m.deep.l[0] = :one",
    "m.deep.l[0].x = :one",
    "l[0] < l[1]",
    "n = m.deep.l[0]",
    "#name = :text",
    "#name.deep = :text",
    "none = :null",
    "yes = :null",
    "ss = :set",
    // Refused.
    "#none = :one",
    "n = :none",
    "n",
    "n =",
    "n == :one",
    "n = :one AND",
    "((n = :one))",
    "(n = :one",
    "n BETWEEN :one",
    "size(n)",
    "unknown(n)",
    "begins_with(s)",
    "attribute_type(s, :text)",
    "attribute_exists(:one)",
    "name = :text",
    "m..deep = :one",
    "l[x] = :one",
    "l[-1] = :one",
    "",
];

/// Conditions that the embedded engine refuses in a request of one item only.
const REFERENCE_CONDITIONS: &[&str] = &["n BETWEEN :four AND :one", "contains(s, s)"];

/// Projections of [`everything`].
const PROJECTIONS: &[&str] = &[
    "id",
    "s, n",
    "nothing",
    "s, nothing",
    "m",
    "m.deep",
    "m.deep.l[1]",
    "m.deep.l[1], m.deep.l[0]",
    "m.deep.l[9]",
    "m.nothing",
    "s.deep",
    "s[0]",
    "l[0]",
    "l[2], l[0]",
    "l[1].x",
    "l[3].x, l[3].y",
    "l[3].x, l[0]",
    "m.deep.l[2].x",
    "l[4][1]",
    "l[4][0], l[4][1]",
    "#name",
    "m.#deep.l[0]",
    "#name.deep",
    " s , n ",
    "m . deep",
    "l [0]",
    "m.#dotted",
    // Refused.
    "",
    "s,",
    ",s",
    "s n",
    "s, s",
    "m, m.deep",
    "m.deep, m.deep.l[0]",
    "l[0], l",
    "l[0], l[0]",
    "#none",
    "m..deep",
    ".m",
    "m.",
    "l[",
    "l]",
    "l[x]",
    "l[-1]",
    "l[]",
    "l[0",
    "s-n",
    "1s",
    "ä",
    "s.ä",
    "m.1s",
    "m.a-b",
    "l[1.0]",
    ":one",
    "size(s)",
];

/// Projections that the embedded engine takes.
const REFERENCE_PROJECTIONS: &[&str] = &["l[0], l.x"];

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.into())
}

fn number(value: i32) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

fn map<const N: usize>(members: [(&str, AttributeValue); N]) -> Item {
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// An item with a value of each type.
fn everything(id: &str) -> Item {
    let list = |values: &[i32]| AttributeValue::L(values.iter().map(|value| number(*value)).collect());
    let pair = || AttributeValue::M(map([("x", number(1)), ("y", number(2))]));
    let deep = AttributeValue::L(vec![number(1), text("two"), pair()]);
    let elements = vec![number(1), number(2), text("three"), pair(), list(&[7, 8])];
    map([
        ("id", text(id)),
        ("s", text("text")),
        ("n", number(1)),
        ("b", AttributeValue::B(Blob::new("bytes"))),
        ("ss", AttributeValue::Ss(vec!["more".into(), "text".into()])),
        ("ns", AttributeValue::Ns(vec!["1".into(), "2".into()])),
        ("yes", AttributeValue::Bool(true)),
        ("none", AttributeValue::Null(true)),
        ("name", text("reserved")),
        ("l", AttributeValue::L(elements)),
        ("m", AttributeValue::M(map([("deep", AttributeValue::M(map([("l", deep)]))), ("a.b", number(3))]))),
    ])
}

/// The names and values that an expression uses.
fn used(expression: &str) -> (HashMap<String, String>, Item) {
    let words: Vec<_> = expression.split(|c: char| !(c.is_alphanumeric() || matches!(c, '#' | ':' | '_'))).collect();
    let names = [("#name", "name"), ("#deep", "deep"), ("#dotted", "a.b")];
    let values = [
        (":S", text("S")),
        (":M", text("M")),
        (":te", text("te")),
        (":ex", text("ex")),
        (":text", text("text")),
        (":one", number(1)),
        (":four", number(4)),
        (":yes", AttributeValue::Bool(true)),
        (":null", AttributeValue::Null(true)),
        (":set", AttributeValue::Ss(vec!["text".into(), "more".into()])),
    ];
    (
        names.into_iter().filter(|(name, _)| words.contains(name)).map(|(a, b)| (a.into(), b.into())).collect(),
        values.into_iter().filter(|(name, _)| words.contains(name)).map(|(name, value)| (name.into(), value)).collect(),
    )
}

fn given<K, V>(map: HashMap<K, V>) -> Option<HashMap<K, V>> {
    (!map.is_empty()).then_some(map)
}

/// The result of an update with a condition, past the transactions.
async fn plain_condition(bank: &Bank, id: &str, condition: &str) -> Told {
    let (names, mut values) = used(condition);
    values.insert(":now".into(), number(2));
    let update = bank.dynamodb.update_item().table_name(ACCOUNTS).set_key(Some(key(id)));
    let update = update.update_expression("SET touched = :now").condition_expression(condition);
    let update = update.set_expression_attribute_names(given(names)).set_expression_attribute_values(Some(values));
    let update = update.return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
    match update.send().await.map_err(aws_sdk_dynamodb::error::SdkError::into_service_error) {
        Ok(_) => Told::Done(None),
        Err(UpdateItemError::ConditionalCheckFailedException(failed)) => Told::Failed(failed.item),
        Err(error) => {
            assert_eq!(error.code(), Some("ValidationException"), "{condition}: {error:?}");
            Told::Refused
        }
    }
}

/// The same as a request of a transaction.
fn conditional(id: &str, condition: &str) -> TransactionRequest {
    let (names, mut values) = used(condition);
    values.insert(":now".into(), number(2));
    TransactionRequest {
        condition: Some(condition.into()),
        names,
        values,
        return_item_on_failure: true,
        ..request(Action::Update { key: key(id), expression: "SET touched = :now".into() })
    }
}

fn told<T>(result: Result<T, Error>, item: impl FnOnce(T) -> Option<Item>) -> Told {
    match result {
        Ok(done) => Told::Done(item(done)),
        Err(Error::ConditionFailed { item, .. }) => Told::Failed(item),
        Err(Error::InvalidRequest { .. }) => Told::Refused,
        Err(error) => panic!("{error:?}"),
    }
}

async fn conditions_are_those_of_dynamodb(bank: &Bank, differences: &mut Differences) {
    for id in ["here", "missing"] {
        let of_reference = REFERENCE_CONDITIONS.iter().filter(|_| !bank.is_embedded());
        for condition in CONDITIONS.iter().chain(of_reference) {
            if id == "here" {
                bank.write(everything(id)).await;
            }
            let plain = plain_condition(bank, id, condition).await;
            forget_touch(bank, id).await;
            let one_call = bank.transactions.run(None, None, vec![conditional(id, condition)]).await;
            differences.see(told(one_call, |_| None), &plain, &format!("{id}: {condition}"));
            forget_touch(bank, id).await;

            let open = begin(&bank.transactions).await;
            let added = bank.transactions.add(&open, vec![conditional(id, condition)], None).await;
            differences.see(told(added, |_| None), &plain, &format!("{id}, added: {condition}"));
            let _ = bank.transactions.rollback(&open).await;

            // The item has an undo when the condition meets it.
            let open = begin(&bank.transactions).await;
            let mut first = conditional(id, "attribute_not_exists(touched)");
            first.values.insert(":now".into(), number(1));
            bank.transactions.add(&open, vec![first], None).await.expect("added");
            let again = told(bank.transactions.add(&open, vec![conditional(id, condition)], None).await, |_| None);
            let _ = bank.transactions.rollback(&open).await;
            if id == "here" {
                let shown = |told| match told {
                    Told::Failed(Some(item)) => Told::Failed(Some(without(item, "touched"))),
                    told => told,
                };
                differences.see(shown(again), &plain, &format!("{id}, added again: {condition}"));
            }
        }
    }
    bank.assert_clean().await;
}

fn without(mut item: Item, name: &str) -> Item {
    item.remove(name);
    item
}

/// Removes what an update left, so that the next condition meets the same item.
async fn forget_touch(bank: &Bank, id: &str) {
    if id == "missing" {
        let delete = bank.dynamodb.delete_item().table_name(ACCOUNTS).set_key(Some(key(id)));
        delete.send().await.expect("no faults here");
    } else {
        bank.write(everything(id)).await;
    }
}

async fn projections_are_those_of_dynamodb(bank: &Bank, differences: &mut Differences) {
    bank.write(everything("here")).await;
    let of_reference = REFERENCE_PROJECTIONS.iter().filter(|_| !bank.is_embedded());
    for projection in PROJECTIONS.iter().chain(of_reference) {
        let names = used(projection).0;
        let get = bank.dynamodb.get_item().table_name(ACCOUNTS).set_key(Some(key("here"))).consistent_read(true);
        let get = get.projection_expression(*projection).set_expression_attribute_names(given(names.clone()));
        let plain = match get.send().await.map_err(aws_sdk_dynamodb::error::SdkError::into_service_error) {
            Ok(output) => Told::Done(output.item),
            Err(error) => {
                assert_eq!(error.code(), Some("ValidationException"), "{projection}: {error:?}");
                Told::Refused
            }
        };
        let first =
            |answers: Vec<leasehold_transactions::Answer>| answers.into_iter().next().and_then(|first| first.item);
        let action = Action::Get { key: key("here"), projection: Some((*projection).into()) };
        let get = || TransactionRequest { names: names.clone(), ..request(action.clone()) };

        let one_call = bank.transactions.run(None, None, vec![get()]).await;
        differences.see(told(one_call, |(_, answers)| first(answers)), &plain, projection);

        let open = begin(&bank.transactions).await;
        let added = bank.transactions.add(&open, vec![get()], None).await;
        differences.see(told(added, first), &plain, &format!("added: {projection}"));

        let read = ReadRequest {
            table: ACCOUNTS.into(),
            key: key("here"),
            projection: Some((*projection).into()),
            names: names.clone(),
        };
        let outside = bank.transactions.reader.read(vec![read], Isolation::Committed).await;
        differences.see(
            told(outside, |items| items.into_iter().next().flatten()),
            &plain,
            &format!("outside: {projection}"),
        );
        let _ = bank.transactions.rollback(&open).await;
    }
    bank.assert_clean().await;
}

/// The cases in which a transaction does something else than DynamoDB by itself.
#[derive(Debug, Default)]
struct Differences(Vec<String>);

impl Differences {
    fn see(&mut self, ours: Told, plain: &Told, case: &str) {
        let (ours, plain) = (ours.sorted(), plain.clone().sorted());
        if ours != plain {
            self.0.push(format!("{case}: {ours:?}, and DynamoDB: {plain:?}"));
        }
    }
}

async fn differences_on(bank: &Bank) {
    let mut differences = Differences::default();
    conditions_are_those_of_dynamodb(bank, &mut differences).await;
    projections_are_those_of_dynamodb(bank, &mut differences).await;
    assert!(differences.0.is_empty(), "{}", differences.0.join("\n"));
}

#[tokio::test(start_paused = true)]
async fn expressions_are_those_of_the_sdk() {
    let bank = Bank::new().await;
    differences_on(&bank).await;
}

#[tokio::test]
#[ignore = "needs DynamoDB Local"]
async fn dynamodb_local_has_the_same_expressions() {
    let bank = Bank::dynamodb_local().await;
    differences_on(&bank).await;
}
