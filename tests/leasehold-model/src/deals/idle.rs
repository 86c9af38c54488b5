//! A model of a sweeper, with clocks that disagree: it ends nothing that was at work within the idle time.

use leasehold_transactions::life::Looks;
use stateright::{CheckerBuilder, Model, Property};

use crate::threads;

const ENDED: &str = "an idle transaction is ended";

/// The number of ticks after which a transaction is idle.
const IDLE: u8 = 2;

/// The last tick.
const END: u8 = 8;

/// The judge of idleness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judge {
    /// Two looks at an unchanged record, by the judge's own monotonic clock.
    TwoLooks,
    /// The time in the record, by the judge's wall clock.
    WallClock,
}

/// A worker that gives signs of life, and a sweeper whose wall clock is ahead or behind.
#[derive(Debug, Clone)]
pub struct Sweeping {
    /// The judge.
    pub judge: Judge,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    now: u8,
    /// The ticks by which the sweeper's wall clock is ahead of the worker's, and 4 more.
    skew: u8,
    /// The number of signs of life, and the true time of the last one.
    life: (u8, u8),
    looks: Option<Looks<u8, u8>>,
    /// The true time without a sign of life when the sweeper ended the transaction.
    ended_after: Option<u8>,
}

/// A transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick,
    /// The worker gives a sign of life.
    Work,
    /// The sweeper looks.
    Look,
    /// Another process takes over the sweeping: it remembers nothing.
    Restart,
}

impl Sweeping {
    /// Returns a checker.
    pub fn explored(self) -> CheckerBuilder<Self> {
        self.checker().threads(threads())
    }
}

impl Model for Sweeping {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let world = |skew| World { now: 0, skew, life: (0, 0), looks: None, ended_after: None };
        [0, 4, 8].map(world).into()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.ended_after.is_none() {
            actions.extend([Action::Tick, Action::Work, Action::Look, Action::Restart]);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Tick => next.now = Some(world.now + 1).filter(|now| *now <= END)?,
            Action::Work => next.life = (Some(world.life.0 + 1).filter(|count| *count <= 3)?, world.now),
            Action::Restart => next.looks = None,
            Action::Look => {
                let looks = next.looks.get_or_insert_with(|| Looks::first(world.life.0, world.now));
                let is_idle = match self.judge {
                    Judge::TwoLooks => world.now - looks.unchanged_since(world.life.0, world.now) >= IDLE,
                    Judge::WallClock => world.now + world.skew >= world.life.1 + 4 + IDLE,
                };
                if is_idle {
                    next.ended_after = Some(world.now - world.life.1);
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("who works is not ended", |_, world: &World| {
                world.ended_after.is_none_or(|silence| silence >= IDLE)
            }),
            Property::sometimes(ENDED, |_, world: &World| world.ended_after.is_some()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use stateright::Checker;

    use super::*;
    use crate::failures;

    #[test]
    fn sweeper_ends_nothing_that_is_at_work() {
        let checker = Sweeping { judge: Judge::TwoLooks }.explored().spawn_bfs().join();
        assert_eq!(failures(&checker, &[ENDED]), [""; 0]);
    }

    #[test]
    fn idleness_needs_two_looks() {
        let checker = Sweeping { judge: Judge::WallClock }.explored().spawn_bfs().join();
        assert!(checker.discovery("who works is not ended").is_some());
    }
}
