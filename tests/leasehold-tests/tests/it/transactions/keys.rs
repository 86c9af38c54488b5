//! Keys of all types, and requests that are refused before any write.

use std::cmp::Ordering;

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use leasehold_tests::bank::{ACCOUNTS, Bank, add, begin, delete, get, look, put, request, when};
use leasehold_transactions::{Action, Error, Isolation, Item, ItemKey, ReturnValues, TransactionRequest};

/// Creates a table with this key.
pub(super) async fn make_table(bank: &Bank, table: &str, key: &str, kind: ScalarAttributeType) {
    let definition = AttributeDefinition::builder().attribute_name(key).attribute_type(kind).build();
    let element = KeySchemaElement::builder().attribute_name(key).key_type(KeyType::Hash).build();
    let create = bank.dynamodb.create_table().table_name(table).billing_mode(BillingMode::PayPerRequest);
    let create = create.attribute_definitions(definition.expect("complete"));
    create.key_schema(element.expect("complete")).send().await.expect("a new table");
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.into())
}

fn number(value: &str) -> AttributeValue {
    AttributeValue::N(value.into())
}

fn blob(value: &[u8]) -> AttributeValue {
    AttributeValue::B(value.into())
}

fn on(table: &str, action: Action) -> TransactionRequest {
    TransactionRequest { table: table.into(), ..request(action) }
}

fn key(value: AttributeValue) -> Item {
    Item::from([("id".to_owned(), value)])
}

/// Asserts that the request is refused for this field, and does not end the transaction.
async fn assert_refused(bank: &Bank, requests: Vec<TransactionRequest>, at_fault: &str) {
    let id = begin(&bank.transactions).await;
    let told = bank.transactions.add(&id, requests, None).await;
    assert!(matches!(&told, Err(Error::InvalidRequest { field, .. }) if field == at_fault), "{at_fault}: {told:?}");
    bank.transactions.commit(&id).await.expect("still open");
}

#[tokio::test(start_paused = true)]
async fn keys_of_every_type_are_locked_and_checked() {
    for (kind, value, wrong) in [
        (ScalarAttributeType::S, text("a"), vec![text(""), number("1"), blob(b"a")]),
        (ScalarAttributeType::N, number("1"), vec![text("1"), blob(b"1"), text("")]),
        (ScalarAttributeType::B, blob(b"a"), vec![blob(b""), text("a"), number("1")]),
    ] {
        let bank = Bank::new().await;
        make_table(&bank, "items", "id", kind).await;
        let item = || {
            let mut item = key(value.clone());
            item.insert("found".into(), text("x"));
            item
        };
        let put = |condition: &str| vec![when(on("items", Action::Put { item: item() }), condition)];
        let read = || vec![on("items", Action::Get { key: key(value.clone()), projection: None })];
        // The item is locked, and absent: its condition is checked on an item that certainly does not exist.
        for (condition, holds) in [("attribute_exists(id)", false), ("attribute_not_exists(id)", true)] {
            let id = begin(&bank.transactions).await;
            bank.transactions.add(&id, read(), None).await.expect("read");
            let told = bank.transactions.add(&id, put(condition), None).await;
            if holds {
                told.expect("put");
                bank.transactions.commit(&id).await.expect("committed");
            } else {
                assert!(matches!(told, Err(Error::ConditionFailed { .. })), "{told:?}");
            }
        }
        assert_eq!(bank.scan("items").await, [item()]);
        for value in wrong {
            let read = on("items", Action::Get { key: key(value), projection: None });
            assert_refused(&bank, vec![read], "requests[0].Get.Key").await;
        }
        bank.assert_clean().await;
    }
}

#[test]
fn keys_are_in_one_order_and_numbers_are_values() {
    let key = |value| ItemKey::new(ACCOUNTS, key(value));
    assert_eq!(key(text("a")).partial_cmp(&key(text("b"))), Some(Ordering::Less));
    for (a, b) in [("1200", "12e2"), ("0.012", "12E-3"), ("-1e1", "-10.0")] {
        assert_eq!(key(number(a)), key(number(b)), "{a} and {b}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_make_no_sense_are_refused() {
    let bank = Bank::new().await;
    let returning = |request, values| TransactionRequest { return_values: values, ..request };
    let check = || when(request(Action::Check { key: key(text("a")) }), "attribute_exists(id)");
    for (request, at_fault) in [
        (when(get("a"), "attribute_exists(id)"), "requests[0].Get.ConditionExpression"),
        (TransactionRequest { condition: None, ..check() }, "requests[0].ConditionCheck.ConditionExpression"),
        (returning(get("a"), ReturnValues::AllOld), "requests[0].Get.ReturnValues"),
        (returning(check(), ReturnValues::AllNew), "requests[0].ConditionCheck.ReturnValues"),
        (returning(delete("a"), ReturnValues::AllNew), "requests[0].Delete.ReturnValues"),
        (returning(put("a", 1), ReturnValues::UpdatedOld), "requests[0].Put.ReturnValues"),
        (returning(put("a", 1), ReturnValues::UpdatedNew), "requests[0].Put.ReturnValues"),
    ] {
        assert_refused(&bank, vec![request], at_fault).await;
    }
    let reserved = bank.transactions.run(None, None, vec![when(add("a", 1), "leaseholdTxId = :amount")]).await;
    let Err(Error::InvalidRequest { message, .. }) = reserved else { panic!("{reserved:?}") };
    assert!(message.contains("leaseholdTx") && message.contains("belong to the service"), "{message}");
    bank.assert_clean().await;
}

/// The last request of as many as a call takes is a repeat of the first, and at fault; one more is too many.
#[tokio::test(start_paused = true)]
async fn call_takes_1000_requests_and_100_reads() {
    let bank = Bank::new().await;
    for (count, at_fault) in [(1000, "requests[999].Get.Key"), (1001, "requests")] {
        let mut requests: Vec<_> = (1..count).map(|number| get(&format!("{number}"))).collect();
        requests.push(get("1"));
        assert_refused(&bank, requests, at_fault).await;
    }
    for (count, at_fault) in [(100, "requests[99].key"), (101, "requests")] {
        let mut requests: Vec<_> = (1..count).map(|number| look(&format!("{number}"))).collect();
        requests.push(look("1"));
        let told = bank.transactions.reader.read(requests, Isolation::Committed).await;
        assert!(matches!(&told, Err(Error::InvalidRequest { field, .. }) if field == at_fault), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cursor_that_no_page_gave_is_refused() {
    let bank = Bank::new().await;
    let id = "5e1f6f0e-7f4b-4b1c-9a53-3a6e5d0c1b2a";
    for cursor in ["", "x", "8", "9", "-1", "0.x", "0.1", "0.1.x", &format!("8.1.{id}"), &format!("0.1.{id}.1")] {
        let told = bank.transactions.operator.unfinished(false, 3, Some(cursor)).await;
        assert!(matches!(&told, Err(Error::InvalidRequest { field, .. }) if field == "cursor"), "{cursor}: {told:?}");
    }
    for cursor in ["0", "7", &format!("7.1.{id}")] {
        bank.transactions.operator.unfinished(false, 3, Some(cursor)).await.expect("a page");
    }
}

#[test]
fn error_for_the_log_has_its_cause() {
    let error = Error::Throttled("the table is hot".into());
    assert_eq!(error.for_log(), "DynamoDB throttled the request: the table is hot");
}
