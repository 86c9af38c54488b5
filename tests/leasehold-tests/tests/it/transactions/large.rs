//! Items and transactions whose old contents have rows of their own, and the life of these rows.

use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_tests::bank::{
    ACCOUNTS, Bank, TRANSACTIONS, account, add, adds, begin, get, key, look, padded, put, request,
};
use leasehold_transactions::{Action, Error, Isolation, Item, Policy, ReturnValues, TransactionRequest};

/// An item of which no second copy fits into 400 KB.
const LARGE: usize = 250_000;

fn large(id: &str, byte: &str) -> Item {
    padded(id, byte, LARGE)
}

fn put_item(item: Item) -> TransactionRequest {
    request(Action::Put { item })
}

/// Replaces the padding of an item by an update.
fn set_padding(id: &str, byte: &str, bytes: usize) -> TransactionRequest {
    let mut update = request(Action::Update { key: key(id), expression: "SET padding = :padding".into() });
    update.values.insert(":padding".into(), AttributeValue::S(byte.repeat(bytes)));
    update
}

/// The rows of the transactions table whose names begin with this.
async fn rows(bank: &Bank, prefix: &str) -> Vec<Item> {
    let rows = bank.scan(TRANSACTIONS).await.into_iter();
    rows.filter(|row| row["row"].as_s().expect("a text").starts_with(prefix)).collect()
}

async fn accounts(bank: &Bank) -> Vec<Item> {
    let mut accounts = bank.scan(ACCOUNTS).await;
    accounts.sort_by_key(|item| item["id"].as_s().expect("a text").clone());
    accounts
}

#[tokio::test(start_paused = true)]
async fn each_large_item_gets_its_own_content_back() {
    let bank = Bank::new().await;
    for id in ["a", "b"] {
        bank.write(large(id, id)).await;
    }
    let id = begin(&bank.transactions).await;
    let replace = |id: &str| TransactionRequest { return_values: ReturnValues::AllOld, ..put_item(large(id, "n")) };
    let answers = bank.transactions.add(&id, vec![replace("a"), replace("b")], None).await.expect("replaced");
    let old: Vec<_> = answers.into_iter().map(|answer| answer.item.expect("the old item")).collect();
    assert!(old == [large("a", "a"), large("b", "b")], "the answers are the old items");
    assert_eq!(rows(&bank, "2#").await.len(), 2);
    bank.transactions.rollback(&id).await.expect("rolled back");
    assert!(accounts(&bank).await == [large("a", "a"), large("b", "b")], "the items are the old ones");
    bank.assert_clean().await;
}

/// A put of an item that the transaction has locked before is applied in the write that records it.
#[tokio::test(start_paused = true)]
async fn only_a_large_item_gets_a_row_when_it_is_replaced() {
    for commits in [false, true] {
        let bank = Bank::new().await;
        bank.write(large("large", "o")).await;
        bank.open("small", 1).await;
        bank.open("updated", 1).await;
        let id = begin(&bank.transactions).await;
        bank.transactions.add(&id, vec![get("large"), get("small"), get("updated")], None).await.expect("locked");
        bank.transactions.add(&id, vec![put("small", 2), add("updated", 1)], None).await.expect("written");
        assert_eq!(rows(&bank, "2#").await.len(), 0);
        bank.transactions.add(&id, vec![set_padding("large", "u", 100)], None).await.expect("updated");
        assert_eq!(rows(&bank, "2#").await.len(), 0, "an update keeps the old value in the item");
        bank.transactions.add(&id, vec![put_item(large("large", "n"))], None).await.expect("replaced");
        assert_eq!(rows(&bank, "2#").await.len(), 1);
        let seen = bank.transactions.reader.read(vec![look("large")], Isolation::Committed).await.expect("read");
        assert!(seen == [Some(large("large", "o"))], "readers see the old item");
        if commits {
            bank.transactions.commit(&id).await.expect("committed");
            let after = [large("large", "n"), account("small", 2), account("updated", 2)];
            assert!(accounts(&bank).await == after, "the items are the new ones");
        } else {
            bank.transactions.rollback(&id).await.expect("rolled back");
            let before = [large("large", "o"), account("small", 1), account("updated", 1)];
            assert!(accounts(&bank).await == before, "the items are the old ones");
        }
        bank.assert_clean().await;
    }
}

