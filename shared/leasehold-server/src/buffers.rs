//! The memory that large requests and answers take together.
//!
//! A client that sends or reads slowly keeps its document in memory. Without a bound, a few hundred such clients would
//! take gigabytes.

use std::time::Duration;

use leasehold_wire::{Problem, ProblemType};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// Memory of all documents that are larger than [`SMALL`].
const TOTAL_BYTES: usize = 64 * 1024 * 1024;
/// Largest document that is not counted: a connection costs as much.
const SMALL: usize = 64 * 1024;
/// Unit of the count: a semaphore has 32 bits of permits.
const UNIT: usize = 1024;
/// Longest time to wait for memory.
const PATIENCE: Duration = Duration::from_secs(1);

static MEMORY: Semaphore = Semaphore::const_new(TOTAL_BYTES / UNIT);

/// Memory for one document, given back when dropped.
pub(crate) type Reserved = Option<SemaphorePermit<'static>>;

/// Reserves memory for a document of this size.
///
/// # Errors
/// `throttled`: slow clients have taken all of it.
pub(crate) async fn reserve(bytes: usize) -> Result<Reserved, Problem> {
    if bytes <= SMALL {
        return Ok(None);
    }
    let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
    match timeout(PATIENCE, MEMORY.acquire_many(units)).await {
        Ok(Ok(permit)) => Ok(Some(permit)),
        _ => Err(Problem::new(ProblemType::Throttled, "Too many large requests and answers are under way.")),
    }
}
