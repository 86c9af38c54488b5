//! One retried request, or the requests under one lease id and the release of what they leave behind. Rules C1, C5, C6
//! and C10.

use std::time::Duration;

use crate::branch::branches;
use crate::timing::{UNREACHED_BOUND, backoff, request_timeout};
use crate::{Chance, Ending, Numbered, Purpose, Turns};

/// The knowledge of one client, which its calls share.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Whether the service has answered a request.
    pub answered: bool,
}

/// The settings of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The lease that bounds the time-outs: any duration.
    pub lease: Option<Duration>,
    /// The end of a granted lease that the holder does not believe in: shorter than the lease.
    pub delay: Duration,
    /// The longest time-out of a request: any duration.
    pub longest: Duration,
    /// The bound of a retried request: any duration.
    pub bound: Duration,
}

/// An event from the driver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event<R> {
    /// A caller asks. Under a lease id the request is sent once; otherwise it is retried.
    Start {
        /// The request.
        request: R,
        /// The time-out of a request under a lease id.
        timeout: Duration,
    },
    /// A request was answered.
    Answer {
        /// The number of the send.
        send: u64,
        /// The answer.
        reply: Reply,
    },
    /// A request has no answer.
    Unanswered {
        /// The number of the send.
        send: u64,
        /// The reason.
        cause: Cause,
    },
    /// A time that the machine asked for has come. An early or a late one is harmless.
    Tick,
    /// The caller stops asking.
    Cancel,
    /// The caller has received its grant.
    Taken,
}

/// An answer, as far as it matters to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The request was carried out.
    Done {
        /// The lease of the grant. None where the answer grants nothing.
        lease: Option<Duration>,
        /// Whether a release found something to release.
        found: bool,
    },
    /// A repeat would be refused again.
    Refused,
    /// The lease id has ended.
    Lost,
    /// A request with a higher number was carried out.
    Superseded {
        /// The number.
        sequence: u64,
    },
    /// The answer says nothing about the lock: throttled, or unavailable.
    Retryable {
        /// The shortest pause that the answer asks for.
        retry_after: Duration,
        /// Whether the request may be carried out all the same. A gateway's refusal came before the service.
        may_apply: bool,
    },
}

/// The reason why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The request was not sent, although connections can be made.
    NotSent,
    /// No connection could be made.
    Unreached,
    /// The connection broke.
    CutOff,
    /// The time-out passed.
    TimedOut,
}

impl Cause {
    /// Whether the request may be carried out all the same.
    pub fn may_apply(self) -> bool {
        matches!(self, Self::CutOff | Self::TimedOut)
    }
}

/// An instruction to the driver. Actions run in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action<R> {
    /// Sends a request. Exactly one `Answer` or `Unanswered` follows, also after an `Abandon`.
    Send {
        /// The number of the send.
        send: u64,
        /// The request.
        what: What<R>,
        /// The time-out.
        timeout: Duration,
    },
    /// Nobody waits for the answer of this send any more.
    Abandon {
        /// The number of the send.
        send: u64,
    },
    /// Asks for a `Tick` at this time. The last such time counts.
    WakeAt(Duration),
    /// The caller's call returns.
    Finish(Outcome),
    /// The work that follows outlives the caller's call.
    Background,
}

/// The content of a send.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum What<R> {
    /// The request of a retried call.
    Plain(R),
    /// A request under the lease id: a new one, or the open one again.
    Numbered(Numbered<R, Duration>),
    /// The release of the lease id on one of its keys.
    Release {
        /// The key's position.
        key: usize,
    },
}

/// The result of a call. The driver attaches the answer, or its own error, of the send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The answer is the result. A grant is the caller's with `Taken`.
    Answered {
        /// The number of the send.
        send: u64,
    },
    /// The answer is older than its lease, and worth nothing.
    TooLate {
        /// The number of the send.
        send: u64,
    },
    /// The request failed.
    Failed {
        /// The number of the send.
        send: u64,
    },
}

