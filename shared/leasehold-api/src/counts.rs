//! Counters of the operations and their outcomes. The Lambda functions collect them; without a recorder nothing is
//! counted.
//!
//! The counters, by operation: `Granted`, and among these `TakenOver`; `Held`, `Lost`, `Broken`, `Forbidden`,
//! `Unavailable` (throttled requests among them). `Latency` is in milliseconds, one value for each operation but
//! watches, whatever its outcome. For semaphores, `PermitsInUse` in percent and `QueueLength` have one value for each
//! operation that saw a semaphore.
//!
//! Of transactions: `Committed`; and those that were not, by the cause: `RolledBack` by their callers, `Evicted` by
//! others, `ConditionFailed`, `Contended` after a wait in vain. `Waited` counts the waits that ended well. A sweep
//! counts `Swept` and `StuckTransactions`, and the age of the oldest open transaction that it saw
//! (`OldestTransaction`).

use std::time::Duration;

use leasehold_transactions::Swept;
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

/// Describes to the recorder the unit of each metric.
pub fn describe() {
    describe_counter!("Granted", Unit::Count, "acquires that got the lock");
    describe_counter!("TakenOver", Unit::Count, "those of them that took a dead holder's lock");
    describe_counter!("Held", Unit::Count, "acquires that found the lock held by someone else");
    describe_counter!("Lost", Unit::Count, "callers who learned that the lock is not, or no longer, theirs");
    describe_counter!("Broken", Unit::Count, "locks that operators broke");
    describe_counter!("Forbidden", Unit::Count, "requests for a key, or a lock, that is not the caller's");
    describe_counter!("Unavailable", Unit::Count, "requests without an answer from the table");
    describe_counter!("Committed", Unit::Count, "answers that a transaction is committed");
    describe_counter!("RolledBack", Unit::Count, "transactions that their callers rolled back");
    describe_counter!("Evicted", Unit::Count, "callers who learned that their transaction was rolled back");
    describe_counter!("ConditionFailed", Unit::Count, "transactions that ended by a condition that does not hold");
    describe_counter!("Waited", Unit::Count, "calls that waited for the items of other transactions, and got them");
    describe_counter!("Contended", Unit::Count, "calls that waited in vain for the items of other transactions");
    describe_counter!("Swept", Unit::Count, "transactions that a sweep ended");
    describe_counter!("StuckTransactions", Unit::Count, "transactions with an item that DynamoDB refuses to free");
    describe_histogram!("OldestTransaction", Unit::Milliseconds, "the age of the oldest open one that a sweep saw");
    describe_histogram!("PermitsInUse", Unit::Percent, "of a semaphore's capacity, after each operation on it");
    describe_histogram!("QueueLength", Unit::Count, "tickets in a semaphore's queue, after each operation on it");
    describe_histogram!("Latency", Unit::Milliseconds, "from the request to its answer");
}

/// Counts what a sweep found and ended.
#[allow(clippy::cast_precision_loss, reason = "no transaction is open for 2^53 milliseconds")]
pub(crate) fn count_swept(swept: &Swept) {
    for (name, count) in [("Swept", swept.rolled_back + swept.completed), ("StuckTransactions", swept.stuck)] {
        if count > 0 {
            counter!(name, "operation" => "sweep").increment(count as u64);
        }
    }
    if swept.watched > 0 {
        histogram!("OldestTransaction", "operation" => "sweep").record(swept.oldest_ms as f64);
    }
}

/// Records the usage of a semaphore, and the length of its queue.
#[allow(clippy::cast_precision_loss, reason = "permits are far below 2^53")]
pub(crate) fn count_permits(in_use: u64, capacity: u64, queue: usize) {
    histogram!("PermitsInUse", "operation" => "semaphore").record(in_use as f64 * 100.0 / capacity as f64);
    histogram!("QueueLength", "operation" => "semaphore").record(queue as f64);
}

/// Counts one operation and its outcome, under their names in the log.
pub(crate) fn count(operation: &'static str, outcome: &str, latency: Duration) {
    let name = match (operation, outcome) {
        // Monitors of the service call this all the time.
        ("health", _) => return,
        ("acquire" | "semaphore-acquire", "created" | "reacquired" | "renewed" | "takenOver")
        | ("acquire-all", "granted") => Some("Granted"),
        ("acquire" | "acquire-all" | "semaphore-acquire", "held") | (_, "queue-full") => Some("Held"),
        ("break" | "semaphore-break", "released") => Some("Broken"),
        (_, "lost") => Some("Lost"),
        ("begin" | "commit", "committed") => Some("Committed"),
        ("rollback", "rolled-back") => Some("RolledBack"),
        ("begin" | "add" | "commit", "rolled-back") => Some("Evicted"),
        (_, "condition-failed") => Some("ConditionFailed"),
        (_, "contended") => Some("Contended"),
        (_, "forbidden") => Some("Forbidden"),
        (_, "misconfigured" | "throttled" | "unavailable") => Some("Unavailable"),
        _ => None,
    };
    let taken_over = (outcome == "takenOver").then_some("TakenOver");
    for name in name.into_iter().chain(taken_over) {
        counter!(name, "operation" => operation).increment(1);
    }
    // The caller chooses how long a watch takes.
    if operation == "watch" {
        return;
    }
    histogram!("Latency", "operation" => operation).record(latency.as_secs_f64() * 1000.0);
}
