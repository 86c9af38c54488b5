//! Attempts: their number, and the pauses between them.

use std::time::Duration;

use crate::{jitter, pause_for};

/// The first attempt and two more. Three attempts survive a single lost packet or a node that fails over. A caller that
/// gets `unavailable` after that gets it within four seconds.
pub const MAX_ATTEMPTS: u32 = 3;

/// The ceiling of the first pause; it doubles. DynamoDB's own SDKs begin at 50 ms or below.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// Six doublings are 3.2 seconds, which is the longest acceptable wait without an answer.
const MAX_DOUBLINGS: u32 = 6;

/// Makes a call until it is answered, fails for good, or has failed [`MAX_ATTEMPTS`] times.
///
/// # Errors
/// The error of the last attempt.
pub async fn repeat<T, E, F>(mut call: impl FnMut() -> F, is_transient: impl Fn(&E) -> bool) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut attempt = 1;
    loop {
        tracing::Span::current().record("dynamodb_attempts", attempt);
        // Boxed, because the SDK's futures are large and would be moved at every level above.
        match Box::pin(call()).await {
            Err(error) if attempt < MAX_ATTEMPTS && is_transient(&error) => pause(attempt).await,
            result => return result,
        }
        attempt += 1;
    }
}

/// Sleeps before another attempt, with full jitter. `failures` is the number of failed attempts so far.
pub async fn pause(failures: u32) {
    let doublings = failures.saturating_sub(1).min(MAX_DOUBLINGS);
    pause_for(jitter(FIRST_BACKOFF * 2_u32.pow(doublings))).await;
}
