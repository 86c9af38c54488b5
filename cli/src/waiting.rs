//! The display while a command waits for a lock: a spinner on a terminal, one line elsewhere.

use std::fmt::{self, Write};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold_client::{LockKey, Waiting};
use tokio::time::{Instant, timeout};

use crate::connection::{CommonArgs, SILENCE};
use crate::duration::show_seconds;
use crate::live_line::LiveLine;
use crate::output::{can_draw, note, plain};

/// The shortest wait that gets a spinner.
const UNNOTICED: Duration = Duration::from_millis(300);
/// The width of a name.
const NAME_WIDTH: usize = 30;

/// Shows that a command waits.
pub(crate) struct Indicator<'a> {
    key: String,
    common: &'a CommonArgs,
    seen: Arc<Mutex<Option<Seen>>>,
}

/// The state in the last answer.
#[derive(Clone)]
struct Seen {
    holder: String,
    stale_at: Instant,
    gives_up_at: Option<Instant>,
}

impl<'a> Indicator<'a> {
    pub(crate) fn new(key: &LockKey, common: &'a CommonArgs) -> Self {
        Self { key: shorten(&key.to_string()), common, seen: Arc::default() }
    }

    /// The callback for each answer that shows the lock held.
    pub(crate) fn on_wait(&self) -> impl Fn(&Waiting<'_>) + Send + Sync + use<> {
        let (key, seen) = (self.key.clone(), Arc::clone(&self.seen));
        let announce = !self.common.output.quiet && !can_draw();
        move |waiting| {
            let now = Instant::now();
            let holder = shorten(&waiting.lock.owner_name);
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            if announce && seen.is_none() {
                note(&format!("leasehold: waiting for {key}, held by {holder}"));
            }
            *seen = Some(Seen {
                holder,
                stale_at: now + waiting.stale_in,
                gives_up_at: waiting.gives_up_in.and_then(|left| now.checked_add(left)),
            });
        }
    }

    /// Awaits `work`. A long wait is shown: by a spinner on a terminal, elsewhere by a line if no answer came.
    pub(crate) async fn show_during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if self.common.output.quiet {
            return work.await;
        }
        let draw = can_draw();
        if let Ok(done) = timeout(if draw { UNNOTICED } else { SILENCE }, &mut work).await {
            return done;
        }
        let _spinner = draw.then(|| self.spinner());
        if !draw && self.seen.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            self.common.tell_of_silence();
        }
        work.await
    }

    fn spinner(&self) -> LiveLine {
        let (key, seen) = (self.key.clone(), Arc::clone(&self.seen));
        LiveLine::start(move |line| {
            let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
            describe(line, &key, seen.as_ref())
        })
    }
}

fn describe(line: &mut String, key: &str, seen: Option<&Seen>) -> fmt::Result {
    let Some(seen) = seen else { return write!(line, "asking for {key}; no good answer yet") };
    let until = |then: Instant| then.saturating_duration_since(Instant::now());
    write!(line, "waiting for {key}, held by {}", seen.holder)?;
    match until(seen.stale_at) {
        Duration::ZERO => write!(line, "; taking over")?,
        left => write!(line, "; stale in {} if it is dead", show_seconds(left))?,
    }
    match seen.gives_up_at {
        Some(then) => write!(line, "; giving up in {}", show_seconds(until(then))),
        None => Ok(()),
    }
}

fn shorten(name: &str) -> String {
    let name = plain(name);
    if name.chars().count() <= NAME_WIDTH {
        return name;
    }
    name.chars().take(NAME_WIDTH - 1).chain(['…']).collect()
}
