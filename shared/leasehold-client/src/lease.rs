//! One acquisition while it lasts: the driver of [`Holder`]. The holder decides; the keeper carries out its requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_client_core::Holder;
use leasehold_client_core::holder::{Action, Beat, Beats, Branch, Event, Grant, Outcome, Reply, Return, State, Terms};
use leasehold_wire::{AcquireOutcome, Lock, LockState, Secret};
use tokio::sync::{mpsc, oneshot, watch};

use crate::clock::{Clocks, Draws, Instant, millis, sleep, whole_since};
use crate::error::{cause_of, reply_of};
use crate::keeping::{Keeping, OnRisk, not_kept};
use crate::line::Turn;
use crate::remote::{Numbered, Remote, Renewal, encode_data};
use crate::subject::Subject;
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
    /// The moment from which the rules count: the first sending of the grant's request.
    zero: Instant,
    held: Mutex<Held>,
    /// Told after each step.
    steps: watch::Sender<()>,
}

/// The parts of a grant that no renewal changes.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) owner_name: String,
    pub(crate) outcome: AcquireOutcome,
    pub(crate) previous_owner_name: Option<String>,
    pub(crate) data: Option<Vec<u8>>,
}

/// A grant, or the answer to a heartbeat that took it over.
#[derive(Debug)]
pub(crate) struct Granted {
    /// The time before its request was first sent.
    pub(crate) sent: Instant,
    pub(crate) lease: Duration,
    pub(crate) fencing_token: u64,
    pub(crate) version: String,
    /// The permits of a semaphore.
    pub(crate) permits: u64,
    /// The last number under the lease id.
    pub(crate) last_number: u64,
}

/// A heartbeat that the keeper is to send.
#[derive(Debug)]
pub(crate) struct Sending {
    number: u64,
    numbered: Numbered<Heartbeat>,
    timeout: Duration,
}

/// The holder, and what the rules leave to the driver: versions, errors and calls.
struct Held {
    holder: Holder<Heartbeat>,
    version: String,
    permits: u64,
    /// A number, and the permits when it was first sent: a repeat names the same.
    named: (u64, u64),
    at_risk: Option<OnRisk>,
    sends: mpsc::UnboundedSender<Sending>,
    /// The time of the next tick.
    wake: Option<Instant>,
    /// The clocks when the last heartbeat was answered, or the last suspension was seen.
    clocks: Clocks,
    calls: HashMap<u64, oneshot::Sender<Result<(), Error>>>,
    last_call: u64,
    /// The last failure of a heartbeat, since the last success.
    trouble: Option<Arc<Error>>,
    /// The loss in words, where an answer or another lease told it.
    told: Option<Loss>,
    /// The turn in the client's line, until the end of the hold.
    turn: Option<Turn>,
}

impl Held {
    /// Passes the turn on where the hold has ended.
    fn pass_on(&mut self) {
        if !matches!(self.holder.state(), State::Held | State::Releasing) {
            self.turn = None;
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("holder", &self.holder).finish_non_exhaustive()
    }
}

impl Lease {
    /// Creates the driver of a grant. The receiver is for the keeper.
    pub(crate) fn new(
        subject: Subject,
        key: LockKey,
        id: Secret,
        origin: Option<Origin>,
        granted: Granted,
        terms: Terms,
    ) -> Self {
        let (lease, token, sequence) = (granted.lease, granted.fencing_token, granted.last_number);
        let holder = Holder::new(terms, Grant { sent: Duration::ZERO, lease, token, sequence });
        let held = Held {
            holder,
            version: granted.version,
            permits: granted.permits,
            named: (0, 0),
            at_risk: None,
            // The keeper opens the channel.
            sends: mpsc::unbounded_channel().0,
            wake: None,
            clocks: Clocks::now(),
            calls: HashMap::new(),
            last_call: 0,
            trouble: None,
            told: None,
            turn: None,
        };
        Self {
            subject,
            key,
            id,
            origin,
            since: Instant::now(),
            zero: granted.sent,
            held: Mutex::new(held),
            steps: watch::Sender::new(()),
        }
    }

