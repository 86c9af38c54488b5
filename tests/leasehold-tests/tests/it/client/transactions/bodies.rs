//! A body that runs in a transaction, until the transaction is committed.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use leasehold_client::transactions::{Request, ReturnValues, TransactionOptions, TransactionState};
use leasehold_client::{Client, Error, ErrorKind};
use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS};
use leasehold_tests::{COMMON, Fates, Fault};
use leasehold_transactions::TransactionId;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::{ADD, Account, BEGIN, COMMIT, Fate, ROLLBACK, SECOND, add, balance, bank, key, next, take};

/// The results of the bodies here besides the client's errors.
#[derive(Debug)]
enum Failure {
    Poor,
    Client(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Client(error)
    }
}

async fn transfer(client: &Client, runs: &Cell<u32>) -> Result<i64, Error> {
    client
        .transaction(async |tx| {
            runs.set(runs.get() + 1);
            let left = balance(&tx, "a").await? - 30;
            add(&tx, "b", 30).await?;
            // A read of an item that is changed afterwards.
            tx.put(ACCOUNTS, Account { id: "a".into(), balance: left }).await?;
            Ok(left)
        })
        .await
}

async fn assert_transferred(bank: &Bank) {
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(70), Some(30)));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn body_is_run_and_committed() {
    let (bank, network, client) = bank(&[("a", 100), ("b", 0)]).await;
    assert_eq!(transfer(&client, &Cell::new(0)).await.expect("committed"), 70);
    assert_eq!(network.take_log(), [BEGIN, ADD, ADD, ADD, COMMIT]);
    assert_transferred(&bank).await;
}

#[tokio::test(start_paused = true)]
async fn body_that_was_evicted_is_run_again_from_the_start() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    let runs = Cell::new(0);
    let ids = RefCell::new(Vec::new());
    let left = client
        .transaction(async |tx| {
            runs.set(runs.get() + 1);
            ids.borrow_mut().push(tx.id().to_owned());
            let before = balance(&tx, "a").await?;
            if runs.get() == 1 {
                // The body thinks for too long, and another transaction spends the money.
                let other = take(&bank, "a").await;
                add(&other, "a", -90).await?;
                other.commit().await?;
            }
            add(&tx, "a", -10).await?;
            Ok::<_, Error>(before - 10)
        })
        .await;
    assert_eq!((left.expect("committed"), runs.get()), (0, 2));
    let ids = ids.into_inner();
    assert_ne!(ids[0], ids[1]);
    assert_eq!(bank.balance("a").await, Some(0));
    bank.assert_clean().await;
    assert_eq!(network.take_log(), [BEGIN, ADD, ADD, ROLLBACK, BEGIN, ADD, ADD, COMMIT]);
}

#[tokio::test(start_paused = true)]
async fn body_that_runs_again_is_as_old_as_its_first_run() {
    let (bank, _, client) = bank(&[("a", 100)]).await;
    let (runs, younger) = (Cell::new(0), RefCell::new(None));
    let waited = client
        .transaction(async |tx| {
            runs.set(runs.get() + 1);
            let began = Instant::now();
            balance(&tx, "a").await?;
            let waited = began.elapsed();
            if runs.get() == 1 {
                // The body thinks for too long: a younger transaction takes the item, and keeps it.
                sleep(Duration::from_millis(10)).await;
                younger.replace(Some(take(&bank, "a").await));
                add(&tx, "a", 1).await?;
            }
            Ok::<_, Error>(waited)
        })
        .await;
    let waited = waited.expect("committed");
    assert!(runs.get() == 2 && waited < SECOND / 2, "the older one does not wait for the younger: {waited:?}");
    let refused = younger.take().expect("taken").commit().await.expect_err("evicted");
    assert_eq!(refused.kind(), &ErrorKind::RolledBack);
}

