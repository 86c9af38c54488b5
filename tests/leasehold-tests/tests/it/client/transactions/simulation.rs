//! Eight callers move money under random faults between them and the service, and between the service and its tables.
//! At the end the accounts agree with the answers that each caller got, and the sum of money is unchanged.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold_client::transactions::{Isolation, Request, Transaction, TransactionOptions, TransactionState};
use leasehold_client::{Client, Error, ErrorKind};
use leasehold_tests::bank::{ACCOUNTS, Bank};
use leasehold_tests::{COMMON, Fates, run_seeds};
use tokio::time::sleep;

use super::{Account, Fate, Network, SECOND, add, balance, key};

const CALLERS: usize = 8;
const ACCOUNT_IDS: [&str; 5] = ["a", "b", "c", "d", "e"];
const TRANSFERS: u32 = 8;

fn random_fate(rng: &mut fastrand::Rng) -> Fate {
    let delay = Duration::from_millis(rng.u64(0..20_000));
    match rng.u32(0..60) {
        0 => Fate::NotSent,
        1 => Fate::AnswerLost,
        2 => Fate::AnswerLate(delay),
        3 => Fate::Overdue(delay),
        4 => Fate::Gateway(503, Some(1), "busy"),
        5 => Fate::GaveUp(504),
        _ => Fate::Delivered,
    }
}

/// A transfer, and its caller's knowledge of the outcome.
#[derive(Debug)]
struct Told {
    from: &'static str,
    to: &'static str,
    amount: i64,
    runs: u32,
    outcome: Result<(), Error>,
}

async fn transfer(client: &Client, rng: &mut fastrand::Rng) -> Told {
    let from = ACCOUNT_IDS[rng.usize(..ACCOUNT_IDS.len())];
    let to = ACCOUNT_IDS[rng.usize(..ACCOUNT_IDS.len())];
    let amount = rng.i64(1..20);
    let options = TransactionOptions::new().deadline(SECOND * 60);
    let runs = AtomicU32::new(0);
    let outcome = match rng.u32(0..4) {
        _ if from == to => Ok(()),
        0 => {
            let one = |id, amount: i64| Request::update(ACCOUNTS, key(id), "ADD balance :x").value(":x", amount);
            client.transact_with(&options, [one(from, -amount), one(to, amount)]).await.map(drop)
        }
        1 => {
            // The caller reads, thinks and writes: the changes of others in the meantime must not be lost.
            let pause = Duration::from_millis(rng.u64(0..1500));
            let body = async |tx: Arc<Transaction>| {
                runs.fetch_add(1, Ordering::Relaxed);
                let (mine, theirs) = (balance(&tx, from).await?, balance(&tx, to).await?);
                sleep(pause).await;
                tx.put(ACCOUNTS, Account { id: from.into(), balance: mine - amount }).await?;
                tx.put(ACCOUNTS, Account { id: to.into(), balance: theirs + amount }).await
            };
            client.transaction_with(&options, body).await
        }
        _ => {
            let body = async |tx: Arc<Transaction>| {
                runs.fetch_add(1, Ordering::Relaxed);
                add(&tx, from, -amount).await?;
                add(&tx, to, amount).await
            };
            client.transaction_with(&options, body).await
        }
    };
    Told { from, to, amount, runs: runs.into_inner(), outcome }
}

/// Whether a transfer was done, where its caller could not know.
async fn was_done(bank: &Bank, told: &Told) -> bool {
    let error = match &told.outcome {
        Ok(()) => return told.from != told.to,
        Err(error) if *error.kind() == ErrorKind::Unavailable => error,
        Err(error) => {
            assert!(error.is_contention(), "{told:?}");
            return false;
        }
    };
    let Some(id) = error.transaction_id() else { return false };
    match Client::new(bank.transport()).transaction_status(id).await {
        Ok(status) => status.state == TransactionState::Committed,
        Err(error) if *error.kind() == ErrorKind::TransactionNotFound => false,
        Err(error) => panic!("{error}"),
    }
}

/// Returns the number of transfers that were done, of repeated bodies, and of transfers with an unknown outcome.
async fn run(seed: u64) -> (usize, u32, usize) {
    let bank = Arc::new(Bank::new().await);
    for id in ACCOUNT_IDS {
        bank.open(id, 100).await;
    }
    let mut rng = fastrand::Rng::with_seed(seed);
    bank.faults.set(Fates::Random { rng: rng.fork(), one_in: 60, longest: SECOND * 10, kinds: COMMON });
    let sweeping = bank.transactions.clone();
    let sweeper = tokio::spawn(async move {
        loop {
            sleep(SECOND * 5).await;
            let _ = sweeping.sweeper.sweep(100).await;
        }
    });
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let network = Network::new(bank.transport());
        let fates = Arc::new(Mutex::new(rng.fork()));
        network.set(move |_| random_fate(&mut fates.lock().expect("not poisoned")));
        let (client, mut rng) = (Client::new(network), rng.fork());
        callers.spawn(async move {
            let mut told = Vec::new();
            for _ in 0..TRANSFERS {
                told.push(transfer(&client, &mut rng).await);
                sleep(Duration::from_millis(rng.u64(0..1000))).await;
            }
            // The background rollbacks end.
            let _ = client.close().await;
            told
        });
    }
    let told = callers.join_all().await.into_iter().flatten().collect::<Vec<_>>();
    bank.faults.script([]);
    sleep(Duration::from_mins(5)).await;
    sweeper.abort();
    bank.assert_clean().await;

    let mut expected = BTreeMap::from(ACCOUNT_IDS.map(|id| (id, 100)));
    let again = told.iter().map(|told| told.runs.saturating_sub(1)).sum();
    let (mut done, mut unknown) = (0, 0);
    for told in &told {
        unknown += usize::from(told.outcome.as_ref().is_err_and(|error| *error.kind() == ErrorKind::Unavailable));
        if was_done(&bank, told).await {
            done += 1;
            *expected.entry(told.from).or_default() -= told.amount;
            *expected.entry(told.to).or_default() += told.amount;
        }
    }
    let client = Client::new(bank.transport());
    for (id, expected) in expected {
        let found = client.read_item::<Account>(ACCOUNTS, key(id), Isolation::Committed).await.expect("read");
        assert_eq!(found.expect("an account").balance, expected, "{id}");
    }
    (done, again, unknown)
}

#[test]
fn callers_are_told_the_truth_under_faults() {
    let all = run_seeds("callers_are_told", 12, run);
    let count = all.len();
    let done: usize = all.iter().map(|counted| counted.0).sum();
    let again: u32 = all.iter().map(|counted| counted.1).sum();
    let unknown: usize = all.iter().map(|counted| counted.2).sum();
    let happened = format!("{done} transfers, {again} bodies run again, {unknown} unknown, by {count} seeds");
    println!("{happened}");
    // One seed alone may have few conflicts.
    assert!(count == 1 || (done > count * 30 && again > 20), "too little happened: {happened}");
}
