//! The few requests of S3 that the states need.
//!
//! They are signed by the SDK's signer and sent by its connector, which the functions have anyway. The SDK of S3 has a
//! hundred operations more: docs/decisions/0027-states-in-s3.md.

use std::time::{Duration, SystemTime};

use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode,
    sign,
};
use aws_sigv4::sign::v4::SigningParams;
use aws_smithy_runtime_api::client::http::{HttpConnector, SharedHttpConnector};
use aws_smithy_runtime_api::client::identity::Identity;
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use http::{Method, Request, StatusCode};
use leasehold_dynamodb::{Clock, error_chain, pause_for};
use leasehold_wire::{Problem, ProblemType};
use tokio::time::timeout;

/// The longest wait for an answer, body included. Three attempts fit into the time of the function.
const ATTEMPT: Duration = Duration::from_secs(8);
const ATTEMPTS: u32 = 3;
/// The pause before the second attempt, doubled before each later one.
const PAUSE: Duration = Duration::from_millis(100);

/// The condition of a write.
#[derive(Debug, Clone, Copy)]
pub(super) enum Only<'a> {
    /// The object does not exist.
    IfAbsent,
    /// The object has this entity tag.
    IfMatch(&'a str),
}

/// An object as it was read.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) body: Vec<u8>,
    pub(super) etag: String,
}

/// A bucket, and the way to it.
#[derive(Debug, Clone)]
pub(super) struct S3 {
    /// The address of the bucket, without a slash at the end.
    pub(super) url: String,
    pub(super) region: String,
    pub(super) identity: Identity,
    pub(super) connector: SharedHttpConnector,
}

/// An answer of S3.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    etag: String,
    body: Vec<u8>,
}

impl Answer {
    /// The `Code` of an error document.
    fn code(&self) -> &str {
        let text = std::str::from_utf8(&self.body).unwrap_or_default();
        text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map_or("", |(code, _)| code)
    }

    fn may_be_repeated(&self) -> bool {
        self.status.is_server_error() || self.status == StatusCode::TOO_MANY_REQUESTS
    }

    fn problem(&self) -> Problem {
        tracing::error!(status = self.status.as_u16(), code = self.code(), "S3 refuses");
        if self.may_be_repeated() {
            return unavailable("S3 did not answer well.");
        }
        let detail = format!("S3 refuses a request of the function ({}). Its log says why.", self.code());
        Problem::new(ProblemType::Misconfigured, detail)
    }
}

impl S3 {
    /// Reads an object, if there is one.
    ///
    /// # Errors
    /// `unavailable`, `misconfigured`. A bucket that is gone is no missing object.
    pub(super) async fn get(&self, key: &str) -> Result<Option<Object>, Problem> {
        let answer = self.send(Method::GET, &format!("/{key}"), None, &[]).await?;
        match (answer.status, answer.code()) {
            (StatusCode::OK, _) => Ok(Some(Object { body: answer.body, etag: answer.etag })),
            (StatusCode::NOT_FOUND, "NoSuchKey") => Ok(None),
            _ => Err(answer.problem()),
        }
    }

    /// Writes an object under a condition. Returns whether it was written. If an answer was lost, this may return
    /// `false` for a write of its own.
    ///
    /// # Errors
    /// `unavailable`: the object may have been written. `misconfigured`
    pub(super) async fn put(&self, key: &str, body: &[u8], only: Only<'_>) -> Result<bool, Problem> {
        let answer = self.send(Method::PUT, &format!("/{key}"), Some(only), body).await?;
        match (answer.status, answer.code()) {
            (StatusCode::OK, _) => Ok(true),
            // 404: the object of the condition is gone. 409: another write at the same time.
            (StatusCode::PRECONDITION_FAILED, _)
            | (StatusCode::NOT_FOUND, "NoSuchKey")
            | (StatusCode::CONFLICT, "ConditionalRequestConflict") => Ok(false),
            _ => Err(answer.problem()),
        }
    }