#[tokio::test(start_paused = true)]
async fn eviction_that_only_the_commit_finds_runs_the_body_again() {
    let (bank, _, client) = bank(&[("a", 100)]).await;
    let runs = Cell::new(0);
    let seen = client
        .transaction(async |tx| {
            runs.set(runs.get() + 1);
            let seen = balance(&tx, "a").await?;
            if runs.get() == 1 {
                let other = take(&bank, "a").await;
                add(&other, "a", 1).await?;
                other.commit().await?;
            }
            Ok::<_, Error>(seen)
        })
        .await;
    assert_eq!((seen.expect("committed"), runs.get()), (101, 2), "what was read is what was there at the end");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_cost_a_repeat_and_nothing_else() {
    for path in [BEGIN, ADD, COMMIT] {
        for fate in [Fate::AnswerLost, Fate::NotSent, Fate::GaveUp(504), Fate::Gateway(429, Some(1), "slow down")] {
            let (bank, network, client) = bank(&[("a", 100), ("b", 0)]).await;
            let runs = Cell::new(0);
            next(&network, path, 2, fate.clone());
            assert_eq!(transfer(&client, &runs).await.expect("committed"), 70, "{path} {fate:?}");
            assert_eq!(runs.get(), 1, "{path} {fate:?}");
            assert_transferred(&bank).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn commit_that_hangs_is_given_up_and_repeated() {
    let (bank, network, client) = bank(&[("a", 100), ("b", 0)]).await;
    let runs = Cell::new(0);
    // The first commit arrives when no caller waits for it any more; by then the second is carried out.
    next(&network, COMMIT, 1, Fate::Overdue(SECOND * 20));
    assert_eq!(transfer(&client, &runs).await.expect("committed"), 70);
    sleep(SECOND * 10).await;
    assert_eq!(runs.get(), 1);
    assert_transferred(&bank).await;
}

/// A commit gets no answer, and then an eviction: it may have been committed. The body must run again only if not.
#[tokio::test(start_paused = true)]
async fn late_commit_is_never_followed_by_a_second_run() {
    for late in [true, false] {
        let (bank, network, client) = bank(&[("a", 100), ("b", 0)]).await;
        let runs = Cell::new(0);
        let mut commits = 0;
        network.set(move |path| {
            commits += u32::from(path == COMMIT);
            match (path, commits) {
                (COMMIT, 1) if late => Fate::Overdue(SECOND * 5),
                (COMMIT, 1) => Fate::NotSent,
                // The repeat conflicts with another transaction that holds an item.
                (COMMIT, 2) => Fate::Gateway(409, Some(1), CONTENDED),
                _ => Fate::Delivered,
            }
        });
        assert_eq!(transfer(&client, &runs).await.expect("committed"), 70);
        assert_eq!(runs.get(), if late { 1 } else { 2 });
        sleep(SECOND * 30).await;
        assert_transferred(&bank).await;
    }
}

#[tokio::test(start_paused = true)]
async fn contended_commit_fails_when_its_rollback_has_no_answer() {
    let (_, network, client) = bank(&[("a", 100), ("b", 0)]).await;
    network.set(|path| match path {
        COMMIT => Fate::Gateway(409, Some(1), CONTENDED),
        ROLLBACK => Fate::NotSent,
        _ => Fate::Delivered,
    });
    let runs = Cell::new(0);
    let error = transfer(&client, &runs).await.expect_err("nobody knows");
    assert_eq!((error.kind(), runs.get()), (&ErrorKind::Unavailable, 1));
}

#[tokio::test(start_paused = true)]
async fn keep_alive_without_a_period_is_refused() {
    let (_, network, client) = bank(&[]).await;
    let options = TransactionOptions::new().keep_alive(Duration::ZERO);
    let error = client.transaction_with(&options, async |_| Ok::<_, Error>(())).await.expect_err("without a pause");
    assert_eq!(error.kind(), &ErrorKind::InvalidRequest { field: Some("keep_alive".into()) });
    assert_eq!(network.take_log(), [""; 0]);
}

const CONTENDED: &str = r#"{"type": "contended", "status": 409, "title": "", "detail": "Another one has it.",
    "transactionId": "00000000-0000-0000-0000-000000000000", "retryable": true}"#;

#[tokio::test(start_paused = true)]
async fn commit_that_nobody_answers_is_unknown_and_can_be_looked_up() {
    let (bank, network, client) = bank(&[("a", 100), ("b", 0)]).await;
    let runs = Cell::new(0);
    network.set(|path| if path == COMMIT { Fate::AnswerLost } else { Fate::Delivered });
    let error = transfer(&client, &runs).await.expect_err("nobody knows");
    assert_eq!((error.kind(), runs.get()), (&ErrorKind::Unavailable, 1));
    network.mend();
    sleep(SECOND).await;
    let status = client.transaction_status(error.transaction_id().expect("of this one")).await.expect("known");
    assert_eq!((status.state, status.requests.len()), (TransactionState::Committed, 3));
    assert_transferred(&bank).await;
    // The same case without a commit: the client rolled the transaction back itself, as soon as it could.
    network.set(|path| if path == COMMIT { Fate::NotSent } else { Fate::Delivered });
    let error = transfer(&client, &runs).await.expect_err("nobody knows");
    sleep(SECOND).await;
    let status = client.transaction_status(error.transaction_id().expect("of this one")).await.expect("known");
    assert_eq!(status.state, TransactionState::RolledBack);
    assert_transferred(&bank).await;
}

#[tokio::test(start_paused = true)]
async fn error_of_the_body_rolls_back_and_comes_out_as_it_is() {
    let (bank, network, client) = bank(&[("a", 10), ("b", 0)]).await;
    for rollback in [Fate::Delivered, Fate::AnswerLost, Fate::NotSent] {
        next(&network, ROLLBACK, 1, rollback);
        let result: Result<(), Failure> = client
            .transaction(async |tx| {
                add(&tx, "b", 30).await?;
                add(&tx, "c", 30).await?;
                if balance(&tx, "a").await? < 30 { Err(Failure::Poor) } else { Ok(()) }
            })
            .await;
        assert!(matches!(result, Err(Failure::Poor)), "{result:?}");
        assert_eq!((bank.balance("b").await, bank.balance("c").await), (Some(0), None));
        bank.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn failed_rollback_does_not_hide_the_error_of_the_body() {
    let (_, network, client) = bank(&[("a", 10)]).await;
    network.set(|path| if path == ROLLBACK { Fate::NotSent } else { Fate::Delivered });
    let result: Result<(), Failure> = client
        .transaction(async |tx| {
            add(&tx, "a", 30).await?;
            Err(Failure::Poor)
        })
        .await;
    assert!(matches!(result, Err(Failure::Poor)), "{result:?}");
}

#[tokio::test(start_paused = true)]
async fn condition_that_fails_is_the_callers_to_deal_with() {
    let (bank, _, client) = bank(&[("a", 10)]).await;
    let runs = Cell::new(0);
    let result: Result<(), Failure> = client
        .transaction(async |tx| {
            runs.set(runs.get() + 1);
            let spend = Request::update(ACCOUNTS, key("a"), "ADD balance :amount")
                .values(json!({":amount": -30, ":needed": 30}))
                .when("balance >= :needed")
                .show_on_failure();
            tx.add([Request::get(ACCOUNTS, key("b")), spend]).await?;
            Ok(())
        })
        .await;
    let Err(Failure::Client(error)) = result else { panic!("{result:?}") };
    let ErrorKind::ConditionFailed { request, item: Some(item) } = error.kind().clone() else { panic!("{error:?}") };
    let shown: Account = leasehold_client::transactions::from_item(item).expect("an account");
    assert_eq!((request, shown.balance, runs.get()), (Some(1), 10, 1));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn body_is_not_retried_when_dynamodb_refuses() {
    let (bank, _, client) = bank(&[("a", 10)]).await;
    let runs = Cell::new(0);
    let result: Result<(), Error> = client
        .transaction(async |tx| {
            runs.set(runs.get() + 1);
            tx.update(ACCOUNTS, key("a"), "ADD id :one", json!({":one": 1})).await
        })
        .await;
    let error = result.expect_err("a key cannot be changed");
    assert!(matches!(error.kind(), ErrorKind::InvalidRequest { .. }), "{error:?}");
    assert_eq!(runs.get(), 1);
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn thinking_is_no_reason_to_be_taken_for_abandoned() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    let sweeping = bank.transactions.clone();
    let sweeper = tokio::spawn(async move {
        loop {
            sleep(SECOND * 5).await;
            sweeping.sweeper.sweep(100).await.expect("no faults here");
        }
    });
    let think = async |options: &TransactionOptions| {
        let runs = Cell::new(0);
        let result = client
            .transaction_with(options, async |tx| {
                runs.set(runs.get() + 1);
                add(&tx, "a", 1).await?;
                sleep(Duration::from_mins(10)).await;
                Ok::<_, Error>(())
            })
            .await;
        (result, runs.get())
    };
    let (result, runs) = think(&TransactionOptions::new()).await;
    result.expect("committed");
    assert_eq!((bank.balance("a").await, runs), (Some(101), 1));
    let signs = network.take_log().iter().filter(|path| *path == ADD).count();
    assert!((29..=31).contains(&signs), "one each twenty seconds, not {signs}");
    // Without keep-alive, a sweeper rolls it back.
    let deaf = TransactionOptions::new().no_keep_alive().tries(2).deadline(Duration::from_hours(1));
    let (result, runs) = think(&deaf).await;
    assert_eq!((result.expect_err("swept").kind(), runs), (&ErrorKind::RolledBack, 2));
    assert_eq!(bank.balance("a").await, Some(101));
    sweeper.abort();
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_that_go_astray_are_sent_again() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    let signs = Cell::new(0);
    let result: Result<(), Error> = client
        .transaction_with(&TransactionOptions::new().keep_alive(SECOND), async |tx| {
            add(&tx, "a", 1).await?;
            network.set(|path| if path == ADD { Fate::NotSent } else { Fate::Delivered });
            sleep(SECOND * 50).await;
            signs.set(network.take_log().iter().filter(|path| *path == ADD).count());
            network.mend();
            sleep(SECOND * 5).await;
            Ok(())
        })
        .await;
    result.expect("committed");
    assert!(signs.get() > 10, "{signs:?}");
    assert!(network.take_log().iter().filter(|path| *path == ADD).count() >= 3);
    assert_eq!(bank.balance("a").await, Some(101));
}

/// A transaction that defends its items is waited for, as long as a call waits. Then this one backs off, and retries.
#[tokio::test(start_paused = true)]
async fn body_gives_way_and_retries_when_another_is_at_work() {
    let (bank, network, client) = bank(&[("a", 100), ("b", 0)]).await;
    let stubborn = Client::new(bank.transport());
    let held = TransactionOptions::new().keep_alive(Duration::from_millis(300));
    let long = stubborn.transaction_with(&held, async |tx| {
        add(&tx, "a", 1).await?;
        sleep(SECOND * 15).await;
        Ok::<_, Error>(())
    });
    let runs = Cell::new(0);
    let other = async {
        sleep(SECOND).await;
        transfer(&client, &runs).await
    };
    let (long, other) = tokio::join!(long, other);
    long.expect("committed");
    assert_eq!((other.expect("committed"), runs.get()), (71, 2));
    assert!(network.take_log().contains(&ROLLBACK.to_owned()), "it did not wait with items of its own");
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn equal_adds_of_a_body_count_each() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    // Every second answer is lost: the repeats of the client do not count.
    let mut count = 0;
    network.set(move |path| {
        count += u32::from(path == ADD);
        if path == ADD && count % 2 == 1 { Fate::AnswerLost } else { Fate::Delivered }
    });
    client
        .transaction(async |tx| {
            for _ in 0..3 {
                add(&tx, "a", 1).await?;
            }
            Ok::<_, Error>(())
        })
        .await
        .expect("committed");
    assert_eq!(bank.balance("a").await, Some(103));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn body_is_not_retried_when_it_found_another_way() {
    let (bank, network, client) = bank(&[("a", 100), ("b", 0)]).await;
    for poor in [false, true] {
        let mut contended = true;
        network.set(move |path| match path {
            ADD if std::mem::take(&mut contended) => Fate::Gateway(409, Some(1), CONTENDED),
            _ => Fate::Delivered,
        });
        let runs = Cell::new(0);
        let result: Result<(), Failure> = client
            .transaction(async |tx| {
                runs.set(runs.get() + 1);
                if add(&tx, "a", 1).await.is_err() {
                    add(&tx, "b", 1).await?;
                }
                if poor { Err(Failure::Poor) } else { Ok(()) }
            })
            .await;
        assert_eq!((result.is_err(), runs.get()), (poor, 1));
    }
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(100), Some(1)));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn tries_are_bounded_and_the_last_error_names_the_other() {
    let (bank, _, client) = bank(&[("a", 100), ("b", 0)]).await;
    let stubborn = Client::new(bank.transport());
    let tx = stubborn.begin_transaction().await.expect("begun");
    add(&tx, "a", 1).await.expect("added");
    let id = TransactionId::parse(tx.id()).expect("a UUID").public().to_string();
    // The ids of two transactions of the same millisecond would decide which is the older one, and goes first.
    sleep(Duration::from_millis(10)).await;
    let defence = async {
        loop {
            sleep(Duration::from_millis(300)).await;
            tx.keep_alive().await.expect("not evicted");
        }
    };
    let attack = async {
        for (options, expected) in
            [(TransactionOptions::new().tries(2), 2), (TransactionOptions::new().tries(99).deadline(SECOND * 15), 2)]
        {
            let (runs, start) = (Cell::new(0), Instant::now());
            let result: Result<(), Error> = client
                .transaction_with(&options, async |tx| {
                    runs.set(runs.get() + 1);
                    add(&tx, "b", 1).await?;
                    add(&tx, "a", 1).await
                })
                .await;
            let error = result.expect_err("contended");
            assert_eq!(error.kind(), &ErrorKind::Contended { other: Some(id.clone()) });
            assert_eq!(runs.get(), expected);
            assert!((SECOND * 20..SECOND * 30).contains(&start.elapsed()), "{:?}", start.elapsed());
        }
        let options = TransactionOptions::new().tries(1);
        let error = client.transact_with(&options, [Request::put(ACCOUNTS, json!({"id": "a", "balance": 0}))]).await;
        assert_eq!(error.expect_err("contended").kind(), &ErrorKind::Contended { other: Some(id.clone()) });
    };
    tokio::select! {
        () = defence => {}
        () = attack => {}
    }
    drop(tx);
    sleep(SECOND).await;
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(100), Some(0)));
    bank.assert_clean().await;
}

/// The future is dropped at any moment, under random faults below. After all requests under way, and after a sweep, the
/// transfer is done completely or not at all; and mostly no sweep is needed.
#[tokio::test(start_paused = true)]
async fn transactions_dropped_at_any_moment_leave_no_lock() {
    let mut swept = 0;
    for seed in 0..150 {
        let (bank, _, client) = bank(&[("a", 100), ("b", 0)]).await;
        let mut rng = fastrand::Rng::with_seed(seed);
        bank.faults.set(Fates::Random { rng: rng.fork(), one_in: 6, longest: SECOND * 2, kinds: COMMON });
        let patience = Duration::from_millis(rng.u64(0..1500));
        let dropped = timeout(patience, async {
            let _: Result<(), Error> = client
                .transaction(async |tx| {
                    for (id, amount) in [("a", -30), ("b", 30), ("a", 0)] {
                        if amount != 0 {
                            add(&tx, id, amount).await?;
                        }
                        sleep(Duration::from_millis(200)).await;
                    }
                    Ok(())
                })
                .await;
        });
        drop(dropped.await);
        bank.faults.script([]);
        sleep(SECOND * 45).await;
        client.close().await.expect("no locks are held");
        sleep(Duration::from_mins(2)).await;
        let result = bank.transactions.sweeper.sweep(10).await.expect("no faults any more");
        swept += result.rolled_back + result.completed;
        let balances = (bank.balance("a").await, bank.balance("b").await);
        assert!([(Some(100), Some(0)), (Some(70), Some(30))].contains(&balances), "seed {seed}: {balances:?}");
        bank.assert_clean().await;
    }
    println!("{swept} of 150 were left to the sweeper");
    assert!(swept < 30, "the client left {swept} of 150 to the sweeper");
}

#[tokio::test(start_paused = true)]
async fn dropped_body_is_rolled_back_in_the_background() {
    let (bank, network, client) = bank(&[("a", 100)]).await;
    let stuck = client.transaction(async |tx| {
        add(&tx, "a", 1).await?;
        std::future::pending::<Result<(), Error>>().await
    });
    assert!(timeout(SECOND, stuck).await.is_err());
    client.close().await.expect("it waits for what goes on in the background");
    assert_eq!(network.take_log(), [BEGIN, ADD, ROLLBACK]);
    assert_eq!(bank.balance("a").await, Some(100));
    bank.assert_clean().await;
    let error = client.transaction(async |_| Ok::<_, Error>(())).await.expect_err("closed");
    assert_eq!(error.kind(), &ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn one_call_does_it_where_all_is_known() {
    let (bank, network, client) = bank(&[("a", 100), ("b", 0)]).await;
    let transfer = || {
        let add = |id, amount: i64| Request::update(ACCOUNTS, key(id), "ADD balance :x").value(":x", amount);
        [add("a", -30), add("b", 30)]
    };
    // The transfer is done once, whichever message is lost.
    next(&network, BEGIN, 2, Fate::AnswerLost);
    assert_eq!(client.transact(transfer()).await.expect("committed"), [None, None]);
    assert_eq!(network.take_log(), [BEGIN, BEGIN, BEGIN]);
    assert_transferred(&bank).await;
    // The answers are in the order of the requests.
    let asked = transfer().map(|request| request.returning(ReturnValues::AllNew));
    let answers = client.transact(asked.clone()).await.expect("committed");
    let balances: Vec<i64> = answers
        .into_iter()
        .map(|item| {
            leasehold_client::transactions::from_item::<Account>(item.expect("an item")).expect("an account").balance
        })
        .collect();
    assert_eq!(balances, [40, 60]);
    // The answers are lost for good: the error says that the transaction is committed, and it is not repeated.
    next(&network, BEGIN, 1, Fate::AnswerLost);
    let error = client.transact(asked).await.expect_err("the answers are lost");
    assert_eq!(error.kind(), &ErrorKind::Committed);
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(10), Some(90)));
    // An eviction, or an answer like that of one.
    next(&network, BEGIN, 1, Fate::Gateway(409, None, ROLLED_BACK));
    client.transact(transfer()).await.expect("in another transaction");
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(-20), Some(120)));
    bank.assert_clean().await;
}

/// As with a commit, the answer to a repeat need not be true of the first attempt.
#[tokio::test(start_paused = true)]
async fn one_call_is_repeated_only_after_a_certain_no() {
    for first in [Fate::AnswerLost, Fate::NotSent] {
        let (bank, network, client) = bank(&[("a", 100)]).await;
        let mut fates = vec![Fate::Gateway(409, Some(1), CONTENDED), first];
        network.set(move |path| if path == BEGIN { fates.pop().unwrap_or(Fate::Delivered) } else { Fate::Delivered });
        let add = Request::update(ACCOUNTS, key("a"), "ADD balance :x").value(":x", 1);
        assert_eq!(client.transact([add]).await.expect("committed"), [None]);
        assert_eq!(bank.balance("a").await, Some(101));
        assert_eq!(network.take_log(), [BEGIN, BEGIN, BEGIN]);
        assert_eq!(bank.scan(TRANSACTIONS).await.len(), 1, "one transaction, by one id");
        bank.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_call_that_had_to_give_way_is_made_again() {
    let (bank, network, client) = bank(&[("a", 100), ("b", 0)]).await;
    let stubborn = Client::new(bank.transport());
    let held = TransactionOptions::new().keep_alive(Duration::from_millis(300));
    let long = stubborn.transaction_with(&held, async |tx| {
        add(&tx, "a", 1).await?;
        sleep(SECOND * 13).await;
        Ok::<_, Error>(())
    });
    let other = async {
        sleep(SECOND).await;
        let add = |id, amount: i64| Request::update(ACCOUNTS, key(id), "ADD balance :x").value(":x", amount);
        client.transact([add("b", 30), add("a", -30)]).await
    };
    let (long, other) = tokio::join!(long, other);
    long.expect("committed");
    assert_eq!(other.expect("committed"), [None, None]);
    assert_eq!((bank.balance("a").await, bank.balance("b").await), (Some(71), Some(30)));
    assert!(network.take_log().len() > 1, "it was told so");
    bank.assert_clean().await;
}

const ROLLED_BACK: &str = r#"{"type": "rolled-back", "status": 409, "title": "", "detail": "Another one needed it."}"#;

/// The service's own problems with its tables do not reach the caller.
#[tokio::test(start_paused = true)]
async fn body_does_not_notice_a_table_that_throttles() {
    let (bank, _, client) = bank(&[("a", 100), ("b", 0)]).await;
    bank.faults.script([Fault::None, Fault::None, Fault::Throttled, Fault::ResponseLost, Fault::ServerError]);
    let runs = Cell::new(0);
    assert_eq!(transfer(&client, &runs).await.expect("committed"), 70);
    assert_eq!(runs.get(), 1);
    assert_transferred(&bank).await;
}
