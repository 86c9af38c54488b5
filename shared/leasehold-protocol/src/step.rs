//! The form of both life cycles. An operation is one pure function of (row, request, stamp), and its result is a
//! [`Step`].

/// The effect of a request on a row, and the answer to the caller.
#[derive(Debug, Clone, PartialEq)]
pub struct Step<R, C, A> {
    /// The row afterwards, if there is one.
    pub row: Option<R>,
    /// The write that makes the change. None where the row stays as it is.
    pub change: Option<C>,
    /// The answer.
    pub answer: A,
}

impl<R, C, A> Step<R, C, A> {
    /// A write that leaves `row`.
    pub(crate) fn made(row: R, change: C, answer: A) -> Self {
        Self { row: Some(row), change: Some(change), answer }
    }

    /// An answer without a write.
    pub(crate) fn kept(row: Option<R>, answer: A) -> Self {
        Self { row, change: None, answer }
    }
}

/// The write that makes a step.
pub(crate) trait Change: Default {
    /// Whether the write only prepares the row, so that the operation begins again after it.
    fn prepares(&self) -> bool {
        false
    }
}

impl Change for () {}
