//! What is held under one lease id: heartbeats, belief, loss and end. Rules C2, C7, C8 and C10.
//!
//! Belief is asked, not told: [`Holder::valid`], [`Holder::remaining`] and [`Holder::loss`] are functions of the state
//! and the time. A late tick cannot make a lease that has run out look alive.

use std::collections::VecDeque;
use std::time::Duration;

use crate::branch::branches;
use crate::timing::{
    backoff, heartbeat_interval, heartbeat_pause, heartbeat_retry_pause, leave_bound, longest_heartbeat_interval,
    request_timeout,
};
use crate::{Cause, Chance, Ending, LossReason, Numbered, Purpose, Turns};

/// The sending of heartbeats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Beats {
    /// Every quarter of the lease.
    #[default]
    Quarterly,
    /// At this interval: above zero, and at most half the lease.
    Every(Duration),
    /// By the caller alone.
    Manual,
}

/// The settings of a holder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// The sending of heartbeats.
    pub beats: Beats,
    /// The end of each lease that the holder does not believe in: shorter than the lease.
    pub delay: Duration,
    /// Whether the holder believes on after its lease, while the service cannot be reached.
    pub holds_on: bool,
    /// The longest time to hold.
    pub max_hold: Option<Duration>,
    /// The longest time-out of a request: any duration.
    pub longest: Duration,
}

impl Terms {
    /// Returns the part of a lease that the holder believes in.
    pub fn believed(&self, lease: Duration) -> Duration {
        lease.saturating_sub(self.delay)
    }

    /// Returns the time between heartbeats under a lease that is believed in for this long. None where the caller sends
    /// them.
    pub fn interval(&self, believed: Duration) -> Option<Duration> {
        match self.beats {
            Beats::Quarterly => Some(heartbeat_interval(believed)),
            Beats::Every(interval) => Some(interval),
            Beats::Manual => None,
        }
    }

    /// Checks the settings against a lease. A warning with `warns_at` of the lease left must not come although all is
    /// well.
    ///
    /// # Errors
    /// The setting at fault.
    pub fn check(&self, lease: Duration, warns_at: Option<Duration>) -> Result<(), Fault> {
        let believed = self.believed(lease);
        if believed.is_zero() {
            return Err(Fault::Delay);
        }
        let (interval, longest) = (self.interval(believed), longest_heartbeat_interval(believed));
        if interval.is_some_and(|interval| interval.is_zero() || interval > longest) {
            return Err(Fault::Interval { longest });
        }
        let healthy = believed.saturating_sub(interval.unwrap_or_default());
        if warns_at.is_some_and(|left| left >= healthy) {
            return Err(Fault::Warning { healthy });
        }
        Ok(())
    }
}

/// A setting that cannot keep a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The delay leaves nothing of the lease.
    Delay,
    /// The interval of heartbeats is zero, or longer than this.
    Interval {
        /// The longest interval.
        longest: Duration,
    },
    /// The warning comes in good health, in which at least this much is left.
    Warning {
        /// The rest of the lease when a heartbeat is due.
        healthy: Duration,
    },
}

/// A grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The time of the first sending of its request.
    pub sent: Duration,
    /// The lease.
    pub lease: Duration,
    /// The fencing token.
    pub token: u64,
    /// The last number under the lease id.
    pub sequence: u64,
}

/// An event from the driver.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event<R> {
    /// The holding begins.
    Start,
    /// A caller wants a heartbeat with this change.
    Renew {
        /// The call, which `Finish` names.
        call: u64,
        /// The change.
        change: R,
        /// A new lease.
        lease: Option<Duration>,
    },
    /// A caller waits for its heartbeat no more.
    Leave {
        /// The call.
        call: u64,
    },
    /// A heartbeat was answered.
    Answer {
        /// The number of the send.
        send: u64,
        /// The answer.
        reply: Reply,
    },
    /// A heartbeat has no answer.
    Unanswered {
        /// The number of the send.
        send: u64,
        /// The reason.
        cause: Cause,
    },
    /// A time that the machine asked for has come. An early or a late one is harmless.
    Tick,
    /// A caller wants a warning when no more than this is left of a lease that was not renewed in time.
    WarnAt {
        /// The rest. None: half of the lease.
        left: Option<Duration>,
    },
    /// The holder gives back what it holds. The same when a guard is dropped.
    Release,
    /// A try of the release, which was sent then, has no answer that tells its end. The next try, or `Returned`,
    /// follows.
    Untold {
        /// The time of its sending.
        sent: Duration,
        /// Whether it may be carried out all the same.
        may_apply: bool,
        /// Whether it stores data or a completed occurrence, of which only an answer tells.
        stores: bool,
    },
    /// The release came to an end.
    Returned(Return),
    /// Another process goes on with the lease id.
    Detach,
    /// The belief ends for this reason, and what was held is given back.
    Revoke {
        /// The reason.
        reason: LossReason,
    },
    /// The process stood still for longer than the clock shows.
    Suspended,
    /// The process is the child of a fork.
    Forked,
}

