//! Every fault at every step. A script of calls is carried out once without faults, which counts its requests to
//! DynamoDB; then again for each of these requests and each fault. In each case, after one sweep, the script's
//! transaction has happened completely or not at all. No lock and no image is left, and the caller's answer agrees with
//! the outcome.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_tests::bank::{ACCOUNTS, Bank, account, add, delete, get, put, when};
use leasehold_tests::{Fault, Faults};
use leasehold_transactions::{
    Action, Answer, Error, Item, ItemKey, Operation, Participant, Policy, ReturnValues, State, TransactionId,
    TransactionRequest, Transactions,
};

const ID: &str = "4f3c6f0e-9d1b-4a53-8a1f-0c8f5b3a7e11";

/// Longer than any caller waits.
const IDLE: Duration = Duration::from_mins(2);
const RETENTION: Duration = Duration::from_hours(8 * 24);

/// Faults that a coordinator survives.
const SURVIVED: [Fault; 9] = [
    Fault::ResponseLost,
    Fault::Late(Duration::from_millis(1010)),
    Fault::Twice,
    Fault::Copied,
    Fault::Late(Duration::from_secs(3)),
    Fault::RequestLost,
    Fault::Throttled,
    Fault::ServerError,
    Fault::TransactionConflict,
];

const DEADLY: [Fault; 2] = [Fault::DiesBefore, Fault::DiesAfter];

/// The actions of other coordinators while this one sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Others {
    Commit,
    RollBack,
    /// A sweeper judges the transaction idle.
    Sweep,
    /// As `Sweep`, and the retention is over, too.
    SweepAndRemove,
    CommitAndRemove,
    /// Another coordinator carries out the same calls, because the caller did not want to wait.
    Repeat,
    /// As `Repeat`, but without the call that ends the transaction.
    RepeatAdds,
}

const OTHERS: [Others; 7] = [
    Others::Commit,
    Others::RollBack,
    Others::Sweep,
    Others::SweepAndRemove,
    Others::CommitAndRemove,
    Others::Repeat,
    Others::RepeatAdds,
];

/// A trial: the request at which a fault occurs (from 1), and the fault.
#[derive(Debug, Clone, Copy)]
enum Trial {
    Nothing,
    Fault(usize, Fault),
    /// The coordinator falls asleep before this request.
    Sleep(usize, Others),
}

#[derive(Debug, Clone)]
enum Call {
    Begin,
    BeginWith(Vec<TransactionRequest>),
    Add(Vec<TransactionRequest>),
    Commit,
    Rollback,
    Run(Vec<TransactionRequest>),
}

/// The transaction that holds the account `a` when the script begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rival {
    Nobody,
    /// A transaction without a working coordinator.
    Idle,
    /// A transaction that is committed, whose coordinator died before it freed its items.
    Committed,
}

#[derive(Debug, Clone)]
struct Script {
    before: Vec<Item>,
    rival: Rival,
    calls: Vec<Call>,
}

type Accounts = BTreeMap<String, Item>;

impl Script {
    /// A script on three accounts.
    fn new(calls: impl IntoIterator<Item = Call>) -> Self {
        let before = vec![account("a", 100), account("b", 200), account("c", 300)];
        Self { before, rival: Rival::Nobody, calls: calls.into_iter().collect() }
    }

    fn requests(&self) -> impl Iterator<Item = &TransactionRequest> {
        self.calls.iter().flat_map(|call| match call {
            Call::BeginWith(requests) | Call::Add(requests) | Call::Run(requests) => requests.as_slice(),
            Call::Begin | Call::Commit | Call::Rollback => &[],
        })
    }

    fn but_the_end(&self) -> &[Call] {
        let ends = |call: &Call| matches!(call, Call::Commit | Call::Rollback | Call::Run(_));
        &self.calls[..self.calls.iter().position(ends).unwrap_or(self.calls.len())]
    }

    /// Whether the script writes an item that it has read: a repeat of the read then sees the write.
    fn upgrades(&self) -> bool {
        let is_get = |request: &&TransactionRequest| matches!(request.action, Action::Get { .. });
        let id = |request: &TransactionRequest| key_and_operation(request).0["id"].clone();
        self.requests().filter(is_get).any(|get| self.requests().any(|other| !is_get(&other) && id(get) == id(other)))
    }

