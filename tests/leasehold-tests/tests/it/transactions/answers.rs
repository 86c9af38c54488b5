//! Rare answers of DynamoDB: tables that are gone or replaced, permissions that are missing, parts that are left over.

use std::time::Duration;

use aws_sdk_dynamodb::types::ScalarAttributeType;
use leasehold_tests::bank::{ACCOUNTS, Bank, account, add, begin, look, when};
use leasehold_tests::{Fault, Faults};
use leasehold_transactions::{Error, Isolation, Policy, State, TransactionId, TransactionRequest, Transactions};
use tokio::time::{Instant, advance};

use super::guards::until_reached;
use super::keys::make_table;

/// Begins a transaction with updates of these accounts, which exist.
async fn with_updates(bank: &Bank, ids: &[&str]) -> TransactionId {
    for id in ids {
        bank.open(id, 1).await;
    }
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, ids.iter().map(|id| add(id, 1)).collect(), None).await.expect("added");
    id
}

/// Begins a transaction with updates of this many items of a table that is going to be deleted.
async fn in_a_doomed_table(bank: &Bank, count: usize) -> TransactionId {
    make_table(bank, "doomed", "id", ScalarAttributeType::S).await;
    let id = begin(&bank.transactions).await;
    let update = |number| TransactionRequest { table: "doomed".into(), ..add(&format!("{number}"), 1) };
    bank.transactions.add(&id, (0..count).map(update).collect(), None).await.expect("added");
    id
}

/// Deletes the table. Creates it anew with another key, if asked to.
async fn replace_table(bank: &Bank, is_made_anew: bool) {
    bank.dynamodb.delete_table().table_name("doomed").send().await.expect("deleted");
    if is_made_anew {
        make_table(bank, "doomed", "another", ScalarAttributeType::S).await;
    }
}