/// An answer to a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reply {
    /// It was carried out.
    Renewed {
        /// The lease.
        lease: Duration,
        /// The fencing token of the row.
        token: u64,
        /// Whether somebody waits.
        wanted: bool,
    },
    /// A repeat would be refused again. The answer says nothing about a thief.
    Refused,
    /// The lease id holds nothing any more.
    Lost {
        /// The reason.
        reason: LossReason,
    },
    /// A request with a higher number was carried out.
    Superseded {
        /// The number.
        sequence: u64,
        /// The fencing token of the row, if it was told.
        token: Option<u64>,
    },
    /// The answer says nothing about the lock: throttled, or unavailable.
    Retryable {
        /// The shortest pause that the answer asks for.
        retry_after: Duration,
        /// Whether the request may be carried out all the same.
        may_apply: bool,
    },
}

/// The end of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Return {
    /// Nothing is held any more. This holds for a first release that the service calls a repeat, too.
    Done,
    /// The lease id had lost what it held.
    Lost {
        /// The reason.
        reason: LossReason,
    },
    /// The release may be tried again.
    Failed,
}

/// An instruction to the driver. Actions run in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action<R> {
    /// Sends a heartbeat. One `Answer` or `Unanswered` follows, unless the send is abandoned.
    Send {
        /// The number of the send.
        send: u64,
        /// The heartbeat: a new one, or the open one again.
        beat: Numbered<Beat<R>, Duration>,
        /// The time-out.
        timeout: Duration,
    },
    /// The answer of this send does not matter any more.
    Abandon {
        /// The number of the send.
        send: u64,
    },
    /// Asks for a `Tick` at this time. The last such time counts.
    WakeAt(Duration),
    /// The answer of this send has the present version, and what else the driver keeps.
    Renewed {
        /// The number of the send.
        send: u64,
    },
    /// A caller's heartbeat is over.
    Finish {
        /// The call.
        call: u64,
        /// The result.
        outcome: Outcome,
    },
    /// So little is left of the lease.
    AtRisk {
        /// The position of its `WarnAt` among all.
        risk: usize,
        /// The rest.
        left: Duration,
    },
    /// The loss, once.
    Lost {
        /// The reason.
        reason: LossReason,
    },
    /// Gives back what was held, by a retried request under this lease. `Returned` follows.
    GiveBack {
        /// The lease, which bounds the time-outs.
        lease: Duration,
        /// The time for which the end of a scope waits.
        patience: Duration,
    },
}

/// The content of a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Beat<R> {
    /// The lease, which each heartbeat names.
    pub lease: Duration,
    /// The change of a caller.
    pub change: Option<R>,
    call: Option<u64>,
}

/// The result of a caller's heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was carried out.
    Renewed,
    /// The last try failed. The driver attaches its own error of the send.
    Failed {
        /// The number of the send.
        send: u64,
    },
    /// Nothing is held any more.
    Ended,
}

/// The state of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// It holds, as far as the answers tell. The clock may know better.
    Held,
    /// The release is under way.
    Releasing,
    /// The release failed, and may be tried again.
    Unreleased,
    /// Nothing is held any more.
    Released,
    /// Another process goes on.
    Detached,
    /// It was lost.
    Lost(LossReason),
}

