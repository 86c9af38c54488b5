//! The capacity that transactions consume.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use leasehold_wire::transactions::{ConsumedCapacity, ReturnConsumedCapacity};

/// Adds up the capacity units that transactions consume, all their tries included. A call that failed, and what the
/// service does after its answer, count nothing. Cheap to clone: the clones share their sums.
///
/// ```no_run
/// # use leasehold_client::transactions::{CapacityMeter, Request, TransactionOptions};
/// # async fn example(client: leasehold_client::Client) -> Result<(), leasehold_client::Error> {
/// let meter = CapacityMeter::default();
/// let key = serde_json::json!({"id": "Moe"});
/// let update = Request::update("accounts", key, "ADD visits :one").values(serde_json::json!({":one": 1}));
/// client.transact_with(&TransactionOptions::new().capacity(&meter), [update]).await?;
/// for table in meter.consumed() {
///     println!("{}: {} write units", table.table_name, table.write_capacity_units);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct CapacityMeter(Arc<Mutex<BTreeMap<String, ConsumedCapacity>>>);

impl CapacityMeter {
    /// Returns the sums so far, by table.
    pub fn consumed(&self) -> Vec<ConsumedCapacity> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Adds what an answer tells.
    pub(super) fn add(&self, consumed: Option<Vec<ConsumedCapacity>>) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for told in consumed.unwrap_or_default() {
            let sum = sums
                .entry(told.table_name.clone())
                .or_insert_with(|| ConsumedCapacity { table_name: told.table_name, ..ConsumedCapacity::default() });
            sum.read_capacity_units += told.read_capacity_units;
            sum.write_capacity_units += told.write_capacity_units;
        }
    }
}

/// What a request says, with or without a meter.
pub(super) fn wanted(meter: Option<&CapacityMeter>) -> Option<ReturnConsumedCapacity> {
    meter.map(|_| ReturnConsumedCapacity::Total)
}
