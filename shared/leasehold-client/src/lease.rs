//! One acquisition while it lasts, and the belief of its holder, by its own clock. Rule C2.

use std::sync::Arc;
use std::time::Duration;

use leasehold_wire::{AcquireOutcome, Secret};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep_until;

use crate::attempt::Subject;
use crate::clock::{Instant, sleep};
use crate::remote::{Backoff, Remote};
use crate::sequence::{Counter, Turns};
use crate::timing::heartbeat_retry_pause;
use crate::{Error, ErrorKind, Heartbeat, LockKey, Loss, LossReason, telemetry};

/// One acquisition, shared by its guards and the keeper.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) subject: Subject,
    pub(crate) key: LockKey,
    pub(crate) id: Secret,
    /// `None` for a lease that was resumed.
    pub(crate) origin: Option<Origin>,
    /// The time of the grant, or of the resume.
    since: Instant,
    /// Watched by those who wait for the loss, and by the keeper.
    term: watch::Sender<Term>,
    /// The numbers of the requests under this lease id.
    pub(crate) numbers: Counter,
    /// The heartbeats, one at a time.
    heartbeats: Mutex<Turns<Heartbeat>>,
}

/// The parts of a grant that no renewal changes.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) owner_name: String,
    pub(crate) outcome: AcquireOutcome,
    pub(crate) previous_owner_name: Option<String>,
    pub(crate) data: Option<Vec<u8>>,
}

/// The belief of a holder. Its functions are the whole of rule C2, and know no clock but the times that they are given.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    status: Status,
    /// Before the last request that was carried out was first sent.
    renewed_at: Instant,
    valid_until: Instant,
    lease: Duration,
    fencing_token: u64,
    rvn: String,
    /// Of a semaphore: how many permits are held.
    permits: u64,
    /// The last failure of a heartbeat, since the last success.
    trouble: Option<Arc<Error>>,
    hold_on_unavailable: bool,
}

#[derive(Debug, Clone)]
enum Status {
    Held,
    Lost(Loss),
    Released,
}

impl Term {
    /// A grant whose request was first sent at `sent`.
    pub(crate) fn granted(
        sent: Instant,
        lease: Duration,
        fencing_token: u64,
        rvn: String,
        hold_on_unavailable: bool,
    ) -> Self {
        Self {
            status: Status::Held,
            renewed_at: sent,
            valid_until: sent + lease,
            lease,
            fencing_token,
            rvn,
            permits: 0,
            trouble: None,
            hold_on_unavailable,
        }
    }

    /// The same, with so many permits.
    pub(crate) fn with_permits(self, permits: u64) -> Self {
        Self { permits, ..self }
    }

    /// A renewal leaves that was first sent at `sent`. The row may have this lease from now on. Only the answer to this
    /// request, or to one with a higher number, lifts the cap.
    fn sending(&mut self, sent: Instant, lease: Duration) {
        self.valid_until = self.valid_until.min(sent + lease);
    }

    /// The renewal that was first sent at `sent` was carried out. No request with a lower number can be carried out any
    /// more.
    fn renewed(&mut self, sent: Instant, lease: Duration, rvn: String) {
        self.renewed_at = sent;
        self.valid_until = sent + lease;
        self.lease = lease;
        self.rvn = rvn;
        self.trouble = None;
    }

    /// Once the lease has run out the lock is lost, and stays it. Whether anything changed.
    fn expire(&mut self, key: &LockKey, now: Instant) -> bool {
        let unreachable = self.trouble.as_ref().is_some_and(|trouble| trouble.is_retryable());
        let over = now >= self.valid_until && !(self.hold_on_unavailable && unreachable);
        if !over || !matches!(self.status, Status::Held) {
            return false;
        }
        self.status = Status::Lost(Loss::expired(key.clone(), self.trouble.clone()));
        true
    }

    fn times(&self) -> (Instant, Instant, Duration) {
        (self.renewed_at, self.valid_until, self.lease)
    }

    pub(crate) fn valid_until(&self) -> Instant {
        self.valid_until
    }

    pub(crate) fn renewed_at(&self) -> Instant {
        self.renewed_at
    }

    /// How much of the lease is believed in, from one renewal on: what heartbeats must keep pace with.
    pub(crate) fn believed(&self) -> Duration {
        self.valid_until.saturating_duration_since(self.renewed_at)
    }

    pub(crate) fn fencing_token(&self) -> u64 {
        self.fencing_token
    }

    pub(crate) fn rvn(&self) -> &str {
        &self.rvn
    }

    pub(crate) fn permits(&self) -> u64 {
        self.permits
    }
}

impl Lease {
    pub(crate) fn new(
        subject: Subject,
        key: LockKey,
        id: Secret,
        origin: Option<Origin>,
        term: Term,
        numbers: Counter,
    ) -> Self {
        let since = Instant::now();
        Self { subject, key, id, origin, since, term: watch::Sender::new(term), numbers, heartbeats: Mutex::default() }
    }