branches! {
    /// The holding begins.
    Started = "started",
    /// A tick comes before its time, or to a holder without one.
    NothingDue = "nothing-due",
    /// A heartbeat is due.
    Beat = "beat",
    /// A heartbeat is tried again.
    BeatAgain = "beat-again",
    /// A lease is at risk.
    Warned = "warned",
    /// The lease ran out.
    Expired = "expired",
    /// The longest hold is over.
    HeldTooLong = "held-too-long",
    /// A caller wants a heartbeat.
    Asked = "asked",
    /// A caller wants a heartbeat, and another one is under way.
    Queued = "queued",
    /// A caller wants a heartbeat, and nothing is held any more.
    AskedTooLate = "asked-too-late",
    /// A caller does not wait any more.
    Left = "left",
    /// A heartbeat was carried out.
    Renewed = "renewed",
    /// A heartbeat was carried out, and the next one follows.
    RenewedAndNext = "renewed-and-next",
    /// An answer is older than its lease.
    RenewedTooLate = "renewed-too-late",
    /// A heartbeat from before a suspension was carried out.
    RenewedBeforeSuspension = "renewed-before-suspension",
    /// The row has a token that was not granted.
    Ghost = "ghost",
    /// An answer tells of the loss.
    LostByAnswer = "lost-by-answer",
    /// A heartbeat is superseded.
    Superseded = "superseded",
    /// One heartbeat after the other is superseded.
    SupersededAgain = "superseded-again",
    /// A heartbeat is refused.
    Refused = "refused",
    /// A caller's heartbeat is refused.
    AskedInVain = "asked-in-vain",
    /// A heartbeat has no useful answer.
    Failed = "failed",
    /// The lease is over, and the holder believes on.
    HeldOn = "held-on",
    /// A warning is wanted.
    WarnedLater = "warned-later",
    /// The holder gives back.
    GivesBack = "gives-back",
    /// The holder tries again to give back.
    GivesBackAgain = "gives-back-again",
    /// There is nothing to give back, or it is under way.
    NothingToGiveBack = "nothing-to-give-back",
    /// Nothing is held any more.
    GaveBack = "gave-back",
    /// A try of the release has no answer, and may be carried out.
    MayBeGivenBack = "may-be-given-back",
    /// A try of the release has no answer. It was not carried out, left after the lease, or stores what only an answer
    /// may tell as stored.
    StillToGiveBack = "still-to-give-back",
    /// The release tells of a loss, which an earlier try without an answer explains.
    WasGivenBack = "was-given-back",
    /// The release tells of a loss.
    WasLost = "was-lost",
    /// The release failed.
    NotGivenBack = "not-given-back",
    /// Another process goes on.
    Detached = "detached",
    /// The belief ends for another reason.
    Revoked = "revoked",
    /// The process stood still.
    Suspended = "suspended",
    /// The process is a child.
    Forked = "forked",
    /// An event that belongs to nothing under way.
    Stale = "stale",
}

/// The result of a step.
pub type Step<R> = crate::branch::Step<Branch, Action<R>>;

/// A heartbeat that a caller waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Renewal<R> {
    call: u64,
    change: R,
    lease: Option<Duration>,
}

/// A warning that a caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Risk {
    left: Option<Duration>,
    is_told: bool,
}

/// What is held under one lease id.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder<R> {
    terms: Terms,
    state: State,
    token: u64,
    /// The time before the last request that was carried out was first sent.
    renewed_at: Duration,
    /// The lease of the last answer.
    lease: Duration,
    /// The end of the belief. A heartbeat with a shorter lease caps it from its sending on, because it may be carried
    /// out without an answer. A higher number that is answered lifts the cap.
    until: Duration,
    /// The end of the belief of a holder that holds on: one lease after the next try. A holder that stood still for
    /// longer knows nothing.
    faith: Option<Duration>,
    /// The end of the longest hold.
    hold_ends: Option<Duration>,
    turns: Turns<Beat<R>, Duration>,
    sends: u64,
    under_way: Option<u64>,
    renewals: VecDeque<Renewal<R>>,
    /// The time of the next heartbeat. None: one is under way, or the caller sends them.
    due: Option<Duration>,
    failures: u32,
    /// Whether the last answer was about the number of its heartbeat, and not about the lock.
    is_renumbered: bool,
    /// The last send that failed, since the last success.
    trouble: Option<u64>,
    risks: Vec<Risk>,
    is_wanted: bool,
    /// The last number before a suspension. Leases of requests up to that number count by a clock that stood still.
    suspended: Option<u64>,
    /// Whether a release that left within the lease has no answer.
    may_be_given_back: bool,
    /// The time of the last `WakeAt`.
    wake: Option<Duration>,
}