/// An item whose old content is kept as a whole does not get a second copy of an attribute, for which it has no room.
#[tokio::test(start_paused = true)]
async fn item_that_was_put_is_updated_without_a_copy() {
    for (before, bytes) in [(None, LARGE), (Some(padded("a", "o", 170_000)), 170_000), (Some(large("a", "o")), LARGE)] {
        let bank = Bank::new().await;
        if let Some(before) = &before {
            bank.write(before.clone()).await;
        }
        let id = begin(&bank.transactions).await;
        bank.transactions.add(&id, vec![put_item(padded("a", "p", bytes))], None).await.expect("put");
        bank.transactions.add(&id, vec![set_padding("a", "u", bytes)], None).await.expect("updated");
        let read = bank.transactions.add(&id, vec![get("a")], None).await.expect("read");
        assert!(read[0].item == Some(padded("a", "u", bytes)), "it sees its own write");
        bank.transactions.rollback(&id).await.expect("rolled back");
        assert!(bank.scan(ACCOUNTS).await.first() == before.as_ref(), "the old item is back");
        bank.assert_clean().await;
    }
}

/// TTL may remove the image before the items of a committed transaction are free.
#[tokio::test(start_paused = true)]
async fn commit_needs_no_image() {
    let bank = Bank::new().await;
    bank.write(large("a", "o")).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![put_item(large("a", "n"))], None).await.expect("replaced");
    for row in rows(&bank, "2#").await {
        bank.remove_row(row).await;
    }
    bank.transactions.commit(&id).await.expect("committed");
    assert!(bank.scan(ACCOUNTS).await == [large("a", "n")], "the new item is there");
    bank.assert_clean().await;
}

/// A batch of entries, an image and the record are kept for as long as the outcome, and no longer.
#[tokio::test(start_paused = true)]
async fn rows_are_kept_for_the_retention_and_no_longer() {
    const DAY: Duration = Duration::from_hours(24);
    let bank = Bank::new().await;
    bank.write(large("large", "o")).await;
    let id = begin(&bank.transactions).await;
    let requests = adds(60).into_iter().chain([put_item(large("large", "n"))]);
    bank.transactions.add(&id, requests.collect(), None).await.expect("added");
    bank.transactions.commit(&id).await.expect("committed");
    let kinds = async || [rows(&bank, "0#").await.len(), rows(&bank, "1#").await.len(), rows(&bank, "2#").await.len()];
    assert_eq!(kinds().await, [1, 1, 1]);
    bank.expire(6 * DAY).await;
    assert_eq!(kinds().await, [1, 1, 1]);
    bank.transactions.commit(&id).await.expect("a repeat");
    bank.expire(8 * DAY).await;
    assert_eq!(kinds().await, [0, 0, 0]);
    let told = bank.transactions.commit(&id).await;
    assert!(matches!(told, Err(Error::NotFound)), "{told:?}");
}

/// A sweeper prolongs the rows of an unfinished transaction, and may be away for days.
#[tokio::test(start_paused = true)]
async fn rows_of_a_transaction_live_for_a_week_at_least() {
    const DAY: Duration = Duration::from_hours(24);
    let bank = Bank::new().await;
    bank.write(large("large", "o")).await;
    let (briefly, _) = bank.coordinator(Policy { retention_ms: 3_600_000, ..Policy::default() }, Duration::ZERO);
    let id = begin(&briefly).await;
    let requests = adds(60).into_iter().chain([put_item(large("large", "n"))]);
    briefly.add(&id, requests.collect(), None).await.expect("added");
    let kinds = async || [rows(&bank, "1#").await.len(), rows(&bank, "2#").await.len()];
    bank.expire(7 * DAY - Duration::from_mins(1)).await;
    assert_eq!(kinds().await, [1, 1]);
    bank.expire(7 * DAY + Duration::from_mins(1)).await;
    assert_eq!(kinds().await, [0, 0]);
}
