//! The history of the locks, which the changes of the embedded engine are recorded in, beside the locks' requests.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use leasehold_api::{Recorder, image};
use leasehold_dynamodb::{Clock, pause_for};
use leasehold_engine::Change;
use leasehold_protocol::history::RowChange;
use tokio::sync::mpsc::Receiver;

/// The changes that are recorded at a time.
const BATCH: usize = 500;
/// The pause before a batch that failed is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// The changes of the lock table, and where they are recorded.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) recorder: Recorder,
    pub(crate) changes: Receiver<Change>,
    pub(crate) clock: Clock,
}

impl History {
    /// Records changes until `stop` resolves, and then those that are waiting.
    pub(crate) async fn keep(mut self, stop: impl Future<Output = ()>) {
        let mut stop = pin!(stop);
        let (mut batch, mut numbered) = (Vec::new(), Numbered::default());
        let mut is_stopping = false;
        loop {
            tokio::select! {
                biased;
                () = &mut stop, if !is_stopping => {
                    is_stopping = true;
                    self.changes.close();
                }
                count = self.changes.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    let now_ms = self.clock.now_ms();
                    let changes = batch.drain(..).filter_map(|change| numbered.next(now_ms, change)).collect();
                    self.record(changes, is_stopping).await;
                }
            }
        }
    }

    /// Records changes, again and again where the table refuses: a change has one place.
    async fn record(&self, changes: Vec<RowChange>, is_stopping: bool) {
        while let Err(error) = self.recorder.record(changes.clone()).await {
            tracing::warn!(error = error.for_log(), "a part of the history is not recorded yet");
            if is_stopping {
                return;
            }
            pause_for(PAUSE).await;
        }
    }
}

/// Gives each change a place after that of the change before, also where the clock steps back.
#[derive(Debug, Default)]
struct Numbered {
    last_ms: u64,
    count: u64,
}

impl Numbered {
    fn next(&mut self, now_ms: u64, change: Change) -> Option<RowChange> {
        let is_expiry = change.is_expiry;
        let item = |json: Option<String>| json.map(|json| image(&json)).transpose();
        let (old, new) = match (item(change.old), item(change.new)) {
            (Ok(old), Ok(new)) => (old, new),
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(error, "the history lacks a change");
                return None;
            }
        };
        self.last_ms = self.last_ms.max(now_ms);
        self.count += 1;
        Some(RowChange { at_ms: self.last_ms, sequence: self.count.to_string(), old, new, is_expiry })
    }
}
