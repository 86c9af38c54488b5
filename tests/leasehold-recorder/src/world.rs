//! One simulation: callers, a network and a service, under virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_client_core::{
    Action, Branch, Call, Cause, Event, Memory, Numbered, Outcome, Reply, State, Terms, What, timing,
};
use serde_json::{Map, Value, json};

use crate::chance::{Draws, SplitMix64};
use crate::form;
use crate::service::Service;

const MS: Duration = Duration::from_millis(1);
/// The longest time-out of a request, as in the clients.
const LONGEST: Duration = Duration::from_secs(5);
/// The bound of a retried request, as in the clients.
const BOUND: Duration = Duration::from_secs(10);
/// The longest delay of a message. It is below [`LONGEST`], so that the last release comes after it.
const LATEST: u64 = 4000;
/// No simulation goes on for longer.
const END: Duration = Duration::from_mins(3);

/// The recorded steps of one machine.
#[derive(Debug)]
pub struct Trace {
    pub(crate) lines: Vec<Value>,
    /// The names of the branches that it takes.
    pub branches: BTreeSet<&'static str>,
    /// The branches, each with the state and the event before it.
    pub shown: BTreeSet<String>,
}

impl Trace {
    /// Returns the lines.
    pub fn text(&self) -> String {
        self.lines.iter().map(|line| form::canonical(line) + "\n").collect()
    }
}

/// The purpose of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Reads a lock.
    Get,
    /// Releases a lock that was granted, under this lease id.
    Release(String),
    /// Acquires locks.
    Acquire,
    /// Takes a place in a queue: a row of its own, whose grant nobody believes in.
    Enqueue,
}

#[derive(Debug)]
struct Run {
    name: String,
    kind: Kind,
    keys: Vec<String>,
    lease: Duration,
    call: Call<String>,
    draws: Draws,
    requests: u64,
    /// The send that has no end yet.
    open: Option<u64>,
    was_taken: bool,
    /// Whether somebody else used the lease id.
    is_shared: bool,
    trace: Trace,
}

#[derive(Debug)]
enum Happening {
    Event(usize, Event<String>),
    /// The end of a send, unless it has one.
    End(usize, u64, Result<Reply, Cause>),
    /// A message arrives, and its answer, if any, takes this long.
    Arrival {
        run: usize,
        send: u64,
        what: What<String>,
        answer: Option<Duration>,
        is_told: bool,
    },
    /// Another process uses the lease id.
    Intrusion(usize),
    /// An operator breaks a lock.
    Break(String),
}

struct World {
    now: Duration,
    random: SplitMix64,
    seed: u64,
    order: u64,
    queue: BTreeMap<(Duration, u64), Happening>,
    service: Service,
    memory: Memory,
    runs: Vec<Run>,
    /// Messages arrive twice.
    doubles: bool,
    /// No connection can be made until then.
    down_until: Duration,
}

/// Runs one simulation, and returns the trace of each machine.
///
/// # Panics
/// A caller that left still holds a lock at the end.
pub fn run(seed: u64) -> Vec<Trace> {
    let mut random = SplitMix64::new(seed);
    let doubles = random.percent(30);
    let down_until =
        if random.percent(15) { MS * u32::try_from(random.below(6000)).expect("short") } else { Duration::ZERO };
    let mut world = World {
        now: Duration::ZERO,
        random,
        seed,
        order: 0,
        queue: BTreeMap::new(),
        service: Service::default(),
        memory: Memory::default(),
        runs: Vec::new(),
        doubles,
        down_until,
    };
    for _ in 0..2 + world.random.below(2) {
        let kind = world.random.below(10);
        let at = world.within(1500);
        match kind {
            0 | 1 => world.begin(Kind::Get, vec!["Moe".into()], at),
            2 => world.begin(Kind::Enqueue, vec![format!("ticket-{}", world.runs.len())], at),
            3 | 4 => world.begin(Kind::Acquire, vec!["Moe".into(), "Jack".into()], at),
            _ => world.begin(Kind::Acquire, vec!["Moe".into()], at),
        }
    }
    if world.random.percent(25) {
        let at = world.within(3000);
        world.plan(at, Happening::Break("Moe".into()));
    }
    while let Some(((time, _), happening)) = world.queue.pop_first() {
        if time > END {
            break;
        }
        world.now = time;
        world.happens(happening);
    }
    world.check();
    world.runs.into_iter().map(|run| run.trace).collect()
}

impl World {
    fn within(&mut self, most: u64) -> Duration {
        self.now + Duration::from_millis(self.random.below(most))
    }

    fn plan(&mut self, at: Duration, happening: Happening) {
        self.order += 1;
        self.queue.insert((at, self.order), happening);
    }

