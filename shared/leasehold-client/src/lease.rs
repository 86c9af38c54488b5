//! One acquisition while it lasts: what its holder may believe, by its own clock. Rule C2.

use std::sync::Arc;
use std::time::Duration;

use leasehold_wire::{AcquireOutcome, Secret};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep_until;

use crate::clock::{Instant, sleep};
use crate::remote::{Backoff, Remote};
use crate::{Error, ErrorKind, Heartbeat, LockKey, Loss};

/// After a failed heartbeat there is time for two more, whatever pause the service asks for.
const TRIES_LEFT: u32 = 3;
/// Near the end of a lease, tries are still this far apart.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// One acquisition, shared by its guards and the keeper.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) key: LockKey,
    pub(crate) id: Secret,
    /// `None`: it was not acquired here, but resumed.
    pub(crate) origin: Option<Origin>,
    /// Watched by those who wait for the loss, and by the keeper.
    term: watch::Sender<Term>,
    /// One renewal at a time, so that none with an old lease is under way when a new one is set.
    renewing: Mutex<()>,
}

/// What the grant told, and no renewal changes.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) owner_name: String,
    pub(crate) outcome: AcquireOutcome,
    pub(crate) previous_owner_name: Option<String>,
    pub(crate) data: Option<Vec<u8>>,
}

/// What the holder may believe. Its functions are the whole of rule C2, and know no clock but what they are given.
#[derive(Debug, Clone)]
pub(crate) struct Term {
    status: Status,
    /// Before the last successful request was sent.
    renewed_at: Instant,
    valid_until: Instant,
    lease: Duration,
    fencing_token: u64,
    rvn: String,
    /// The shortest lease that a request without an answer carried: it may still be written.
    shortest_unanswered: Option<Duration>,
    /// Since the last success, this is what heartbeats fail with.
    trouble: Option<Arc<Error>>,
    hold_on_unavailable: bool,
}

/// What a term was before a renewal was sent.
struct Uncut {
    valid_until: Instant,
    shortest_unanswered: Option<Duration>,
}

#[derive(Debug, Clone)]
enum Status {
    Held,
    Lost(Loss),
    Released,
}

impl Term {
    /// A grant whose request was sent at `sent`. `unanswered` is the lease that earlier tries carried, if any.
    pub(crate) fn granted(
        sent: Instant,
        lease: Duration,
        fencing_token: u64,
        rvn: String,
        unanswered: Option<Duration>,
        hold_on_unavailable: bool,
    ) -> Self {
        Self {
            status: Status::Held,
            renewed_at: sent,
            valid_until: sent + unanswered.map_or(lease, |shortest| shortest.min(lease)),
            lease,
            fencing_token,
            rvn,
            shortest_unanswered: unanswered,
            trouble: None,
            hold_on_unavailable,
        }
    }

    fn uncut(&self) -> Uncut {
        Uncut { valid_until: self.valid_until, shortest_unanswered: self.shortest_unanswered }
    }

    /// Before a renewal is sent: the row may have this lease from now on, whatever is heard of it.
    fn sending(&mut self, sent: Instant, lease: Duration) {
        self.valid_until = self.valid_until.min(sent + lease);
        self.shortest_unanswered = Some(self.shortest_unanswered.map_or(lease, |shortest| shortest.min(lease)));
    }

    /// The renewal was answered: if it was refused, it will not be carried out later.
    fn answered(&mut self, before: &Uncut) {
        self.valid_until = before.valid_until;
        self.shortest_unanswered = before.shortest_unanswered;
    }

    /// The renewal sent at `sent` succeeded.
    fn renewed(&mut self, sent: Instant, lease: Duration, fencing_token: u64, rvn: String) {
        self.renewed_at = sent;
        self.valid_until = sent + self.shortest_unanswered.map_or(lease, |shortest| shortest.min(lease));
        self.lease = lease;
        self.fencing_token = self.fencing_token.max(fencing_token);
        self.rvn = rvn;
        self.trouble = None;
    }

