//! A caller that leaves after its request was superseded: a duplicate of the request may be granted late, and would
//! keep the lock for a lease.

#![allow(clippy::expect_used, reason = "a test fails by a panic")]

use std::time::Duration;

use leasehold_client_core::{Action, Call, Chance, Event, Memory, Purpose, Reply, State, Terms, What};

const SECOND: Duration = Duration::from_secs(1);
const TERMS: Terms = Terms { lease: None, delay: Duration::ZERO, longest: SECOND, bound: Duration::from_secs(10) };

struct Fixed;

impl Chance for Fixed {
    fn fraction(&mut self, _: Purpose) -> f64 {
        0.0
    }

    fn id(&mut self, _: Purpose) -> String {
        "id".to_owned()
    }
}

/// A call under one lease id, and what it does next.
struct Caller {
    call: Call<()>,
    memory: Memory,
    actions: Vec<Action<()>>,
}

impl Caller {
    fn new() -> Self {
        Self { call: Call::under_lease(TERMS, 1), memory: Memory::default(), actions: Vec::new() }
    }

    fn step(&mut self, event: Event<()>) {
        self.actions = self.call.step(&mut self.memory, event, Duration::ZERO, &mut Fixed).actions;
    }

    fn asks(&mut self) {
        self.step(Event::Start { request: (), timeout: SECOND });
    }

    fn is_superseded(&mut self) {
        let send = self.last_send();
        self.step(Event::Answer { send, reply: Reply::Superseded { sequence: 7 } });
    }

    fn last_send(&self) -> u64 {
        let mut sends = self.actions.iter().filter_map(|action| match action {
            Action::Send { send, .. } => Some(*send),
            _ => None,
        });
        sends.next_back().expect("a request is in flight")
    }

    fn releases(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::Send { what: What::Release { key: 0 }, .. }))
    }
}

#[test]
fn superseded_request_is_released_when_its_caller_leaves() {
    let mut caller = Caller::new();
    caller.asks();
    caller.is_superseded();
    caller.step(Event::Cancel);
    assert!(caller.releases(), "{:?}", caller.actions);
}

#[test]
fn request_superseded_after_its_caller_left_is_released() {
    let mut caller = Caller::new();
    caller.asks();
    let send = caller.last_send();
    caller.step(Event::Cancel);
    assert!(!caller.releases(), "the release would overtake the request");
    caller.step(Event::Answer { send, reply: Reply::Superseded { sequence: 7 } });
    assert!(caller.releases(), "{:?}", caller.actions);
}

#[test]
fn release_that_finds_nothing_after_superseded_is_repeated() {
    let mut caller = Caller::new();
    caller.asks();
    caller.is_superseded();
    caller.step(Event::Cancel);
    let send = caller.last_send();
    caller.step(Event::Answer { send, reply: Reply::Done { lease: None, found: false } });
    assert!(matches!(caller.call.state(), State::Doubting { .. }), "the duplicate may come after the release");
}
