//! Many coordinators move money between accounts, under random faults and crashes, with sweepers and readers beside
//! them. The sum of money is unchanged, which every reader that locks all accounts sees. The history could have been
//! made one transaction at a time.
//!
//! Each account keeps the list of its writers, so that a read shows the writer of its version.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures_util::future::try_join_all;
use leasehold_tests::bank::{ACCOUNTS, Bank, account, balance_of, get, key, look, request};
use leasehold_tests::{Fates, Fault, Kind, run_seeds};
use leasehold_transactions::{
    Action, Answer, Error, Isolation, Item, Policy, ReturnValues, State, TransactionId, TransactionRequest,
    Transactions,
};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::history::{Account, Deeds, History, Tx};

const BALANCE: i64 = 100;

/// The faults of the requests here. The first two occur only for coordinators.
const KINDS: &[Kind] = &[
    |_| Fault::DiesBefore,
    |_| Fault::DiesAfter,
    |_| Fault::RequestLost,
    |_| Fault::ResponseLost,
    Fault::Late,
    Fault::Late,
    Fault::Slow,
    |_| Fault::Throttled,
    |_| Fault::ServerError,
    |_| Fault::TransactionConflict,
    |_| Fault::Twice,
    |_| Fault::Copied,
];

/// The scale of a run.
#[derive(Debug, Clone, Copy)]
struct Scale {
    accounts: usize,
    coordinators: usize,
    /// The number of transfers of each coordinator.
    transfers: usize,
    policy: Policy,
    /// The longest delay of a request.
    longest: Duration,
    /// The longest pause between transfers.
    pause: Duration,
}

/// The results of the transfers of a run.
#[derive(Debug, Default)]
struct Tally {
    committed: usize,
    rolled_back: usize,
    /// The transfers of coordinators that died.
    crashed: usize,
    /// The number of times that all accounts were read as of one moment.
    totals: usize,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.rolled_back += other.rolled_back;
        self.crashed += other.crashed;
        self.totals += other.totals;
    }
}

/// The knowledge about a transaction.
#[derive(Debug, Clone)]
struct Known {
    id: TransactionId,
    deeds: Deeds,
    /// Whether its coordinator got the answer that it is committed, if it got an answer.
    is_committed: Option<bool>,
}

struct Run {
    bank: Bank,
    scale: Scale,
    start: Instant,
    known: RefCell<BTreeMap<Tx, Known>>,
    tally: RefCell<Tally>,
}

fn name(account: Account) -> String {
    format!("account-{account:02}")
}

fn id_of(rng: &mut fastrand::Rng) -> TransactionId {
    TransactionId::parse(&format!("{:032x}", rng.u128(..))).expect("a UUID")
}

/// The writers of an account, in order.
fn writers(item: &Item) -> Vec<Tx> {
    let writers = item["writers"].as_l().expect("a list");
    writers.iter().map(|writer| writer.as_n().expect("a number").parse().expect("a whole number")).collect()
}

fn number(value: impl Into<i64>) -> AttributeValue {
    AttributeValue::N(value.into().to_string())
}

/// Adds to an account, and adds the writer to its list.
fn change(account: Account, amount: i64, tx: Tx) -> TransactionRequest {
    let expression = "SET writers = list_append(writers, :writer) ADD balance :amount".into();
    let mut request = request(Action::Update { key: key(&name(account)), expression });
    request.values.insert(":writer".into(), AttributeValue::L(vec![number(tx)]));
    request.values.insert(":amount".into(), number(amount));
    request
}

/// Makes the same change by a put, for an account that was read.
fn replace(before: &Item, amount: i64, tx: Tx) -> TransactionRequest {
    let mut item = before.clone();
    item.insert("balance".into(), number(balance_of(before) + amount));
    let all = writers(before).into_iter().chain([tx]).map(number).collect();
    item.insert("writers".into(), AttributeValue::L(all));
    request(Action::Put { item })
}

/// Amounts whose sum is zero, for different accounts.
fn amounts(rng: &mut fastrand::Rng, accounts: usize) -> Vec<(Account, i64)> {
    let mut chosen: Vec<Account> = (0..accounts).collect();
    rng.shuffle(&mut chosen);
    chosen.truncate(rng.usize(1..=4));
    let mut amounts: Vec<_> = chosen.into_iter().map(|account| (account, rng.i64(-20..=20))).collect();
    let sum: i64 = amounts.iter().map(|(_, amount)| amount).sum();
    amounts[0].1 -= sum;
    amounts
}