/// The items of a deleted table are free. Those of a table with another key cannot be, and an operator must know.
#[tokio::test(start_paused = true)]
async fn items_of_a_table_that_was_replaced_are_stuck() {
    for is_made_anew in [false, true] {
        let assert_told = |told: Result<(), Error>| {
            if is_made_anew {
                assert!(matches!(told, Err(Error::Corrupt { .. })), "{told:?}");
            } else {
                told.expect("rolled back");
            }
        };
        // Before the items are read.
        let bank = Bank::new().await;
        let id = in_a_doomed_table(&bank, 1).await;
        replace_table(&bank, is_made_anew).await;
        assert_told(bank.transactions.rollback(&id).await);
        // After the item is read: the transaction, the decision, the item; then the write that frees it.
        let bank = Bank::new().await;
        let id = in_a_doomed_table(&bank, 1).await;
        let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        faults.at(4, Fault::Held);
        let mut work = std::pin::pin!(slow.rollback(&id));
        until_reached(&mut work, &faults).await;
        replace_table(&bank, is_made_anew).await;
        faults.release();
        assert_told(work.await);
        let status = bank.transactions.status(&id.public()).await.expect("known");
        assert_eq!((status.finished, status.stuck.is_some()), (!is_made_anew, is_made_anew), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn batch_finds_that_its_table_is_gone() {
    let bank = Bank::new().await;
    let id = in_a_doomed_table(&bank, 2).await;
    let (slow, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, the decision, the items; then the statements that free them.
    faults.at(4, Fault::Held);
    let mut work = std::pin::pin!(slow.rollback(&id));
    until_reached(&mut work, &faults).await;
    replace_table(&bank, false).await;
    faults.record();
    faults.release();
    work.await.expect("rolled back");
    let sent: Vec<_> = faults.record().into_iter().map(|sent| sent.operation).collect();
    assert_eq!(sent, ["UpdateItem"], "nothing is left to do but to finish");
    bank.assert_clean().await;
}

/// A statement that the role does not allow keeps the item locked until an operator looks at it.
#[tokio::test(start_paused = true)]
async fn statement_that_is_forbidden_makes_its_item_stuck() {
    const FORBIDDEN: &str = r#"{"Responses": [{"Error": {"Code": "AccessDenied", "Message": "not you"}},
                                              {"Error": {"Code": "AccessDenied", "Message": "not you"}}]}"#;
    let bank = Bank::new().await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![add("a", 1), add("b", 1)], None).await.expect("added");
    let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, the decision, the items; then the statements.
    faults.at(4, Fault::Answered(FORBIDDEN));
    let told = coordinator.rollback(&id).await;
    assert!(matches!(&told, Err(Error::Corrupt { message: reason, .. }) if reason.contains("not you")), "{told:?}");
    advance(Duration::from_mins(2)).await;
    assert_eq!(bank.transactions.sweeper.sweep(100).await.expect("swept").completed, 1);
    bank.assert_clean().await;
}

/// One of two items cannot be read.
#[tokio::test(start_paused = true)]
async fn item_that_must_not_be_read_is_stuck_alone() {
    let bank = Bank::new().await;
    let id = with_updates(&bank, &["a", "b"]).await;
    let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, the decision; then both items together, and the first one.
    faults.script([Fault::None, Fault::None, Fault::AccessDenied, Fault::AccessDenied]);
    let told = coordinator.rollback(&id).await;
    assert!(matches!(told, Err(Error::Corrupt { .. })), "{told:?}");
    assert_eq!((bank.balance("a").await, bank.raw("b").await), (Some(2), Some(account("b", 1))));
    assert!(bank.transactions.status(&id.public()).await.expect("known").stuck.is_some());
    bank.transactions.rollback(&id).await.expect("the permission is back");
    bank.assert_clean().await;
}

/// An item that cannot be read or written for a moment is no concern of an operator.
#[tokio::test(start_paused = true)]
async fn item_that_is_throttled_is_not_stuck() {
    for ids in [vec!["a"], vec!["a", "b"]] {
        let bank = Bank::new().await;
        let id = with_updates(&bank, &ids).await;
        let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        // The transaction, the decision; then the items, three times, and a write.
        let mut script = vec![Fault::None; 2];
        script.extend([Fault::Throttled; 3]);
        script.extend([Fault::None, Fault::Throttled]);
        faults.script(script);
        coordinator.rollback(&id).await.expect("rolled back");
        let status = bank.transactions.status(&id.public()).await.expect("known");
        assert_eq!((status.finished, status.stuck), (true, None));
        bank.assert_clean().await;
    }
}

/// After the decision no failure hides the outcome, or delays it by more than a second. The sweeper frees the items.
#[tokio::test(start_paused = true)]
async fn outcome_is_told_although_items_stay_locked() {
    for outcome in [State::Committed, State::RolledBack] {
        let bank = Bank::new().await;
        let id = with_updates(&bank, &["a"]).await;
        let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        // The transaction, a commit's item, and the decision; then nothing that frees the item.
        let before = if outcome == State::Committed { 3 } else { 2 };
        faults.script([vec![Fault::None; before], vec![Fault::Throttled; 500]].concat());
        let start = Instant::now();
        match outcome {
            State::Committed => coordinator.commit(&id).await.expect("committed"),
            _ => coordinator.rollback(&id).await.expect("rolled back"),
        }
        assert!(start.elapsed() <= Duration::from_millis(1100), "{:?}", start.elapsed());
        let status = bank.transactions.status(&id.public()).await.expect("known");
        assert_eq!((status.state, status.finished), (outcome, false));
        advance(Duration::from_mins(2)).await;
        assert_eq!(bank.transactions.sweeper.sweep(100).await.expect("swept").completed, 1);
        bank.assert_clean().await;
    }
}

/// A commit that could not be decided for the moment may be repeated.
#[tokio::test(start_paused = true)]
async fn commit_that_is_throttled_leaves_it_open() {
    let bank = Bank::new().await;
    let id = with_updates(&bank, &["a"]).await;
    let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
    // The transaction, the item and the decision, nine times over.
    faults.script([Fault::None, Fault::None, Fault::Throttled].repeat(9));
    let told = coordinator.commit(&id).await;
    assert!(matches!(told, Err(Error::Throttled(_))), "{told:?}");
    assert_eq!(bank.transactions.status(&id.public()).await.expect("known").state, State::Pending);
    coordinator.commit(&id).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(2));
    bank.assert_clean().await;
}

