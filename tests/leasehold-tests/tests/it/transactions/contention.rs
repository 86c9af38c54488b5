//! The order of two transactions that want the same item, and the throughput where many do.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use leasehold_tests::bank::{Bank, add, begin};
use leasehold_transactions::{Error, Policy, TransactionId, Transactions};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

/// Longer than the time for which an old transaction waits for a younger one.
const AGE: Duration = Duration::from_millis(300);

#[tokio::test(start_paused = true)]
async fn old_transaction_goes_first_after_a_moment() {
    let bank = Bank::new().await;
    let old = begin(&bank.transactions).await;
    sleep(AGE).await;
    let young = begin(&bank.transactions).await;
    bank.transactions.add(&young, vec![add("a", 1)], None).await.expect("added");
    let start = Instant::now();
    bank.transactions.add(&old, vec![add("a", 10)], None).await.expect("added");
    let waited = start.elapsed().as_millis();
    assert!((50..150).contains(&waited), "it waited {waited} ms");
    let refused = bank.transactions.commit(&young).await;
    assert!(matches!(refused, Err(Error::RolledBack { .. })), "{refused:?}");
    bank.transactions.commit(&old).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(10));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn retry_goes_first_at_once() {
    let bank = Bank::new().await;
    let first = begin(&bank.transactions).await;
    bank.transactions.rollback(&first).await.expect("rolled back");
    sleep(AGE).await;
    let other = begin(&bank.transactions).await;
    bank.transactions.add(&other, vec![add("a", 1)], None).await.expect("added");
    let retry = bank.transactions.begin(None, Some(&first)).await.expect("begun");
    let start = Instant::now();
    bank.transactions.add(&retry, vec![add("a", 10)], None).await.expect("added");
    assert_eq!(start.elapsed(), Duration::ZERO);
    bank.transactions.commit(&retry).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(10));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn older_transaction_lets_one_end_that_is_nearly_through() {
    let bank = Bank::new().await;
    let older = begin(&bank.transactions).await;
    sleep(Duration::from_millis(10)).await;
    let younger = begin(&bank.transactions).await;
    bank.transactions.add(&younger, vec![add("a", 1)], None).await.expect("added");
    let (waits, ends) = tokio::join!(bank.transactions.add(&older, vec![add("a", 10)], None), async {
        sleep(Duration::from_millis(20)).await;
        bank.transactions.commit(&younger).await
    });
    ends.expect("committed");
    waits.expect("added");
    bank.transactions.commit(&older).await.expect("committed");
    assert_eq!(bank.balance("a").await, Some(11));
    bank.assert_clean().await;
}

/// The time that a call needs to get the account `a`.
async fn time_to_get(transactions: &Transactions, id: &TransactionId) -> Duration {
    let start = Instant::now();
    transactions.add(id, vec![add("a", 10)], None).await.expect("added");
    start.elapsed()
}

