//! One acquisition while it lasts, and its holder's belief by its own clock. Rule C2.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold_client_core::Turns;
use leasehold_wire::{AcquireOutcome, Secret};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep_until;

use crate::clock::{Instant, deadline, fresh_uuid, sleep};
use crate::error::ending;
use crate::keeping::Keeping;
use crate::remote::{Backoff, Remote};
use crate::subject::Subject;
use crate::timing::heartbeat_retry_pause;
use crate::{Error, ErrorKind, Heartbeat, LockKey, Loss, LossReason, telemetry};

/// One acquisition, shared by its guards and the keeper.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) subject: Subject,
    pub(crate) key: LockKey,
    pub(crate) id: Secret,
    /// The origin of the grant; `None` for a resumed lease.
    pub(crate) origin: Option<Origin>,
    /// The time of the grant, or of the resume.
    since: Instant,
    /// The term, watched by the keeper and by callers that wait for the loss.
    term: watch::Sender<Term>,
    /// The last number that was taken under this lease id.
    last_number: AtomicU64,
    /// The heartbeats, one at a time.
    heartbeats: Mutex<Turns<Heartbeat, Instant>>,
}

/// The parts of a grant that no renewal changes.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) owner_name: String,
    pub(crate) outcome: AcquireOutcome,
    pub(crate) previous_owner_name: Option<String>,
    pub(crate) data: Option<Vec<u8>>,
}

/// The belief of a holder. The functions of this type are the whole of rule C2, and take all times as arguments.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    status: Status,
    /// The time before the last request that was carried out was first sent.
    renewed_at: Instant,
    valid_until: Instant,
    lease: Duration,
    fencing_token: u64,
    rvn: String,
    /// The number of permits that are held of a semaphore.
    permits: u64,
    /// Whether a heartbeat told that somebody waits.
    is_wanted: bool,
    /// The last failure of a heartbeat, since the last success.
    trouble: Option<Arc<Error>>,
    hold_on_unavailable: bool,
    /// The end of each lease that the holder does not believe in.
    delay: Duration,
    /// The end of the longest hold.
    hold_ends: Option<Instant>,
}

#[derive(Debug, Clone)]
enum Status {
    Held,
    Lost(Loss),
    Released,
}

impl Term {
    /// A grant whose request was first sent at `sent`.
    pub(crate) fn granted(sent: Instant, lease: Duration, fencing_token: u64, rvn: String, keeping: &Keeping) -> Self {
        Self {
            status: Status::Held,
            renewed_at: sent,
            valid_until: sent + keeping.believed(lease),
            lease,
            fencing_token,
            rvn,
            permits: 0,
            is_wanted: false,
            trouble: None,
            hold_on_unavailable: keeping.hold_on_unavailable,
            delay: keeping.lock_delay,
            hold_ends: keeping.max_hold.map(deadline),
        }
    }

    /// Sets the number of permits.
    pub(crate) fn with_permits(self, permits: u64) -> Self {
        Self { permits, ..self }
    }

    /// Notes that a renewal is first sent at `sent`. The row may have this lease from now on. Only the answer to this
    /// request, or to one with a higher number, lifts the cap.
    fn sending(&mut self, sent: Instant, lease: Duration) {
        self.valid_until = self.valid_until.min(sent + lease.saturating_sub(self.delay));
    }

    /// Notes that the renewal first sent at `sent` was carried out. No request with a lower number can be carried out
    /// any more.
    fn renewed(&mut self, sent: Instant, lease: Duration, rvn: String) {
        self.renewed_at = sent;
        self.valid_until = sent + lease.saturating_sub(self.delay);
        self.lease = lease;
        self.rvn = rvn;
        self.trouble = None;
    }

    /// Notes the loss of a lease that has run out, or of a hold that is over, which is final. Returns the reason where
    /// anything changed.
    fn expire(&mut self, subject: Subject, key: &LockKey, now: Instant) -> Option<LossReason> {
        let unreachable = self.trouble.as_ref().is_some_and(|trouble| trouble.retryable());
        let has_run_out = now >= self.valid_until && !(self.hold_on_unavailable && unreachable);
        let reason = match self.hold_ends {
            _ if !matches!(self.status, Status::Held) => return None,
            _ if has_run_out => LossReason::Expired,
            Some(end) if now >= end => LossReason::MaxHold,
            _ => return None,
        };
        let cause = self.trouble.clone().filter(|_| has_run_out);
        self.status = Status::Lost(Loss { cause, ..Loss::new(subject, key, reason) });
        Some(reason)
    }