impl<R> Holder<R> {
    /// Creates a holder of a grant.
    pub fn new(terms: Terms, grant: Grant) -> Self {
        Self {
            terms,
            state: State::Held,
            token: grant.token,
            renewed_at: grant.sent,
            lease: grant.lease,
            until: grant.sent.saturating_add(terms.believed(grant.lease)),
            faith: None,
            hold_ends: None,
            turns: Turns::after(grant.sequence),
            sends: 0,
            under_way: None,
            renewals: VecDeque::new(),
            due: None,
            failures: 0,
            is_renumbered: false,
            trouble: None,
            risks: Vec::new(),
            is_wanted: false,
            suspended: None,
            may_be_given_back: false,
            wake: None,
        }
    }

    /// Whether the holder believes that it holds.
    pub fn valid(&self, now: Duration) -> bool {
        self.state == State::Held && self.suspended.is_none() && self.over(now).is_none()
    }

    /// Returns the rest of the lease. Zero without belief.
    pub fn remaining(&self, now: Duration) -> Duration {
        if !self.valid(now) {
            return Duration::ZERO;
        }
        self.hold_ends.map_or(self.until, |end| self.until.min(end)).saturating_sub(now)
    }

    /// Returns the reason of the loss, if there is one.
    pub fn loss(&self, now: Duration) -> Option<LossReason> {
        match self.state {
            State::Lost(reason) => Some(reason),
            State::Held => self.over(now),
            _ => None,
        }
    }

    /// Whether the process was suspended, and no heartbeat was answered since. Nothing is believed, and nothing is
    /// lost.
    pub fn in_doubt(&self) -> bool {
        self.state == State::Held && self.suspended.is_some()
    }

    /// Returns the state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the settings.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns the lease of the last answer.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the end of the lease, as far as the holder believes in it.
    pub fn until(&self) -> Duration {
        self.until
    }

    /// Returns the fencing token.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether a heartbeat told that somebody waits.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Returns the heartbeat that is under way.
    pub fn under_way(&self) -> Option<u64> {
        self.under_way
    }

    /// Returns the numbers of the heartbeats.
    pub fn turns(&self) -> &Turns<Beat<R>, Duration> {
        &self.turns
    }

    /// Returns the send that failed last, if no later one succeeded. It is the cause of an expiry.
    pub fn trouble(&self) -> Option<u64> {
        self.trouble
    }

    /// The reason for which the time ends the belief.
    fn over(&self, now: Duration) -> Option<LossReason> {
        if now >= self.until && self.faith.is_none_or(|faith| now >= faith) {
            return Some(LossReason::Expired);
        }
        self.hold_ends.filter(|end| now >= *end).map(|_| LossReason::MaxHold)
    }
}

impl<R: Clone> Holder<R> {
    /// Takes one event.
    pub fn step(&mut self, event: Event<R>, now: Duration, chance: &mut impl Chance) -> Step<R> {
        let mut actions = Vec::new();
        let over = self.ends(now, &mut actions);
        let branch = self.take(event, over, now, chance, &mut actions);
        // A refusal in an outage ends the belief past the lease.
        self.ends(now, &mut actions);
        self.plan(now, &mut actions);
        Step { branch, actions }
    }

    /// Ends the hold if the time has ended the belief. Returns the reason.
    fn ends(&mut self, now: Duration, actions: &mut Vec<Action<R>>) -> Option<LossReason> {
        let over = if self.state == State::Held { self.over(now) } else { None };
        if let Some(reason) = over {
            self.lose(reason, actions);
        }
        over
    }