/// The state of a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum State {
    /// No request is under way.
    Idle,
    /// A request is under way.
    Asking {
        /// The number of the send.
        send: u64,
    },
    /// A retried request waits for its next try.
    Paused {
        /// The time of the next try.
        until: Duration,
    },
    /// The answer granted something, and the caller has not received it.
    Granted,
    /// The caller is gone, and its request is under way.
    Leaving {
        /// The number of the send.
        send: u64,
    },
    /// A release is under way.
    Releasing {
        /// The number of the send.
        send: u64,
    },
    /// A release waits for its next try.
    ReleasePaused {
        /// The time of the next try.
        until: Duration,
    },
    /// The releases found nothing: they may have overtaken the request.
    Doubting {
        /// The time of the last release.
        until: Duration,
    },
    /// Nothing is left to do.
    Ended,
}

branches! {
    /// A request begins.
    Started = "started",
    /// A request under a lease id begins with the open one again.
    Repeated = "repeated",
    /// A retried request has its answer.
    Answered = "answered",
    /// A retried request is refused.
    Refused = "refused",
    /// A retried request pauses before its next try.
    PausedToRetry = "paused-to-retry",
    /// A retried request is tried again.
    Retried = "retried",
    /// A retried request has no time for another try.
    GivenUp = "given-up",
    /// The time for another try passed while nobody looked.
    WokenTooLate = "woken-too-late",
    /// A tick comes before its time, or to a state without one.
    NothingDue = "nothing-due",
    /// A request under a lease id is granted.
    Granted = "granted",
    /// A grant is older than its lease.
    GrantedTooLate = "granted-too-late",
    /// A request under a lease id is carried out, and grants nothing.
    Noted = "noted",
    /// A request under a lease id is refused.
    Denied = "denied",
    /// The lease id has ended.
    LeaseIdEnded = "lease-id-ended",
    /// A request under a lease id is superseded.
    Superseded = "superseded",
    /// A request under a lease id has no useful answer, and may be carried out.
    MayApply = "may-apply",
    /// A request under a lease id certainly did not arrive.
    DidNotArrive = "did-not-arrive",
    /// The caller takes its grant.
    Taken = "taken",
    /// The caller leaves, and nothing is left behind.
    LeftNothing = "left-nothing",
    /// The caller of a retried request leaves.
    Abandoned = "abandoned",
    /// The caller leaves while its request is under way.
    LeftDuringRequest = "left-during-request",
    /// The caller leaves after a request that may hold something.
    LeftSomething = "left-something",
    /// The request of a caller that left certainly left nothing.
    NothingToRelease = "nothing-to-release",
    /// The request of a caller that left may hold something.
    ReleasedAfterRequest = "released-after-request",
    /// A release has its answer, and the next key follows.
    NextKey = "next-key",
    /// A release pauses before its next try.
    PausedToRelease = "paused-to-release",
    /// A release is tried again.
    ReleasedAgain = "released-again",
    /// The last key is released.
    GaveBack = "gave-back",
    /// Nothing was found to release, and the request may arrive later.
    FoundNothing = "found-nothing",
    /// The last release, for a request that arrived late.
    LookedAgain = "looked-again",
    /// An event that belongs to nothing under way.
    Stale = "stale",
}

/// The result of a step.
pub type Step<R> = crate::branch::Step<Branch, Action<R>>;

/// The tries of one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Tries {
    began: Duration,
    until: Duration,
    failures: u32,
}

/// One retried request, or the requests under one lease id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Call<R> {
    terms: Terms,
    /// The number of keys of the lease id. Zero: the call has no lease id.
    keys: usize,
    state: State,
    turns: Turns<R, Duration>,
    /// The request of a retried call.
    request: Option<R>,
    sends: u64,
    tries: Tries,
    /// Whether the lease id may hold something, now or later.
    may_hold: bool,
    /// The key that is released next.
    key: usize,
    /// Whether each release so far found something. Of several locks, one may be released before the request arrives
    /// and another one after it.
    found: bool,
    /// Whether a request may arrive after its release.
    doubts: bool,
}

