//! The log line and the count of one operation.

use leasehold_protocol::{Error, ErrorKind, MAX_KEY_BYTES};
use leasehold_wire::Problem;
use tokio::time::Instant;
use tracing::{Instrument, Span, field};

use crate::access::Caller;
use crate::{convert, counts};

/// The target of the one line of each operation, for a log that formats these lines itself.
pub const OPERATION_TARGET: &str = "leasehold::operation";

/// The name of one operation, and the span of its log lines.
pub(crate) struct OperationSpan {
    pub(crate) name: &'static str,
    pub(crate) span: Span,
}

/// Makes the span of an operation. Overlong keys are truncated in the log.
pub(crate) fn operation_span(name: &'static str, key: &str, caller: &Caller) -> OperationSpan {
    let span = tracing::info_span!(
        "operation",
        operation = name,
        key = &key[..key.floor_char_boundary(MAX_KEY_BYTES)],
        owner = field::Empty,
        principal = caller.name(),
        outcome = field::Empty,
        dynamodb_attempts = field::Empty,
    );
    OperationSpan { name, span }
}

/// Runs one operation, writes its log line and counts it. Neither contains a payload, a lease id or its hash.
pub(crate) async fn traced<T>(
    OperationSpan { name, span }: OperationSpan,
    work: impl Future<Output = Result<(String, T), Problem>>,
) -> Result<T, Problem> {
    let started = Instant::now();
    let (outcome, result) = match work.instrument(span.clone()).await {
        Ok((outcome, response)) => (outcome, Ok(response)),
        Err(problem) => (wire_name(problem.problem_type), Err(problem)),
    };
    let latency = started.elapsed();
    counts::count(name, &outcome, latency);
    span.record("outcome", outcome);
    let duration_ms = latency.as_secs_f64() * 1000.0;
    span.in_scope(|| tracing::info!(target: OPERATION_TARGET, duration_ms, "done"));
    result
}

/// The name of an outcome on the wire.
pub(crate) fn wire_name(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

pub(crate) fn record_owner(name: &str) {
    Span::current().record("owner", name);
}

/// Logs the cause of an error, and returns the problem that the caller reads instead.
pub(crate) fn logged_problem(error: &Error) -> Problem {
    match error.kind() {
        ErrorKind::InvalidRequest { .. } | ErrorKind::TooLarge => {}
        // Only a repair of the setup helps. The command shows this reason, too, to a user who works on a table
        // directly.
        ErrorKind::Misconfigured => tracing::error!(error = error.for_log(), "misconfigured"),
        ErrorKind::CorruptRecord | ErrorKind::Throttled | ErrorKind::Unavailable => {
            tracing::warn!(error = error.for_log(), "failed");
        }
    }
    convert::problem(error)
}