    /// Deletes an object, if there is one.
    ///
    /// # Errors
    /// `unavailable`, `misconfigured`
    pub(super) async fn delete(&self, key: &str) -> Result<(), Problem> {
        let answer = self.send(Method::DELETE, &format!("/{key}"), None, &[]).await?;
        if answer.status.is_success() { Ok(()) } else { Err(answer.problem()) }
    }

    /// The first thousand keys that begin with this, which has letters, digits, `.`, `_`, `-` and `/` only.
    ///
    /// # Errors
    /// `unavailable`, `misconfigured`
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<String>, Problem> {
        let query = format!("/?list-type=2&prefix={}", prefix.replace('/', "%2F"));
        let answer = self.send(Method::GET, &query, None, &[]).await?;
        if answer.status != StatusCode::OK {
            return Err(answer.problem());
        }
        // Such keys need no escapes in XML.
        let text = String::from_utf8_lossy(&answer.body);
        let keys = text.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
        Ok(keys.map(|(key, _)| key.to_owned()).collect())
    }

    async fn send(&self, method: Method, path: &str, only: Option<Only<'_>>, body: &[u8]) -> Result<Answer, Problem> {
        let mut pause = PAUSE;
        for attempt in 1.. {
            let answer = match timeout(ATTEMPT, self.attempt(&method, path, only, body)).await {
                Ok(answer) => answer,
                Err(_) => Err(format!("no answer within {ATTEMPT:?}")),
            };
            match answer {
                Ok(answer) if attempt == ATTEMPTS || !answer.may_be_repeated() => return Ok(answer),
                Err(error) if attempt == ATTEMPTS => {
                    tracing::error!(error, "no answer from S3");
                    break;
                }
                Ok(_) | Err(_) => pause_for(pause).await,
            }
            pause *= 2;
        }
        Err(unavailable("S3 gave no answer."))
    }

    async fn attempt(
        &self,
        method: &Method,
        path: &str,
        only: Option<Only<'_>>,
        body: &[u8],
    ) -> Result<Answer, String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        request = match only {
            Some(Only::IfAbsent) => request.header(IF_NONE_MATCH, "*"),
            Some(Only::IfMatch(etag)) => request.header(IF_MATCH, etag),
            None => request,
        };
        let mut request = request.body(SdkBody::from(body)).map_err(|error| error.to_string())?;
        self.sign(&mut request, body)?;
        let request = HttpRequest::try_from(request).map_err(|error| error.to_string())?;
        let response = self.connector.call(request).await.map_err(|error| error_chain(&error))?;
        let status = StatusCode::from_u16(response.status().as_u16()).map_err(|error| error.to_string())?;
        let etag = response.headers().get(ETAG.as_str()).unwrap_or_default().to_owned();
        let body = ByteStream::new(response.into_body()).collect().await.map_err(|error| error.to_string())?;
        Ok(Answer { status, etag, body: body.to_vec() })
    }

    fn sign(&self, request: &mut Request<SdkBody>, body: &[u8]) -> Result<(), String> {
        // The rules of S3 differ from those of the other services in these.
        let mut settings = SigningSettings::default();
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        let params = SigningParams::builder()
            .identity(&self.identity)
            .region(&self.region)
            .name("s3")
            .time(SystemTime::UNIX_EPOCH + Duration::from_millis(Clock::system().now_ms()))
            .settings(settings)
            .build()
            .map_err(|error| error.to_string())?;
        let uri = request.uri().to_string();
        let headers = request.headers().iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let signable = SignableRequest::new(request.method().as_str(), uri, headers, SignableBody::Bytes(body))
            .map_err(|error| error.to_string())?;
        let (instructions, _) = sign(signable, &params.into()).map_err(|error| error.to_string())?.into_parts();
        instructions.apply_to_request_http1x(request);
        Ok(())
    }
}

pub(super) fn unavailable(detail: &str) -> Problem {
    Problem::new(ProblemType::Unavailable, format!("{detail} Try again: the log of the function says why."))
}
