//! The bench of the property tests: a table on a clock that a test moves, and the runner of random sequences.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_dynamodb::{Clock, fresh_uuid};
use leasehold_engine::Engine;
use leasehold_protocol::{Item, LockTable, Policy, RESERVED_ATTRIBUTES, TableSchema, ensure_table};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// 2100-01-01, in epoch milliseconds: DynamoDB Local deletes expired rows by its own clock.
const START_MS: u64 = 4_102_444_800_000;

/// A table, the access of other clients to it, and the state of the test.
pub(crate) struct Bench<S> {
    pub(crate) table: LockTable,
    pub(crate) table_name: String,
    pub(crate) dynamodb: Client,
    pub(crate) now_ms: Arc<AtomicU64>,
    pub(crate) policy: Policy,
    pub(crate) state: S,
}

impl<S: Default> Bench<S> {
    /// Returns a bench on the embedded engine.
    pub(crate) async fn new() -> Self {
        let engine = Engine::memory().expect("memory is to be had");
        Self::on(Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build())).await
    }

    /// Returns a bench on DynamoDB Local.
    pub(crate) async fn on_dynamodb_local() -> Self {
        let endpoint = std::env::var("LEASEHOLD_TEST_DYNAMODB_ENDPOINT").expect("scripts/dynamodb-local.sh sets it");
        Self::on(leasehold_dynamodb::connect(Some(&endpoint)).await).await
    }

    /// Returns a bench on a new table.
    async fn on(dynamodb: Client) -> Self {
        let table_name = format!("property-{}", fresh_uuid());
        let schema = TableSchema::new(&table_name);
        ensure_table(&dynamodb, &schema).await.expect("a new table");
        let now_ms = Arc::new(AtomicU64::new(START_MS));
        let clock = {
            let now_ms = Arc::clone(&now_ms);
            Clock::from_fn(move || now_ms.load(Ordering::Relaxed))
        };
        let policy = Policy { retention_seconds: 60, clock_skew_ms: 500 };
        let table = LockTable::new(dynamodb.clone(), schema, policy, clock);
        Self { table, table_name, dynamodb, now_ms, policy, state: S::default() }
    }
}

impl<S> Bench<S> {
    /// The row as stored. What the protocol writes is reserved: no caller's attribute replaces it.
    pub(crate) async fn item(&self) -> Option<Item> {
        let request = self.dynamodb.get_item().table_name(&self.table_name).consistent_read(true);
        let request = request.key("key", AttributeValue::S("Moe".into()));
        let item = request.send().await.expect("the engine answers").item;
        for name in item.iter().flat_map(|item| item.keys()) {
            assert!(
                ["key", "team"].contains(&name.as_str()) || RESERVED_ATTRIBUTES.contains(&name.as_str()),
                "{name} is not reserved"
            );
        }
        item
    }
}

/// Checks random sequences of steps, each on a bench of its own. `source` is the file that keeps failed sequences.
#[allow(clippy::needless_pass_by_value, reason = "a closure is written where it is passed")]
pub(crate) fn check_sequences<B, T: Strategy>(
    cases: u32,
    source: &'static str,
    step: T,
    bench: impl AsyncFn() -> B,
    check: impl AsyncFn(&mut B, &T::Value),
) {
    let mut runner = TestRunner::new(ProptestConfig { cases, ..ProptestConfig::with_source_file(source) });
    let result = runner.run(&prop::collection::vec(step, 1..60), |steps| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut bench = bench().await;
            for step in &steps {
                check(&mut bench, step).await;
            }
        });
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}
