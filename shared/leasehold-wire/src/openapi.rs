//! The OpenAPI document, made from the types: `docs/openapi.json` is this, and a test holds the two together.

use utoipa::OpenApi;

use crate::{
    AcquireRequest, AcquireResponse, BreakRequest, GetRequest, HealthResponse, HeartbeatRequest, HeartbeatResponse,
    ListRequest, ListResponse, Lock, Problem, ReleaseRequest, ReleaseResponse, path,
};

/// API version 1.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Leasehold",
        version = "1",
        description = "Locks on one DynamoDB table. Acquire, heartbeat, release and break are each one conditional write; \
            the caller owns the heartbeat and judges staleness by comparing record version numbers across its own polls.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    servers((url = "http://127.0.0.1:8080", description = "leasehold serve")),
    paths(acquire, heartbeat, release, break_lock, get, list, health)
)]
pub struct Api;

/// Problems that any operation may answer with, beside its own.
macro_rules! operation {
    ($name:ident, $method:ident, $path:expr, $($rest:tt)*) => {
        #[utoipa::path($method, path = $path, $($rest)*)]
        #[allow(dead_code, reason = "a description, never called")]
        fn $name() {}
    };
}
