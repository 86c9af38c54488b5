//! The history: its table, the function on the stream of the lock table, and the changes that the engine tells.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_api::{Recorder, Service, image};
use leasehold_dynamodb::Clock;
use leasehold_engine::{Change, Engine};
use leasehold_lambda::Function;
use leasehold_protocol::history::{
    HistoryEvent, HistoryQuery, HistoryTable, RowChange, ensure_history_table, transition,
};
use leasehold_protocol::{AcquireAll, LockKey, LockTable, Policy, Rvn, Staleness, TableSchema, Wanted, ensure_table};
use leasehold_tests::{acquire, heartbeat, key, release};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;

const RETENTION: Duration = Duration::from_mins(1);
/// The clock of the history.
const NOW_MS: u64 = 1_800_000_000_000;

struct Bench {
    engine: Engine,
    dynamodb: Client,
    locks: LockTable,
    changes: Receiver<Change>,
    recorder: Recorder,
}

impl Bench {
    async fn new() -> Self {
        let engine = Engine::memory().expect("memory is to be had");
        let dynamodb = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
        let schema = TableSchema::new("locks");
        ensure_table(&dynamodb, &schema).await.expect("a new table");
        ensure_history_table(&dynamodb, "past").await.expect("a new table");
        let changes = engine.follow("locks", vec!["key".to_owned()]);
        let clock = Clock::from_fn(|| NOW_MS);
        let history = HistoryTable::new(dynamodb.clone(), "past", RETENTION);
        let locks = LockTable::new(dynamodb.clone(), schema.clone(), Policy::default(), clock);
        Self { engine, dynamodb, locks, changes, recorder: Recorder { schema, history } }
    }

    /// The changes since the last look.
    fn changes(&mut self) -> Vec<Change> {
        std::iter::from_fn(|| self.changes.try_recv().ok()).collect()
    }

    async fn take(&self, owner: &str, staleness: Staleness) -> String {
        let answer = self.locks.acquire(&acquire(owner, 1000, staleness)).await.expect("an answer");
        let leasehold_protocol::AcquireAnswer::Granted(grant) = answer else { panic!("{answer:?}") };
        grant.row.rvn.into_value().expect("a version")
    }

    async fn told(&self) -> Vec<(u64, HistoryEvent, String)> {
        let query = HistoryQuery { key: key(), since_ms: None, until_ms: None, limit: 100, after: None };
        let page = self.recorder.history.page(&query).await.expect("a page");
        let told = |(at, entry): (u64, leasehold_protocol::history::HistoryEntry)| {
            (at, entry.event, entry.owner_name.expect("an owner"))
        };
        page.entries.into_iter().map(told).collect()
    }
}

fn observed(rvn: &str) -> Staleness {
    Staleness::Observed(Rvn::new("", rvn).expect("valid"))
}

/// A change as the stream of the table has it.
fn record(number: usize, change: &Change, by_ttl: bool) -> Value {
    let image = |json: &Option<String>| json.as_ref().map(|json| serde_json::from_str::<Value>(json).expect("JSON"));
    let name = match (&change.old, &change.new) {
        (None, _) => "INSERT",
        (_, None) => "REMOVE",
        _ => "MODIFY",
    };
    let mut record = json!({ "eventName": name, "dynamodb": {
        "ApproximateCreationDateTime": 1_800_000_000.0, "SequenceNumber": format!("{}", 111_000_000_000_000_000_000_u128 + number as u128),
    } });
    for (member, image) in [("OldImage", image(&change.old)), ("NewImage", image(&change.new))] {
        if let Some(image) = image {
            record["dynamodb"][member] = image;
        }
    }
    if by_ttl {
        record["userIdentity"] = json!({ "type": "Service", "principalId": "dynamodb.amazonaws.com" });
    }
    record
}

#[tokio::test]
async fn engine_tells_each_change_once_and_in_order() {
    let mut bench = Bench::new().await;
    // The first requests of their form take the long way, and those after them the short one.
    for _ in 0..3 {
        bench.take("ann", Staleness::Never).await;
        bench.locks.heartbeat(&heartbeat("ann")).await.expect("renewed");
        // Refused: it changes nothing.
        bench.locks.acquire(&acquire("bob", 1000, Staleness::Never)).await.expect("an answer");
        bench.locks.release(&release("ann")).await.expect("released");
        bench
            .dynamodb
            .delete_item()
            .table_name("locks")
            .key("key", AttributeValue::S("Moe".into()))
            .send()
            .await
            .expect("gone");
    }
    // A transaction of two locks, and a put of another client.
    let wanted = ["Moe", "Joe"].map(|name| {
        Wanted::Lock(leasehold_protocol::Acquire {
            key: LockKey::new(name, None).expect("valid"),
            ..acquire("cyd", 1000, Staleness::Never)
        })
    });
    bench.locks.acquire_all(&AcquireAll::new(wanted.into()).expect("valid")).await.expect("granted");
    let row = |json: &Option<String>| {
        let item = json.as_ref().map(|json| image(json).expect("an image"));
        item.and_then(|item| bench.locks.schema().decode_row(item))
    };
    let changes = std::iter::from_fn(|| bench.changes.try_recv().ok()).collect::<Vec<_>>();
    let moes: Vec<_> = changes.iter().map(|change| (row(&change.old), row(&change.new))).collect();
    let moes: Vec<_> =
        moes.iter().filter(|(old, new)| old.as_ref().or(new.as_ref()).is_some_and(|row| row.key == key())).collect();
    assert_eq!(moes.len(), 13, "four in each round, and the last");
    for pair in moes.windows(2) {
        assert_eq!(pair[0].1, pair[1].0, "each begins where the one before ends");
    }
    let events: Vec<_> = moes
        .iter()
        .filter_map(|(old, new)| transition(old.as_ref(), new.as_ref(), false))
        .map(|entry| entry.event)
        .collect();
    let round = [HistoryEvent::Acquired, HistoryEvent::Released];
    assert_eq!(events, [&round[..], &round, &round, &[HistoryEvent::Acquired]].concat());
    // A semaphore in the place of a held lock: its row was deleted between.
    let held = moes.last().and_then(|(_, new)| new.clone()).expect("it is held");
    let mut semaphore = held.clone();
    semaphore.other_kind = true;
    let told = transition(Some(&held), Some(&semaphore), false).map(|entry| entry.event);
    assert_eq!(told, Some(HistoryEvent::Deleted));
}

