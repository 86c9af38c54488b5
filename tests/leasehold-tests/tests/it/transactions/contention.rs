//! Many clients want the same few items, each in an order of its own, and think in between.
//! `cargo test --workspace contention -- --nocapture` prints how often each got through.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use leasehold_tests::bank::{Bank, add};
use leasehold_transactions::{Error, Policy, TransactionId, Transactions};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

const CLIENTS: usize = 12;
const HOT_ITEMS: [&str; 3] = ["a", "b", "c"];
const THOUGHT: Duration = Duration::from_millis(50);
const RUN: Duration = Duration::from_secs(120);

/// The longest time without a commit of a client.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// What a client got done: its commits, and its longest time without one.
#[derive(Debug, Default)]
struct Progress {
    commits: Cell<usize>,
    rolled_back: Cell<usize>,
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

#[tokio::test(start_paused = true)]
async fn every_client_gets_through_under_contention() {
    fastrand::seed(7);
    let mut rng = fastrand::Rng::with_seed(7);
    let bank = Rc::new(Bank::new().await);
    let until = Instant::now() + RUN;
    let tasks = LocalSet::new();
    let all = RefCell::new(Vec::new());
    for _ in 0..CLIENTS {
        let progress = Rc::new(Progress::default());
        all.borrow_mut().push(Rc::clone(&progress));
        tasks.spawn_local(client(Rc::clone(&bank), rng.fork(), until, progress));
    }
    tasks.await;
    let all = all.into_inner();
    let commits: usize = all.iter().map(|progress| progress.commits.get()).sum();
    let rolled_back: usize = all.iter().map(|progress| progress.rolled_back.get()).sum();
    let longest = all.iter().map(|progress| progress.longest.get()).max().expect("clients");
    let rate = commits as f64 / RUN.as_secs_f64();
    println!("{rate:.1} commits/s, {rolled_back} rolled back of {commits} committed, longest wait {longest:?}");
    for item in HOT_ITEMS {
        assert_eq!(bank.balance(item).await, Some(i64::try_from(commits).expect("few")), "{item}");
    }
    bank.assert_clean().await;
    assert!(rate >= 5.0, "{rate} commits/s");
    assert!(longest < PATIENCE, "{longest:?} without a commit");
}
