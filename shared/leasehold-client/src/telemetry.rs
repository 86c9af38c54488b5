//! Spans and metrics of the caller's side, by the facades `tracing` and `metrics`. Without a subscriber and a recorder,
//! nothing is recorded.
//!
//! Keys are in spans only: as labels of metrics they would have no bound.

use std::future::Future;
use std::time::Duration;

use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::clock::Instant;
use crate::{Acquisition, Error, ErrorKind, LossReason};

/// The result of a wait that was dropped.
const ABORTED: &str = "aborted";

/// Waits for a lock, for permits or for several locks, inside a span, and records how long that took.
pub(crate) async fn waiting<G, H>(
    operation: &'static str,
    key: impl std::fmt::Display,
    work: impl Future<Output = Result<Acquisition<G, H>, Error>>,
) -> Result<Acquisition<G, H>, Error> {
    let span = tracing::info_span!(
        "leasehold",
        otel.name = format_args!("leasehold {operation}"),
        otel.kind = "client",
        leasehold.key = display(key),
        leasehold.result = Empty,
        error.type = Empty,
    );
    let mut wait = Wait { started: Instant::now(), result: ABORTED, span: span.clone() };
    let result = work.instrument(span).await;
    wait.result = match &result {
        Ok(Acquisition::Granted(_)) => "granted",
        Ok(Acquisition::Held(_)) => "held",
        Err(error) => kind(error),
    };
    result
}

/// A wait under way. It is recorded when it is dropped.
struct Wait {
    started: Instant,
    result: &'static str,
    span: Span,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.span.record("leasehold.result", self.result);
        if let Some(error) = failure(self.result) {
            self.span.record("error.type", error);
        }
        measured::waited(self.started.elapsed(), self.result);
    }
}

/// Records a lock that is not held any more: given back or handed on, or lost for this reason.
pub(crate) fn ended(held_for: Duration, loss: Option<LossReason>) {
    measured::held(held_for);
    if let Some(reason) = loss {
        measured::lost(reason.word());
    }
}

/// Records one heartbeat.
pub(crate) fn heartbeat<T>(started: Instant, result: &Result<T, Error>) {
    measured::heartbeat(started.elapsed(), result.as_ref().err().map_or("renewed", kind));
}

/// The result of a failure. That a lock is held is an answer, and no failure.
fn failure(result: &'static str) -> Option<&'static str> {
    (!matches!(result, "granted" | "held" | "renewed")).then_some(result)
}

/// The kind of an error in a word.
fn kind(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::Held(_) | ErrorKind::SomeHeld(_) => "held",
        ErrorKind::Lost(_) => "lost",
        ErrorKind::NotFound => "not-found",
        ErrorKind::AlreadyDone(_) => "already-done",
        ErrorKind::WrongKind => "wrong-kind",
        ErrorKind::PermitsMismatch => "permits-mismatch",
        ErrorKind::ExceedsCapacity => "exceeds-capacity",
        ErrorKind::QueueFull(_) => "queue-full",
        ErrorKind::VersionMismatch => "version-mismatch",
        ErrorKind::InvalidRequest { .. } => "invalid-request",
        ErrorKind::Forbidden => "forbidden",
        ErrorKind::Throttled => "throttled",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Misconfigured => "misconfigured",
        ErrorKind::Superseded { .. } => "superseded",
        ErrorKind::CorruptRecord => "corrupt-record",
        ErrorKind::Closed => "closed",
        ErrorKind::WouldDeadlock => "would-deadlock",
        ErrorKind::Contended { .. } => "contended",
        ErrorKind::RolledBack => "rolled-back",
        ErrorKind::Committed => "committed",
        ErrorKind::ConditionFailed { .. } => "condition-failed",
        ErrorKind::PayloadMismatch => "payload-mismatch",
        ErrorKind::TransactionNotFound => "transaction-not-found",
    }
}

#[cfg(feature = "metrics")]
mod measured {
    use std::sync::Once;
    use std::time::Duration;

    use metrics::{Label, Unit, counter, describe_counter, describe_histogram, histogram};

    const WAIT: &str = "leasehold.wait.duration";
    const HOLD: &str = "leasehold.hold.duration";
    const HEARTBEAT: &str = "leasehold.heartbeat.duration";
    const RENEWALS: &str = "leasehold.renewals";
    const LOSSES: &str = "leasehold.losses";

    fn describe() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            describe_histogram!(WAIT, Unit::Seconds, "Time from asking for a lock to the answer.");
            describe_histogram!(HOLD, Unit::Seconds, "Time from a grant to the release or the loss.");
            describe_histogram!(HEARTBEAT, Unit::Seconds, "Time from sending a heartbeat to its answer.");
            describe_counter!(RENEWALS, Unit::Count, "Heartbeats that renewed a lease.");
            describe_counter!(LOSSES, Unit::Count, "Locks that were lost, by reason.");
        });
    }

    pub(super) fn waited(duration: Duration, result: &'static str) {
        describe();
        histogram!(WAIT, labels(result)).record(duration);
    }

    fn labels(result: &'static str) -> Vec<Label> {
        let error = super::failure(result).map(|error| Label::from_static_parts("error.type", error));
        std::iter::once(Label::from_static_parts("leasehold.result", result)).chain(error).collect()
    }

    pub(super) fn held(duration: Duration) {
        histogram!(HOLD).record(duration);
    }

    pub(super) fn heartbeat(duration: Duration, result: &'static str) {
        histogram!(HEARTBEAT, labels(result)).record(duration);
        if result == "renewed" {
            counter!(RENEWALS).increment(1);
        }
    }

    pub(super) fn lost(reason: &'static str) {
        counter!(LOSSES, "leasehold.reason" => reason).increment(1);
    }
}

#[cfg(not(feature = "metrics"))]
mod measured {
    use std::time::Duration;

    pub(super) fn waited(_duration: Duration, _result: &'static str) {}

    pub(super) fn held(_duration: Duration) {}

    pub(super) fn heartbeat(_duration: Duration, _result: &'static str) {}

    pub(super) fn lost(_reason: &'static str) {}
}
