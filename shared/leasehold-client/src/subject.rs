//! The subject of an acquisition.

/// The kind of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A lock.
    Lock,
    /// Permits of a semaphore, or a place in its queue.
    Permits,
}