    fn begin(&mut self, kind: Kind, keys: Vec<String>, at: Duration) {
        let index = self.runs.len();
        let name = format!("call-{}-{index}", self.seed);
        let lease = MS * self.random.one_of(&[300, 1000, 2000, 20_000]);
        let is_plain = matches!(kind, Kind::Get | Kind::Release(_));
        let terms = Terms {
            lease: (!is_plain || self.random.percent(50)).then_some(lease),
            delay: if self.random.percent(10) { lease / 4 } else { Duration::ZERO },
            longest: LONGEST,
            bound: BOUND,
        };
        let call = if is_plain { Call::retried(terms) } else { Call::under_lease(terms, keys.len()) };
        let count = if is_plain { 0 } else { keys.len() };
        let head = json!({ "call": name, "keys": count, "terms": form::terms(&terms) });
        let trace = Trace { lines: vec![head], branches: BTreeSet::new(), shown: BTreeSet::new() };
        self.runs.push(Run {
            draws: Draws::new(self.seed, index as u64),
            name,
            kind,
            keys,
            lease,
            call,
            requests: 0,
            open: None,
            was_taken: false,
            is_shared: false,
            trace,
        });
        self.start(index, at);
        if self.random.percent(25) {
            let leaves = at + Duration::from_millis(self.random.below(7000));
            self.plan(leaves, Happening::Event(index, Event::Cancel));
        }
        if !is_plain && self.random.percent(6) {
            let at = at + Duration::from_millis(self.random.below(2500));
            self.plan(at, Happening::Intrusion(index));
        }
    }

    fn start(&mut self, index: usize, at: Duration) {
        let run = &mut self.runs[index];
        run.requests += 1;
        let request = format!("{}-{}", run.name, run.requests);
        let timeout = timing::poll_timeout(LONGEST, run.lease, Duration::MAX);
        self.plan(at, Happening::Event(index, Event::Start { request, timeout }));
    }

    fn happens(&mut self, happening: Happening) {
        match happening {
            Happening::Event(index, event) => self.step(index, &event),
            Happening::End(index, send, end) => {
                if self.runs[index].open.take_if(|open| *open == send).is_some() {
                    let event = match end {
                        Ok(reply) => Event::Answer { send, reply },
                        Err(cause) => Event::Unanswered { send, cause },
                    };
                    self.step(index, &event);
                }
            }
            Happening::Arrival { run, send, what, answer, is_told } => {
                let reply = self.serve(run, &what);
                let reply =
                    if is_told { reply } else { Reply::Retryable { retry_after: Duration::ZERO, may_apply: true } };
                if let Some(after) = answer {
                    self.plan(self.now + after, Happening::End(run, send, Ok(reply)));
                }
            }
            Happening::Intrusion(index) => self.intrude(index),
            Happening::Break(key) => self.service.break_lock(&key, self.now),
        }
    }

    fn serve(&mut self, index: usize, what: &What<String>) -> Reply {
        let run = &self.runs[index];
        match what {
            What::Plain(_) => match &run.kind {
                Kind::Release(lease_id) => self.service.release(&run.keys[0], lease_id, self.now),
                _ => self.service.get(&run.keys[0]),
            },
            What::Numbered(numbered) => {
                let reply = self.service.acquire(&run.keys, &run.name, run.lease, numbered, self.now);
                match (reply, &run.kind) {
                    (Reply::Done { .. }, Kind::Enqueue) => Reply::Done { lease: None, found: true },
                    (reply, _) => reply,
                }
            }
            What::Release { key } => self.service.release(&run.keys[*key], &run.name, self.now),
        }
    }

    /// Another process under the same lease id sends a later request.
    fn intrude(&mut self, index: usize) {
        let run = &mut self.runs[index];
        run.is_shared = true;
        let sequence = run.call.turns().last() + 3;
        let numbered = Numbered { request: String::new(), sequence, id: "other".into(), first_sent: self.now };
        self.service.acquire(&run.keys, &run.name, run.lease, &numbered, self.now);
    }

    fn step(&mut self, index: usize, event: &Event<String>) {
        let (run, answered) = (&mut self.runs[index], self.memory.answered);
        let was = form::state(&run.call)["name"].clone();
        let step = run.call.step(&mut self.memory, event.clone(), self.now, &mut run.draws);
        let mut line = Map::new();
        line.insert("call".into(), run.name.clone().into());
        line.insert("at".into(), form::ms(self.now));
        line.insert("answered".into(), answered.into());
        line.insert("event".into(), form::event(event));
        line.insert("draws".into(), std::mem::take(&mut run.draws.drawn).into());
        line.insert("branch".into(), step.branch.name().into());
        line.insert("actions".into(), step.actions.iter().map(form::action).collect::<Vec<_>>().into());
        line.insert("state".into(), form::state(&run.call));
        run.trace.lines.push(line.into());
        run.trace.branches.insert(step.branch.name());
        let kind = &form::event(event)["type"];
        run.trace.shown.insert(format!("{was} {kind} {} {}", step.branch.name(), run.keys.len() > 1));
        run.was_taken |= step.branch == Branch::Taken;
        for action in step.actions {
            self.carry_out(index, action);
        }
        self.go_on(index, step.branch);
    }

