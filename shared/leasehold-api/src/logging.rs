//! The log of a process that serves: its format, and what may show in it.

use std::io::IsTerminal;

use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

pub use tracing::level_filters::LevelFilter;

/// The format of the log, by its readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Programs: one JSON object a line, on standard output, where Lambda collects it.
    Json,
    /// People: on standard error.
    Text,
}

/// Starts the log. `LEASEHOLD_LOG` says how much of it: `off`, `error`, `warn`, `info`, `debug` or `trace`; without it,
/// or with something else in it, `default` holds. A second call changes nothing.
pub fn init_logging(format: LogFormat, default: LevelFilter) {
    let level = level(default);
    // An error means that the embedding process has a subscriber already, which is its right.
    let _ = match format {
        LogFormat::Json => tracing::subscriber::set_global_default(json_subscriber(level, std::io::stdout)),
        LogFormat::Text => {
            let layer = fmt::layer().with_target(false).with_ansi(std::io::stderr().is_terminal());
            let layer = layer.with_writer(std::io::stderr).with_filter(filter(level));
            tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))
        }
    };
}

/// The level that `LEASEHOLD_LOG` names, or else `default`.
pub fn level(default: LevelFilter) -> LevelFilter {
    std::env::var("LEASEHOLD_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(default)
}

/// The JSON log, to any writer.
pub fn json_subscriber<W>(level: LevelFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::registry().with(json_layer(writer).with_filter(filter(level)))
}

/// The layer that prints the JSON log.
pub fn json_layer<S, W>(writer: W) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    fmt::layer().json().flatten_event(true).with_current_span(false).with_span_list(true).with_writer(writer)
}

/// The level is for our own crates. Others print requests and answers when they are let: with them would go hashes of
/// lease ids and payloads. Of Lambda's runtime, the span that carries the request id is wanted.
pub fn filter(level: LevelFilter) -> Targets {
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("leasehold", level)
        .with_target("lambda_runtime", level.min(LevelFilter::INFO))
        // Prints the error of a refused direct invocation, which is the problem document with its payload.
        .with_target("lambda_runtime::layers::panic", LevelFilter::OFF)
        // Calls the lack of a socket an error, which is what the embedded engine is about.
        .with_target("aws_smithy_runtime::client::http::connection_poisoning", LevelFilter::OFF)
}
