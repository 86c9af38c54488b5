//! Connects the SDK's serialised request to the response that the SDK parses.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::http::{Response, StatusCode};
use aws_smithy_types::body::SdkBody;
use bytes::Bytes;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::Core;
use crate::file::DatabaseFile;
use crate::operations::{self, Answer};
use crate::pages;
use crate::queue::{Request, Turn};

const CONTENT_TYPE: &str = "application/x-amz-json-1.0";

/// Runs requests against the engine's core.
pub(crate) struct Connector(Arc<Core>);

impl Connector {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self(core)
    }
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let core = Arc::clone(&self.0);
        HttpConnectorFuture::new(async move {
            let body = request.body().bytes();
            let body = body.ok_or_else(|| ConnectorError::user("the request body is not in memory".into()))?;
            let body = Bytes::copy_from_slice(body);
            let target = request.headers().get("x-amz-target").unwrap_or_default().to_owned();
            let Answer { status, body } = pages::answer(core, target, body).await;
            let status = StatusCode::try_from(status).map_err(|error| ConnectorError::other(error.into(), None))?;
            let mut response = Response::new(status, SdkBody::from(body));
            response.headers_mut().insert("content-type", CONTENT_TYPE);
            Ok(response)
        })
    }
}

/// Runs one operation. If the caller gives up before the operation has begun, the operation does not run.
pub(crate) async fn answer(core: Arc<Core>, target: String, body: Bytes) -> Answer {
    if core.file.is_none() {
        // Without this yield, one task would run to its end before the next one starts, and tests would never show a
        // race.
        tokio::task::yield_now().await;
    }
    let (answer, turn) = core.queue.push(Request::new(target, body));
    if let Some(turn) = turn {
        work(core, turn);
    }
    answer.await.unwrap_or_else(|_| operations::internal_error("the engine has stopped"))
}

/// Carries out some of the requests that wait on this thread, which spares a way to another one and back, and the
/// others on a thread of their own: this one has an answer to send. A write waits for the disk. Once begun it is
/// carried out even if the caller gives up, as over a network; `core` keeps the file locked until then.
#[allow(clippy::disallowed_methods, reason = "the thread is the turn's own")]
fn work(core: Arc<Core>, turn: Turn) {
    let more = match Handle::current().runtime_flavor() {
        // Nothing in memory waits for a disk.
        _ if core.file.is_none() => core.work(turn),
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(|| core.work(turn)),
        _ => Some(turn),
    };
    if let Some(turn) = more {
        tokio::task::spawn_blocking(move || {
            let mut turn = Some(turn);
            while let Some(next) = turn {
                thread::sleep(core.file.as_ref().map_or(Duration::ZERO, DatabaseFile::pause));
                turn = core.work(next);
            }
        });
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