/// The role may not write the table of the transactions. A commit then rolls back, since it cannot succeed.
#[tokio::test(start_paused = true)]
async fn decision_that_is_forbidden_is_told_at_once() {
    for (outcome, state) in [(State::Committed, State::RolledBack), (State::RolledBack, State::Pending)] {
        let bank = Bank::new().await;
        let id = with_updates(&bank, &["a"]).await;
        let (coordinator, faults) = bank.coordinator(Policy::default(), Duration::ZERO);
        faults.at(if outcome == State::Committed { 3 } else { 2 }, Fault::AccessDenied);
        let told = match outcome {
            State::Committed => coordinator.commit(&id).await,
            _ => coordinator.rollback(&id).await,
        };
        assert!(matches!(told, Err(Error::Misconfigured(_))), "{told:?}");
        assert_eq!(bank.transactions.status(&id.public()).await.expect("known").state, state);
        faults.script([Fault::AccessDenied]);
        let told = coordinator.begin(None, None).await;
        assert!(matches!(told, Err(Error::Misconfigured(_))), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_one_shot_keeps_its_reason() {
    let bank = Bank::new().await;
    let id = TransactionId::fresh();
    let poor = || vec![when(add("a", 1), "attribute_exists(id)")];
    let told = bank.transactions.run(Some(id.clone()), None, poor()).await;
    assert!(matches!(told, Err(Error::ConditionFailed { .. })), "{told:?}");
    let status = bank.transactions.status(&id.public()).await.expect("known");
    assert!(status.reason.is_some_and(|reason| reason.contains("condition")));
    let told = bank.transactions.run(Some(id), None, poor()).await;
    assert!(matches!(&told, Err(Error::RolledBack { reason }) if reason.contains("condition")), "{told:?}");
}

/// DynamoDB may leave parts of a read to the next call.
#[tokio::test(start_paused = true)]
async fn unprocessed_keys_are_read_next() {
    const NOTHING: Fault = Fault::Answered(
        r#"{"Responses": {}, "UnprocessedKeys": {"accounts": {"ConsistentRead": true, "Keys": [
            {"id": {"S": "a"}}, {"id": {"S": "b"}}]}}}"#,
    );
    let bank = Bank::new().await;
    bank.open("a", 1).await;
    let (coordinator, faults) = bank.coordinator_with_keys().await;
    let read = async || coordinator.reader.read(vec![look("a"), look("b")], Isolation::Committed).await;
    let start = Instant::now();
    assert_eq!(read().await.expect("read"), [Some(account("a", 1)), None]);
    assert_eq!(start.elapsed(), Duration::ZERO);
    faults.script([NOTHING; 19]);
    assert_eq!(read().await.expect("read"), [Some(account("a", 1)), None]);
    assert!(start.elapsed() > Duration::ZERO);
    faults.script([NOTHING; 20]);
    let told = read().await;
    assert!(matches!(told, Err(Error::Throttled(_))), "{told:?}");
}

macro_rules! cancelled {
    ($reasons:literal) => {
        Fault::Answered(concat!(
            r#"{"__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException", "CancellationReasons": "#,
            $reasons,
            "}"
        ))
    };
}

