//! Options of a request that concern the time while something is held. Rules C2, C6 and C7.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_client_core::holder::{Beats, Fault, Terms};

use crate::clock::Instant;
use crate::{Error, Heartbeats};

pub(crate) type OnRisk = Arc<dyn Fn(Duration) + Send + Sync>;

/// The way in which a grant is kept.
#[derive(Clone, Default)]
pub(crate) struct Keeping {
    pub(crate) heartbeats: Heartbeats,
    pub(crate) at_risk: Option<(Duration, OnRisk)>,
    pub(crate) hold_on_unavailable: bool,
    pub(crate) lock_delay: Duration,
    pub(crate) max_hold: Option<Duration>,
}

impl Keeping {
    /// Returns the settings for the rules. No request takes longer than `longest`.
    pub(crate) fn terms(&self, longest: Duration) -> Terms {
        let beats = match self.heartbeats {
            Heartbeats::Quarterly => Beats::Quarterly,
            Heartbeats::Every(interval) => Beats::Every(interval),
            Heartbeats::Manual => Beats::Manual,
        };
        Terms { beats, delay: self.lock_delay, holds_on: self.hold_on_unavailable, max_hold: self.max_hold, longest }
    }

    /// Returns the options of one of several locks that are kept together: one warning stands for all.
    pub(crate) fn of_several(&self) -> Self {
        let mut keeping = self.clone();
        if let Some((threshold, callback)) = keeping.at_risk.take() {
            let warned: Mutex<Option<Instant>> = Mutex::default();
            let once = move |left| {
                let mut warned = warned.lock().unwrap_or_else(PoisonError::into_inner);
                if warned.is_none_or(|warned| warned.elapsed() > threshold) {
                    *warned = Some(Instant::now());
                    callback(left);
                }
            };
            keeping.at_risk = Some((threshold, Arc::new(once)));
        }
        keeping
    }

    /// Checks the options against a lease.
    ///
    /// # Errors
    /// The delay leaves nothing of the lease, the heartbeats are too rare, or the warning would come although all is
    /// well.
    pub(crate) fn check(&self, lease: Duration) -> Result<(), Error> {
        if self.max_hold.is_some_and(|longest| longest.is_zero()) {
            return Err(Error::invalid("max_hold", "the longest time to hold must be above zero"));
        }
        let terms = self.terms(Duration::MAX);
        let warns_at = self.at_risk.as_ref().map(|(threshold, _)| *threshold);
        terms.check(lease, warns_at).map_err(|fault| not_kept(&terms, lease, warns_at, fault))
    }
}

/// The error of settings that cannot keep a lease.
pub(crate) fn not_kept(terms: &Terms, lease: Duration, warns_at: Option<Duration>, fault: Fault) -> Error {
    let believed = terms.believed(lease);
    match fault {
        Fault::Delay => {
            let message = format!("a lock delay of {:?} leaves nothing of a lease of {lease:?}", terms.delay);
            Error::invalid("lock_delay", message)
        }
        Fault::Interval { longest } => {
            let interval = terms.interval(believed).unwrap_or_default();
            let message = format!(
                "a heartbeat every {interval:?} cannot keep a lease of {believed:?}: at most half of it, {longest:?}"
            );
            Error::invalid("heartbeats", message)
        }
        Fault::Warning { healthy } => {
            let threshold = warns_at.unwrap_or_default();
            let message =
                format!("with {threshold:?} left, a lease of {believed:?} is not at risk: less than {healthy:?}");
            Error::invalid("at_risk", message)
        }
    }
}

/// The options of a request that has a field `keeping`.
macro_rules! keeping_options {
    ($request:ty) => {
        impl $request {
            /// Sets the renewal of the lease. Default: the client sends a heartbeat every quarter of the lease.
            #[must_use]
            pub fn heartbeats(mut self, heartbeats: crate::Heartbeats) -> Self {
                self.keeping.heartbeats = heartbeats;
                self
            }

            /// Keeps believing in the grant while the service cannot be reached, even after the lease ran out.
            ///
            /// **Danger:** others may reach the service when this caller cannot, and take over. Two holders then work
            /// at once, and this holder learns of it when the service answers again. Use this only for work where two
            /// holders are better than none.
            #[must_use]
            pub fn hold_on_unavailable(mut self) -> Self {
                self.keeping.hold_on_unavailable = true;
                self
            }

            /// Calls `callback` with the rest of the lease when the rest falls below `threshold`, once for each lease
            /// that was not renewed in time. The callback runs on a thread where it may block. The threshold must be
            /// below the rest of the lease at the next heartbeat: three quarters by default.
            #[must_use]
            pub fn at_risk(
                mut self,
                threshold: std::time::Duration,
                callback: impl Fn(std::time::Duration) + Send + Sync + 'static,
            ) -> Self {
                self.keeping.at_risk = Some((threshold, std::sync::Arc::new(callback)));
                self
            }

            /// Ends the holder's belief in each lease earlier by `delay`; heartbeats keep pace with the rest. Use this
            /// for a resource that works on a request for a while after its sender has stopped. The delay must be below
            /// the lease.
            #[must_use]
            pub fn lock_delay(mut self, delay: std::time::Duration) -> Self {
                self.keeping.lock_delay = delay;
                self
            }

            /// Bounds the hold: at its end the grant is lost, with the reason
            /// [`LossReason::MaxHold`](crate::LossReason::MaxHold), and its heartbeats stop. It is not released,
            /// because the work may go on: it is free one lease after its last heartbeat. Default: no bound.
            #[must_use]
            pub fn max_hold(mut self, longest: std::time::Duration) -> Self {
                self.keeping.max_hold = Some(longest);
                self
            }
        }
    };
}
pub(crate) use keeping_options;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::vectors::{cases, ms};
    use crate::{Heartbeats, LockRequest};

    #[test]
    fn heartbeat_intervals_follow_the_vectors() {
        for case in cases("timing.json", "heartbeatInterval") {
            let chosen = |value: &Value| (!value.is_null()).then(|| ms(value));
            let lease = ms(&case["given"]["leaseMs"]);
            let heartbeats = chosen(&case["given"]["chosenMs"]).map_or(Heartbeats::default(), Heartbeats::Every);
            let checked = LockRequest::new("Moe").heartbeats(heartbeats).keeping.check(lease);
            let keeping = LockRequest::new("Moe").heartbeats(heartbeats).keeping;
            let interval = keeping.terms(lease).interval(lease).expect("not by hand").as_millis();
            let result = checked.map_or(json!("invalid"), |()| json!(interval));
            assert_eq!(result, case["expect"], "{}", case["name"]);
        }
    }
}