    /// The accounts after a transaction with these participants.
    fn after(&self, before: &Accounts, took_part: &[Participant]) -> Accounts {
        let mut accounts = before.clone();
        for participant in took_part {
            let AttributeValue::S(id) = &participant.key.attributes()["id"] else { panic!("no account") };
            let request = self.requests().find(|request| {
                let (key, operation) = key_and_operation(request);
                operation == participant.operation && key["id"] == participant.key.attributes()["id"]
            });
            let request = request.expect("a request of the script");
            match &request.action {
                Action::Get { .. } | Action::Check { .. } => {}
                Action::Put { item } => drop(accounts.insert(id.clone(), item.clone())),
                Action::Delete { .. } => drop(accounts.remove(id)),
                Action::Update { .. } => {
                    let amount = number(&request.values, ":amount");
                    let balance = accounts.get(id).map_or(0, |item| number(item, "balance"));
                    accounts.insert(id.clone(), account(id, balance + amount));
                }
            }
        }
        accounts
    }
}

fn number(item: &Item, name: &str) -> i64 {
    item[name].as_n().expect("a number").parse().expect("a whole number")
}

async fn carry_out(transactions: &Transactions, calls: &[Call]) -> Result<Vec<Answer>, Error> {
    let id = TransactionId::parse(ID).expect("a UUID");
    let mut answers = Vec::new();
    for (number, call) in calls.iter().enumerate() {
        let call_id = number.to_string();
        match call.clone() {
            Call::Begin => drop(transactions.begin(Some(id.clone()), None).await?),
            Call::BeginWith(requests) => {
                answers.extend(transactions.begin_with(Some(id.clone()), None, requests).await?.1);
            }
            Call::Add(requests) => answers.extend(transactions.add(&id, requests, Some(&call_id)).await?),
            Call::Commit => transactions.commit(&id).await?,
            Call::Rollback => transactions.rollback(&id).await?,
            Call::Run(requests) => answers.extend(transactions.run(Some(id.clone()), None, requests).await?.1),
        }
    }
    Ok(answers)
}

/// The outcome that the caller may believe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Committed,
    RolledBack,
    Nothing,
}

impl Told {
    fn by(result: &Result<Vec<Answer>, Error>, script: &Script) -> Self {
        match result {
            Ok(_) if matches!(script.calls.last(), Some(Call::Rollback)) => Self::RolledBack,
            Ok(_) | Err(Error::Committed) => Self::Committed,
            Err(
                Error::RolledBack { .. }
                | Error::ConditionFailed { .. }
                | Error::InvalidRequest { .. }
                | Error::TooLarge(_),
            ) => Self::RolledBack,
            Err(_) => Self::Nothing,
        }
    }
}

struct Stage {
    bank: Bank,
    before: Accounts,
    coordinator: Transactions,
    faults: Faults,
    /// The policy has little patience, so that contenders make few reads in which faults can occur.
    policy: Policy,
}

impl Stage {
    async fn set(script: &Script) -> Self {
        // A fixed seed, for the same pauses in every run.
        fastrand::seed(5);
        let bank = Bank::new().await;
        for item in &script.before {
            bank.write(item.clone()).await;
        }
        let policy = Policy { patience_ms: 40, ..Policy::default() };
        let (rival, rivals_faults) = bank.coordinator(policy, Duration::ZERO);
        let rivals = || std::iter::once(add("a", 1000)).chain((1..50).map(|number| add(&format!("rival-{number}"), 1)));
        match script.rival {
            Rival::Nobody => {}
            Rival::Idle => drop(rival.begin_with(None, None, vec![add("a", 1000)]).await.expect("begun")),
            Rival::Committed => {
                let (id, _) = rival.begin_with(None, None, rivals().collect()).await.expect("begun");
                // The coordinator reads the transaction and its items, decides, and then dies before it completes it.
                rivals_faults.at(3, Fault::DiesAfter);
                tokio::select! {
                    _ = rival.commit(&id) => panic!("it should have died"),
                    () = rivals_faults.reached() => {}
                }
            }
        }
        let (coordinator, faults) = bank.coordinator(policy, Duration::ZERO);
        let mut before: Accounts = script.before.iter().map(|item| (id_of(item), item.clone())).collect();
        if script.rival == Rival::Committed {
            let took_part = rivals().map(|request| Participant {
                key: ItemKey::new(ACCOUNTS, key_and_operation(&request).0.clone()),
                operation: Operation::Update,
            });
            let rivals = Script { calls: vec![Call::Run(rivals().collect())], ..script.clone() };
            before = rivals.after(&before, &took_part.collect::<Vec<_>>());
        }
        Self { bank, before, coordinator, faults, policy }
    }

