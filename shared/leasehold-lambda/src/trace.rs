//! The caller's trace context, for the log: the W3C `traceparent` of the request, or of the client context of a direct
//! invocation.

use lambda_runtime::LambdaEvent;
use serde_json::Value;
use tracing::Span;

const TRACEPARENT: &str = "traceparent";

/// The length of each part: version, trace id, parent id, flags.
const PARTS: [usize; 4] = [2, 32, 16, 2];

/// A span that gives the log lines of an event its caller's `traceparent`, where there is a valid one.
pub(crate) fn caller(event: &LambdaEvent<Value>) -> Span {
    match traceparent(event).filter(|text| is_valid(text)) {
        Some(traceparent) => tracing::info_span!("caller", traceparent),
        None => Span::none(),
    }
}

fn traceparent(event: &LambdaEvent<Value>) -> Option<&str> {
    if event.payload.get("requestContext").is_none() {
        return event.context.client_context.as_ref()?.custom.get(TRACEPARENT).map(String::as_str);
    }
    // A REST API keeps the caller's spelling of the name.
    let mut headers = event.payload.get("headers")?.as_object()?.iter();
    let value = headers.find(|(name, _)| name.eq_ignore_ascii_case(TRACEPARENT))?.1;
    // VPC Lattice writes lists.
    value.as_str().or_else(|| value.get(0)?.as_str())
}

/// Anything else is not logged: callers choose the text.
fn is_valid(text: &str) -> bool {
    let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    text.split('-').map(str::len).eq(PARTS) && text.split('-').all(is_hex)
}

#[cfg(test)]
mod tests {
    use super::is_valid;

    #[test]
    fn traceparent_is_logged_only_where_it_is_valid() {
        assert!(is_valid("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"));
        for text in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-012",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-0af7651916cd43dd8448eb211c80319\n-b7ad6b7169203331-01",
        ] {
            assert!(!is_valid(text), "{text:?}");
        }
    }
}
