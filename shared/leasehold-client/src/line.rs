//! The line of one client for one lock: one waiter asks the service, and the others wait for their turn. Rule C4.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use leasehold_wire::Lock;
use tokio::sync::OwnedMutexGuard;

use crate::budget::Budget;
use crate::clock::sleep;
use crate::lease::Lease;
use crate::watching::PROGRESS;
use crate::{Client, Error, Held, LockKey, LockRequest};

/// The lines of one client. A line is gone with its last waiter.
#[derive(Default)]
pub(crate) struct Lines(Mutex<HashMap<LockKey, Weak<Line>>>);

/// The waiters for one lock, first in, first out.
struct Line {
    lines: Arc<Lines>,
    key: LockKey,
    /// The turn. Tokio's mutex serves its waiters in their order.
    turn: Arc<tokio::sync::Mutex<()>>,
    shown: Mutex<Shown>,
}

/// What the one with the turn shows to those behind.
#[derive(Default)]
struct Shown {
    /// The last holder that the service named.
    seen: Option<Box<Lock>>,
    /// The hold of the one with the turn.
    hold: Weak<Lease>,
}

/// The turn of one waiter: to ask, and then to hold. It passes on when it is dropped.
pub(crate) struct Turn {
    line: Arc<Line>,
    _turn: OwnedMutexGuard<()>,
}

impl Lines {
    fn line(self: &Arc<Self>, key: &LockKey) -> Arc<Line> {
        let mut lines = self.lines();
        if let Some(line) = lines.get(key).and_then(Weak::upgrade) {
            return line;
        }
        let line =
            Arc::new(Line { lines: Arc::clone(self), key: key.clone(), turn: Arc::default(), shown: Mutex::default() });
        lines.insert(key.clone(), Arc::downgrade(&line));
        line
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<LockKey, Weak<Line>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// The view of the holder, as far as the one with the turn knows it.
    fn view(&self) -> Option<Box<Lock>> {
        let (seen, hold) = {
            let shown = self.shown();
            (shown.seen.clone(), shown.hold.upgrade())
        };
        hold.map(|lease| Box::new(lease.view())).or(seen)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut lines = self.lines.lines();
        // Another line may have taken the place of this one.
        if lines.get(&self.key).is_some_and(|line| line.strong_count() == 0) {
            lines.remove(&self.key);
        }
    }
}

impl Turn {
    /// Shows the holder to the waiters behind.
    pub(crate) fn show(&self, lock: &Lock) {
        self.line.shown().seen = Some(Box::new(lock.clone()));
    }

    /// The one with the turn holds the lock now.
    pub(crate) fn holds(&self, lease: &Arc<Lease>) {
        self.line.shown().hold = Arc::downgrade(lease);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.line.shown().hold = Weak::new();
    }
}

impl Client {
    /// Stands in line for the lock until it is the caller's turn. Breaks with the holder when the wait is over. Goes on
    /// without a turn, to ask at once, where the wait is over and no holder is known, where the holder is stale, and
    /// for a caller that shares the lock of its client.
    ///
    /// # Errors
    /// `Closed`
    pub(crate) async fn stand_in_line(
        &self,
        request: &LockRequest,
        budget: &mut Budget,
    ) -> Result<ControlFlow<Held, Option<Turn>>, Error> {
        if request.reentrant || budget.is_over() {
            return Ok(ControlFlow::Continue(None));
        }
        let line = self.lines().line(&request.key);
        let mut turn = pin!(Arc::clone(&line.turn).lock_owned());
        let mut closing = pin!(self.closing().notified());
        closing.as_mut().enable();
        self.check_open()?;
        loop {
            let view = line.view();
            let held = view.map(|lock| Held { observation: self.memory().saw(&request.key, &lock), lock });
            if let Some(Held { observation, .. }) = &held {
                budget.saw(observation.record_version_number(), observation.stale_after());
            }
            if budget.is_over() {
                return Ok(held.map_or(ControlFlow::Continue(None), ControlFlow::Break));
            }
            // The one with the turn is gone with its runtime: nobody passes the turn on.
            if held.as_ref().is_some_and(|held| held.observation.stale_in().is_zero()) {
                return Ok(ControlFlow::Continue(None));
            }
            tokio::select! {
                biased;
                () = &mut closing => return Err(Error::closed()),
                turn = &mut turn => return Ok(ControlFlow::Continue(Some(Turn { line, _turn: turn }))),
                () = sleep(PROGRESS.min(budget.left())) => {}
            }
            if let Some(Held { lock, observation }) = &held {
                budget.report(request.on_wait.as_ref(), lock, observation.stale_in());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_forgotten_with_its_last_waiter() {
        let lines = Arc::new(Lines::default());
        let key = LockKey::from("Moe");
        let (first, second) = (lines.line(&key), lines.line(&key));
        assert!(Arc::ptr_eq(&first, &second));
        drop(first);
        assert_eq!(lines.lines().len(), 1);
        drop(second);
        assert_eq!(lines.lines().len(), 0);
    }
}
