//! The numbers of the requests under one lease id. Rule C10.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::{Instant, fresh_uuid};
use crate::{Error, ErrorKind};

/// The last number that was taken under one lease id.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Continues above `last`.
    pub(crate) fn after(last: u64) -> Self {
        Self(AtomicU64::new(last))
    }

    pub(crate) fn last(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn raise(&self, known: u64) {
        self.0.fetch_max(known, Ordering::SeqCst);
    }
}

/// A request under its number, and the time of its first sending, from which its lease counts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Numbered<R> {
    pub(crate) request: R,
    pub(crate) sequence: u64,
    pub(crate) id: String,
    pub(crate) first_sent: Instant,
}

/// The requests of one kind under one lease id, one at a time.
#[derive(Debug)]
pub(crate) struct Turns<R> {
    /// A request that may have been carried out. The client repeats it before it takes the next number.
    open: Option<Numbered<R>>,
    /// Whether a copy of the open request may have arrived, or may yet: a repeat that did not arrive says nothing of
    /// it.
    may_arrive: bool,
}

impl<R> Default for Turns<R> {
    fn default() -> Self {
        Self { open: None, may_arrive: false }
    }
}

impl<R: Clone> Turns<R> {
    /// Returns the request to send: the open one again, or `request` under the next number.
    pub(crate) fn next(&mut self, counter: &Counter, request: impl FnOnce() -> R) -> Numbered<R> {
        let fresh =
            || Numbered { request: request(), sequence: counter.next(), id: fresh_uuid(), first_sent: Instant::now() };
        self.open.get_or_insert_with(fresh).clone()
    }

    /// Records the end of the request. Only a request that may have been carried out stays open.
    pub(crate) fn ended<T>(&mut self, counter: &Counter, result: &Result<T, Error>) {
        self.may_arrive |= result.as_ref().is_err_and(Error::is_unanswered);
        let tells_nothing = result.as_ref().is_err_and(Error::is_retryable);
        if !(self.may_arrive && tells_nothing) {
            (self.open, self.may_arrive) = (None, false);
        }
        if let Err(ErrorKind::Superseded { sequence, .. }) = result.as_ref().map_err(Error::kind) {
            counter.raise(*sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Counter;

    #[test]
    fn counter_continues_above_the_highest_known_number() {
        let counter = Counter::after(6);
        assert_eq!((counter.next(), counter.last()), (7, 7));
        counter.raise(9);
        counter.raise(8);
        assert_eq!((counter.next(), counter.last()), (10, 10));
    }
}
