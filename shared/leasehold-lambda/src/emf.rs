//! Metrics of the operations, in CloudWatch's Embedded Metric Format. CloudWatch reads them from the log, so no request
//! waits for a call to CloudWatch.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;

use lambda_runtime::Error;
use leasehold_api::counts;
use metrics_cloudwatch_embedded::{Builder, Collector};
use serde_json::Value;

/// The metrics of the whole process, like the log.
static STARTED: OnceLock<Emf> = OnceLock::new();

/// The counters of this process.
#[derive(Clone, Copy)]
pub struct Emf(&'static Collector);

impl Emf {
    /// Begins to count, once in a process: namespace `Leasehold`, dimensions `stack` (if one is given) and `operation`.
    /// Counters of zero are left out.
    ///
    /// # Errors
    /// The process counts already.
    pub fn start(stack: Option<String>) -> Result<Self, Error> {
        let builder = Builder::new().cloudwatch_namespace("Leasehold");
        let builder = match stack {
            Some(stack) => builder.with_dimension("stack", stack),
            None => builder,
        };
        let collector = builder.init()?;
        counts::describe();
        Ok(*STARTED.get_or_init(|| Self(collector)))
    }

    /// The metrics of this process, if it counts.
    pub(crate) fn started() -> Option<Self> {
        STARTED.get().copied()
    }

    /// Writes the counts, with further members beside the metrics.
    ///
    /// # Errors
    /// Those of `writer`.
    pub(crate) fn write_with(self, members: &[(&'static str, Value)], writer: impl Write) -> std::io::Result<()> {
        for (name, value) in members {
            self.0.set_property(*name, value.clone());
        }
        let written = self.write(writer);
        for (name, _) in members {
            self.0.remove_property(*name);
        }
        written
    }

    /// Writes one line for each operation with counts since the last write.
    ///
    /// # Errors
    /// Those of `writer`.
    pub fn write(self, mut writer: impl Write) -> std::io::Result<()> {
        // One write: a line that is written in pieces may become several entries of the log.
        let mut lines = Vec::with_capacity(512);
        self.0.flush(&mut lines)?;
        writer.write_all(&lines)
    }
}

impl fmt::Debug for Emf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Emf")
    }
}