#[tokio::test]
async fn function_on_the_stream_records_each_turn_once() {
    let mut bench = Bench::new().await;
    let first = bench.take("ann", Staleness::Never).await;
    let rvn = bench.take("bob", observed(&first)).await;
    let seen = Rvn::new("", rvn).expect("valid");
    bench.locks.break_lock(&leasehold_protocol::Break { key: key(), seen }).await.expect("broken");
    bench.take("cyd", Staleness::Never).await;
    bench.locks.release(&release("cyd")).await.expect("released");
    bench.take("dan", Staleness::Never).await;
    bench
        .dynamodb
        .delete_item()
        .table_name("locks")
        .key("key", AttributeValue::S("Moe".into()))
        .send()
        .await
        .expect("gone");
    let changes = bench.changes();
    let last = changes.len() - 1;
    let records: Vec<_> =
        changes.iter().enumerate().map(|(number, change)| record(number, change, number == last)).collect();
    let service = Service::new(bench.locks.clone()).with_history(bench.recorder.history.clone());
    let mut function = Function::unrestricted(service);
    function.recorder = Some(bench.recorder.clone());
    // Lambda delivers at least once.
    for _ in 0..2 {
        let recorded = function.answer_stream(json!({ "Records": records })).await.expect("recorded");
        assert_eq!(recorded, 7);
    }
    let mut told = bench.told().await;
    told.reverse();
    let events: Vec<_> = told.iter().map(|(_, event, owner)| (*event, owner.as_str())).collect();
    assert_eq!(
        events,
        [
            (HistoryEvent::Acquired, "ann"),
            (HistoryEvent::TakenOver, "bob"),
            (HistoryEvent::Broken, "bob"),
            (HistoryEvent::Acquired, "cyd"),
            (HistoryEvent::Released, "cyd"),
            (HistoryEvent::Acquired, "dan"),
            (HistoryEvent::Expired, "dan"),
        ]
    );
    assert!(told.iter().all(|(at, ..)| *at == 1_800_000_000_000));
    // A stream of new images alone would make wrong entries, so it is refused.
    let mut blind = record(1, &changes[1], false);
    blind["dynamodb"].as_object_mut().expect("an object").remove("OldImage");
    let refused = function.answer_stream(json!({ "Records": [blind] })).await.expect_err("no old image");
    assert!(refused.error_message.contains("new and old images"), "{}", refused.error_message);
}

#[tokio::test]
async fn pages_of_a_history_have_their_time_and_their_end() {
    let bench = Bench::new().await;
    let row = |owner: &str| {
        let texts = [("key", "Moe"), ("ownerName", owner), ("leaseDuration", "1000"), ("recordVersionNumber", owner)];
        let row = texts.map(|(name, text)| (name.to_owned(), AttributeValue::S(text.to_owned())));
        Some(leasehold_protocol::Item::from(row))
    };
    let change = |at_ms: u64, owner: &str| RowChange {
        at_ms,
        sequence: "9".to_owned(),
        old: None,
        new: row(owner),
        is_expiry: false,
    };
    let changes = (0..5).map(|second| change(NOW_MS + second * 1000, &format!("owner {second}"))).collect();
    assert_eq!(bench.recorder.record(changes).await.expect("recorded"), 5);
    let query = HistoryQuery { key: key(), since_ms: None, until_ms: None, limit: 2, after: None };
    let page = async |query: &HistoryQuery| bench.recorder.history.page(query).await.expect("a page");
    let (mut times, mut after) = (Vec::new(), None);
    loop {
        let page = page(&HistoryQuery { after: after.clone(), ..query.clone() }).await;
        times.extend(page.entries.iter().map(|(at, _)| (at - NOW_MS) / 1000));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(times, [4, 3, 2, 1, 0]);
    // Both bounds are part of the time.
    let (since_ms, until_ms) = (Some(NOW_MS + 1000), Some(NOW_MS + 3000));
    let within = page(&HistoryQuery { since_ms, until_ms, limit: 100, ..query.clone() }).await;
    assert_eq!(within.entries.iter().map(|(at, _)| (at - NOW_MS) / 1000).collect::<Vec<_>>(), [3, 2, 1]);
    let of_another = page(&HistoryQuery { key: LockKey::new("Joe", None).expect("valid"), ..query.clone() }).await;
    assert_eq!(of_another.entries, []);
    let forged = HistoryQuery { after: Some("yesterday".to_owned()), ..query.clone() };
    assert!(bench.recorder.history.page(&forged).await.is_err());
    // The retention counts from the change.
    let mut rounds = bench.engine.expiry();
    for (now_ms, expected) in [(NOW_MS + 60_000, 0), (NOW_MS + 63_000, 0), (NOW_MS + 63_000, 3)] {
        assert_eq!(rounds.round(now_ms / 1000).await.expect("a round"), expected);
    }
    assert_eq!(bench.told().await.len(), 2);
}
