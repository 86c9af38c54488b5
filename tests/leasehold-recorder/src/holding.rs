//! One simulation of a holder: its callers, a network, the service, and another caller that watches and takes over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_client_core::holder::{Action, Beats, Event, Grant, Outcome, Reply, Return, State, Step, Terms};
use leasehold_client_core::{Cause, Holder, LossReason, Numbered, timing};
use serde_json::{Map, json};

use crate::chance::{Draws, SplitMix64};
use crate::facts::Facts;
use crate::form;
use crate::service::Service;
use crate::world::Trace;

const MS: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(5);
/// The longest delay of a message.
const LATEST: u64 = 3000;
/// The other caller looks this often.
const LOOK: Duration = Duration::from_millis(50);
/// No simulation goes on for longer.
const END: Duration = Duration::from_secs(30);
const KEY: &str = "Moe";
const THIEF: &str = "Tina";

#[derive(Debug)]
enum Happening {
    Event(Event<String>),
    /// A heartbeat arrives, and its answer, if any, takes this long.
    Arrival {
        send: u64,
        sequence: u64,
        request_id: String,
        lease: Duration,
        answer: Option<Duration>,
        is_told: bool,
    },
    /// The end of a send, unless it has one.
    End(u64, Result<Reply, Cause>),
    /// A release arrives that left then, or is lost.
    GiveBack(Duration, bool),
    /// The release is tried again.
    TryAgain,
    /// The belief is asked.
    Asked,
    /// The process stands still for this long. Its clock does, too, or it does not.
    Freeze(Duration, bool),
    /// The other caller looks at the lock.
    Look,
    /// An operator breaks the lock.
    Break,
    /// Another process uses the lease id.
    Intrusion,
}

struct World {
    now: Duration,
    random: SplitMix64,
    order: u64,
    queue: BTreeMap<(Duration, u64), Happening>,
    service: Service,
    name: String,
    holder: Holder<String>,
    draws: Draws,
    trace: Trace,
    /// The release stores something.
    stores: bool,
    open: Option<u64>,
    /// Messages get lost from here on.
    down: (Duration, Duration),
    /// The time by which the holder's clock is behind.
    behind: Duration,
    thaws: Duration,
    /// The version that the other caller sees, and when it saw it first.
    seen: Option<(String, Duration)>,
    /// The end of the other caller's belief.
    thief_until: Duration,
    is_broken: bool,
    has_intruder: bool,
    facts: Facts,
    calls: BTreeMap<u64, bool>,
}

/// Half of a time, in whole milliseconds.
fn half(time: Duration) -> Duration {
    MS * u32::try_from(time.as_millis() / 2).expect("short")
}

/// Runs one simulation, and returns its trace.
///
/// # Panics
/// Two believe at once, a holder that gave back still holds, or a caller waits for ever.
pub fn hold(seed: u64) -> Trace {
    let mut random = SplitMix64::new(seed ^ 0x0068_6f6c_6465_7200);
    let lease = MS * random.one_of(&[400, 999, 4000]);
    let terms = Terms {
        beats: match random.below(10) {
            0 => Beats::Manual,
            1 | 2 => Beats::Every(half(lease)),
            _ => Beats::Quarterly,
        },
        delay: if random.percent(15) { half(half(lease)) } else { Duration::ZERO },
        holds_on: random.percent(30),
        max_hold: random.percent(15).then(|| MS * u32::try_from(random.below(4000)).expect("short")),
        longest: LONGEST,
    };
    let name = format!("holder-{seed}");
    let mut service = Service::default();
    let numbered = Numbered { request: String::new(), sequence: 1, id: "first".to_owned(), first_sent: Duration::ZERO };
    service.acquire(&[KEY.to_owned()], &name, lease, &numbered, Duration::ZERO);
    let (_, _, token) = service.held(KEY).expect("granted");
    let grant = Grant { sent: Duration::ZERO, lease, token, sequence: 1 };
    let head = json!({ "holder": name, "terms": form::holder_terms(&terms), "grant": form::grant(&grant) });
    let down = MS * u32::try_from(random.below(4000)).expect("short");
    let outage = random.percent(30).then(|| MS * u32::try_from(random.below(6000)).expect("short"));
    let mut world = World {
        now: Duration::ZERO,
        random,
        order: 0,
        queue: BTreeMap::new(),
        service,
        name,
        holder: Holder::new(terms, grant),
        draws: Draws::new(seed, 1 << 16),
        trace: Trace { lines: vec![head], branches: BTreeSet::new(), shown: BTreeSet::new() },
        stores: seed.is_multiple_of(4),
        open: None,
        down: (down, down + outage.unwrap_or_default()),
        behind: Duration::ZERO,
        thaws: Duration::ZERO,
        seen: None,
        thief_until: Duration::ZERO,
        is_broken: false,
        has_intruder: false,
        facts: Facts::default(),
        calls: BTreeMap::new(),
    };
    world.begin(lease);
    while let Some(((time, _), happening)) = world.queue.pop_first() {
        if time > END {
            break;
        }
        world.now = time;
        world.happens(happening);
        world.check();
    }
    world.check_end();
    world.trace
}