    async fn accounts(&self) -> Accounts {
        self.bank.scan(ACCOUNTS).await.into_iter().map(|item| (id_of(&item), item)).collect()
    }

    async fn sweep(&self, ahead: Duration) {
        let (sweeper, _) = self.bank.coordinator(self.policy, ahead);
        let swept = self.bank.sweep_idle(&sweeper).await;
        assert!(swept.failed == 0 && !swept.more, "{swept:?}");
    }

    /// The outcome of the transaction; `None`, if it is unknown.
    async fn outcome(&self) -> Option<(State, Vec<Participant>)> {
        let (observer, _) = self.bank.coordinator(self.policy, Duration::ZERO);
        match observer.status(&TransactionId::parse(ID).expect("a UUID").public()).await {
            Ok(status) => Some((status.state, status.requests)),
            Err(Error::NotFound) => None,
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn id_of(item: &Item) -> String {
    item["id"].as_s().expect("a text").clone()
}

/// The key, or an item that contains it; and the operation of the request.
fn key_and_operation(request: &TransactionRequest) -> (&Item, Operation) {
    let key = match &request.action {
        Action::Put { item } => item,
        Action::Get { key, .. } | Action::Check { key } | Action::Update { key, .. } | Action::Delete { key } => key,
    };
    (key, request.action.operation())
}

/// Runs a script under one fault. Returns the answer to its caller, if the caller lived, and the number of requests.
async fn run(script: &Script, trial: Trial) -> (Option<Result<Vec<Answer>, Error>>, usize) {
    let stage = Stage::set(script).await;
    let id = TransactionId::parse(ID).expect("a UUID");
    let mut removed = None;
    match trial {
        Trial::Nothing => {}
        Trial::Fault(step, fault) => stage.faults.at(step, fault),
        Trial::Sleep(step, _) => stage.faults.at(step, Fault::Held),
    }
    let result = {
        let mut work = std::pin::pin!(carry_out(&stage.coordinator, &script.calls));
        tokio::select! {
            biased;
            result = &mut work => Some(result),
            () = stage.faults.reached() => match trial {
                Trial::Sleep(_, others) => {
                    let (other, _) = stage.bank.coordinator(stage.policy, Duration::ZERO);
                    match others {
                        Others::Commit | Others::CommitAndRemove => drop(other.commit(&id).await),
                        Others::RollBack => drop(other.rollback(&id).await),
                        Others::Sweep | Others::SweepAndRemove => stage.sweep(IDLE).await,
                        Others::Repeat => drop(carry_out(&other, &script.calls).await),
                        Others::RepeatAdds => drop(carry_out(&other, script.but_the_end()).await),
                    }
                    if matches!(others, Others::SweepAndRemove | Others::CommitAndRemove) {
                        removed = stage.outcome().await;
                        stage.sweep(IDLE).await;
                        stage.bank.expire(RETENTION).await;
                    }
                    stage.faults.release();
                    Some(work.await)
                }
                _ => None,
            },
        }
    };
    let calls = stage.faults.take_calls();
    // Late requests arrive.
    tokio::time::sleep(Duration::from_secs(5)).await;
    stage.sweep(IDLE).await;
    stage.faults.deliver_copies().await;

    stage.bank.assert_clean().await;
    let accounts = stage.accounts().await;
    let outcome = stage.outcome().await.or(removed);
    let expected = match &outcome {
        None | Some((State::RolledBack, _)) => stage.before.clone(),
        Some((State::Committed, took_part)) => script.after(&stage.before, took_part),
        Some((State::Pending, _)) => panic!("it was not swept"),
    };
    assert_eq!(accounts, expected, "{outcome:?}, told {result:?}");
    let is_committed = matches!(outcome, Some((State::Committed, _)));
    match result.as_ref().map_or(Told::Nothing, |result| Told::by(result, script)) {
        Told::Committed => assert!(is_committed, "told {result:?}"),
        Told::RolledBack => assert!(!is_committed, "told {result:?}"),
        Told::Nothing => {}
    }
    (result, calls)
}

/// Runs all trials of a script. `expected` is its outcome without faults. For large scripts, faults that look the same
/// to the coordinator are tried once.
async fn prove(script: Script, expected: Told) {
    let is_large = script.before.len() > 20 || script.rival == Rival::Committed;
    let survived = if is_large { &SURVIVED[..4] } else { &SURVIVED };
    let (result, calls) = run(&script, Trial::Nothing).await;
    let undisturbed = result.expect("nobody dies");
    assert_eq!(Told::by(&undisturbed, &script), expected, "{undisturbed:?}");
    let mut failed = Vec::new();
    for step in 1..=calls {
        let faults = survived.iter().copied().chain(DEADLY).map(|fault| Trial::Fault(step, fault));
        for trial in faults.chain(OTHERS.map(|others| Trial::Sleep(step, others))) {
            // All failed trials are reported, not only the first.
            let outcome = tokio::spawn(attempt(script.clone(), trial, balances(&undisturbed))).await;
            if outcome.is_err() {
                failed.push(trial);
            }
        }
    }
    assert!(failed.is_empty(), "of {calls} steps: {failed:#?}");
}

async fn attempt(script: Script, trial: Trial, undisturbed: Result<Vec<Option<i64>>, String>) {
    let (result, _) = run(&script, trial).await;
    let result = result.map(|result| balances(&result));
    match trial {
        Trial::Fault(_, fault) if DEADLY.contains(&fault) => {}
        Trial::Nothing | Trial::Fault(..) => assert_eq!(result.expect("it lives"), undisturbed),
        Trial::Sleep(_, Others::RepeatAdds) if undisturbed.is_ok() => {
            let result = result.expect("it lives").expect("nobody ended the transaction");
            assert!(script.upgrades() || Ok(result) == undisturbed, "another answer than undisturbed");
        }
        // The caller may get an error, because another coordinator got the answer or ended the transaction in its own
        // way.
        Trial::Sleep(..) => {
            if let Some(Ok(result)) = result {
                assert_eq!(Ok(result), undisturbed);
            }
        }
    }
}

fn balances(result: &Result<Vec<Answer>, Error>) -> Result<Vec<Option<i64>>, String> {
    let balance = |answer: &Answer| answer.item.as_ref().map(|item| number(item, "balance"));
    result.as_ref().map(|answers| answers.iter().map(balance).collect()).map_err(ToString::to_string)
}

/// Sweepers also die and sleep at every step.
#[tokio::test(start_paused = true)]
async fn sweepers() {
    let mut step = 1;
    while sweep_under(step, None).await {
        for fault in SURVIVED.into_iter().chain(DEADLY).chain([Fault::Held]) {
            sweep_under(step, Some(fault)).await;
        }
        step += 1;
    }
    assert!(step > 10, "a sweep has more steps");
}

/// Whether a sweep has this step.
async fn sweep_under(step: usize, fault: Option<Fault>) -> bool {
    let script = Script::new([Call::BeginWith(vec![add("a", 1), put("new", 1), get("missing"), delete("b")])]);
    let stage = Stage::set(&script).await;
    carry_out(&stage.coordinator, &script.calls).await.expect("begun");
    let (sweeper, faults) = stage.bank.coordinator(stage.policy, IDLE);
    let (other, _) = stage.bank.coordinator(stage.policy, IDLE);
    for watching in [&sweeper, &other] {
        assert_eq!(watching.sweeper.sweep(100).await.expect("swept").watched, 1);
    }
    tokio::time::sleep(IDLE).await;
    faults.take_calls();
    if let Some(fault) = fault {
        faults.at(step, fault);
    }
    {
        let mut work = std::pin::pin!(sweeper.sweeper.sweep(100));
        tokio::select! {
            biased;
            _ = &mut work => {}
            () = faults.reached() => if fault == Some(Fault::Held) {
                assert_eq!(other.sweeper.sweep(100).await.expect("swept").failed, 0);
                faults.release();
                let swept = work.await.expect("swept");
                assert_eq!(swept.failed, 0, "the other one did it: {swept:?}");
            },
        }
    }
    let calls = faults.take_calls();
    tokio::time::sleep(Duration::from_secs(5)).await;
    // A failed sweep is made up for by the next one but one idle time later.
    stage.sweep(IDLE + IDLE).await;
    faults.deliver_copies().await;
    stage.bank.assert_clean().await;
    assert_eq!(stage.accounts().await, stage.before, "step {step}, {fault:?}");
    let outcome = stage.outcome().await.map(|(state, _)| state);
    assert_eq!(outcome, Some(State::RolledBack), "it is kept, at step {step}, {fault:?}");
    calls >= step
}

fn returning(mut request: TransactionRequest, values: ReturnValues) -> TransactionRequest {
    request.return_values = values;
    request
}

/// Updates of more accounts than one batch has, half of which are new.
fn many() -> Vec<TransactionRequest> {
    (0..50).map(|number| add(&format!("many-{number}"), 1)).collect()
}

fn with_many(calls: impl IntoIterator<Item = Call>) -> Script {
    let mut script = Script::new(calls);
    script.before.extend((0..25).map(|number| account(&format!("many-{number}"), 10)));
    script
}

macro_rules! matrix {
    ($($name:ident: $script:expr => $expected:ident;)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $name() {
                prove($script, Told::$expected).await;
            }
        )*
    };
}

matrix! {
    updates: Script::new([Call::Begin, Call::Add(vec![add("a", -1), add("b", 1)]), Call::Commit]) => Committed;
    puts_and_inserts: Script::new([
        Call::Begin,
        Call::Add(vec![put("a", 1), put("new", 2), add("other", 3)]),
        Call::Commit,
    ]) => Committed;
    deletes: Script::new([Call::Begin, Call::Add(vec![delete("a"), delete("missing")]), Call::Commit]) => Committed;
    read_locks: Script::new([Call::Begin, Call::Add(vec![get("a"), get("missing")]), Call::Commit]) => Committed;
    upgrades: Script::new([
        Call::Begin,
        Call::Add(vec![get("a"), get("b"), get("missing"), get("new")]),
        Call::Add(vec![
            when(add("a", 1), "attribute_exists(id)"),
            delete("b"),
            when(put("new", 7), "attribute_not_exists(id)"),
        ]),
        Call::Commit,
    ]) => Committed;
    two_adds: Script::new([
        Call::Begin,
        Call::Add(vec![add("a", 1), put("b", 7)]),
        Call::Add(vec![delete("c"), add("new", 1), get("a")]),
        Call::Commit,
    ]) => Committed;
    answers_of_an_open_transaction: Script::new([
        Call::BeginWith(vec![returning(put("a", 1), ReturnValues::AllOld), returning(add("b", 1), ReturnValues::AllNew)]),
        Call::Add(vec![returning(add("c", 1), ReturnValues::AllOld), returning(add("new", 1), ReturnValues::AllOld)]),
        Call::Commit,
    ]) => Committed;
    many_batches: with_many([Call::Begin, Call::Add(many()), Call::Commit]) => Committed;
    many_batches_rolled_back: with_many([Call::Begin, Call::Add(many()), Call::Rollback]) => RolledBack;
    rollback: Script::new([
        Call::Begin,
        Call::Add(vec![add("a", 1), delete("b"), put("new", 1), get("c"), get("missing")]),
        Call::Add(vec![put("c", 1), delete("missing")]),
        Call::Rollback,
    ]) => RolledBack;
    one_shot: Script::new([Call::Run(vec![add("a", -1), put("b", 1), delete("c"), add("new", 1)])]) => Committed;
    one_shot_of_reads: Script::new([Call::Run(vec![get("a"), get("missing")])]) => Committed;
    one_shot_with_answers: Script::new([Call::Run(vec![
        returning(add("a", -1), ReturnValues::AllNew),
        returning(put("b", 1), ReturnValues::AllOld),
        returning(delete("c"), ReturnValues::AllOld),
        returning(add("new", 1), ReturnValues::AllOld),
        get("missing"),
    ])]) => Committed;
    one_shot_of_many: with_many([Call::Run(
        many().into_iter().map(|request| returning(request, ReturnValues::AllNew)).collect(),
    )]) => Committed;
    one_shot_that_meets_an_idle_one: Script {
        rival: Rival::Idle,
        ..Script::new([Call::Run(vec![add("a", 1), add("b", 1)])])
    } => Committed;
    one_shot_that_meets_a_committed_one: Script {
        rival: Rival::Committed,
        ..Script::new([Call::Run(vec![add("a", 1), delete("rival-1")])])
    } => Committed;
    condition_failed: Script::new([
        Call::Begin,
        Call::Add(vec![add("a", 1)]),
        Call::Add(vec![add("b", 1), when(add("c", 1), "attribute_not_exists(id)")]),
    ]) => RolledBack;
    condition_failed_of_a_one_shot: Script::new([
        Call::Run(vec![add("b", 1), when(add("c", 1), "attribute_not_exists(id)")]),
    ]) => RolledBack;
    condition_failed_of_a_one_shot_with_answers: Script::new([Call::Run(vec![
        returning(add("b", 1), ReturnValues::AllNew),
        when(add("c", 1), "attribute_not_exists(id)"),
    ])]) => RolledBack;
    nonsense: {
        let mut script = Script::new([Call::Begin, Call::Add(vec![add("a", 1), add("text", 1)]), Call::Commit]);
        let mut text = account("text", 0);
        text.insert("balance".into(), AttributeValue::S("much".into()));
        script.before.push(text);
        script
    } => RolledBack;
}
