//! The calls of DynamoDB in the trace of an invocation: a subsegment for each, as X-Ray's daemon beside the function
//! takes them.
//!
//! A subsegment is one datagram on the same machine. Nobody waits for it, and its loss changes nothing.

use std::net::{Ipv4Addr, UdpSocket};

use aws_sdk_dynamodb::config::interceptors::{BeforeTransmitInterceptorContextRef, FinalizerInterceptorContextRef};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use aws_smithy_types::config_bag::{Storable, StoreReplace};
use leasehold_dynamodb::{Clock, fresh_uuid};
use serde_json::{Value, json};

/// The variable in which the runtime keeps the trace of the invocation that is under way.
const TRACE: &str = "_X_AMZN_TRACE_ID";

/// The address of the daemon, in Lambda's environment of each function.
const DAEMON: &str = "AWS_XRAY_DAEMON_ADDRESS";

/// The first line of each datagram.
const HEADER: &str = r#"{"format":"json","version":1}"#;

/// The number of hexadecimal digits of the id of a subsegment.
const ID_DIGITS: usize = 16;

/// Sends a subsegment for each call of DynamoDB within a sampled trace.
#[derive(Debug)]
pub(crate) struct Subsegments {
    daemon: UdpSocket,
    clock: Clock,
}

impl Subsegments {
    /// Returns `None` where no daemon can be addressed.
    pub(crate) fn for_this_function() -> Option<Self> {
        let addresses = std::env::var(DAEMON).ok()?;
        let daemon = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        daemon.connect(udp_address(&addresses)).ok()?;
        daemon.set_nonblocking(true).ok()?;
        Some(Self { daemon, clock: Clock::system() })
    }
}

/// The time at which an attempt began, in microseconds since the epoch.
#[derive(Debug)]
struct Begun(u64);

impl Storable for Begun {
    type Storer = StoreReplace<Self>;
}

impl Intercept for Subsegments {
    fn name(&self) -> &'static str {
        "Subsegments"
    }

    fn read_before_attempt(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        config.interceptor_state().store_put(Begun(self.clock.now_us()));
        Ok(())
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let header = std::env::var(TRACE).unwrap_or_default();
        if let (Some(Begun(begun)), Some(trace)) = (config.load::<Begun>(), Trace::sampled(&header)) {
            let operation = config.load::<Metadata>().map_or("", Metadata::name);
            let status = context.response().map(|response| response.status().as_u16());
            let subsegment = subsegment(&trace, operation, *begun, self.clock.now_us(), status);
            let _ = self.daemon.send(format!("{HEADER}\n{subsegment}").as_bytes());
        }
        Ok(())
    }
}

/// The trace of an invocation, and the segment in it.
#[derive(Debug, PartialEq, Eq)]
struct Trace<'a> {
    id: &'a str,
    parent: &'a str,
}

impl<'a> Trace<'a> {
    /// Reads `Root=…;Parent=…;Sampled=1`. Returns `None` for a trace that is not sampled.
    fn sampled(header: &'a str) -> Option<Self> {
        let field = |name: &str| header.split(';').find_map(|field| field.trim().strip_prefix(name));
        (field("Sampled=") == Some("1")).then_some(())?;
        Some(Self { id: field("Root=")?, parent: field("Parent=")? })
    }
}

/// Returns the address for datagrams from `127.0.0.1:2000`, or from `tcp:127.0.0.1:2000 udp:127.0.0.2:2001`.
fn udp_address(addresses: &str) -> &str {
    addresses.split_whitespace().find_map(|address| address.strip_prefix("udp:")).unwrap_or(addresses)
}

/// Returns the document of a call. A call without an answer is a fault.
fn subsegment(trace: &Trace<'_>, operation: &str, begun_us: u64, ended_us: u64, status: Option<u16>) -> Value {
    let id: String = fresh_uuid().chars().filter(|digit| *digit != '-').take(ID_DIGITS).collect();
    let mut document = json!({
        "type": "subsegment",
        "name": "DynamoDB",
        "namespace": "aws",
        "id": id,
        "trace_id": trace.id,
        "parent_id": trace.parent,
        "start_time": seconds(begun_us),
        "end_time": seconds(ended_us),
        "aws": { "operation": operation },
    });
    match status {
        Some(status) => {
            document["http"] = json!({ "response": { "status": status } });
            match status {
                400..500 => document["error"] = json!(true),
                500.. => document["fault"] = json!(true),
                _ => {}
            }
        }
        None => document["fault"] = json!(true),
    }
    document
}

#[allow(clippy::cast_precision_loss, reason = "a double has the microseconds of this century")]
fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_traces_alone_have_subsegments() {
        let trace = || Trace { id: "1-5bef4de7-ad49b0e87f6ef6c87fc2e700", parent: "9a9197af755a6419" };
        let header = |sampled: &str| {
            let Trace { id, parent } = trace();
            format!("Root={id};Parent={parent};{sampled}Lineage=a:1")
        };
        assert_eq!(Trace::sampled(&header("Sampled=1;")), Some(trace()));
        for sampled in ["Sampled=0;", "Sampled=?;", ""] {
            assert_eq!(Trace::sampled(&header(sampled)), None, "{sampled}");
        }
        assert_eq!(Trace::sampled("Root=1;Sampled=1"), None, "no parent");
    }

    #[test]
    fn address_for_datagrams_may_follow_that_for_streams() {
        assert_eq!(udp_address("169.254.79.129:2000"), "169.254.79.129:2000");
        assert_eq!(udp_address("tcp:127.0.0.1:2000 udp:127.0.0.2:2001"), "127.0.0.2:2001");
    }

    #[test]
    fn failures_are_marked_as_those_of_either_side() {
        let trace = Trace { id: "1-2-3", parent: "4" };
        let marks = |status| {
            let document = subsegment(&trace, "UpdateItem", 1_000_000, 1_500_000, status);
            assert_eq!((&document["start_time"], &document["end_time"]), (&json!(1.0), &json!(1.5)));
            assert_eq!(document["id"].as_str().map(str::len), Some(ID_DIGITS));
            (document["error"] == true, document["fault"] == true)
        };
        assert_eq!(marks(Some(200)), (false, false));
        assert_eq!(marks(Some(400)), (true, false));
        assert_eq!(marks(Some(500)), (false, true));
        assert_eq!(marks(None), (false, true));
    }
}
