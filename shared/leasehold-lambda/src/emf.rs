//! Metrics of the operations, as lines of CloudWatch's Embedded Metric Format: CloudWatch takes them out of the log, and no
//! request waits for a call to it.

use std::fmt;
use std::io::Write;

use lambda_runtime::Error;
use leasehold_api::counts;
use metrics_cloudwatch_embedded::{Builder, Collector};

/// The counters of this process.
#[derive(Clone, Copy)]
pub struct Emf(&'static Collector);

impl Emf {
    /// Begins to count, once in a process: namespace `Leasehold`, dimensions `stack` (if one is given) and `operation`.
    /// Counters that stay at zero are left out.
    ///
    /// # Errors
    /// Somebody counts already.
    pub fn start(stack: Option<String>) -> Result<Self, Error> {
        let builder = Builder::new().cloudwatch_namespace("Leasehold");
        let builder = match stack {
            Some(stack) => builder.with_dimension("stack", stack),
            None => builder,
        };
        let collector = builder.init()?;
        counts::describe();
        Ok(Self(collector))
    }

    /// Writes one line for each operation of which there is something to tell since the last time.
    ///
    /// # Errors
    /// Those of `writer`.
    pub fn write(&self, mut writer: impl Write) -> std::io::Result<()> {
        // At once: a line that is written in pieces may become several entries of the log.
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
