//! The bound of a wait, on the clock of this process. Rule C4.

use std::ops::ControlFlow;
use std::time::Duration;

use leasehold_client_core as core;
use leasehold_wire::Lock;

use crate::clock::Instant;
use crate::request::OnWait;
use crate::{Error, Wait, Waiting};

/// The time that a wait may take.
pub(crate) struct Budget {
    began: Instant,
    rules: core::Budget,
}

impl Budget {
    /// A budget. `unreachable` bounds the search for the service, until a lock was seen held.
    pub(crate) fn new(wait: Wait, unreachable: Duration) -> Self {
        Self { began: Instant::now(), rules: core::Budget::new(wait, unreachable, Duration::ZERO) }
    }

    /// Notes a held version, and the time until it is stale.
    pub(crate) fn saw(&mut self, version: &str, stale_after: Duration) {
        self.rules.saw(version, stale_after, self.began.elapsed());
    }

    pub(crate) fn left(&self) -> Duration {
        self.rules.left(self.began.elapsed())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Returns the pause after a failure, if it leaves time for another request.
    pub(crate) fn afford(&mut self, error: &Error, pause: Duration) -> Option<Duration> {
        if error.is_unreached() {
            self.rules.unreached();
        }
        (pause < self.left()).then_some(pause)
    }

    /// Returns the pause before another try, if the failure is worth one and there is time for it. Otherwise the wait
    /// ends. If only the last request failed, it ends with `seen`: the answer before it names the holder.
    pub(crate) fn retry<H>(
        &mut self,
        pause: Duration,
        error: Error,
        seen: Option<H>,
    ) -> ControlFlow<Result<H, Error>, Duration> {
        if !error.is_worth_another_try() {
            return ControlFlow::Break(Err(error));
        }
        match self.afford(&error, pause) {
            Some(pause) => ControlFlow::Continue(pause),
            None => ControlFlow::Break(seen.ok_or(error)),
        }
    }

    pub(crate) fn report(&self, on_wait: Option<&OnWait>, lock: &Lock, stale_in: Duration) {
        if let Some(on_wait) = on_wait {
            on_wait(&Waiting { lock, stale_in, gives_up_in: self.rules.deadline().map(|_| self.left()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::time::advance;

    use super::*;
    use crate::observation::Observations;
    use crate::vectors::{cases, ms};

    const RETRY_BUDGET: Duration = Duration::from_secs(10);

    fn wait(given: &Value) -> Wait {
        let margin = ms(&given["marginMs"]);
        match given["wait"].as_str() {
            Some("lease") => Wait::OneLease { margin, extend: false },
            Some("extend") => Wait::OneLease { margin, extend: true },
            Some("forever") => Wait::Forever,
            _ => Wait::AtMost(ms(&given["wait"])),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_follow_the_vectors() {
        for case in cases("timing.json", "wait") {
            let began = Instant::now();
            let mut budget = Budget::new(wait(&case["given"]), RETRY_BUDGET);
            let end = |budget: &Budget| json!(budget.rules.deadline().map(|end| end.as_millis()));
            let mut ends = vec![end(&budget)];
            let mut observations = Observations::new(Duration::ZERO);
            for seen in case["given"]["seen"].as_array().expect("answers") {
                advance(ms(&seen[0]).checked_sub(began.elapsed()).unwrap()).await;
                let lock = json!({
                    "key": "Moe", "state": "held", "ownerName": "A",
                    "recordVersionNumber": seen[1], "leaseDurationMs": seen[2],
                });
                let lock: Lock = serde_json::from_value(lock).expect("a lock");
                let seen = observations.observe(&"Moe".into(), &lock, Instant::now());
                budget.saw(seen.record_version_number(), seen.stale_after());
                ends.push(end(&budget));
            }
            assert_eq!(json!(ends), case["expect"], "{}", case["name"]);
        }
    }
}