/// The reasons for which DynamoDB cancels a write, as the caller gets them.
#[tokio::test(start_paused = true)]
async fn reasons_of_a_cancellation_are_told_apart() {
    const LARGE_ITEM: Fault = cancelled!(
        r#"[{"Code": "None"}, {"Code": "ValidationError", "Message": "Item size to update has exceeded the maximum allowed size"}]"#
    );
    const LARGE_COLLECTION: Fault = cancelled!(
        r#"[{"Code": "None"}, {"Code": "ItemCollectionSizeLimitExceeded", "Message": "the partition is full"}]"#
    );
    const INVALID: Fault =
        cancelled!(r#"[{"Code": "None"}, {"Code": "ValidationError", "Message": "no such operand"}]"#);
    for (fault, is_too_large) in [(LARGE_ITEM, true), (LARGE_COLLECTION, true), (INVALID, false)] {
        let bank = Bank::new().await;
        let (coordinator, faults) = bank.coordinator_with_keys().await;
        faults.script([fault]);
        let told = coordinator.run(None, None, vec![add("a", 1)]).await;
        let is_expected = match told {
            Err(Error::TooLarge(_)) => is_too_large,
            Err(Error::InvalidRequest { .. }) => !is_too_large,
            _ => false,
        };
        assert!(is_expected, "{told:?}");
    }
}

/// The same call is under way elsewhere: its record conflicts, and its items are not as expected.
#[tokio::test(start_paused = true)]
async fn conflict_of_the_record_comes_before_a_condition() {
    const UNDER_WAY: Fault = cancelled!(r#"[{"Code": "TransactionConflict"}, {"Code": "ConditionalCheckFailed"}]"#);
    let bank = Bank::new().await;
    let (coordinator, faults) = bank.coordinator_with_keys().await;
    let new = |id: &str| vec![when(add(id, 1), "attribute_not_exists(id)")];
    faults.script([UNDER_WAY]);
    coordinator.run(Some(TransactionId::fresh()), None, new("a")).await.expect("done");
    let id = begin(&coordinator).await;
    // The transaction, the item; then the lock.
    faults.at(3, UNDER_WAY);
    coordinator.add(&id, new("b"), None).await.expect("added");
    coordinator.commit(&id).await.expect("committed");
    assert_eq!(bank.scan(ACCOUNTS).await.len(), 2);
    bank.assert_clean().await;
}

/// The server answers soon, and frees the items behind the answer.
#[tokio::test(start_paused = true)]
async fn commit_is_answered_before_the_items_are_free() {
    let bank = Bank::new().await;
    let policy = Policy { frees_behind_answers: true, ..Policy::default() };
    let (coordinator, faults) = bank.coordinator(policy, Duration::ZERO);
    let id = with_updates(&bank, &["a"]).await;
    // The transaction, the item, the decision; then the write that frees the item.
    faults.at(4, Fault::Slow(Duration::from_millis(900)));
    let start = Instant::now();
    coordinator.commit(&id).await.expect("committed");
    assert!(start.elapsed() <= Duration::from_millis(210), "{:?}", start.elapsed());
    let is_finished = async || bank.transactions.status(&id.public()).await.expect("known").finished;
    assert!(!is_finished().await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(is_finished().await);
    bank.assert_clean().await;
}

/// The decision is made by this many calls; then the writes that free the items come.
const DECIDING: usize = 3;

/// A coordinator that is not answered once it has decided.
fn cut_off_after_the_decision(bank: &Bank, frees_behind_answers: bool) -> (Transactions, Faults) {
    let policy = Policy { frees_behind_answers, ..Policy::default() };
    let (coordinator, faults) = bank.coordinator(policy, Duration::ZERO);
    let deciding = std::iter::repeat_n(Fault::None, DECIDING);
    faults.script(deciding.chain(std::iter::repeat_n(Fault::Slow(Duration::from_secs(5)), 400)));
    (coordinator, faults)
}

/// A function frees the items before the answer, for a second. A server waits for a moment, and for a rollback a
/// second: an item that cannot be restored is told if that is found soon.
#[tokio::test(start_paused = true)]
async fn answer_waits_only_so_long_until_items_are_free() {
    for (frees_behind_answers, commits, expected) in
        [(false, true, 1000), (false, false, 1000), (true, true, 200), (true, false, 1000)]
    {
        let bank = Bank::new().await;
        let (coordinator, _) = cut_off_after_the_decision(&bank, frees_behind_answers);
        let id = with_updates(&bank, &["a"]).await;
        let start = Instant::now();
        if commits {
            coordinator.commit(&id).await.expect("committed");
        } else {
            coordinator.rollback(&id).await.expect("rolled back");
        }
        let answered = start.elapsed().as_millis();
        assert!((expected..=expected + 5).contains(&answered), "{answered} ms, not {expected}");
    }
}

/// A sweeper frees the rest.
#[tokio::test(start_paused = true)]
async fn items_are_freed_behind_an_answer_for_a_bounded_time() {
    let bank = Bank::new().await;
    let (coordinator, faults) = cut_off_after_the_decision(&bank, true);
    let id = with_updates(&bank, &["a"]).await;
    coordinator.commit(&id).await.expect("committed");
    for (seconds, is_at_work) in [(15, true), (6, true), (60, false)] {
        faults.take_calls();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(faults.take_calls() > 0, is_at_work);
    }
    bank.sweep_idle(&bank.transactions).await;
    bank.assert_clean().await;
}
