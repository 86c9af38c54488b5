//! The log of a serving process: its format, and the limits of its content.

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
    /// The form for programs: one JSON object a line, on standard output, where Lambda collects it.
    Json,
    /// The form for people: text, on standard error.
    Text,
}

/// Starts the log. `LEASEHOLD_LOG` sets its level: `off`, `error`, `warn`, `info`, `debug` or `trace`. Without it, or
/// with another value, `default` applies. A second call changes nothing.
pub fn init_logging(format: LogFormat, default: LevelFilter) {
    let level = level(default);
    // An error means that the embedding process already has a subscriber, which then stays.
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

/// Applies the level to Leasehold's crates. Other crates may print requests and answers, and with them hashes of lease
/// ids and payloads. From Lambda's runtime, the span with the request id is needed.
pub fn filter(level: LevelFilter) -> Targets {
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target("leasehold", level)
        .with_target("lambda_runtime", level.min(LevelFilter::INFO))
        // This target prints the error of a refused direct invocation: the problem document with its payload.
        .with_target("lambda_runtime::layers::panic", LevelFilter::OFF)
        // This target reports the lack of a socket as an error, which is normal with the embedded engine.
        .with_target("aws_smithy_runtime::client::http::connection_poisoning", LevelFilter::OFF)
}
