//! The log of a function. Each operation has one line with its fields and its metrics, so that both are paid for once.

use std::fmt;
use std::io::Write;

use leasehold_api::OPERATION_TARGET;
use leasehold_api::logging::{LevelFilter, filter, json_layer};
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Scope};

use crate::Emf;

/// The members that spans do not add to a line: a dimension of the metrics, and the id that X-Ray finds by itself.
const LEFT_OUT: [&str; 2] = ["operation", "xrayTraceId"];

/// Returns the log at this level, for any writer.
pub fn subscriber<W>(level: LevelFilter, writer: W) -> impl Subscriber + Send + Sync
where
    W: for<'a> MakeWriter<'a> + Clone + Send + Sync + 'static,
{
    let others = json_layer(writer.clone()).with_filter(filter(level).with_target(OPERATION_TARGET, LevelFilter::OFF));
    tracing_subscriber::registry().with(others).with(OperationLines { writer }.with_filter(filter(level)))
}

/// Prints the line of each operation.
struct OperationLines<W> {
    writer: W,
}

impl<S, W> Layer<S> for OperationLines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut members = Members::default();
        attributes.record(&mut members);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(members);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(members) = span.extensions_mut().get_mut::<Members>()
        {
            values.record(members);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if event.metadata().target() != OPERATION_TARGET {
            return;
        }
        let mut line = Members::default();
        for span in context.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(members) = span.extensions().get::<Members>() {
                line.0.extend(members.0.iter().cloned());
            }
        }
        // A line that cannot be written cannot be logged either.
        let _ = if let Some(emf) = Emf::started() {
            line.0.retain(|(name, _)| !LEFT_OUT.contains(name));
            emf.write_with(&line.0, self.writer.make_writer())
        } else {
            event.record(&mut line);
            let line: Map<_, _> = line.0.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            writeln!(self.writer.make_writer(), "{}", Value::Object(line))
        };
    }
}

/// The fields of an operation, collected from its spans.
#[derive(Default)]
struct Members(Vec<(&'static str, Value)>);

impl Members {
    fn set(&mut self, field: &Field, value: Value) {
        self.0.retain(|(name, _)| *name != field.name());
        self.0.push((field.name(), value));
    }
}

impl Visit for Members {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, json!(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, json!(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, json!(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, json!(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, json!(format!("{value:?}")));
    }
}