impl Run {
    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).expect("not that long")
    }

    /// A transaction begins.
    fn enter(&self, id: &TransactionId, writes: impl IntoIterator<Item = Account>) -> Tx {
        let mut known = self.known.borrow_mut();
        let tx = Tx::try_from(known.len() + 1).expect("not that many");
        let deeds = Deeds { began: self.now(), writes: writes.into_iter().collect(), ..Deeds::default() };
        known.insert(tx, Known { id: id.clone(), deeds, is_committed: None });
        tx
    }

    fn saw(&self, tx: Tx, account: Account, item: &Item) {
        let seen = writers(item).into_iter().rev().find(|&writer| writer != tx);
        self.known.borrow_mut().get_mut(&tx).expect("entered").deeds.reads.push((account, seen));
    }

    fn told(&self, tx: Tx, result: &Result<(), Error>) {
        let outcome = match result {
            Ok(()) | Err(Error::Committed) => Some(true),
            Err(Error::RolledBack { .. }) => Some(false),
            // The items are contended, or the outcome is unknown. No other error may happen.
            Err(Error::Contended { .. } | Error::Throttled(_) | Error::Unavailable(_)) => None,
            Err(error) => panic!("{tx}: {error:?}"),
        };
        let now = self.now();
        let mut known = self.known.borrow_mut();
        let known = known.get_mut(&tx).expect("entered");
        known.is_committed = outcome;
        known.deeds.ended = outcome.map(|_| now);
    }

    async fn transfer(&self, transactions: &Transactions, rng: &mut fastrand::Rng) {
        let id = id_of(rng);
        let amounts = amounts(rng, self.scale.accounts);
        let tx = self.enter(&id, amounts.iter().map(|(account, _)| *account));
        let result = match rng.u32(0..6) {
            0 => self.short(transactions, id, tx, &amounts).await,
            1 => self.with_answers(transactions, id, tx, &amounts).await,
            2 | 3 => self.interactive(transactions, id, tx, &amounts, rng.bool()).await,
            _ => self.read_and_write(transactions, id, tx, &amounts, rng.u32(0..8) == 0).await,
        };
        self.told(tx, &result);
    }

    async fn short(
        &self,
        transactions: &Transactions,
        id: TransactionId,
        tx: Tx,
        amounts: &[(Account, i64)],
    ) -> Result<(), Error> {
        let changes = amounts.iter().map(|&(account, amount)| change(account, amount, tx)).collect();
        transactions.run(Some(id), None, changes).await.map(drop)
    }

    async fn with_answers(
        &self,
        transactions: &Transactions,
        id: TransactionId,
        tx: Tx,
        amounts: &[(Account, i64)],
    ) -> Result<(), Error> {
        let changes = amounts.iter().map(|&(account, amount)| returning_new(change(account, amount, tx)));
        let (_, answers) = transactions.run(Some(id), None, changes.collect()).await?;
        self.saw_all(tx, amounts, &answers);
        Ok(())
    }

    /// Makes one call for each account, or one for all.
    async fn interactive(
        &self,
        transactions: &Transactions,
        id: TransactionId,
        tx: Tx,
        amounts: &[(Account, i64)],
        at_once: bool,
    ) -> Result<(), Error> {
        transactions.begin(Some(id.clone()), None).await?;
        for part in amounts.chunks(if at_once { amounts.len() } else { 1 }) {
            let changes = part.iter().map(|&(account, amount)| returning_new(change(account, amount, tx)));
            let answers = transactions.add(&id, changes.collect(), None).await?;
            self.saw_all(tx, part, &answers);
        }
        transactions.commit(&id).await
    }

    /// Locks all accounts to read them, and writes the changed ones; then commits, or rolls back.
    async fn read_and_write(
        &self,
        transactions: &Transactions,
        id: TransactionId,
        tx: Tx,
        amounts: &[(Account, i64)],
        gives_up: bool,
    ) -> Result<(), Error> {
        let gets = amounts.iter().map(|(account, _)| get(&name(*account))).collect();
        let (_, answers) = transactions.begin_with(Some(id.clone()), None, gets).await?;
        self.saw_all(tx, amounts, &answers);
        let puts = amounts
            .iter()
            .zip(&answers)
            .map(|(&(_, amount), answer)| replace(answer.item.as_ref().expect("there"), amount, tx));
        transactions.add(&id, puts.collect(), None).await?;
        if gives_up {
            transactions.rollback(&id).await?;
            return Err(Error::RolledBack { reason: "it was asked for".into() });
        }
        transactions.commit(&id).await
    }

    fn saw_all(&self, tx: Tx, amounts: &[(Account, i64)], answers: &[Answer]) {
        for (&(account, _), answer) in amounts.iter().zip(answers) {
            self.saw(tx, account, answer.item.as_ref().expect("accounts are never deleted"));
        }
    }

    async fn coordinate(self: Rc<Self>, mut rng: fastrand::Rng) {
        let (transactions, faults) = self.bank.coordinator(self.scale.policy, Duration::ZERO);
        faults.set(Fates::Random { rng: rng.fork(), one_in: 25, longest: self.scale.longest, kinds: KINDS });
        for _ in 0..self.scale.transfers {
            let transfer = self.transfer(&transactions, &mut rng);
            // The next coordinator replaces one that died.
            tokio::select! {
                biased;
                () = transfer => {}
                () = faults.reached() => self.tally.borrow_mut().crashed += 1,
            }
            sleep(self.scale.pause.mul_f64(rng.f64())).await;
        }
        // Late requests arrived during the work of others; the copies arrive after all work.
        faults.set(Fates::Script(VecDeque::new()));
        sleep(self.scale.longest * 2).await;
        faults.deliver_copies().await;
    }

    /// Reads all accounts, in turn under locks and as they were last committed, for this many rounds.
    async fn observe(self: Rc<Self>, mut rng: fastrand::Rng, rounds: usize) {
        let (transactions, _) = self.bank.coordinator(self.scale.policy, Duration::ZERO);
        for round in 0..rounds {
            if round % 2 == 0 {
                self.look_at_all(&transactions, &mut rng).await;
            } else {
                self.look_at_each(&transactions, &mut rng).await;
            }
            sleep(self.scale.pause.mul_f64(rng.f64())).await;
        }
    }

    async fn look_at_all(&self, transactions: &Transactions, rng: &mut fastrand::Rng) {
        let id = id_of(rng);
        let tx = self.enter(&id, []);
        let gets = (0..self.scale.accounts).map(|account| get(&name(account))).collect();
        let total = |items: &[Item]| items.iter().map(balance_of).sum::<i64>();
        let expected = BALANCE * i64::try_from(self.scale.accounts).expect("few");
        let result = async {
            if rng.bool() {
                let (_, answers) = transactions.run(Some(id), None, gets).await?;
                return Ok((answers, None));
            }
            let (_, answers) = transactions.begin_with(Some(id.clone()), None, gets).await?;
            let looks = (0..self.scale.accounts).map(|account| look(&name(account))).collect();
            let committed = transactions.reader.read(looks, Isolation::Committed).await?;
            transactions.commit(&id).await?;
            Ok((answers, Some(committed)))
        };
        let result = result.await;
        if let Ok((answers, committed)) = &result {
            let items: Vec<_> = answers.iter().map(|answer| answer.item.clone().expect("there")).collect();
            assert_eq!(total(&items), expected, "under locks");
            items.iter().enumerate().for_each(|(account, item)| self.saw(tx, account, item));
            if let Some(committed) = committed {
                // The locks kept all accounts unchanged.
                assert_eq!(committed.iter().flatten().cloned().collect::<Vec<_>>(), items);
            }
            self.tally.borrow_mut().totals += 1;
        }
        self.told(tx, &result.map(drop));
    }

    /// Each read is a transaction by itself: it sees no uncommitted state, and never the past.
    async fn look_at_each(&self, transactions: &Transactions, rng: &mut fastrand::Rng) {
        for _ in 0..5 {
            let account = rng.usize(..self.scale.accounts);
            let tx = self.enter(&id_of(rng), []);
            let read = transactions.reader.read(vec![look(&name(account))], Isolation::Committed).await.expect("read");
            self.saw(tx, account, read[0].as_ref().expect("accounts are never deleted"));
            self.told(tx, &Ok(()));
        }
    }

    async fn sweep_now_and_then(self: Rc<Self>, rng: fastrand::Rng) {
        let (transactions, faults) = self.bank.coordinator(self.scale.policy, Duration::ZERO);
        faults.set(Fates::Random { rng, one_in: 25, longest: self.scale.longest, kinds: &KINDS[2..] });
        loop {
            let _ = transactions.sweeper.sweep(100).await;
            sleep(Duration::from_millis(self.scale.policy.idle_ms)).await;
        }
    }

    /// Checks the state after all transfers.
    async fn settle(&self) -> Tally {
        let (sweeper, _) = self.bank.coordinator(self.scale.policy, Duration::from_mins(5));
        let swept = self.bank.sweep_idle(&sweeper).await;
        assert!(swept.failed == 0 && !swept.more, "{swept:?}");
        self.bank.assert_clean().await;
        let mut history = History::default();
        let mut total = 0;
        for item in self.bank.scan(ACCOUNTS).await {
            let account = item["id"].as_s().expect("a text").rsplit('-').next().expect("a number");
            history.versions.insert(account.parse().expect("a number"), writers(&item));
            total += balance_of(&item);
        }
        assert_eq!(total, BALANCE * i64::try_from(self.scale.accounts).expect("few"), "at the end");
        let mut tally = self.tally.take();
        for (tx, Known { id, deeds, is_committed }) in self.known.take() {
            let state = match sweeper.status(&id.public()).await {
                Ok(status) => Some(status.state),
                Err(Error::NotFound) => None,
                Err(error) => panic!("{error:?}"),
            };
            match is_committed {
                // Reads at `committed` leave no record.
                Some(true) => assert!(state == Some(State::Committed) || deeds.writes.is_empty(), "{tx}: {state:?}"),
                Some(false) => assert_ne!(state, Some(State::Committed), "{tx}"),
                None => {}
            }
            if state == Some(State::Committed) || is_committed == Some(true) {
                tally.committed += 1;
                history.committed.insert(tx, deeds);
            } else {
                tally.rolled_back += 1;
            }
        }
        if let Err(anomaly) = history.check() {
            panic!("{anomaly:?}");
        }
        tally
    }
}