    fn times(&self) -> (Instant, Instant, Duration) {
        (self.renewed_at, self.valid_until, self.lease)
    }

    /// The end of the lease.
    pub(crate) fn valid_until(&self) -> Instant {
        self.valid_until
    }

    /// The end of the hold, unless a heartbeat comes first.
    pub(crate) fn ends(&self) -> Instant {
        self.hold_ends.map_or(self.valid_until, |end| end.min(self.valid_until))
    }

    /// The next time at which the hold may end by itself. A lease past its end is held through an outage.
    fn next_end(&self, now: Instant) -> Option<Instant> {
        [Some(self.valid_until), self.hold_ends].into_iter().flatten().filter(|end| *end > now).min()
    }

    pub(crate) fn renewed_at(&self) -> Instant {
        self.renewed_at
    }

    /// The part of the lease that is believed in, from one renewal on. Heartbeats must keep pace with it.
    pub(crate) fn believed(&self) -> Duration {
        self.valid_until.saturating_duration_since(self.renewed_at)
    }

    /// Checks a new lease against the lock delay.
    ///
    /// # Errors
    /// The delay leaves nothing of the lease.
    pub(crate) fn check_delay(&self, lease: Duration) -> Result<(), Error> {
        Keeping { lock_delay: self.delay, ..Keeping::default() }.check(lease)
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

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }
}

impl Lease {
    pub(crate) fn new(
        subject: Subject,
        key: LockKey,
        id: Secret,
        origin: Option<Origin>,
        term: Term,
        last_number: u64,
    ) -> Self {
        Self {
            subject,
            key,
            id,
            origin,
            since: Instant::now(),
            term: watch::Sender::new(term),
            last_number: AtomicU64::new(last_number),
            heartbeats: Mutex::new(Turns::after(last_number)),
        }
    }

    /// The last number that was taken under this lease id.
    pub(crate) fn last_number(&self) -> u64 {
        self.last_number.load(Ordering::SeqCst)
    }

    /// The key and the lease id, which identify the lease within a client.
    pub(crate) fn name(&self) -> (LockKey, Secret) {
        (self.key.clone(), self.id.clone())
    }

    /// The present term.
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

    /// Notes the end of a lease that has run out.
    pub(crate) fn expire(&self) {
        self.expire_at(Instant::now());
    }