impl<R> Call<R> {
    /// Begins a request that is retried within the bound.
    pub fn retried(terms: Terms) -> Self {
        Self::under_lease(terms, 0)
    }

    /// Begins the requests under one lease id, which has this number of keys.
    pub fn under_lease(terms: Terms, keys: usize) -> Self {
        Self {
            terms,
            keys,
            state: State::Idle,
            turns: Turns::default(),
            request: None,
            sends: 0,
            tries: Tries::default(),
            may_hold: false,
            key: 0,
            found: false,
            doubts: false,
        }
    }

    /// Returns the state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the numbers of the requests under the lease id.
    pub fn turns(&self) -> &Turns<R, Duration> {
        &self.turns
    }

    /// Whether the lease id may hold something, now or later.
    pub fn may_hold(&self) -> bool {
        self.may_hold
    }

    /// Whether nothing is left to do.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended
    }
}

impl<R: Clone> Call<R> {
    /// Takes one event.
    pub fn step(&mut self, memory: &mut Memory, event: Event<R>, now: Duration, chance: &mut impl Chance) -> Step<R> {
        let mut actions = Vec::new();
        let branch = match event {
            Event::Start { request, timeout } => self.start(request, timeout, now, chance, &mut actions),
            Event::Answer { send, reply } => {
                memory.answered = true;
                self.end(send, Ok(reply), false, now, chance, &mut actions)
            }
            Event::Unanswered { send, cause } => {
                let is_unreached = cause == Cause::Unreached && !memory.answered;
                self.end(send, Err(cause), is_unreached, now, chance, &mut actions)
            }
            Event::Tick => self.tick(now, &mut actions),
            Event::Cancel => self.cancel(now, &mut actions),
            Event::Taken if self.state == State::Granted => {
                self.state = State::Ended;
                Branch::Taken
            }
            Event::Taken => Branch::Stale,
        };
        Step { branch, actions }
    }

    fn start(
        &mut self,
        request: R,
        timeout: Duration,
        now: Duration,
        chance: &mut impl Chance,
        actions: &mut Vec<Action<R>>,
    ) -> Branch {
        if self.state != State::Idle {
            return Branch::Stale;
        }
        if self.keys == 0 {
            self.request = Some(request);
            self.try_for(now);
            self.ask(now, actions);
            return Branch::Started;
        }
        let branch = if self.turns.open().is_some() { Branch::Repeated } else { Branch::Started };
        let numbered = self.turns.next(now, || request, || chance.id(Purpose::RequestId));
        let send = self.send(What::Numbered(numbered), timeout, actions);
        self.state = State::Asking { send };
        branch
    }

    /// Records the end of a send.
    fn end(
        &mut self,
        send: u64,
        end: Result<Reply, Cause>,
        is_unreached: bool,
        now: Duration,
        chance: &mut impl Chance,
        actions: &mut Vec<Action<R>>,
    ) -> Branch {
        if is_unreached {
            self.tries.until = self.tries.until.min(self.tries.began + UNREACHED_BOUND);
        }
        match self.state {
            State::Asking { send: expected } if send == expected && self.keys == 0 => {
                self.plain_ended(send, end, now, chance, actions)
            }
            State::Asking { send: expected } if send == expected => {
                let branch = self.numbered_ended(end, now);
                self.state = if branch == Branch::Granted { State::Granted } else { State::Idle };
                actions.push(Action::Finish(match branch {
                    Branch::Granted | Branch::Noted => Outcome::Answered { send },
                    Branch::GrantedTooLate => Outcome::TooLate { send },
                    _ => Outcome::Failed { send },
                }));
                branch
            }
            State::Leaving { send: expected } if send == expected => {
                let branch = self.numbered_ended(end, now);
                if !self.may_hold {
                    self.state = State::Ended;
                    return Branch::NothingToRelease;
                }
                let was_carried_out = matches!(branch, Branch::Granted | Branch::GrantedTooLate | Branch::Noted);
                self.give_back(!was_carried_out, now, actions);
                Branch::ReleasedAfterRequest
            }
            State::Releasing { send: expected } if send == expected => self.release_ended(end, now, chance, actions),
            _ => Branch::Stale,
        }
    }