    /// Once the lease has run out the lock is lost, and stays it. Whether anything changed.
    fn expire(&mut self, now: Instant) -> bool {
        let unreachable = self.trouble.as_ref().is_some_and(|trouble| trouble.is_retryable());
        let over = now >= self.valid_until && !(self.hold_on_unavailable && unreachable);
        if !over || !matches!(self.status, Status::Held) {
            return false;
        }
        self.status = Status::Lost(Loss::expired(self.trouble.clone()));
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
}

impl Lease {
    pub(crate) fn new(key: LockKey, id: Secret, origin: Option<Origin>, term: Term) -> Self {
        Self { key, id, origin, term: watch::Sender::new(term), renewing: Mutex::new(()) }
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

    /// How it was lost, if it was.
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
        self.term.send_if_modified(|term| term.expire(now));
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

    /// One renewal, without trying again.
    ///
    /// # Errors
    /// `Lost`, or what the request failed with.
    async fn renew(&self, remote: &Remote, change: &Heartbeat) -> Result<(), Error> {
        let _turn = self.renewing.lock().await;
        self.check_held()?;
        let (lease, limit) = {
            let term = self.term.borrow();
            let lease = change.lease.unwrap_or(term.lease);
            (lease, remote.timeout_within(lease.min(term.believed())))
        };
        let change = Heartbeat { lease: Some(lease), ..change.clone() };
        let sent = Instant::now();
        // If this future is dropped, or fails, the request stays without an answer.
        let before = self.term.borrow().uncut();
        self.term.send_modify(|term| term.sending(sent, lease));
        let answer = remote.heartbeat(&self.key, &self.id, &change, limit).await;
        if !answer.as_ref().is_err_and(Error::is_unanswered) {
            self.term.send_modify(|term| term.answered(&before));
        }
        // An answer that comes after the lease ran out comes too late: somebody may have been told that it is lost.
        self.check_held()?;
        match answer {
            Ok(renewed) => {
                let lease = Duration::from_millis(renewed.lease_duration_ms);
                let (token, rvn) = (renewed.fencing_token, renewed.record_version_number);
                self.term.send_modify(|term| term.renewed(sent, lease, token, rvn));
                Ok(())
            }
            Err(error) => {
                self.term.send_modify(|term| match error.kind() {
                    ErrorKind::Lost(loss) => term.status = Status::Lost(loss.clone()),
                    _ => term.trouble = Some(Arc::new(error.clone())),
                });
                Err(error)
            }
        }
    }

    /// Renews the lease, and tries again until that is done, the lock is lost, or `give_up` says so of an error.
    ///
    /// # Errors
    /// What the last try failed with; `Lost`, if the lock is.
    pub(crate) async fn renew_until(
        &self,
        remote: &Remote,
        change: &Heartbeat,
        give_up: impl Fn(&Error) -> bool,
    ) -> Result<(), Error> {
        let mut backoff = Backoff::default();
        loop {
            let Err(error) = self.renew(remote, change).await else { return Ok(()) };
            if give_up(&error) || !self.is_held() {
                return Err(error);
            }
            tracing::debug!(key = %self.key, %error, "a heartbeat failed and will be tried again");
            let left = self.term().valid_until.saturating_duration_since(Instant::now());
            let pause = backoff.pause(&error);
            // Once nothing is left, this is an outage that is sat out.
            sleep(if left.is_zero() { pause } else { pause.min(left / TRIES_LEFT) }.max(MIN_PAUSE)).await;
        }
    }

    fn check_held(&self) -> Result<(), Error> {
        self.expire();
        match &self.term.borrow().status {
            Status::Held => Ok(()),
            Status::Lost(loss) => Err(Error::lost(loss.clone())),
            Status::Released => Err(Error::lost(Loss::released())),
        }
    }

    /// Ends the belief, before the release is sent.
    ///
    /// # Errors
    /// The lock was lost, or released, before.
    pub(crate) fn end(&self) -> Result<(), Error> {
        self.check_held()?;
        self.term.send_modify(|term| term.status = Status::Released);
        Ok(())
    }

    /// As [`Lease::end`], but the guards are not asked: whoever works under them must learn it.
    pub(crate) fn revoke(&self) -> Result<(), Error> {
        self.check_held()?;
        self.term.send_modify(|term| term.status = Status::Lost(Loss::released()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn term(sent: Instant, lease: Duration, unanswered: Option<Duration>) -> Term {
        Term::granted(sent, lease, 1, "v1".into(), unanswered, false)
    }

    #[test]
    fn a_term_ends_one_lease_after_its_request_was_sent_and_stays_ended() {
        let sent = Instant::now();
        let mut held = term(sent, SECOND * 20, None);
        assert!(!held.expire(sent + SECOND * 20 - Duration::from_nanos(1)));
        assert!(held.expire(sent + SECOND * 20));
        held.renewed(sent + SECOND * 20, SECOND * 20, 1, "v2".into());
        assert!(matches!(held.status, Status::Lost(_)), "a renewal that comes too late revives nothing");
    }

    #[test]
    fn a_renewal_without_an_answer_shortens_but_never_lengthens() {
        let sent = Instant::now();
        let mut held = term(sent, SECOND * 20, None);
        held.sending(sent + SECOND * 5, SECOND * 60);
        assert_eq!(held.valid_until(), sent + SECOND * 20);
        let before = held.uncut();
        held.sending(sent + SECOND * 6, SECOND * 2);
        assert_eq!((held.valid_until(), held.believed()), (sent + SECOND * 8, SECOND * 8));
        held.answered(&before);
        assert_eq!(held.valid_until(), sent + SECOND * 20, "it was refused: the row has the old lease");
    }

    #[test]
    fn the_shortest_lease_that_may_still_be_written_bounds_every_later_renewal() {
        let sent = Instant::now();
        let mut held = term(sent, SECOND * 20, Some(SECOND * 20));
        let before = held.uncut();
        held.sending(sent + SECOND, SECOND * 60);
        held.answered(&before);
        held.renewed(sent + SECOND, SECOND * 60, 1, "v2".into());
        assert_eq!(held.valid_until(), sent + SECOND * 21, "the first acquire is still on its way, with 20 s");

        let mut held = term(sent, SECOND * 20, None);
        let before = held.uncut();
        held.sending(sent + SECOND, SECOND * 60);
        held.answered(&before);
        held.renewed(sent + SECOND, SECOND * 60, 1, "v2".into());
        assert_eq!(held.valid_until(), sent + SECOND * 61, "all is answered");
    }

    #[test]
    fn an_outage_is_sat_out_only_where_that_was_asked_for_and_only_an_outage() {
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
            let mut held = term(sent, SECOND * 20, None);
            held.hold_on_unavailable = asked;
            held.trouble = trouble.cloned();
            assert_eq!(held.expire(end), ends, "{asked} {trouble:?}");
        }
    }
}