    fn expire_at(&self, now: Instant) {
        let mut reason = None;
        let expire = |term: &mut Term| {
            reason = term.expire(self.subject, &self.key, now);
            reason.is_some()
        };
        if self.term.send_if_modified(expire) {
            self.measure_end(reason);
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

    /// Resolves when the lock is lost, or with `None` after its holder released it.
    pub(crate) async fn lost(&self) -> Option<Loss> {
        let mut changes = self.term.subscribe();
        loop {
            let now = Instant::now();
            self.expire_at(now);
            let (status, end) = {
                let term = changes.borrow_and_update();
                (term.status.clone(), term.next_end(now))
            };
            match status {
                Status::Lost(loss) => return Some(loss),
                Status::Released => return None,
                Status::Held => {}
            }
            // This task watches the end as well, because the keeper may be gone.
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep_until(end.unwrap_or(now)), if end.is_some() => {}
            }
        }
    }

    /// Resolves when a heartbeat told that somebody waits, or at the end of the lease.
    pub(crate) async fn wanted(&self) {
        let is_over = |term: &Term| term.is_wanted || !matches!(term.status, Status::Held);
        let _ = self.term.subscribe().wait_for(is_over).await;
    }

    /// Resolves when the term was renewed or cut short since it was `known`.
    pub(crate) async fn moved(&self, known: &Term) {
        let _ = self.term.subscribe().wait_for(|term| term.times() != known.times()).await;
    }

    /// Sends one renewal without a retry: an abandoned one with an unknown outcome, or else this one. Returns whether
    /// it was this one.
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
        let numbered = heartbeats.next(Instant::now(), || change.clone(), fresh_uuid);
        self.last_number.store(heartbeats.last(), Ordering::SeqCst);
        let sent = numbered.first_sent;
        let lease = numbered.request.lease.unwrap_or(term.lease);
        self.term.send_modify(|term| term.sending(sent, lease));
        let left = term.valid_until.saturating_duration_since(Instant::now());
        // A future that is dropped here leaves the outcome of the request unknown.
        let shortest = Some(lease.min(term.believed()));
        let began = Instant::now();
        let answer = remote.heartbeat(self.subject, &self.key, &self.id, &numbered, shortest, left).await;
        telemetry::heartbeat(began, &answer);
        heartbeats.ended(ending(&answer));
        self.last_number.store(heartbeats.last(), Ordering::SeqCst);
        // An answer after the end of the lease is too late: a caller may have learned of the loss.
        self.check_held()?;
        let result = answer.and_then(|renewed| {
            let lease = renewed.lease;
            if renewed.fencing_token != term.fencing_token {
                Err(Error::lost(Loss::to_a_ghost(self.subject, &self.key)))
            } else if sent.elapsed() >= lease.saturating_sub(term.delay) {
                Err(Error::too_late(lease))
            } else {
                self.term.send_modify(|term| {
                    term.renewed(sent, lease, renewed.version);
                    term.permits = renewed.permits;
                    term.is_wanted |= renewed.wanted;
                });
                Ok(numbered.request == change)
            }
        });
        result.map_err(|error| self.failed(error, term.fencing_token))
    }

    /// Records a failure.
    fn failed(&self, error: Error, granted_token: u64) -> Error {
        let error = match error.kind() {
            ErrorKind::Superseded { fencing_token: Some(token), .. } if *token != granted_token => {
                Error::lost(Loss::to_a_ghost(self.subject, &self.key))
            }
            _ => error,
        };
        match error.kind() {
            ErrorKind::Lost(loss) => self.leave(Status::Lost(loss.clone()), Some(loss.reason)),
            _ => self.term.send_modify(|term| term.trouble = Some(Arc::new(error.clone()))),
        }
        error
    }

    /// Renews the lease, and retries until the renewal succeeds, the lock is lost, or `give_up` accepts the error.
    ///
    /// # Errors
    /// The failure of the last try; `Lost`, if the lock is lost.
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

    /// Returns the loss of a holder whose grant another caller gave back.
    pub(crate) fn released(&self) -> Loss {
        Loss::new(self.subject, &self.key, LossReason::Released)
    }

    /// Checks that the lease is held.
    ///
    /// # Errors
    /// It was lost or released.
    pub(crate) fn check_held(&self) -> Result<(), Error> {
        self.expire();
        match &self.term.borrow().status {
            Status::Held => Ok(()),
            Status::Lost(loss) => Err(Error::lost(loss.clone())),
            Status::Released => Err(Error::lost(self.released())),
        }
    }

    /// Ends the belief, before the release is sent.
    ///
    /// # Errors
    /// The lock was lost or released before.
    pub(crate) fn end(&self) -> Result<(), Error> {
        self.check_held()?;
        self.leave(Status::Released, None);
        Ok(())
    }

    /// Ends the belief by a loss, which the guards report to the work under them.
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
        Term::granted(sent, lease, 1, "v1".into(), &Keeping::default())
    }

    #[test]
    fn term_ends_one_lease_after_its_request_was_sent() {
        let sent = Instant::now();
        let mut held = term(sent, SECOND * 20);
        assert_eq!(held.expire(Subject::Lock, &"Moe".into(), sent + SECOND * 20 - Duration::from_nanos(1)), None);
        assert_eq!(held.expire(Subject::Lock, &"Moe".into(), sent + SECOND * 20), Some(LossReason::Expired));
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
            let reason = held.expire(Subject::Lock, &"Moe".into(), end);
            assert_eq!(reason, ends.then_some(LossReason::Expired), "{asked} {trouble:?}");
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