    fn take(
        &mut self,
        event: Event<R>,
        over: Option<LossReason>,
        now: Duration,
        chance: &mut impl Chance,
        actions: &mut Vec<Action<R>>,
    ) -> Branch {
        let is_held = self.state == State::Held;
        match event {
            Event::Start if is_held => {
                self.hold_ends = self.terms.max_hold.map(|longest| now.saturating_add(longest));
                self.next_beat(chance);
                Branch::Started
            }
            Event::Renew { call, change, lease } if is_held => {
                self.renewals.push_back(Renewal { call, change, lease });
                if self.under_way.is_some() {
                    return Branch::Queued;
                }
                self.beat(now, chance, actions);
                Branch::Asked
            }
            Event::Renew { call, .. } => {
                actions.push(Action::Finish { call, outcome: Outcome::Ended });
                Branch::AskedTooLate
            }
            Event::Leave { call } => {
                let before = self.renewals.len();
                self.renewals.retain(|renewal| renewal.call != call);
                if self.renewals.len() == before {
                    return Branch::Stale;
                }
                if self.renewals.is_empty() && self.terms.beats == Beats::Manual {
                    self.due = None;
                }
                Branch::Left
            }
            Event::Answer { send, reply } if self.under_way == Some(send) => {
                self.under_way = None;
                self.answered(send, reply, now, chance, actions)
            }
            Event::Unanswered { send, cause } if self.under_way == Some(send) => {
                self.under_way = None;
                self.turns.ended(Ending::Untold { may_apply: cause.may_apply() });
                self.failed(send, Duration::ZERO, now, chance, actions)
            }
            Event::Tick => {
                self.wake = None;
                self.tick(over, now, chance, actions)
            }
            Event::WarnAt { left } if is_held => {
                self.risks.push(Risk { left, is_told: false });
                Branch::WarnedLater
            }
            Event::Release if is_held => {
                let give_back = self.give_back(now);
                self.end(State::Releasing, actions);
                actions.push(give_back);
                Branch::GivesBack
            }
            Event::Release if self.state == State::Unreleased => {
                actions.push(self.give_back(now));
                self.state = State::Releasing;
                Branch::GivesBackAgain
            }
            Event::Release => Branch::NothingToGiveBack,
            Event::Untold { sent, may_apply, stores } if self.state == State::Releasing => {
                // A release that left later may have met another holder.
                if !may_apply || stores || self.suspended.is_some() || sent >= self.until {
                    return Branch::StillToGiveBack;
                }
                self.may_be_given_back = true;
                Branch::MayBeGivenBack
            }
            Event::Returned(end) if self.state == State::Releasing => self.returned(end, actions),
            Event::Detach if is_held => {
                self.end(State::Detached, actions);
                Branch::Detached
            }
            Event::Revoke { reason } if is_held => {
                let give_back = self.give_back(now);
                self.lose(reason, actions);
                actions.push(give_back);
                Branch::Revoked
            }
            Event::Suspended if is_held => {
                self.suspended = Some(self.turns.last());
                if self.under_way.is_none() && self.terms.beats != Beats::Manual {
                    self.beat(now, chance, actions);
                }
                Branch::Suspended
            }
            // The clock does not show that a later release leaves after the lease.
            Event::Suspended if matches!(self.state, State::Releasing | State::Unreleased) => {
                self.until = self.until.min(now);
                Branch::Suspended
            }
            Event::Forked if is_held => {
                self.lose(LossReason::Forked, actions);
                Branch::Forked
            }
            _ => Branch::Stale,
        }
    }

    fn tick(
        &mut self,
        over: Option<LossReason>,
        now: Duration,
        chance: &mut impl Chance,
        actions: &mut Vec<Action<R>>,
    ) -> Branch {
        match over {
            Some(LossReason::MaxHold) => return Branch::HeldTooLong,
            Some(_) => return Branch::Expired,
            None if self.state != State::Held => return Branch::NothingDue,
            None => {}
        }
        let left = self.until.saturating_sub(now);
        let mut warns = false;
        for index in 0..self.risks.len() {
            if !self.risks[index].is_told && now >= self.warns_at(self.risks[index]) {
                self.risks[index].is_told = true;
                // After a long pause there is no risk to report.
                if !left.is_zero() {
                    warns = true;
                    actions.push(Action::AtRisk { risk: index, left });
                }
            }
        }
        if self.due.is_some_and(|due| now >= due) {
            self.beat(now, chance, actions);
            return if self.failures > 0 { Branch::BeatAgain } else { Branch::Beat };
        }
        if warns { Branch::Warned } else { Branch::NothingDue }
    }

