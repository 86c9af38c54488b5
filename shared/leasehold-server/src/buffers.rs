//! The memory that requests and answers take together.
//!
//! A client that sends or reads slowly keeps its document in memory. Without a bound, a few hundred such clients would
//! take gigabytes. A document takes from the budget what it really has, as it grows, and gives it back with its last
//! byte.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use leasehold_wire::{Problem, ProblemType};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

/// Memory of all documents that are larger than [`SMALL`].
const TOTAL_BYTES: usize = 16 * 1024 * 1024;
/// Largest document that is not counted: a connection costs more. Heartbeats and releases are smaller.
const SMALL: usize = 4 * 1024;
/// First memory that a larger body gets.
const FIRST: usize = 16 * 1024;
/// Unit of the count: a semaphore has 32 bits of permits.
const UNIT: usize = 1024;
/// Longest time to wait for memory.
const PATIENCE: Duration = Duration::from_secs(1);
/// Answers that may wait for memory: they have it already.
const WAITING: usize = 4;

/// Time for the first part of a body.
const GRACE: Duration = Duration::from_secs(2);
/// Least bytes of a body in a second, after [`GRACE`].
const MIN_SPEED: usize = 8 * 1024;
/// Longest time for a whole body: enough for the largest on a slow line.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest part of an overlong body that is read before the refusal.
const MAX_DISCARDED_BYTES: usize = 16 * 1024 * 1024;

static MEMORY: Semaphore = Semaphore::const_new(TOTAL_BYTES / UNIT);
static PLACES_TO_WAIT: Semaphore = Semaphore::const_new(WAITING);

/// Memory for one document, given back when dropped.
pub(crate) type Reserved = Option<SemaphorePermit<'static>>;

/// Reserves memory for a document of this size that is being received.
///
/// # Errors
/// `throttled`: slow clients have taken all of it.
async fn reserve(bytes: usize) -> Result<SemaphorePermit<'static>, Problem> {
    timeout(PATIENCE, MEMORY.acquire_many(units(bytes))).await.ok().and_then(Result::ok).ok_or_else(full)
}

/// Reserves memory for an answer, which exists already. Few answers wait; the others are refused at once.
///
/// # Errors
/// `throttled`: slow clients have taken all of it.
pub(crate) async fn reserve_answer(bytes: usize) -> Result<Reserved, Problem> {
    if bytes <= SMALL {
        return Ok(None);
    }
    if let Ok(memory) = MEMORY.try_acquire_many(units(bytes)) {
        return Ok(Some(memory));
    }
    let _place = PLACES_TO_WAIT.try_acquire().map_err(|_| full())?;
    reserve(bytes).await.map(Some)
}

/// Reserves memory at once, if there is any.
pub(crate) fn reserve_now(bytes: usize) -> Reserved {
    MEMORY.try_acquire_many(units(bytes)).ok()
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

fn full() -> Problem {
    Problem::new(ProblemType::Throttled, "Too many large requests and answers are under way.")
}

/// A body that did not arrive.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It has more bytes than the limit.
    TooLarge,
    /// It ended early, came too slowly, or found no memory.
    Refused(Problem),
}

/// Reads a body of at most `limit` bytes. The part beyond is discarded, up to a point: a client that sends all before
/// it reads would otherwise find a closed connection in place of its answer. `announced` is its length, if the head
/// says it.
pub(crate) async fn read(mut body: Body, announced: Option<usize>, limit: usize) -> Result<(Bytes, Reserved), Unread> {
    if announced.is_some_and(|length| length > MAX_DISCARDED_BYTES.max(limit)) {
        return Err(Unread::TooLarge);
    }
    let largest = announced.unwrap_or(limit).min(limit);
    let mut begun = Instant::now();
    let (mut bytes, mut memory, mut length) = (Vec::new(), None, 0);
    loop {
        let Ok(frame) = timeout_at(due(begun, length), body.frame()).await else { return Err(too_slow()) };
        let Some(frame) = frame else { break };
        let Ok(data) = frame.map_err(|_| incomplete())?.into_data() else { continue };
        length += data.len();
        if length > limit {
            // Nobody will read the beginning.
            (bytes, memory) = (Vec::new(), None);
            if length > MAX_DISCARDED_BYTES.max(limit) {
                break;
            }
            continue;
        }
        if length > bytes.capacity() {
            let asked = Instant::now();
            let capacity = (bytes.capacity() * 2).max(length).max(if length > SMALL { FIRST } else { SMALL });
            let capacity = capacity.min(largest.max(length));
            grow(&mut bytes, &mut memory, capacity).await.map_err(Unread::Refused)?;
            begun += asked.elapsed();
        }
        bytes.extend_from_slice(&data);
    }
    if length > limit { Err(Unread::TooLarge) } else { Ok((bytes.into(), memory)) }
}

/// Gives a body this capacity, and reserves what it takes.
async fn grow(bytes: &mut Vec<u8>, memory: &mut Reserved, capacity: usize) -> Result<(), Problem> {
    if capacity > SMALL {
        let missing = capacity - memory.as_ref().map_or(0, |memory| memory.num_permits() * UNIT).min(capacity);
        let more = reserve(missing).await?;
        match memory {
            Some(memory) => memory.merge(more),
            None => *memory = Some(more),
        }
    }
    bytes.reserve_exact(capacity - bytes.len());
    Ok(())
}

/// The time at which the next part must have come, where so many bytes have come since `begun`.
fn due(begun: Instant, bytes: usize) -> Instant {
    let earned = Duration::from_millis(u64::try_from(bytes * 1000 / MIN_SPEED).unwrap_or(u64::MAX));
    begun + (GRACE + earned).min(BODY_TIMEOUT)
}

fn incomplete() -> Unread {
    Unread::Refused(Problem::new(ProblemType::InvalidRequest, "The body ended before it was complete."))
}

fn too_slow() -> Unread {
    let detail = format!(
        "The body came too slowly. After {} seconds it must bring {MIN_SPEED} bytes a second, and be complete after {}.",
        GRACE.as_secs(),
        BODY_TIMEOUT.as_secs()
    );
    Unread::Refused(Problem::new(ProblemType::InvalidRequest, detail))
}
