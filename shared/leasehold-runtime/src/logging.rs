//! Structured logs.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::Subscriber;

/// Who reads the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Programs: one JSON object a line, on standard output, where Lambda collects it.
    Json,
    /// People: on standard error.
    Text,
}

/// Starts the log. `LEASEHOLD_LOG` says how much of it: a level (`warn`, `info`, `debug`) or a filter such as
/// `info,leasehold_protocol=debug`; without it, `default` holds. A second call changes nothing.
pub fn init_logging(format: LogFormat, default: &str) {
    let filter = EnvFilter::builder()
        .with_env_var("LEASEHOLD_LOG")
        .with_default_directive(default.parse().unwrap_or_else(|_| tracing::level_filters::LevelFilter::INFO.into()));
    let builder = Subscriber::builder().with_env_filter(filter.from_env_lossy()).with_target(false);
    // An error means that the embedding process has a subscriber already, which is its right.
    let _ = match format {
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_current_span(false).with_span_list(true);
            tracing::subscriber::set_global_default(builder.finish())
        }
        LogFormat::Text => tracing::subscriber::set_global_default(builder.with_writer(std::io::stderr).finish()),
    };
}
