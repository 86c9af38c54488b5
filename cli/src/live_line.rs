//! One line at the bottom of a terminal, redrawn continually.

use std::fmt;
use std::time::Duration;

use console::{Term, truncate_str};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// The interval between two drawings.
const TICK: Duration = Duration::from_millis(100);
/// The spinner, a space, and one column for the cursor.
const SPINNER_WIDTH: usize = 3;

/// A spinner and a text, on standard error. Dropping the line wipes it away.
pub(crate) struct LiveLine(ProgressBar);

impl LiveLine {
    /// Shows what `text` writes.
    pub(crate) fn start(text: impl Fn(&mut String) -> fmt::Result + Clone + Send + Sync + 'static) -> Self {
        // A line that cannot be written is drawn again at the next tick.
        let text = move |_: &ProgressState, line: &mut dyn fmt::Write| {
            let mut whole = String::new();
            let _ = text(&mut whole);
            // A wrapped line would not be wiped away completely.
            let width = usize::from(Term::stderr().size().1).saturating_sub(SPINNER_WIDTH);
            let _ = line.write_str(&truncate_str(&whole, width, "…"));
        };
        // The template is a valid constant; without it the default spinner is shown.
        let style =
            ProgressStyle::with_template("{spinner} {text}").unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style.with_key("text", text));
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Runs a function that prints above the line.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.0.suspend(print)
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
