//! Measurements of docs/performance.md, in real time.
//! `cargo test --workspace --test it -- --ignored --nocapture measure_` prints them.

use std::future::Future;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, BatchStatementRequest};
use futures_util::{StreamExt, stream};
use leasehold_tests::bank::{ACCOUNTS, Bank, TRANSACTIONS, account, add, begin, key};
use leasehold_transactions::{Error, Item, Policy, TransactionId, Transactions};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

const LOAD: Duration = Duration::from_secs(20);
const ONE_SHOTS_A_SECOND: u32 = 400;
const ABANDONED_A_SECOND: u32 = 20;
const IDLE: Duration = Duration::from_secs(2);

/// Calls `work` at this rate, as far as the machine allows. Returns the number of calls.
async fn at_rate<F: Future<Output = ()> + Send + 'static>(a_second: u32, mut work: impl FnMut(u32) -> F) -> u32 {
    let mut ticks = interval(Duration::from_secs(1) / a_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut running = tokio::task::JoinSet::new();
    let mut count = 0;
    let until = Instant::now() + LOAD;
    while Instant::now() < until {
        ticks.tick().await;
        if running.len() >= 64 {
            running.join_next().await;
        }
        running.spawn(work(count));
        count += 1;
    }
    running.join_all().await;
    count
}

fn number(row: &Item, name: &str) -> u64 {
    row[name].as_n().expect("a number").parse().expect("whole")
}

/// Measures the age of abandoned transactions that are idle after two seconds, while others are done in one call.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn measure_the_age_of_abandoned_transactions() {
    let bank = Bank::new().await;
    let policy = Policy { idle_ms: u64::try_from(IDLE.as_millis()).expect("short"), ..Policy::default() };
    let coordinator = || bank.coordinator(policy, Duration::ZERO).0;
    let (worker, leaver, sweeper) = (coordinator(), coordinator(), coordinator());
    let one_shot = |number: u32| {
        let worker: Transactions = worker.clone();
        async move {
            let requests = vec![add(&format!("busy-{}", number % 1000), 1)];
            worker.run(Some(TransactionId::fresh()), None, requests).await.expect("done");
        }
    };
    let abandon = |number: u32| {
        let leaver: Transactions = leaver.clone();
        async move {
            let id = begin(&leaver).await;
            let added = leaver.add(&id, vec![add(&format!("left-{number}"), 1)], None).await;
            // On a machine under high load, the transaction may be idle before it is added to.
            assert!(matches!(added, Ok(_) | Err(Error::RolledBack { .. })), "{added:?}");
        }
    };
    // Sweeps like `leasehold serve`.
    let sweep = async {
        loop {
            sleep(IDLE).await;
            while sweeper.sweeper.sweep(100).await.expect("swept").more {}
        }
    };
    let work = async {
        let done = tokio::join!(at_rate(ONE_SHOTS_A_SECOND, one_shot), at_rate(ABANDONED_A_SECOND, abandon));
        sleep(3 * IDLE).await;
        done
    };
    let (one_shots, abandoned) = tokio::select! { never = sweep => never, done = work => done };
    let rows = bank.scan(TRANSACTIONS).await;
    let is_swept = |row: &&Item| row.get("state") == Some(&AttributeValue::S("rolled-back".into()));
    let age = |row: &Item| number(row, "lastWorkedAt") - number(row, "createdAt");
    let mut ages: Vec<_> = rows.iter().filter(is_swept).map(age).collect();
    ages.sort_unstable();
    assert_eq!(ages.len(), usize::try_from(abandoned).expect("few"), "all of them were rolled back");
    println!(
        "{:.0} one-shots/s, {abandoned} abandoned: rolled back at an age of {} ms (median), {} ms (at most)",
        f64::from(one_shots) / LOAD.as_secs_f64(),
        ages[ages.len() / 2],
        ages[ages.len() - 1]
    );
}

/// The maximum number of concurrent calls of one completion.
const PARALLEL: usize = 16;

async fn by_statements(client: &Client, ids: &[String]) {
    let statement = |id: &String| {
        let text = format!("UPDATE \"{ACCOUNTS}\" REMOVE \"lock\" WHERE \"lock\" = ? AND \"id\" = ?");
        let parameters = vec![AttributeValue::S("held".into()), AttributeValue::S(id.clone())];
        BatchStatementRequest::builder().statement(text).set_parameters(Some(parameters)).build().expect("complete")
    };
    let calls = ids.chunks(25).map(|ids| {
        let statements = ids.iter().map(statement).collect();
        client.batch_execute_statement().set_statements(Some(statements)).send()
    });
    stream::iter(calls)
        .buffer_unordered(PARALLEL)
        .for_each(|answer| async {
            assert!(answer.expect("answered").responses().iter().all(|one| one.error().is_none()));
        })
        .await;
}

async fn by_single_writes(client: &Client, ids: &[String]) {
    let calls = ids.iter().map(|id| {
        let update = client.update_item().table_name(ACCOUNTS).set_key(Some(key(id)));
        let update = update.update_expression("REMOVE #lock").condition_expression("#lock = :held");
        let update = update.expression_attribute_names("#lock", "lock");
        update.expression_attribute_values(":held", AttributeValue::S("held".into())).send()
    });
    stream::iter(calls).buffer_unordered(PARALLEL).for_each(|answer| async { drop(answer.expect("freed")) }).await;
}

/// Measures the time in which N items are freed, by both ways in turn.
async fn free_both_ways(bank: Bank, engine: &str) {
    for count in [2_usize, 10, 25, 100] {
        let ids: Vec<_> = (0..count).map(|number| format!("item-{number}")).collect();
        let (mut statements, mut singles) = (Vec::new(), Vec::new());
        for round in 0..40 {
            for id in &ids {
                let mut item = account(id, 1);
                item.insert("lock".into(), AttributeValue::S("held".into()));
                bank.write(item).await;
            }
            let start = Instant::now();
            if round % 2 == 0 {
                by_statements(&bank.dynamodb, &ids).await;
                statements.push(start.elapsed());
            } else {
                by_single_writes(&bank.dynamodb, &ids).await;
                singles.push(start.elapsed());
            }
        }
        statements.sort();
        singles.sort();
        let calls = count.div_ceil(25);
        println!(
            "{engine}, {count} items: {:?} by {calls} calls of statements, {:?} by {count} single writes (medians of 20)",
            statements[10], singles[10]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn measure_both_ways_to_free_items() {
    free_both_ways(Bank::new().await, "embedded").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
async fn measure_freeing_items_on_the_local_engine() {
    let run = async { free_both_ways(Bank::dynamodb_local().await, "DynamoDB Local").await };
    timeout(Duration::from_mins(5), run).await.expect("in time");
}
