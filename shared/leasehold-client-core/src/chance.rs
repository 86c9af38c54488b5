//! The source of randomness, which a driver provides.

/// The use of a draw. A recorded run keys its draws by the purpose, so that one draw more shifts no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// The pause before another try.
    Backoff,
    /// The id of a request.
    RequestId,
    /// The pause before the next heartbeat.
    Heartbeat,
}

impl Purpose {
    /// Returns the name in traces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backoff => "backoff",
            Self::RequestId => "request-id",
            Self::Heartbeat => "heartbeat",
        }
    }
}

/// Draws for a machine. In production an id comes from the operating system's generator, one by one.
pub trait Chance {
    /// Draws evenly from 0 to 1.
    fn fraction(&mut self, purpose: Purpose) -> f64;

    /// Draws a fresh id that nobody can guess.
    fn id(&mut self, purpose: Purpose) -> String;
}