fn returning_new(mut request: TransactionRequest) -> TransactionRequest {
    request.return_values = ReturnValues::AllNew;
    request
}

/// One run, to its end.
async fn transfers(bank: Bank, seed: u64, scale: Scale) -> Tally {
    // The pauses also come from the seed.
    fastrand::seed(seed);
    let mut rng = fastrand::Rng::with_seed(seed);
    for number in 0..scale.accounts {
        let mut item = account(&name(number), BALANCE);
        item.insert("writers".into(), AttributeValue::L(Vec::new()));
        bank.write(item).await;
    }
    let run = Rc::new(Run { bank, scale, start: Instant::now(), known: RefCell::default(), tally: RefCell::default() });
    let tasks = LocalSet::new();
    for _ in 0..2 {
        tasks.spawn_local(Rc::clone(&run).sweep_now_and_then(rng.fork()));
    }
    let mut work = Vec::new();
    for _ in 0..2 {
        work.push(tasks.spawn_local(Rc::clone(&run).observe(rng.fork(), scale.transfers)));
    }
    for _ in 0..scale.coordinators {
        work.push(tasks.spawn_local(Rc::clone(&run).coordinate(rng.fork())));
    }
    tasks.run_until(try_join_all(work)).await.expect("no task panics");
    drop(tasks);
    run.settle().await
}