/// Takes a step, and writes its line and what it shows to the trace.
pub(crate) fn record(
    trace: &mut Trace,
    facts: &mut Facts,
    holder: &mut Holder<String>,
    draws: &mut Draws,
    name: &str,
    event: &Event<String>,
    time: Duration,
) -> Step<String> {
    let before = holder.clone();
    let step = holder.step(event.clone(), time, draws);
    let mut line = Map::new();
    line.insert("holder".into(), name.into());
    line.insert("at".into(), form::ms(time));
    line.insert("event".into(), form::holder_event(event));
    line.insert("draws".into(), std::mem::take(&mut draws.drawn).into());
    line.insert("branch".into(), step.branch.name().into());
    line.insert("actions".into(), step.actions.iter().map(form::holder_action).collect::<Vec<_>>().into());
    line.insert("state".into(), form::holder_state(holder));
    line.insert("belief".into(), form::belief(holder, time));
    trace.lines.push(line.into());
    trace.branches.insert(step.branch.name());
    let (was, kind) = (&form::holder_state(&before)["name"], &form::holder_event(event)["type"]);
    trace.shown.insert(format!("{was} {kind} {}", step.branch.name()));
    trace.shown.extend(facts.of(&before, holder, event, &step, time).into_iter().map(str::to_owned));
    step
}

impl World {
    fn within(&mut self, most: u64) -> Duration {
        self.now + Duration::from_millis(self.random.below(most))
    }

    fn plan(&mut self, at: Duration, happening: Happening) {
        self.order += 1;
        self.queue.insert((at, self.order), happening);
    }

    fn begin(&mut self, lease: Duration) {
        let at = MS * self.random.one_of(&[1, 20, 150]);
        self.plan(at, Happening::Event(Event::Start));
        if self.random.percent(40) {
            let left = if self.random.percent(30) { None } else { Some(half(half(lease))) };
            self.plan(at, Happening::Event(Event::WarnAt { left }));
            if self.random.percent(20) {
                self.plan(at, Happening::Event(Event::WarnAt { left: Some(50 * MS) }));
            }
        }
        for call in 1..=self.random.below(4) {
            let after = self.within(3000);
            // A client refuses a lease that its delay leaves nothing of.
            let shortest = self.holder.terms().delay + 100 * MS;
            let lease = self.random.percent(40).then(|| (MS * self.random.one_of(&[300, 800, 2000])).max(shortest));
            let change = format!("change-{call}");
            self.plan(at + after, Happening::Event(Event::Renew { call, change, lease }));
            if self.random.percent(25) {
                let leaves = at + after + MS * self.random.one_of(&[1, 100, 700]);
                self.plan(leaves, Happening::Event(Event::Leave { call }));
            }
        }
        for _ in 0..self.random.below(3) {
            let asked = self.within(6000);
            self.plan(asked, Happening::Asked);
        }
        if self.random.percent(20) {
            let (freezes, hides) = (self.within(3000), self.random.percent(60));
            let length = MS * self.random.one_of(&[100, 700, 6000]);
            self.plan(freezes, Happening::Freeze(length, hides));
        }
        if self.random.percent(10) {
            let breaks = self.within(3000);
            self.plan(breaks, Happening::Break);
        }
        if self.random.percent(8) {
            for _ in 0..=self.random.below(3) {
                let at = self.within(2000);
                self.plan(at, Happening::Intrusion);
            }
        }
        let ends = at + self.within(7000);
        let last = match self.random.below(20) {
            0 => Event::Detach,
            1 => Event::Revoke { reason: LossReason::Released },
            2 => Event::Revoke { reason: LossReason::Deadline },
            3 => Event::Forked,
            _ => Event::Release,
        };
        self.plan(ends, Happening::Event(last));
        // Whatever became of it, the scope ends.
        self.plan(MS * 20_000, Happening::Event(Event::Release));
        self.plan(Duration::ZERO, Happening::Look);
    }

