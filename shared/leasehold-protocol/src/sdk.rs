//! How the AWS SDK is set up, for every client that this protocol runs on. Nothing floats.

use std::time::Duration;

use aws_sdk_dynamodb::config::{BehaviorVersion, Builder, StalledStreamProtectionConfig};
use aws_sdk_dynamodb::config::{retry::RetryConfig, timeout::TimeoutConfig};

/// Two attempts must fit into the shortest gateway time-out with room to answer. DynamoDB answers a single-item
/// write in under 20 ms at the 99th percentile; a whole second means that the answer is not coming.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// A TCP and TLS handshake inside one region takes a few milliseconds; packets that are lost are sent again after
/// one second.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(900);

/// The first try and two more. A single lost packet or a node that fails over is survived; a caller who gets
/// `unavailable` after that learns it within four seconds and can decide for itself.
pub(crate) const MAX_ATTEMPTS: u32 = 3;

/// The ceiling of the first pause between attempts; it doubles. DynamoDB's own SDKs begin at 50 ms or below.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(50);

/// Sets what the protocol depends on: the behaviour version, time-outs, and no retries inside the SDK.
///
/// [`crate::LockTable`] repeats attempts itself, because each attempt must write a record version number of its
/// own: if an attempt that was given up is applied late, it must not bring back a number that observers saw
/// before, or a lock whose holder heartbeats would look dead to them.
pub fn configure(builder: Builder) -> Builder {
    builder
        .behavior_version(BehaviorVersion::v2026_01_12())
        .retry_config(RetryConfig::disabled())
        .timeout_config(
            TimeoutConfig::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .operation_attempt_timeout(ATTEMPT_TIMEOUT)
                .build(),
        )
        // Answers are a few kilobytes and bounded by the attempt's time-out; a throughput watch adds only cost.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
}