const SCALE: Scale = Scale {
    accounts: 50,
    coordinators: 16,
    transfers: 8,
    policy: Policy {
        patience_ms: 300,
        contention_ms: 5000,
        idle_ms: 5000,
        retention_ms: 7 * 24 * 3_600_000,
        frees_behind_answers: false,
    },
    longest: Duration::from_secs(4),
    pause: Duration::from_millis(500),
};

#[test]
fn transfers_are_serialisable_under_faults() {
    let all = run_seeds("transfers_are_serialisable", 20, async |seed| transfers(Bank::new().await, seed, SCALE).await);
    let mut tally = Tally::default();
    for one in &all {
        tally.add(one);
    }
    println!("{tally:?}");
    assert!(tally.committed > tally.rolled_back && tally.crashed > 0 && tally.totals > 0, "too little: {tally:?}");
}

/// Runs fewer transfers, since its time is real.
#[tokio::test]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
async fn transfers_on_dynamodb_local_are_serialisable() {
    let scale = Scale {
        accounts: 20,
        coordinators: 8,
        policy: Policy { patience_ms: 200, idle_ms: 2000, ..SCALE.policy },
        longest: Duration::from_secs(2),
        pause: Duration::from_millis(100),
        ..SCALE
    };
    let tally = transfers(Bank::dynamodb_local().await, 1, scale).await;
    println!("{tally:?}");
    assert!(tally.committed > tally.rolled_back && tally.totals > 0, "too little: {tally:?}");
}