    fn happens(&mut self, happening: Happening) {
        let is_frozen = self.now < self.thaws;
        match happening {
            Happening::Event(_)
            | Happening::End(..)
            | Happening::TryAgain
            | Happening::Asked
            | Happening::Freeze(..)
                if is_frozen =>
            {
                self.plan(self.thaws, happening);
            }
            Happening::Event(event) => self.step(&event),
            Happening::End(send, end) => {
                if self.open.take_if(|open| *open == send).is_some() {
                    self.step(&match end {
                        Ok(reply) => Event::Answer { send, reply },
                        Err(cause) => Event::Unanswered { send, cause },
                    });
                }
            }
            Happening::Arrival { send, sequence, request_id, lease, answer, is_told } => {
                let numbered = (sequence, request_id.as_str(), self.holder.token());
                let reply = self.service.heartbeat(KEY, &self.name, lease, numbered, self.now);
                let reply = match reply {
                    _ if !is_told => Reply::Retryable { retry_after: Duration::ZERO, may_apply: true },
                    // Nobody waits for the permits of a semaphore any more.
                    Reply::Renewed { lease, token, wanted: true } if self.random.percent(40) => {
                        Reply::Renewed { lease, token, wanted: false }
                    }
                    // An answer about permits has no token.
                    Reply::Superseded { sequence, token }
                        if self.random.percent(20) && token == Some(self.holder.token()) =>
                    {
                        Reply::Superseded { sequence, token: None }
                    }
                    reply => reply,
                };
                if let Some(after) = answer {
                    self.plan(self.now + after, Happening::End(send, Ok(reply)));
                }
            }
            Happening::GiveBack(sent, is_lost) => {
                let is_carried_out = !is_lost || self.random.percent(50);
                let end = is_carried_out.then(|| self.service.give_back(KEY, &self.name, self.now));
                let answered = self.now + self.delay();
                let end = end.filter(|_| !is_lost).unwrap_or(Return::Failed);
                if end == Return::Failed {
                    let may_apply = is_carried_out || self.random.percent(50);
                    let stores = self.stores;
                    self.plan(answered, Happening::Event(Event::Untold { sent, may_apply, stores }));
                    if self.random.percent(50) {
                        let again = answered + self.delay();
                        self.plan(again, Happening::TryAgain);
                        return;
                    }
                }
                self.plan(answered, Happening::Event(Event::Returned(end)));
                if end == Return::Failed && self.random.percent(60) {
                    self.plan(answered + 10 * MS, Happening::Event(Event::Release));
                }
            }
            Happening::TryAgain => self.try_to_give_back(),
            Happening::Asked => {
                self.trace.lines.push(form::asked(&self.name, &self.holder, self.time()));
            }
            Happening::Freeze(length, hides) => {
                self.thaws = self.now + length;
                if hides {
                    self.behind += length;
                    self.plan(self.thaws, Happening::Event(Event::Suspended));
                }
            }
            Happening::Look => self.look(),
            Happening::Break => {
                self.is_broken = true;
                self.service.break_lock(KEY, self.now);
            }
            Happening::Intrusion => {
                self.has_intruder = true;
                let sequence = self.holder.turns().last() + 1 + self.random.below(4);
                let lease = self.holder.lease();
                let numbered = (sequence, "other", self.holder.token());
                self.service.heartbeat(KEY, &self.name, lease, numbered, self.now);
            }
        }
    }

    /// The time by the holder's clock.
    fn time(&self) -> Duration {
        self.now.max(self.thaws).saturating_sub(self.behind)
    }

    /// The other caller takes over what it saw for its lease.
    fn look(&mut self) {
        self.plan(self.now + LOOK, Happening::Look);
        let Some((version, lease, _)) = self.service.held(KEY) else { return };
        if !self.thief_until.is_zero() {
            return;
        }
        match &self.seen {
            Some((seen, since)) if *seen == version => {
                let is_stale = self.now.saturating_sub(*since) >= timing::stale_after(lease);
                if is_stale && self.service.take_over(KEY, THIEF, &version, lease, self.now) {
                    self.thief_until = self.now + lease;
                }
            }
            _ => {
                self.seen = Some((version, self.now));
                if self.random.percent(10) {
                    self.service.want(KEY, THIEF);
                }
            }
        }
    }

    fn step(&mut self, event: &Event<String>) {
        if let Event::Renew { call, .. } = event {
            self.calls.insert(*call, false);
        }
        let time = self.time();
        let Self { trace, facts, holder, draws, name, .. } = self;
        let step = record(trace, facts, holder, draws, name, event, time);
        for action in step.actions {
            self.carry_out(action);
        }
        if let Event::Leave { call } = event {
            self.calls.insert(*call, true);
        }
    }

