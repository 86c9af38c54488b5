//! From the SDK's serialised request to the response that it parses.

use std::fmt;
use std::sync::Arc;

use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::http::{Response, StatusCode};
use aws_smithy_types::body::SdkBody;
use dynoxide::Database;

use crate::Core;
use crate::operations::{self, Answer};

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
        if core.file.is_none() {
            HttpConnectorFuture::new(async move {
                // Without a point to give way at, one task would run to its end before the next
                // one starts, and no race would ever show.
                tokio::task::yield_now().await;
                respond(&core.database, &request)
            })
        } else {
            HttpConnectorFuture::new(async move {
                // A write waits for the disk. Once begun it is carried out even if the caller gives
                // up, as it would be behind a network; `core` keeps the file locked until then.
                tokio::task::spawn_blocking(move || respond(&core.database, &request))
                    .await
                    .map_err(|e| ConnectorError::other(e.into(), None))?
            })
        }
    }
}

fn respond(database: &Database, request: &HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let body =
        request.body().bytes().ok_or_else(|| ConnectorError::user("the request body is not in memory".into()))?;
    let target = request.headers().get("x-amz-target").unwrap_or_default();
    let Answer { status, body } = operations::run(database, target, body);
    let status = StatusCode::try_from(status).map_err(|e| ConnectorError::other(e.into(), None))?;
    let mut response = Response::new(status, SdkBody::from(body));
    response.headers_mut().insert("content-type", CONTENT_TYPE);
    Ok(response)
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
