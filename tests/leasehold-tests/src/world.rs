//! A lock table, and short functions for requests to it.

use aws_sdk_dynamodb::Client;
use leasehold_api::Service;
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_in_process::InProcess;
use leasehold_protocol::{
    Acquire, Attributes, DataChange, Disposal, Heartbeat, LeaseDuration, LeaseId, LockKey, LockTable, OwnerName,
    Policy, Record, Release, Row, Staleness, TableSchema, ensure_table,
};
use tokio::time::Instant;

use crate::Faults;

/// The start of the virtual clock: 2026-01-01, in epoch milliseconds.
pub const EPOCH_MS: u64 = 1_767_225_600_000;

/// A lock table on the embedded engine, with faults in between.
pub struct World {
    /// The table, as the service uses it.
    pub table: LockTable,
    /// The faults between the table and the engine.
    pub faults: Faults,
    /// The engine without faults, for reads of the rows and for other clients.
    pub dynamodb: Client,
}

impl World {
    /// Returns an empty table, in memory. The service's wall clock follows tokio's.
    pub async fn new() -> Self {
        let engine = Engine::memory().expect("memory is to be had");
        let dynamodb = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
        let schema = TableSchema::new("locks");
        ensure_table(&dynamodb, &schema).await.expect("a new table");
        let (client, faults) = Faults::between(&dynamodb);
        let start = Instant::now();
        let clock = Clock::from_fn(move || {
            EPOCH_MS + u64::try_from(start.elapsed().as_millis()).expect("tests do not run that long")
        });
        let table = LockTable::new(client, schema, Policy::default(), clock);
        Self { table, faults, dynamodb }
    }

    /// A client of the service on this table, without HTTP in between. Its owner name is `name`.
    pub fn client(&self, name: &str) -> leasehold_client::Client {
        leasehold_client::Client::builder().owner_name(name).build(self.transport())
    }

    /// The service on this table, in this process.
    pub fn transport(&self) -> InProcess {
        InProcess::new(Service::new(self.table.clone()))
    }

    /// The row of [`key`], read without faults.
    pub async fn row(&self) -> Option<Row> {
        let clock = Clock::from_fn(|| EPOCH_MS);
        let table = LockTable::new(self.dynamodb.clone(), self.table.schema().clone(), Policy::default(), clock);
        table.read(&key()).await.expect("no faults here").and_then(Record::into_lock)
    }
}

/// The lock of the tests.
pub fn key() -> LockKey {
    LockKey::new("Moe", None).expect("valid")
}

/// A lease id.
pub fn lease_id(id: &str) -> LeaseId {
    LeaseId::new(id).expect("valid")
}

/// A request for the lock by an owner whose lease id is its name.
pub fn acquire(owner: &str, lease_ms: u64, staleness: Staleness) -> Acquire {
    Acquire {
        key: key(),
        owner_name: OwnerName::new(owner).expect("valid"),
        lease_id: lease_id(owner),
        sequence: None,
        lease_duration: LeaseDuration::from_millis(lease_ms).expect("valid"),
        staleness,
        data: None,
        replace_data: true,
        only_if_exists: false,
        once: None,
        attributes: Attributes::new(),
        principal: None,
    }
}

/// A heartbeat by an owner whose lease id is its name.
pub fn heartbeat(owner: &str) -> Heartbeat {
    Heartbeat {
        key: key(),
        lease_id: lease_id(owner),
        sequence: None,
        lease_duration: None,
        data: DataChange::Keep,
        expected: None,
        fencing_token: None,
        principal: None,
    }
}

/// A release by an owner whose lease id is its name.
pub fn release(owner: &str) -> Release {
    Release { key: key(), lease_id: lease_id(owner), disposal: Disposal::Keep(None), expected: None, principal: None }
}
