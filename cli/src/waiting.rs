//! The display while a command waits for a lock: a spinner on a terminal, one line elsewhere.

use std::fmt::{self, Write};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_client::Waiting;
use leasehold_client::wire::Lock;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::{CommonArgs, SILENCE};
use crate::duration::{show, show_seconds};
use crate::live_line::LiveLine;
use crate::output::{can_draw, note, plain};

/// The shortest wait that gets a spinner.
const UNNOTICED: Duration = Duration::from_millis(300);
/// The time after which a wait that goes on is told once more. Each further pause is twice as long, up to the longest.
const AGAIN: Duration = Duration::from_secs(30);
const SELDOM: Duration = Duration::from_mins(10);
/// The age of the last answer after which it is told that none came since. An answer comes at least once a second.
const OLD: Duration = Duration::from_secs(5);
/// The width of a name.
const NAME_WIDTH: usize = 30;

/// Shows that a command waits.
pub(crate) struct Indicator<'a> {
    name: String,
    common: &'a CommonArgs,
    seen: Arc<Mutex<Option<Seen>>>,
}

/// The state in the last answer.
#[derive(Clone)]
struct Seen {
    at: Instant,
    /// The holders, in words.
    holders: String,
    /// The time at which a plain lock is stale. Each holder of permits has a time of its own.
    stale_at: Option<Instant>,
    gives_up_at: Option<Instant>,
}

impl<'a> Indicator<'a> {
    /// Shows a wait for `name`.
    pub(crate) fn new(name: &str, common: &'a CommonArgs) -> Self {
        Self { name: shorten(name), common, seen: Arc::default() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn common(&self) -> &'a CommonArgs {
        self.common
    }

    /// The callback for each answer that shows the lock held.
    pub(crate) fn on_wait(&self) -> impl Fn(&Waiting<'_>) + Send + Sync + use<> {
        let (name, seen) = (self.name.clone(), Arc::clone(&self.seen));
        let announce = !self.common.output.quiet && !can_draw();
        move |waiting| {
            let now = Instant::now();
            let holders = holders(waiting.lock);
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if announce && seen.is_none() {
                note(&format!("leasehold: waiting for {name}, {holders}"));
            }
            *seen = Some(Seen {
                at: now,
                holders,
                stale_at: waiting.lock.semaphore.is_none().then(|| now + waiting.stale_in),
                gives_up_at: waiting.gives_up_in.and_then(|left| now.checked_add(left)),
            });
        }
    }

    /// Awaits `work`. A long wait is shown: by a spinner on a terminal, elsewhere by a line now and then.
    pub(crate) async fn show_during<T>(&self, work: impl Future<Output = T>) -> T {
        let (mut work, began) = (pin!(work), Instant::now());
        if self.common.output.quiet {
            return work.await;
        }
        let draw = can_draw();
        if let Ok(done) = timeout(if draw { UNNOTICED } else { SILENCE }, &mut work).await {
            return done;
        }
        if draw {
            let _spinner = self.spinner();
            return work.await;
        }
        if self.seen().is_none() {
            self.common.tell_of_silence();
        }
        telling(work, began, |waited| note(&format!("leasehold: {}", self.still(waited)))).await
    }

    /// Describes a wait that goes on.
    fn still(&self, waited: Duration) -> String {
        let (waited, place) = (show(Duration::from_secs(waited.as_secs())), self.common.place());
        let Some(Seen { at, holders, gives_up_at, .. }) = self.seen() else {
            return format!("still no good answer from {place} after {waited}; trying again");
        };
        let mut text = format!("still waiting for {} after {waited}, {holders}", self.name);
        if at.elapsed() >= OLD {
            let silence = show_seconds(at.elapsed());
            text.extend(["; no good answer from ", &place, " for ", &silence]);
        }
        match gives_up_at.map(|then| then.saturating_duration_since(Instant::now())) {
            Some(left) => text + &format!("; giving up in {}", show_seconds(left)),
            None => text,
        }
    }

    fn seen(&self) -> Option<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn spinner(&self) -> LiveLine {
        let (name, seen) = (self.name.clone(), Arc::clone(&self.seen));
        LiveLine::start(move |line| {
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
            describe(line, &name, seen.as_ref())
        })
    }
}

/// Awaits `work`, and tells now and then for how long.
async fn telling<T>(work: impl Future<Output = T>, began: Instant, mut tell: impl FnMut(Duration)) -> T {
    let (mut work, mut at, mut pause) = (pin!(work), began + AGAIN, AGAIN);
    loop {
        if let Ok(done) = timeout_at(at, &mut work).await {
            return done;
        }
        tell(began.elapsed());
        pause = (pause * 2).min(SELDOM);
        at += pause;
    }
}

fn describe(line: &mut String, name: &str, seen: Option<&Seen>) -> fmt::Result {
    let Some(seen) = seen else { return write!(line, "asking for {name}; no good answer yet") };
    let until = |then: Instant| then.saturating_duration_since(Instant::now());
    write!(line, "waiting for {name}, {}", seen.holders)?;
    if seen.at.elapsed() >= OLD {
        write!(line, "; no good answer for {}", show_seconds(seen.at.elapsed()))?;
    }
    match seen.stale_at.map(until) {
        None => {}
        Some(Duration::ZERO) if seen.at.elapsed() >= OLD => {}
        Some(Duration::ZERO) => write!(line, "; taking over")?,
        Some(left) => write!(line, "; stale in {} if it is dead", show_seconds(left))?,
    }
    match seen.gives_up_at {
        Some(then) => write!(line, "; giving up in {}", show_seconds(until(then))),
        None => Ok(()),
    }
}

/// Describes those who stand in the way.
fn holders(lock: &Lock) -> String {
    let Some(semaphore) = &lock.semaphore else { return format!("held by {}", shorten(&lock.owner_name)) };
    let holders = match semaphore.holders.as_slice() {
        [] => "all free".to_owned(),
        [one] => format!("held by {}", shorten(&one.owner_name)),
        [first, others @ ..] => format!("held by {} and {} more", shorten(&first.owner_name), others.len()),
    };
    match semaphore.queue.len() {
        0 => holders,
        waiting => format!("{holders}, {waiting} in the queue"),
    }
}

fn shorten(name: &str) -> String {
    let name = plain(name);
    if name.chars().count() <= NAME_WIDTH {
        return name;
    }
    name.chars().take(NAME_WIDTH - 1).chain(['…']).collect()
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "waits, under a paused clock")]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn line_says_since_when_no_answer_came() {
        let (at, holders) = (Instant::now(), "held by ann".to_owned());
        let seen = Seen { at, holders, stale_at: Some(at + Duration::from_secs(2)), gives_up_at: None };
        let line = || {
            let mut line = String::new();
            describe(&mut line, "Moe", Some(&seen)).map(|()| line)
        };
        assert_eq!(line().as_deref(), Ok("waiting for Moe, held by ann; stale in 2s if it is dead"));
        sleep(Duration::from_secs(3)).await;
        assert_eq!(line().as_deref(), Ok("waiting for Moe, held by ann; taking over"));
        sleep(Duration::from_secs(3)).await;
        assert_eq!(line().as_deref(), Ok("waiting for Moe, held by ann; no good answer for 6s"));
    }

    #[tokio::test(start_paused = true)]
    async fn wait_that_goes_on_is_told_less_and_less_often() {
        let mut told = Vec::new();
        let began = Instant::now();
        telling(sleep(Duration::from_hours(1)), began, |waited| told.push(waited.as_secs())).await;
        assert_eq!(told, [30, 90, 210, 450, 930, 1530, 2130, 2730, 3330]);
    }
}