/// Shows a sign of life of a transaction, over and over.
async fn keep_alive(transactions: &Transactions, id: &TransactionId) {
    while transactions.add(id, vec![], None).await.is_ok() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// A twentieth of the patience, which is one to two seconds, whether the younger one is at work or not.
#[tokio::test(start_paused = true)]
async fn older_transaction_waits_for_a_twentieth_of_its_patience() {
    for is_at_work in [false, true] {
        let bank = Bank::new().await;
        let older = begin(&bank.transactions).await;
        sleep(Duration::from_millis(10)).await;
        let younger = begin(&bank.transactions).await;
        bank.transactions.add(&younger, vec![add("a", 1)], None).await.expect("added");
        let work = keep_alive(&bank.transactions, &younger);
        let waited = tokio::select! {
            biased;
            waited = time_to_get(&bank.transactions, &older) => waited,
            () = async { if is_at_work { work.await } std::future::pending().await } => unreachable!(),
        };
        assert!((50..=105).contains(&waited.as_millis()), "it waited {waited:?}");
    }
}

/// Two that wait for each other do not lose patience at the same time.
#[tokio::test(start_paused = true)]
async fn patience_of_each_call_is_another_one() {
    let mut waits = Vec::new();
    for _ in 0..8 {
        let bank = Bank::new().await;
        let idle = begin(&bank.transactions).await;
        bank.transactions.add(&idle, vec![add("a", 1)], None).await.expect("added");
        sleep(Duration::from_millis(10)).await;
        let id = begin(&bank.transactions).await;
        waits.push(time_to_get(&bank.transactions, &id).await.as_millis());
    }
    assert!(waits.iter().all(|waited| (1000..=2010).contains(waited)), "{waits:?}");
    let (shortest, longest) = (waits.iter().min(), waits.iter().max());
    assert!(longest.zip(shortest).is_some_and(|(longest, shortest)| longest - shortest > 50), "{waits:?}");
}

/// Its first attempt is younger than the holder: it has no right to go first.
#[tokio::test(start_paused = true)]
async fn retry_waits_for_an_older_transaction() {
    let bank = Bank::new().await;
    let older = begin(&bank.transactions).await;
    bank.transactions.add(&older, vec![add("a", 1)], None).await.expect("added");
    sleep(Duration::from_millis(10)).await;
    let first = begin(&bank.transactions).await;
    bank.transactions.rollback(&first).await.expect("rolled back");
    let retry = bank.transactions.begin(None, Some(&first)).await.expect("begun");
    let waited = time_to_get(&bank.transactions, &retry).await;
    assert!(waited >= Duration::from_secs(1), "it waited {waited:?}");
}

/// The looks become rare, and not so rare that an item which is free is found late.
#[tokio::test(start_paused = true)]
async fn looks_at_a_holder_become_rare_and_stay_frequent() {
    let bank = Bank::new().await;
    let older = begin(&bank.transactions).await;
    bank.transactions.add(&older, vec![add("a", 1)], None).await.expect("added");
    sleep(Duration::from_millis(10)).await;
    let (waiting, faults) = bank.coordinator_with_keys().await;
    let id = begin(&waiting).await;
    faults.take_calls();
    let start = Instant::now();
    let (waited, ()) = tokio::join!(time_to_get(&waiting, &id), async {
        while start.elapsed() < Duration::from_secs(4) {
            bank.transactions.add(&older, vec![], None).await.expect("alive");
            sleep(Duration::from_millis(100)).await;
        }
        bank.transactions.commit(&older).await.expect("committed");
    });
    let (waited, calls) = (waited.as_millis(), faults.take_calls());
    assert!((4000..=4200).contains(&waited), "it waited {waited} ms");
    // Two reads a look.
    assert!((80..=170).contains(&calls), "{calls} calls");
}

const CLIENTS: usize = 12;
const HOT_ITEMS: [&str; 3] = ["a", "b", "c"];
const THOUGHT: Duration = Duration::from_millis(50);

/// Makes one attempt: it locks each item, and thinks after it.
async fn attempt(
    transactions: &Transactions,
    retry_of: Option<&TransactionId>,
    items: &[&str],
) -> (TransactionId, Result<(), Error>) {
    let id = TransactionId::fresh();
    let work = async {
        transactions.begin(Some(id.clone()), retry_of).await?;
        for item in items {
            transactions.add(&id, vec![add(item, 1)], None).await?;
            sleep(THOUGHT).await;
        }
        transactions.commit(&id).await
    };
    let result = work.await;
    if matches!(result, Err(Error::Contended { .. })) {
        let _ = transactions.rollback(&id).await;
    }
    (id, result)
}

/// The progress of a client.
#[derive(Debug, Default)]
struct Progress {
    commits: Cell<u32>,
    rolled_back: Cell<u32>,
    /// The longest time without a commit.
    longest: Cell<Duration>,
}

async fn client(bank: Rc<Bank>, mut rng: fastrand::Rng, until: Instant, progress: Rc<Progress>) {
    let (transactions, _) = bank.coordinator(Policy::default(), Duration::ZERO);
    let mut last = Instant::now();
    let mut before = None;
    while Instant::now() < until {
        let mut items = HOT_ITEMS;
        rng.shuffle(&mut items);
        let (id, result) = attempt(&transactions, before.as_ref(), &items).await;
        match result {
            Ok(()) => {
                progress.commits.set(progress.commits.get() + 1);
                progress.longest.set(progress.longest.get().max(last.elapsed()));
                last = Instant::now();
                before = None;
            }
            Err(Error::RolledBack { .. } | Error::Contended { .. }) => {
                progress.rolled_back.set(progress.rolled_back.get() + 1);
                before = Some(id);
                sleep(Duration::from_millis(rng.u64(0..50))).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    progress.longest.set(progress.longest.get().max(last.elapsed()));
}

/// Lets all clients work for this time. Returns the progress of each.
async fn contend(time: Duration) -> Vec<Rc<Progress>> {
    fastrand::seed(7);
    let mut rng = fastrand::Rng::with_seed(7);
    let bank = Rc::new(Bank::new().await);
    let until = Instant::now() + time;
    let tasks = LocalSet::new();
    let mut all = Vec::new();
    for _ in 0..CLIENTS {
        let progress = Rc::new(Progress::default());
        all.push(Rc::clone(&progress));
        tasks.spawn_local(client(Rc::clone(&bank), rng.fork(), until, progress));
    }
    tasks.await;
    let commits: u32 = all.iter().map(|progress| progress.commits.get()).sum();
    for item in HOT_ITEMS {
        assert_eq!(bank.balance(item).await, Some(i64::from(commits)), "{item}");
    }
    bank.assert_clean().await;
    all
}

#[tokio::test(start_paused = true)]
async fn every_client_gets_through_under_contention() {
    for progress in contend(Duration::from_secs(5)).await {
        assert!(progress.commits.get() > 0, "{progress:?}");
    }
}

/// Prints the figures of docs/performance.md. The time is virtual, so the latency of DynamoDB is not in it.
#[tokio::test(start_paused = true)]
#[ignore = "a measurement"]
async fn measure_commits_under_contention() {
    let time = Duration::from_mins(1);
    let all = contend(time).await;
    for progress in &all {
        println!("{progress:?}");
    }
    let commits: u32 = all.iter().map(|progress| progress.commits.get()).sum();
    let rolled_back: u32 = all.iter().map(|progress| progress.rolled_back.get()).sum();
    let longest = all.iter().map(|progress| progress.longest.get()).max().expect("clients");
    let rate = f64::from(commits) / time.as_secs_f64();
    println!("{rate:.1} commits/s, {rolled_back} rolled back, longest time without a commit {longest:?}");
}