    /// Begins the heartbeats. Returns what the keeper is to send.
    pub(crate) fn start(&self, keeping: &Keeping) -> mpsc::UnboundedReceiver<Sending> {
        let sends = self.open();
        self.step(Event::Start);
        if let Some((threshold, callback)) = &keeping.at_risk {
            self.held().at_risk = Some(Arc::clone(callback));
            self.step(Event::WarnAt { left: Some(*threshold) });
        }
        sends
    }

    fn open(&self) -> mpsc::UnboundedReceiver<Sending> {
        let (sends, sending) = mpsc::unbounded_channel();
        self.held().sends = sends;
        sending
    }

    /// What a new keeper is to send, if the runtime of the last one is gone.
    pub(crate) fn orphaned(&self) -> Option<mpsc::UnboundedReceiver<Sending>> {
        if !self.held().sends.is_closed() {
            return None;
        }
        let sends = self.open();
        let under_way = self.held().holder.under_way();
        if let Some(send) = under_way {
            self.step(Event::Unanswered { send, cause: leasehold_client_core::Cause::CutOff });
        }
        Some(sends)
    }

    /// The last number that was taken under this lease id.
    pub(crate) fn last_number(&self) -> u64 {
        self.held().holder.turns().last()
    }

    /// Keeps the turn of its waiter until the end of the hold, after the answer to the release.
    pub(crate) fn take_turn(self: &Arc<Self>, turn: Turn) {
        turn.holds(self);
        let mut held = self.held();
        held.turn = Some(turn);
        held.pass_on();
    }

    /// The view of the lock, as far as this process knows it, for those who wait in line.
    pub(crate) fn view(&self) -> Lock {
        let held = self.held();
        let origin = self.origin.as_ref();
        let (data, data_base64) = encode_data(origin.and_then(|origin| origin.data.as_deref()));
        Lock {
            key: self.key.key.clone(),
            sort_key: self.key.sort_key.clone(),
            state: LockState::Held,
            owner_name: origin.map(|origin| origin.owner_name.clone()).unwrap_or_default(),
            record_version_number: held.version.clone(),
            lease_duration_ms: millis(held.holder.lease()),
            fencing_token: Some(held.holder.token()),
            occurrence: None,
            last_occurrence: None,
            wanted_by: None,
            data,
            data_base64,
            attributes: serde_json::Map::new(),
            semaphore: None,
        }
    }

    /// The key and the lease id, which identify the lease within a client.
    pub(crate) fn name(&self) -> (LockKey, Secret) {
        (self.key.clone(), self.id.clone())
    }

    pub(crate) fn fencing_token(&self) -> u64 {
        self.held().holder.token()
    }

    pub(crate) fn version(&self) -> String {
        self.held().version.clone()
    }

    pub(crate) fn permits(&self) -> u64 {
        self.held().permits
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.held().holder.is_wanted()
    }

    /// The lease of the last answer.
    pub(crate) fn duration(&self) -> Duration {
        self.held().holder.lease()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.believed().holder.valid(self.now())
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.believed().holder.remaining(self.now())
    }

    /// Whether no heartbeat was answered since a suspension.
    pub(crate) fn in_doubt(&self) -> bool {
        self.believed().holder.in_doubt()
    }

    /// The loss, if there was one.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let held = self.held();
        held.holder.loss(self.now()).map(|reason| self.in_words(&held, reason))
    }

    fn in_words(&self, held: &Held, reason: LossReason) -> Loss {
        let told = held.told.as_ref().filter(|told| told.reason == reason);
        told.cloned().unwrap_or_else(|| Loss {
            cause: held.trouble.clone().filter(|_| reason == LossReason::Expired),
            ..Loss::new(self.subject, &self.key, reason)
        })
    }