    fn plain_ended(
        &mut self,
        send: u64,
        end: Result<Reply, Cause>,
        now: Duration,
        chance: &mut impl Chance,
        actions: &mut Vec<Action<R>>,
    ) -> Branch {
        if let Some(retry_after) = retryable(end) {
            if let Some(until) = self.next_try(retry_after, now, chance) {
                self.state = State::Paused { until };
                actions.push(Action::WakeAt(until));
                return Branch::PausedToRetry;
            }
            self.state = State::Ended;
            actions.push(Action::Finish(Outcome::Failed { send }));
            return Branch::GivenUp;
        }
        self.state = State::Ended;
        if matches!(end, Ok(Reply::Done { .. })) {
            actions.push(Action::Finish(Outcome::Answered { send }));
            return Branch::Answered;
        }
        actions.push(Action::Finish(Outcome::Failed { send }));
        Branch::Refused
    }

    /// Records what the end of a request under the lease id tells.
    fn numbered_ended(&mut self, end: Result<Reply, Cause>, now: Duration) -> Branch {
        let sent = self.turns.open().map_or(now, |open| open.first_sent);
        let (branch, ending) = match end {
            Ok(Reply::Done { lease: None, .. }) => (Branch::Noted, Ending::Told),
            Ok(Reply::Done { lease: Some(lease), .. }) => {
                let is_over = now.saturating_sub(sent) >= lease.saturating_sub(self.terms.delay);
                (if is_over { Branch::GrantedTooLate } else { Branch::Granted }, Ending::Told)
            }
            Ok(Reply::Refused) => (Branch::Denied, Ending::Told),
            Ok(Reply::Lost) => (Branch::LeaseIdEnded, Ending::Told),
            Ok(Reply::Superseded { sequence }) => (Branch::Superseded, Ending::Superseded { sequence }),
            Ok(Reply::Retryable { may_apply, .. }) => may(may_apply),
            Err(cause) => may(cause.may_apply()),
        };
        self.turns.ended(ending);
        match branch {
            Branch::Denied | Branch::DidNotArrive => {}
            // A late copy is refused. Of several locks, others may be the lease id's.
            Branch::LeaseIdEnded => self.may_hold &= self.keys > 1,
            _ => self.may_hold = true,
        }
        branch
    }

    fn tick(&mut self, now: Duration, actions: &mut Vec<Action<R>>) -> Branch {
        let (State::Paused { until } | State::ReleasePaused { until } | State::Doubting { until }) = self.state else {
            return Branch::NothingDue;
        };
        if now < until {
            actions.push(Action::WakeAt(until));
            return Branch::NothingDue;
        }
        match self.state {
            State::Paused { .. } if now >= self.tries.until => {
                self.state = State::Ended;
                actions.push(Action::Finish(Outcome::Failed { send: self.sends }));
                Branch::WokenTooLate
            }
            State::Paused { .. } => {
                self.ask(now, actions);
                Branch::Retried
            }
            State::Doubting { .. } => {
                self.give_back(false, now, actions);
                Branch::LookedAgain
            }
            _ => {
                self.release(now, actions);
                Branch::ReleasedAgain
            }
        }
    }