    /// Its name among all that a client holds.
    pub(crate) fn name(&self) -> (LockKey, Secret) {
        (self.key.clone(), self.id.clone())
    }

    /// The term as it is now.
    pub(crate) fn term(&self) -> Term {
        self.expire();
        self.term.borrow().clone()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.expire();
        matches!(self.term.borrow().status, Status::Held)
    }

    /// The loss, if there was one.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.expire();
        match &self.term.borrow().status {
            Status::Lost(loss) => Some(loss.clone()),
            Status::Held | Status::Released => None,
        }
    }

    /// Notes that the lease has run out, if it has.
    pub(crate) fn expire(&self) {
        let now = Instant::now();
        if self.term.send_if_modified(|term| term.expire(&self.key, now)) {
            self.measure_end(Some(LossReason::Expired));
        }
    }

    /// Ends the belief, if there still is one.
    fn leave(&self, status: Status, loss: Option<LossReason>) {
        let left = self.term.send_if_modified(|term| {
            let is_held = matches!(term.status, Status::Held);
            if is_held {
                term.status = status;
            }
            is_held
        });
        if left {
            self.measure_end(loss);
        }
    }

    fn measure_end(&self, loss: Option<LossReason>) {
        telemetry::ended(self.since.elapsed(), loss);
    }

    /// Resolves when the lock is lost, or with `None` when its holder gave it back.
    pub(crate) async fn lost(&self) -> Option<Loss> {
        let mut changes = self.term.subscribe();
        loop {
            self.expire();
            let (status, end) = {
                let term = changes.borrow_and_update();
                (term.status.clone(), term.valid_until)
            };
            match status {
                Status::Lost(loss) => return Some(loss),
                Status::Released => return None,
                Status::Held => {}
            }
            // Past its end, it is held through an outage. The keeper watches the end too; but the keeper may be gone.
            let over = Instant::now() >= end;
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep_until(end), if !over => {}
            }
        }
    }

    /// Resolves when the lock is lost or released.
    pub(crate) async fn ended(&self) {
        let _ = self.term.subscribe().wait_for(|term| !matches!(term.status, Status::Held)).await;
    }

    /// Resolves when the term was renewed or cut short since it was `known`.
    pub(crate) async fn moved(&self, known: &Term) {
        let _ = self.term.subscribe().wait_for(|term| term.times() != known.times()).await;
    }

    /// Sends one renewal, without a retry: an earlier one that was abandoned, if its outcome is open, or this one.
    /// Returns whether it was this one.
    ///
    /// # Errors
    /// `Lost`, or the failure of the request.
    async fn renew(&self, remote: &Remote, change: &Heartbeat) -> Result<bool, Error> {
        let mut heartbeats = self.heartbeats.lock().await;
        self.check_held()?;
        let term = self.term.borrow().clone();
        let change = Heartbeat {
            lease: change.lease.or(Some(term.lease)),
            held: change.keep.map(|_| term.permits),
            fencing_token: Some(term.fencing_token),
            ..change.clone()
        };
        let numbered = heartbeats.next(&self.numbers, || change.clone());
        let sent = numbered.first_sent;
        let lease = numbered.request.lease.unwrap_or(term.lease);
        self.term.send_modify(|term| term.sending(sent, lease));
        let left = term.valid_until.saturating_duration_since(Instant::now());
        // A future that is dropped here leaves the request open.
        let shortest = Some(lease.min(term.believed()));
        let began = Instant::now();
        let answer = remote.heartbeat(self.subject, &self.key, &self.id, &numbered, shortest, left).await;
        telemetry::heartbeat(began, &answer);
        heartbeats.ended(&self.numbers, &answer);
        // An answer that comes after the lease ran out comes too late: somebody may have been told of the loss.
        self.check_held()?;
        let result = answer.and_then(|renewed| {
            let lease = renewed.lease;
            if renewed.fencing_token != term.fencing_token {
                Err(Error::lost(Loss::to_a_ghost(self.key.clone())))
            } else if sent.elapsed() >= lease {
                Err(Error::too_late(lease))
            } else {
                self.term.send_modify(|term| {
                    term.renewed(sent, lease, renewed.version);
                    term.permits = renewed.permits;
                });
                Ok(numbered.request == change)
            }
        });
        result.map_err(|error| self.failed(error, term.fencing_token))
    }

    /// Takes note of a failure.
    fn failed(&self, error: Error, granted_token: u64) -> Error {
        let error = match error.kind() {
            ErrorKind::Superseded { fencing_token: Some(token), .. } if *token != granted_token => {
                Error::lost(Loss::to_a_ghost(self.key.clone()))
            }
            _ => error,
        };
        match error.kind() {
            ErrorKind::Lost(loss) => self.leave(Status::Lost(loss.clone()), Some(loss.reason)),
            _ => self.term.send_modify(|term| term.trouble = Some(Arc::new(error.clone()))),
        }
        error
    }

    /// Renews the lease, and retries until that is done, the lock is lost, or `give_up` says so of an error.
    ///
    /// # Errors
    /// The failure of the last try; `Lost`, if the lock is.
    pub(crate) async fn renew_until(
        &self,
        remote: &Remote,
        change: &Heartbeat,
        give_up: impl Fn(&Error) -> bool,
    ) -> Result<(), Error> {
        let mut backoff = Backoff::default();
        loop {
            let error = match self.renew(remote, change).await {
                Ok(true) => return Ok(()),
                Ok(false) => continue,
                Err(error) => error,
            };
            if give_up(&error) || !self.is_held() {
                return Err(error);
            }
            tracing::debug!(key = %self.key, %error, "a heartbeat failed and will be tried again");
            let left = self.term().valid_until.saturating_duration_since(Instant::now());
            let pause = if error.is_about_its_number() { Duration::ZERO } else { backoff.pause(&error) };
            sleep(heartbeat_retry_pause(pause, left)).await;
        }
    }

    fn check_held(&self) -> Result<(), Error> {
        self.expire();
        match &self.term.borrow().status {
            Status::Held => Ok(()),
            Status::Lost(loss) => Err(Error::lost(loss.clone())),
            Status::Released => Err(Error::lost(Loss::released(self.key.clone()))),
        }
    }

    /// Ends the belief, before the release is sent.
    ///
    /// # Errors
    /// The lock was lost, or released, before.
    pub(crate) fn end(&self) -> Result<(), Error> {
        self.check_held()?;
        self.leave(Status::Released, None);
        Ok(())
    }

    /// As [`Lease::end`], but the guards are not asked: whoever works under them must learn it.
    ///
    /// # Errors
    /// As [`Lease::end`].
    pub(crate) fn revoke(&self, loss: Loss) -> Result<(), Error> {
        self.check_held()?;
        self.leave(Status::Lost(loss), None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::cases;

    const SECOND: Duration = Duration::from_secs(1);

    fn term(sent: Instant, lease: Duration) -> Term {
        Term::granted(sent, lease, 1, "v1".into(), false)
    }

    #[test]
    fn a_term_ends_one_lease_after_its_request_was_sent() {
        let sent = Instant::now();
        let mut held = term(sent, SECOND * 20);
        assert!(!held.expire(&"Moe".into(), sent + SECOND * 20 - Duration::from_nanos(1)));
        assert!(held.expire(&"Moe".into(), sent + SECOND * 20));
        held.renewed(sent + SECOND * 20, SECOND * 20, "v2".into());
        assert!(matches!(held.status, Status::Lost(_)), "a renewal that comes too late revives nothing");
    }

    #[test]
    fn heartbeats_keep_pace_with_a_lease_that_was_cut() {
        let sent = Instant::now();
        let mut held = term(sent, SECOND * 20);
        held.sending(sent + SECOND * 6, SECOND * 2);
        assert_eq!((held.valid_until(), held.believed()), (sent + SECOND * 8, SECOND * 8));
    }

    #[test]
    fn only_an_outage_is_sat_out_and_only_where_asked() {
        let sent = Instant::now();
        let end = sent + SECOND * 20;
        let unreachable = Arc::new(Error::timed_out(SECOND));
        let forbidden = Arc::new(Error::new(ErrorKind::Forbidden, "no"));
        for (asked, trouble, ends) in [
            (false, Some(&unreachable), true),
            (true, Some(&unreachable), false),
            (true, Some(&forbidden), true),
            (true, None, true),
        ] {
            let mut held = term(sent, SECOND * 20);
            held.hold_on_unavailable = asked;
            held.trouble = trouble.cloned();
            assert_eq!(held.expire(&"Moe".into(), end), ends, "{asked} {trouble:?}");
        }
    }

    #[test]
    fn belief_follows_the_vectors() {
        for case in cases("lease.json", "belief") {
            let zero = Instant::now();
            let (mut held, mut open): (Option<Term>, Option<(u64, Instant)>) = (None, None);
            for step in case["steps"].as_array().expect("steps") {
                let ms = |member: &str| Duration::from_millis(step[member].as_u64().expect("milliseconds"));
                match step["do"].as_str().expect("a step") {
                    "send" => {
                        let sequence = step["sequence"].as_u64().expect("a number");
                        let (_, sent) = *open
                            .take_if(|(number, _)| *number == sequence)
                            .get_or_insert((sequence, zero + ms("atMs")));
                        open = Some((sequence, sent));
                        if let Some(term) = &mut held {
                            term.sending(sent, ms("leaseMs"));
                        }
                    }
                    "answer" => {
                        let (_, sent) = open.take().expect("a request under way");
                        match &mut held {
                            Some(term) => term.renewed(sent, ms("leaseMs"), "v2".into()),
                            None => held = Some(term(sent, ms("leaseMs"))),
                        }
                    }
                    "refused" => open = None,
                    "unanswered" => {}
                    other => panic!("no such step: {other}"),
                }
                let until = held.as_ref().map(|term| (term.valid_until() - zero).as_millis());
                assert_eq!(until, step["validUntil"].as_u64().map(u128::from), "{} {step}", case["name"]);
            }
        }
    }
}