    fn carry_out(&mut self, index: usize, action: Action<String>) {
        match action {
            Action::Send { send, what, timeout } => self.send(index, send, &what, timeout),
            Action::WakeAt(time) => {
                // A tick may come early, and a process may be suspended.
                if self.random.percent(8) {
                    let early = self.now + (time.saturating_sub(self.now)) / 2;
                    let early = Duration::from_millis(u64::try_from(early.as_millis()).expect("a bounded time"));
                    self.plan(early, Happening::Event(index, Event::Tick));
                }
                // A process that was suspended for longer than the bound has no time for its releases.
                let is_plain = matches!(self.runs[index].kind, Kind::Get | Kind::Release(_));
                let late =
                    if is_plain && self.random.percent(6) { 12_000 * MS } else { MS * self.random.one_of(&[0, 1, 20]) };
                self.plan(time + late, Happening::Event(index, Event::Tick));
            }
            Action::Abandon { .. } | Action::Background => {}
            Action::Finish(outcome) => self.finished(index, outcome),
        }
    }

    /// Sends a message, whose fate the seed decides.
    fn send(&mut self, index: usize, send: u64, what: &What<String>, timeout: Duration) {
        self.runs[index].open = Some(send);
        self.plan(self.now + timeout, Happening::End(index, send, Err(Cause::TimedOut)));
        let (out, back) = (self.delay(), self.delay());
        if self.now < self.down_until {
            self.plan(self.now + 5 * MS, Happening::End(index, send, Err(Cause::Unreached)));
            return;
        }
        let arrival = |world: &mut Self, at, answer, is_told| {
            let what = what.clone();
            world.plan(at, Happening::Arrival { run: index, send, what, answer, is_told });
        };
        match self.random.below(100) {
            0..4 => self.plan(self.now + MS, Happening::End(index, send, Err(Cause::NotSent))),
            4..7 => self.plan(self.now + MS, Happening::End(index, send, Err(Cause::Unreached))),
            7..12 => {
                let retry_after = MS * self.random.one_of(&[0, 1000, 2000]);
                let reply = Reply::Retryable { retry_after, may_apply: false };
                self.plan(self.now + out, Happening::End(index, send, Ok(reply)));
            }
            // Lost.
            12..18 => {}
            18..23 => arrival(self, self.now + out, Some(back), false),
            23..28 => {
                arrival(self, self.now + out, None, true);
                self.plan(self.now + back, Happening::End(index, send, Err(Cause::CutOff)));
            }
            28..36 => {
                let at = self.within(LATEST);
                arrival(self, at, Some(back), true);
            }
            36..40 => arrival(self, self.now + out, None, true),
            _ => arrival(self, self.now + out, Some(back), true),
        }
        if self.doubles && self.random.percent(20) {
            let at = self.within(LATEST);
            arrival(self, at, None, true);
        }
    }

    fn delay(&mut self) -> Duration {
        MS * self.random.one_of(&[1, 2, 5, 20, 60, 150])
    }

    /// The caller receives the result of its call.
    fn finished(&mut self, index: usize, outcome: Outcome) {
        let soon = self.within(400);
        let run = &self.runs[index];
        match outcome {
            Outcome::Answered { .. } if *run.call.state() == State::Granted => {
                let event = if self.random.percent(85) { Event::Taken } else { Event::Cancel };
                self.plan(self.now, Happening::Event(index, event));
            }
            Outcome::Answered { .. } if run.kind == Kind::Enqueue => {
                if self.random.percent(50) {
                    self.start(index, soon);
                } else {
                    self.plan(soon, Happening::Event(index, Event::Cancel));
                }
            }
            Outcome::Answered { .. } => {}
            Outcome::TooLate { .. } | Outcome::Failed { .. } if matches!(run.kind, Kind::Get | Kind::Release(_)) => {}
            Outcome::TooLate { .. } | Outcome::Failed { .. } => {
                if self.random.percent(75) && run.requests < 8 {
                    self.start(index, soon);
                } else {
                    self.plan(soon, Happening::Event(index, Event::Cancel));
                }
            }
        }
    }

    /// What follows a branch beside its actions.
    fn go_on(&mut self, index: usize, branch: Branch) {
        let soon = self.within(700);
        match branch {
            Branch::Taken => {
                let run = &self.runs[index];
                let (keys, lease_id) = (run.keys.clone(), run.name.clone());
                for key in keys {
                    self.begin(Kind::Release(lease_id.clone()), vec![key], soon);
                }
                // The scope of the call ends.
                if self.random.percent(30) {
                    self.plan(self.now, Happening::Event(index, Event::Cancel));
                }
            }
            Branch::LeaseIdEnded if *self.runs[index].call.state() == State::Idle => {
                self.plan(self.now, Happening::Event(index, Event::Cancel));
            }
            _ => {}
        }
    }

    /// Nothing is left behind: no caller that left holds a lock, unless a copy came after all.
    fn check(&self) {
        if self.doubles {
            return;
        }
        let end = self.now;
        for run in self.runs.iter().filter(|run| !run.was_taken && !run.is_shared) {
            let is_left = |key: &&String| run.call.has_ended() && self.service.is_held_by(key, &run.name);
            let left = run.keys.iter().find(is_left);
            assert!(left.is_none(), "seed {}: {left:?} at {end:?} is left behind: {}", self.seed, run.trace.text());
        }
    }
}