    /// Records an answer, whose send is not under way any more.
    fn answered(
        &mut self,
        send: u64,
        reply: Reply,
        now: Duration,
        chance: &mut impl Chance,
        actions: &mut Vec<Action<R>>,
    ) -> Branch {
        let Some(beat) = self.turns.open().cloned() else { return Branch::Stale };
        match reply {
            Reply::Renewed { lease, token, wanted } => {
                self.turns.ended(Ending::Told);
                self.is_wanted |= wanted;
                if token != self.token {
                    self.lose(LossReason::TakenOver, actions);
                    return Branch::Ghost;
                }
                if self.suspended.is_some_and(|last| beat.sequence <= last) {
                    self.beat(now, chance, actions);
                    return Branch::RenewedBeforeSuspension;
                }
                if now.saturating_sub(beat.first_sent) >= self.terms.believed(lease) {
                    self.trouble = Some(send);
                    self.again(now, chance, actions);
                    return Branch::RenewedTooLate;
                }
                actions.push(Action::Renewed { send });
                self.renewed(beat.first_sent, lease);
                self.finish(beat.request.call, Outcome::Renewed, actions);
                if self.renewals.is_empty() {
                    self.next_beat(chance);
                    return Branch::Renewed;
                }
                self.beat(now, chance, actions);
                Branch::RenewedAndNext
            }
            Reply::Lost { reason } => {
                self.turns.ended(Ending::Told);
                self.lose(reason, actions);
                Branch::LostByAnswer
            }
            Reply::Superseded { sequence, token } => {
                self.turns.ended(Ending::Superseded { sequence });
                if token.is_some_and(|token| token != self.token) {
                    self.lose(LossReason::TakenOver, actions);
                    return Branch::Ghost;
                }
                if self.again(now, chance, actions) { Branch::Superseded } else { Branch::SupersededAgain }
            }
            Reply::Refused => {
                self.turns.ended(Ending::Told);
                (self.trouble, self.faith, self.is_renumbered) = (Some(send), None, false);
                let was_wanted = self.finish(beat.request.call, Outcome::Failed { send }, actions);
                self.pause(Duration::ZERO, now, chance);
                if was_wanted { Branch::AskedInVain } else { Branch::Refused }
            }
            Reply::Retryable { retry_after, may_apply } => {
                self.turns.ended(Ending::Untold { may_apply });
                self.failed(send, retry_after, now, chance, actions)
            }
        }
    }

    /// Records a failure that tells nothing.
    fn failed(
        &mut self,
        send: u64,
        retry_after: Duration,
        now: Duration,
        chance: &mut impl Chance,
        actions: &mut Vec<Action<R>>,
    ) -> Branch {
        (self.trouble, self.is_renumbered) = (Some(send), false);
        let is_over = now >= self.until;
        if is_over {
            // Callers do not wait for the end of an outage.
            self.finish_all(Outcome::Failed { send }, actions);
        }
        self.pause(retry_after, now, chance);
        self.hold_on(now);
        if is_over { Branch::HeldOn } else { Branch::Failed }
    }

    fn renewed(&mut self, sent: Duration, lease: Duration) {
        (self.renewed_at, self.lease, self.until) = (sent, lease, sent.saturating_add(self.terms.believed(lease)));
        (self.trouble, self.faith, self.suspended) = (None, None, None);
        (self.failures, self.is_renumbered) = (0, false);
        for risk in &mut self.risks {
            risk.is_told = false;
        }
    }

    /// Plans the next heartbeat, which keeps pace with the part of the lease that is believed in.
    fn next_beat(&mut self, chance: &mut impl Chance) {
        let believed = self.until.saturating_sub(self.renewed_at);
        self.due = self.terms.interval(believed).map(|interval| {
            // An interval that was chosen before may be too long for a shortened lease.
            let interval = whole(interval.min(longest_heartbeat_interval(believed)));
            self.renewed_at + heartbeat_pause(interval, chance.fraction(Purpose::Heartbeat))
        });
    }

    /// Sends the next heartbeat at once, under a higher number; or after a pause, if the last answer was about its
    /// number as well. Returns whether it was sent at once.
    fn again(&mut self, now: Duration, chance: &mut impl Chance, actions: &mut Vec<Action<R>>) -> bool {
        if self.is_renumbered {
            self.pause(Duration::ZERO, now, chance);
            self.hold_on(now);
            return false;
        }
        self.is_renumbered = true;
        self.beat(now, chance, actions);
        true
    }

    /// Believes for one lease from the next try, if the holder holds on.
    fn hold_on(&mut self, now: Duration) {
        if self.terms.holds_on {
            self.faith = Some(self.due.unwrap_or(now).saturating_add(self.terms.believed(self.lease)));
        }
    }