    fn carry_out(&mut self, action: Action<String>) {
        match action {
            Action::Send { send, beat, timeout } => {
                self.send(send, beat.sequence, &beat.id, beat.request.lease, timeout);
            }
            Action::Abandon { send } => {
                self.open.take_if(|open| *open == send);
            }
            Action::WakeAt(time) => {
                let time = time + self.behind;
                if self.random.percent(8) {
                    let early = self.now + (time.saturating_sub(self.now)) / 2;
                    let early = Duration::from_millis(u64::try_from(early.as_millis()).expect("a bounded time"));
                    self.plan(early, Happening::Event(Event::Tick));
                }
                let late = MS * self.random.one_of(&[0, 0, 0, 1, 20]);
                self.plan(time.max(self.now) + late, Happening::Event(Event::Tick));
            }
            Action::Finish { call, outcome } => {
                let was_over = self.calls.insert(call, true);
                assert_eq!(was_over, Some(false), "{call} ends twice: {}", self.trace.text());
                // A caller that failed asks once more.
                if matches!(outcome, Outcome::Failed { .. }) && call < 10 {
                    let event = Event::Renew { call: call + 10, change: format!("again-{call}"), lease: None };
                    self.plan(self.now + 30 * MS, Happening::Event(event));
                }
            }
            Action::GiveBack { .. } => self.try_to_give_back(),
            Action::Renewed { .. } | Action::AtRisk { .. } | Action::Lost { .. } => {}
        }
    }

    /// Sends a release.
    fn try_to_give_back(&mut self) {
        let (sent, arrives, is_lost) = (self.time(), self.now + self.delay(), self.random.percent(20));
        self.plan(arrives, Happening::GiveBack(sent, is_lost));
    }

    /// Sends a heartbeat, whose fate the seed decides.
    fn send(&mut self, send: u64, sequence: u64, request_id: &str, lease: Duration, timeout: Duration) {
        self.open = Some(send);
        self.plan(self.now + timeout, Happening::End(send, Err(Cause::TimedOut)));
        if (self.down.0..self.down.1).contains(&self.now) {
            let cause = if self.random.percent(50) { Cause::Unreached } else { Cause::CutOff };
            self.plan(self.now + 5 * MS, Happening::End(send, Err(cause)));
            return;
        }
        let arrival = |world: &mut Self, at, answer, is_told| {
            let request_id = request_id.to_owned();
            world.plan(at, Happening::Arrival { send, sequence, request_id, lease, answer, is_told });
        };
        let (out, back) = (self.delay(), self.delay());
        match self.random.below(100) {
            0..3 => self.plan(self.now + MS, Happening::End(send, Err(Cause::NotSent))),
            3..6 => self.plan(self.now + out, Happening::End(send, Ok(Reply::Refused))),
            6..12 => {
                let retry_after = MS * self.random.one_of(&[0, 1000, 2000]);
                let reply = Reply::Retryable { retry_after, may_apply: false };
                self.plan(self.now + out, Happening::End(send, Ok(reply)));
            }
            // Lost.
            12..16 => {}
            16..20 => arrival(self, self.now + out, Some(back), false),
            20..25 => {
                arrival(self, self.now + out, None, true);
                self.plan(self.now + back, Happening::End(send, Err(Cause::CutOff)));
            }
            25..30 => {
                let at = self.within(LATEST);
                arrival(self, at, Some(back), true);
            }
            30..34 => arrival(self, self.now + out, None, true),
            // An answer of another grant under the lease id: a late request created the row anew.
            34 => {
                let token = self.holder.token() + 7;
                let reply = if self.random.percent(50) {
                    Reply::Renewed { lease, token, wanted: false }
                } else {
                    Reply::Superseded { sequence: sequence + 1, token: Some(token) }
                };
                self.plan(self.now + out, Happening::End(send, Ok(reply)));
            }
            _ => arrival(self, self.now + out, Some(back), true),
        }
        if self.random.percent(5) {
            let at = self.within(LATEST);
            arrival(self, at, None, true);
        }
    }

    fn delay(&mut self) -> Duration {
        MS * self.random.one_of(&[1, 2, 5, 20, 60, 150])
    }

    /// No two believe at once, except where the holder holds on or an operator broke the lock.
    fn check(&self) {
        // A suspension is told in the moment of the thaw.
        let may_be_two = self.holder.terms().holds_on || self.is_broken || self.now <= self.thaws;
        let is_believed = self.holder.valid(self.time());
        assert!(
            may_be_two || !is_believed || self.now >= self.thief_until,
            "two believe at {:?}: {}",
            self.now,
            self.trace.text()
        );
        let is_left = self.holder.state() == State::Released && self.service.is_held_by(KEY, &self.name);
        assert!(!is_left, "left behind at {:?}: {}", self.now, self.trace.text());
    }

    /// Every wait has ended.
    fn check_end(&self) {
        let waits = self.calls.values().any(|is_over| !is_over);
        assert!(!waits, "a caller waits for ever: {}", self.trace.text());
    }
}
