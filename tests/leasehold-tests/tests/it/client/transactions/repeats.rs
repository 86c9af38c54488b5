//! The names of the calls of a transaction, and the number of writes that its commit expects. Rule T5.

use leasehold_client::transactions::{Request, TransactionOptions, derive_transaction_id};
use leasehold_client::{Client, ErrorKind};
use leasehold_tests::bank::ACCOUNTS;
use tokio::time::sleep;

use super::{ADD, Fate, SECOND, add, bank, key, take};

/// The problem of a call that waited in vain.
const CONTENDED: &str = r#"{"type": "contended", "status": 409, "title": "t", "detail": "d", "publicId": "x"}"#;

#[tokio::test(start_paused = true)]
async fn repeat_by_hand_is_the_call_that_was_not_answered() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    let tx = client.begin_transaction().await.expect("begun");
    network.set(|path| if path == ADD { Fate::AnswerLost } else { Fate::Delivered });
    assert_eq!(add(&tx, "a", 1).await.expect_err("no answer").kind(), &ErrorKind::Unavailable);
    network.mend();
    add(&tx, "a", 1).await.expect("a repeat");
    add(&tx, "a", 1).await.expect("a call of its own, since the first one is answered");
    tx.commit().await.expect("the first call counts once");
    assert_eq!(bank.balance("a").await, Some(102));
    bank.assert_clean().await;
}

/// A part of a call that waited in vain may have been carried out.
#[tokio::test(start_paused = true)]
async fn repeat_by_hand_is_the_call_that_was_contended() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    let tx = client.begin_transaction().await.expect("begun");
    let mut is_first = true;
    network.set(
        move |_| {
            if std::mem::take(&mut is_first) { Fate::AnswerLost } else { Fate::Gateway(409, None, CONTENDED) }
        },
    );
    assert!(matches!(add(&tx, "a", 1).await.expect_err("refused").kind(), ErrorKind::Contended { .. }));
    network.mend();
    add(&tx, "a", 1).await.expect("a repeat");
    tx.commit().await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(101));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn equal_calls_of_two_handles_count_each() {
    let (bank, _, client) = bank(&[("a", 100)]).await;
    let tx = client.begin_transaction().await.expect("begun");
    let resumed = Client::new(bank.transport()).resume_transaction(tx.id());
    add(&tx, "a", 1).await.expect("added");
    add(&resumed, "a", 1).await.expect("added");
    drop(resumed.detach());
    tx.commit().await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(102));
    bank.assert_clean().await;
}

/// A call that waited in vain is not counted, and is counted again when it is repeated.
#[tokio::test(start_paused = true)]
async fn commit_is_refused_when_a_contended_repeat_is_missing() {
    for is_repeated in [true, false] {
        let (bank, network, client) = bank(&[("a", 100)]).await;
        let tx = client.begin_transaction().await.expect("begun");
        network.set(|path| if path == ADD { Fate::Gateway(409, None, CONTENDED) } else { Fate::Delivered });
        assert!(matches!(add(&tx, "a", 1).await.expect_err("refused").kind(), ErrorKind::Contended { .. }));
        if is_repeated {
            network.cut();
            assert_eq!(add(&tx, "a", 1).await.expect_err("not sent").kind(), &ErrorKind::Unavailable);
        }
        network.mend();
        match tx.commit().await {
            Ok(()) => assert!(!is_repeated),
            Err(error) => assert!(is_repeated && matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error}"),
        }
        assert_eq!(bank.balance("a").await, Some(100));
    }
}

/// Two processes make the call. Where its first try was rolled back, both come to the same next one.
#[tokio::test(start_paused = true)]
async fn call_under_a_business_key_is_carried_out_once() {
    for is_contended in [false, true] {
        let (bank, network, client) = bank(&[("a", 100)]).await;
        let id = derive_transaction_id("8f6d2f0a-54f0-4a6c-9d0e-6b4b4d9a7c11", "order 4711").expect("a UUID");
        let options = TransactionOptions::new().id(id);
        let call = async |client: &Client| {
            let request = Request::update(ACCOUNTS, key("a"), "ADD balance :x").value(":x", 1);
            client.transact_with(&options, [request]).await.expect("committed");
        };
        if is_contended {
            let holder = take(&bank, "a").await;
            // The older one goes first, so the two must not begin in the same millisecond.
            sleep(SECOND / 100).await;
            tokio::join!(call(&client), async {
                // Longer than a call waits.
                for _ in 0..40 {
                    sleep(SECOND * 3 / 10).await;
                    holder.keep_alive().await.expect("alive");
                }
                holder.rollback().await.expect("rolled back");
            });
            assert!(network.take_log().len() > 2, "the first try was rolled back");
        } else {
            call(&client).await;
        }
        call(&Client::new(bank.transport())).await;
        assert_eq!(bank.balance("a").await, Some(101));
        bank.assert_clean().await;
        let refused = client.transaction_with(&options, async |tx| add(&tx, "a", 1).await).await;
        assert!(matches!(refused.expect_err("no body").kind(), ErrorKind::InvalidRequest { .. }));
    }
}