    /// Plans the next try.
    fn pause(&mut self, retry_after: Duration, now: Duration, chance: &mut impl Chance) {
        self.failures = self.failures.saturating_add(1);
        let pause = backoff(self.failures, retry_after, chance.fraction(Purpose::Backoff));
        let next = now + whole(heartbeat_retry_pause(pause, self.until.saturating_sub(now)));
        let goes_on = self.terms.beats != Beats::Manual || !self.renewals.is_empty();
        self.due = goes_on.then_some(next);
    }

    /// Sends the open heartbeat again, or a new one: the first that a caller waits for, or a plain one.
    fn beat(&mut self, now: Duration, chance: &mut impl Chance, actions: &mut Vec<Action<R>>) {
        let (renewal, lease) = (self.renewals.front(), self.lease);
        let fresh = || Beat {
            lease: renewal.and_then(|renewal| renewal.lease).unwrap_or(lease),
            change: renewal.map(|renewal| renewal.change.clone()),
            call: renewal.map(|renewal| renewal.call),
        };
        let beat = self.turns.next(now, fresh, || chance.id(Purpose::RequestId));
        let lease = beat.request.lease;
        self.until = self.until.min(beat.first_sent.saturating_add(self.terms.believed(lease)));
        let believed = self.until.saturating_sub(self.renewed_at);
        let left = self.until.saturating_sub(now);
        let timeout = whole(request_timeout(self.terms.longest, Some(lease.min(believed)), left));
        self.sends += 1;
        (self.under_way, self.due) = (Some(self.sends), None);
        actions.push(Action::Send { send: self.sends, beat, timeout });
    }

    /// Tells the caller of a heartbeat its result, if it still waits. Returns whether it does.
    fn finish(&mut self, call: Option<u64>, outcome: Outcome, actions: &mut Vec<Action<R>>) -> bool {
        let Some(call) = self.renewals.front().map(|renewal| renewal.call).filter(|first| Some(*first) == call) else {
            return false;
        };
        self.renewals.pop_front();
        actions.push(Action::Finish { call, outcome });
        true
    }

    fn finish_all(&mut self, outcome: Outcome, actions: &mut Vec<Action<R>>) {
        actions.extend(self.renewals.drain(..).map(|renewal| Action::Finish { call: renewal.call, outcome }));
    }

    fn give_back(&self, now: Duration) -> Action<R> {
        Action::GiveBack { lease: self.lease, patience: leave_bound(self.remaining(now)) }
    }

    fn returned(&mut self, end: Return, actions: &mut Vec<Action<R>>) -> Branch {
        match end {
            Return::Done => {
                self.state = State::Released;
                Branch::GaveBack
            }
            Return::Lost { .. } if self.may_be_given_back => {
                self.state = State::Released;
                Branch::WasGivenBack
            }
            Return::Lost { reason } => {
                self.lose(reason, actions);
                Branch::WasLost
            }
            Return::Failed => {
                self.state = State::Unreleased;
                Branch::NotGivenBack
            }
        }
    }

    fn lose(&mut self, reason: LossReason, actions: &mut Vec<Action<R>>) {
        self.end(State::Lost(reason), actions);
        actions.push(Action::Lost { reason });
    }

    /// Ends the belief, and the heartbeats with it.
    fn end(&mut self, state: State, actions: &mut Vec<Action<R>>) {
        self.state = state;
        actions.extend(self.under_way.take().map(|send| Action::Abandon { send }));
        self.finish_all(Outcome::Ended, actions);
    }

    fn warns_at(&self, risk: Risk) -> Duration {
        self.until.saturating_sub(risk.left.unwrap_or_else(|| whole(self.lease / 2)))
    }

    /// Asks for the next tick, if its time has changed.
    fn plan(&mut self, now: Duration, actions: &mut Vec<Action<R>>) {
        if self.state != State::Held {
            return;
        }
        let warnings = self.risks.iter().filter(|risk| !risk.is_told).map(|risk| self.warns_at(*risk));
        // Past its end, a lease is held through an outage.
        let ends = [Some(self.until), self.faith].into_iter().flatten().filter(|end| *end > now);
        let next = warnings.chain(self.due).chain(ends).chain(self.hold_ends).min();
        if let Some(next) = next
            && self.wake != Some(next)
        {
            self.wake = Some(next);
            actions.push(Action::WakeAt(next));
        }
    }
}

/// The whole milliseconds of a part of a duration, which all languages compute alike.
fn whole(duration: Duration) -> Duration {
    Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