    fn cancel(&mut self, now: Duration, actions: &mut Vec<Action<R>>) -> Branch {
        match self.state {
            State::Asking { send } if self.keys == 0 => {
                self.state = State::Ended;
                actions.push(Action::Abandon { send });
                Branch::Abandoned
            }
            State::Asking { send } => {
                self.state = State::Leaving { send };
                actions.push(Action::Background);
                Branch::LeftDuringRequest
            }
            State::Granted | State::Idle if self.may_hold => {
                actions.push(Action::Background);
                self.give_back(self.state != State::Granted, now, actions);
                Branch::LeftSomething
            }
            State::Idle | State::Paused { .. } => {
                self.state = State::Ended;
                Branch::LeftNothing
            }
            _ => Branch::Stale,
        }
    }

    /// Releases the lease id on all of its keys. `doubts`: the request may arrive after the release.
    fn give_back(&mut self, doubts: bool, now: Duration, actions: &mut Vec<Action<R>>) {
        (self.key, self.found, self.doubts) = (0, true, doubts);
        self.try_for(now);
        self.release(now, actions);
    }

    fn release(&mut self, now: Duration, actions: &mut Vec<Action<R>>) {
        let timeout = self.timeout(now);
        let send = self.send(What::Release { key: self.key }, timeout, actions);
        self.state = State::Releasing { send };
    }

    fn release_ended(
        &mut self,
        end: Result<Reply, Cause>,
        now: Duration,
        chance: &mut impl Chance,
        actions: &mut Vec<Action<R>>,
    ) -> Branch {
        if let Some(retry_after) = retryable(end)
            && let Some(until) = self.next_try(retry_after, now, chance)
        {
            self.state = State::ReleasePaused { until };
            actions.push(Action::WakeAt(until));
            return Branch::PausedToRelease;
        }
        self.found &= matches!(end, Ok(Reply::Done { found: true, .. }));
        self.key += 1;
        if self.key < self.keys {
            self.release(now, actions);
            return Branch::NextKey;
        }
        if self.found || !self.doubts {
            self.state = State::Ended;
            return Branch::GaveBack;
        }
        let until = now + self.terms.longest;
        self.state = State::Doubting { until };
        actions.push(Action::WakeAt(until));
        Branch::FoundNothing
    }

    fn ask(&mut self, now: Duration, actions: &mut Vec<Action<R>>) {
        if let Some(request) = self.request.clone() {
            let timeout = self.timeout(now);
            let send = self.send(What::Plain(request), timeout, actions);
            self.state = State::Asking { send };
        }
    }

    fn send(&mut self, what: What<R>, timeout: Duration, actions: &mut Vec<Action<R>>) -> u64 {
        self.sends += 1;
        actions.push(Action::Send { send: self.sends, what, timeout });
        self.sends
    }

    fn try_for(&mut self, now: Duration) {
        self.tries = Tries { began: now, until: now.saturating_add(self.terms.bound), failures: 0 };
    }

    fn timeout(&self, now: Duration) -> Duration {
        request_timeout(self.terms.longest, self.terms.lease, self.tries.until.saturating_sub(now))
    }

    /// The time of the next try, if there is time for one.
    fn next_try(&mut self, retry_after: Duration, now: Duration, chance: &mut impl Chance) -> Option<Duration> {
        self.tries.failures = self.tries.failures.saturating_add(1);
        let pause = backoff(self.tries.failures, retry_after, chance.fraction(Purpose::Backoff));
        Some(now + pause).filter(|next| *next < self.tries.until)
    }
}

/// The shortest pause before another try, if the end is worth one.
fn retryable(end: Result<Reply, Cause>) -> Option<Duration> {
    match end {
        Ok(Reply::Retryable { retry_after, .. }) => Some(retry_after),
        Ok(_) => None,
        Err(_) => Some(Duration::ZERO),
    }
}

fn may(may_apply: bool) -> (Branch, Ending) {
    (if may_apply { Branch::MayApply } else { Branch::DidNotArrive }, Ending::Untold { may_apply })
}
