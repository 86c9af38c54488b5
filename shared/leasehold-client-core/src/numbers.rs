//! The numbers of the requests under one lease id. Rule C10.

/// A request under its number, and the time of its first sending, from which its lease counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Numbered<R, T> {
    /// The request.
    pub request: R,
    /// The number.
    pub sequence: u64,
    /// The id, which tells a repeat from another request of the same number.
    pub id: String,
    /// The time of the first sending.
    pub first_sent: T,
}

/// The end of a request, as far as its number goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// An answer told the outcome.
    Told,
    /// Nothing told the outcome.
    Untold {
        /// Whether the request may be carried out, now or later.
        may_apply: bool,
    },
    /// The service carried out a request with this number.
    Superseded {
        /// The number.
        sequence: u64,
    },
}

/// The requests under one lease id, one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Turns<R, T> {
    last: u64,
    /// A request that may have been carried out. It is repeated before the next number is taken.
    open: Option<Numbered<R, T>>,
    /// Whether a copy of the open request may have arrived, or may yet: a repeat that did not arrive says nothing of
    /// it.
    may_arrive: bool,
}

impl<R, T> Default for Turns<R, T> {
    fn default() -> Self {
        Self::after(0)
    }
}

impl<R, T> Turns<R, T> {
    /// Continues above `last`.
    pub fn after(last: u64) -> Self {
        Self { last, open: None, may_arrive: false }
    }

    /// Returns the last number that was taken.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the request that may have been carried out, if there is one.
    pub fn open(&self) -> Option<&Numbered<R, T>> {
        self.open.as_ref()
    }
}

impl<R: Clone, T: Clone> Turns<R, T> {
    /// Returns the request to send: the open one again, or `request` under the next number.
    pub fn next(&mut self, now: T, request: impl FnOnce() -> R, id: impl FnOnce() -> String) -> Numbered<R, T> {
        let last = &mut self.last;
        let fresh = || {
            *last += 1;
            Numbered { request: request(), sequence: *last, id: id(), first_sent: now }
        };
        self.open.get_or_insert_with(fresh).clone()
    }

    /// Records the end of the request. Only a request that may have been carried out stays open.
    pub fn ended(&mut self, ending: Ending) {
        let is_untold = matches!(ending, Ending::Untold { .. });
        self.may_arrive |= ending == Ending::Untold { may_apply: true };
        if !(self.may_arrive && is_untold) {
            (self.open, self.may_arrive) = (None, false);
        }
        if let Ending::Superseded { sequence } = ending {
            self.last = self.last.max(sequence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(turns: &mut Turns<&'static str, u64>) -> u64 {
        turns.next(0, || "Moe", String::new).sequence
    }

    #[test]
    fn numbers_continue_above_the_highest_known_one() {
        let mut turns = Turns::after(6);
        assert_eq!((next(&mut turns), turns.last()), (7, 7));
        turns.ended(Ending::Superseded { sequence: 9 });
        assert_eq!(next(&mut turns), 10);
        turns.ended(Ending::Superseded { sequence: 8 });
        assert_eq!(next(&mut turns), 11);
    }
}