    /// Checks a new lease against the lock delay.
    ///
    /// # Errors
    /// The delay leaves nothing of the lease.
    pub(crate) fn check_delay(&self, lease: Duration) -> Result<(), Error> {
        let terms = Terms { beats: Beats::default(), ..*self.held().holder.terms() };
        terms.check(lease, None).map_err(|fault| not_kept(&terms, lease, None, fault))
    }

    /// Resolves when the lock is lost, or with `None` after its holder released it.
    pub(crate) async fn lost(&self) -> Option<Loss> {
        let mut steps = self.steps.subscribe();
        loop {
            steps.borrow_and_update();
            if let Some(loss) = self.loss() {
                return Some(loss);
            }
            if self.has_ended() {
                return None;
            }
            // This task watches the end as well, because the keeper may be gone. A lease past its end is held through
            // an outage.
            let left = self.remaining();
            tokio::select! {
                _ = steps.changed() => {}
                () = sleep(left), if !left.is_zero() => {}
            }
        }
    }

    /// Whether the lock was lost or given back.
    fn has_ended(&self) -> bool {
        self.held().holder.state() != State::Held
    }

    /// Resolves when a heartbeat told that somebody waits, or at the end of the lease.
    pub(crate) async fn wanted(&self) {
        let _ = self.steps.subscribe().wait_for(|()| self.is_wanted() || self.has_ended()).await;
    }

    /// Renews the lease, with retries.
    ///
    /// # Errors
    /// The failure of the last try; `Lost`, if the lock is lost.
    pub(crate) async fn renew(&self, change: Heartbeat) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        let call = {
            let mut held = self.held();
            held.last_call += 1;
            let call = held.last_call;
            held.calls.insert(call, reply);
            call
        };
        let _left = Left { lease: self, call };
        let lease = change.lease;
        self.step(Event::Renew { call, change, lease });
        answer.await.unwrap_or_else(|_| Err(Error::abandoned()))
    }

    /// Returns the loss of a holder whose grant another caller gave back.
    pub(crate) fn released(&self) -> Loss {
        Loss::new(self.subject, &self.key, LossReason::Released)
    }

    /// Checks that the lease is held.
    ///
    /// # Errors
    /// It was lost or released; `Unavailable` after a suspension.
    pub(crate) fn check_held(&self) -> Result<(), Error> {
        match (self.is_held(), self.loss()) {
            (true, _) => Ok(()),
            (false, None) if self.in_doubt() => Err(Error::suspended()),
            (false, loss) => Err(Error::lost(loss.unwrap_or_else(|| self.released()))),
        }
    }

    fn not_held(&self) -> Error {
        Error::lost(self.loss().unwrap_or_else(|| self.released()))
    }

    /// Ends the belief, before the release is sent.
    ///
    /// # Errors
    /// The lock was lost or released before.
    pub(crate) fn end(&self) -> Result<(), Error> {
        if self.step(Event::Release) == Branch::GivesBack { Ok(()) } else { Err(self.not_held()) }
    }

    /// Ends the belief, since another process goes on.
    ///
    /// # Errors
    /// As [`Lease::end`].
    pub(crate) fn detach(&self) -> Result<(), Error> {
        if self.step(Event::Detach) != Branch::Detached {
            return Err(self.not_held());
        }
        telemetry::ended(self.since.elapsed(), None);
        Ok(())
    }

    /// Ends the belief by a loss, which the guards report to the work under them. The lock is to be released.
    ///
    /// # Errors
    /// As [`Lease::end`].
    pub(crate) fn revoke(&self, loss: Loss) -> Result<(), Error> {
        let reason = loss.reason;
        self.held().told.get_or_insert(loss);
        if self.step(Event::Revoke { reason }) == Branch::Revoked { Ok(()) } else { Err(self.not_held()) }
    }

    /// Carries out one try of the release. `stores`: it stores data or a completed occurrence.
    pub(crate) async fn release<A>(
        &self,
        request: impl Future<Output = Result<A, Error>>,
        stores: bool,
    ) -> Result<A, Error> {
        let sent = self.now();
        let result = request.await;
        if let Some(may_apply) = result.as_ref().err().and_then(Error::may_apply) {
            self.step(Event::Untold { sent, may_apply, stores });
        }
        result
    }

    /// Notes the end of the release. Returns whether an earlier try without an answer was carried out.
    pub(crate) fn returned<A>(&self, result: &Result<A, Error>) -> bool {
        let end = match result.as_ref().map_err(Error::kind) {
            Ok(_) => Return::Done,
            Err(ErrorKind::Lost(loss)) => {
                self.held().told.get_or_insert_with(|| loss.clone());
                Return::Lost { reason: loss.reason }
            }
            Err(_) => Return::Failed,
        };
        self.step(Event::Returned(end)) == Branch::WasGivenBack
    }

    /// Sends heartbeats until the end. The keeper's part.
    pub(crate) async fn keep(&self, remote: Remote, mut sends: mpsc::UnboundedReceiver<Sending>) {
        let mut steps = self.steps.subscribe();
        let mut under_way = None;
        loop {
            steps.borrow_and_update();
            if self.has_ended() {
                return;
            }
            let wake = self.held().wake;
            tokio::select! {
                _ = steps.changed() => {}
                Some(sending) = sends.recv() => under_way = Some(Box::pin(self.send(&remote, sending))),
                () = async { if let Some(sending) = &mut under_way { sending.await } }, if under_way.is_some() => {
                    under_way = None;
                }
                () = async { if let Some(wake) = wake { tokio::time::sleep_until(wake).await } }, if wake.is_some() => {
                    self.held().wake = None;
                    self.step(Event::Tick);
                }
            }
        }
    }

    /// Sends one heartbeat, and tells its end.
    async fn send(&self, remote: &Remote, Sending { number: send, numbered, timeout }: Sending) {
        let began = Instant::now();
        let answer = remote.heartbeat(self.subject, &self.key, &self.id, &numbered, None, timeout).await;
        telemetry::heartbeat(began, &answer);
        let event = match &answer {
            Ok(renewal) => Event::Answer {
                send,
                reply: Reply::Renewed { lease: renewal.lease, token: renewal.fencing_token, wanted: renewal.wanted },
            },
            Err(error) => match cause_of(error) {
                Some(cause) => Event::Unanswered { send, cause },
                None => Event::Answer { send, reply: reply_of(error) },
            },
        };
        self.step_with(event, Some((send, answer)));
    }

    fn step(&self, event: Event<Heartbeat>) -> Branch {
        self.step_with(event, None)
    }

    /// Takes one event. `answer` is what the event tells, in full.
    fn step_with(&self, event: Event<Heartbeat>, mut answer: Option<(u64, Result<Renewal, Error>)>) -> Branch {
        let mut held = self.believed();
        if let Some((_, Err(error))) = &answer
            && let ErrorKind::Lost(loss) = error.kind()
        {
            held.told.get_or_insert_with(|| loss.clone());
        }
        let branch = self.take(&mut held, event, &mut answer);
        drop(held);
        self.steps.send_replace(());
        branch
    }

    /// Returns the state, in which nothing is believed if the process was suspended since the last heartbeat was
    /// answered.
    fn believed(&self) -> MutexGuard<'_, Held> {
        let (mut held, clocks) = (self.held(), Clocks::now());
        if held.clocks.show_suspension_until(clocks) {
            held.clocks = clocks;
            self.take(&mut held, Event::Suspended, &mut None);
        }
        held
    }

    fn take(
        &self,
        held: &mut Held,
        event: Event<Heartbeat>,
        answer: &mut Option<(u64, Result<Renewal, Error>)>,
    ) -> Branch {
        // A closed client, and the loss of another lock, are no losses of this one's own.
        let is_loss = !matches!(event, Event::Revoke { .. });
        let step = held.holder.step(event, self.now(), &mut Draws);
        if let (Some(trouble), Some((send, result))) = (held.holder.trouble(), &*answer)
            && trouble == *send
        {
            let too_late = |renewal: &Renewal| Error::too_late(renewal.lease);
            held.trouble = Some(Arc::new(result.as_ref().map_or_else(Error::clone, too_late)));
        }
        for action in step.actions {
            match action {
                Action::Lost { reason } => telemetry::ended(self.since.elapsed(), is_loss.then_some(reason)),
                action => self.carry_out(held, action, answer),
            }
        }
        held.pass_on();
        step.branch
    }

    fn carry_out(
        &self,
        held: &mut Held,
        action: Action<Heartbeat>,
        answer: &mut Option<(u64, Result<Renewal, Error>)>,
    ) {
        match action {
            Action::Send { send, beat, timeout } => {
                let Beat { lease, change, .. } = beat.request;
                if held.named.0 != beat.sequence {
                    held.named = (beat.sequence, held.permits);
                }
                let change = change.unwrap_or_default();
                let request = Heartbeat {
                    lease: Some(lease),
                    fencing_token: Some(held.holder.token()),
                    held: change.keep.map(|_| held.named.1),
                    ..change
                };
                let first_sent = self.zero + beat.first_sent;
                let numbered = Numbered { request, sequence: beat.sequence, id: beat.id, first_sent };
                // Without a keeper, the caller that needs one brings it.
                let _ = held.sends.send(Sending { number: send, numbered, timeout });
            }
            Action::WakeAt(time) => held.wake = Some(self.zero + time),
            Action::Renewed { .. } => {
                if let Some((_, Ok(renewal))) = answer.take() {
                    (held.version, held.permits, held.trouble) = (renewal.version, renewal.permits, None);
                    held.clocks = Clocks::now();
                }
            }
            Action::Finish { call, outcome } => {
                let result = match outcome {
                    Outcome::Renewed => Ok(()),
                    Outcome::Failed { .. } => Err(held.trouble.as_deref().cloned().unwrap_or_else(Error::abandoned)),
                    Outcome::Ended => {
                        let loss = held.holder.loss(self.now()).map(|reason| self.in_words(held, reason));
                        Err(Error::lost(loss.unwrap_or_else(|| self.released())))
                    }
                };
                if let Some(reply) = held.calls.remove(&call) {
                    let _ = reply.send(result);
                }
            }
            Action::AtRisk { left, .. } => {
                if let Some(callback) = held.at_risk.clone() {
                    tokio::task::spawn_blocking(move || callback(left));
                }
            }
            Action::GiveBack { .. } if matches!(held.holder.state(), State::Releasing) => {
                telemetry::ended(self.since.elapsed(), None);
            }
            // The request ends with the keeper's job.
            Action::Abandon { .. } | Action::GiveBack { .. } | Action::Lost { .. } => {}
        }
    }

    /// The time by the rules' clock.
    fn now(&self) -> Duration {
        whole_since(self.zero)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller that waits for its heartbeat.
struct Left<'a> {
    lease: &'a Lease,
    call: u64,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if self.lease.held().calls.remove(&self.call).is_some() {
            self.lease.step(Event::Leave { call: self.call });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use http::{Request, Response};
    use serde_json::json;

    use super::*;
    use crate::clock::tests::SUSPENDED;
    use crate::{Client, Guard, Heartbeats, LockRequest, Transport, TransportError};

    const LEASE: Duration = Duration::from_secs(10);
    const ANSWER: Duration = Duration::from_millis(20);

    /// A service with one lock, which it grants.
    #[derive(Clone, Default)]
    struct Service {
        heartbeats: Arc<AtomicUsize>,
        /// Whether the lock is another's.
        is_taken: Arc<AtomicBool>,
    }

    impl Service {
        fn heartbeats(&self) -> usize {
            self.heartbeats.load(Ordering::SeqCst)
        }

        fn client(&self) -> Client {
            Client::builder().lease(LEASE).build(self.clone())
        }
    }

    impl Transport for Service {
        fn send(&self, request: Request<Vec<u8>>) -> BoxFuture<'_, Result<Response<Vec<u8>>, TransportError>> {
            let is_heartbeat = request.uri().path() == "/v1/heartbeat";
            self.heartbeats.fetch_add(usize::from(is_heartbeat), Ordering::SeqCst);
            async move {
                sleep(ANSWER).await;
                let is_taken = self.is_taken.load(Ordering::SeqCst);
                let (status, answer) = match request.uri().path() {
                    "/v1/acquire" => {
                        let asked: serde_json::Value = serde_json::from_slice(request.body()).expect("JSON");
                        let grant = json!({
                            "key": "Moe", "ownerName": "me", "leaseId": asked["leaseId"], "recordVersionNumber": "v",
                            "leaseDurationMs": LEASE.as_millis(), "fencingToken": 1, "outcome": "created",
                        });
                        (200, grant)
                    }
                    "/v1/heartbeat" if is_taken => (
                        409,
                        json!({ "type": "lost", "status": 409, "title": "t", "detail": "d", "reason": "taken-over" }),
                    ),
                    "/v1/heartbeat" => {
                        let lease = LEASE.as_millis();
                        (200, json!({ "recordVersionNumber": "w", "leaseDurationMs": lease, "fencingToken": 1 }))
                    }
                    _ => (200, json!({ "outcome": "released" })),
                };
                let answer = Response::builder().status(status).body(answer.to_string().into_bytes());
                Ok(answer.expect("a response"))
            }
            .boxed()
        }
    }

    async fn granted(client: &Client, request: impl Into<LockRequest>) -> Guard {
        client.acquire(request).await.expect("reachable").granted().expect("free")
    }

    fn suspend(time: Duration) {
        SUSPENDED.set(SUSPENDED.get() + time);
    }

    #[tokio::test(start_paused = true)]
    async fn guard_believes_in_nothing_until_a_heartbeat_is_answered() {
        let service = Service::default();
        let client = service.client();
        let guard = granted(&client, "Moe").await;
        sleep(ANSWER).await;
        suspend(Duration::from_millis(90));
        assert!(guard.valid(), "clocks of a machine that runs differ by less");
        suspend(Duration::from_secs(3));
        assert!(!guard.valid());
        assert_eq!((guard.remaining(), guard.loss()), (Duration::ZERO, None));
        let doubt = guard.ensure_held().expect_err("in doubt");
        assert!(doubt.kind() == &ErrorKind::Unavailable && doubt.retryable(), "{doubt}");
        sleep(ANSWER * 2).await;
        assert!(guard.valid() && guard.ensure_held().is_ok() && guard.remaining() + ANSWER * 3 > LEASE);
        assert_eq!(service.heartbeats(), 1, "one heartbeat follows a suspension");
    }

    #[tokio::test(start_paused = true)]
    async fn heartbeat_from_before_a_suspension_brings_no_belief() {
        let service = Service::default();
        let client = service.client();
        let guard = granted(&client, LockRequest::new("Moe").heartbeats(Heartbeats::Manual)).await;
        let renewed = async {
            guard.renew().await.expect("reachable");
            assert_eq!((guard.valid(), service.heartbeats()), (true, 2), "the second was sent since");
        };
        let suspended = async {
            sleep(ANSWER / 2).await;
            suspend(Duration::from_secs(3));
            sleep(ANSWER).await;
            assert_eq!((guard.valid(), service.heartbeats()), (false, 2), "the first was answered");
        };
        tokio::join!(renewed, suspended);
    }

    #[tokio::test(start_paused = true)]
    async fn lock_that_went_in_a_suspension_is_lost_at_once() {
        let service = Service::default();
        let client = service.client();
        let guard = granted(&client, "Moe").await;
        suspend(LEASE * 2);
        service.is_taken.store(true, Ordering::SeqCst);
        assert!(!guard.valid());
        let loss = tokio::time::timeout(ANSWER * 2, guard.lost()).await.expect("at once").expect("a loss");
        assert_eq!(loss.reason, LossReason::TakenOver);
    }
}
