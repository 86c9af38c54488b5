//! The Invoke API of Lambda on loopback, in front of any handlers.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The fate of one invocation.
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    /// The function is invoked, and its answer arrives.
    Answered,
    /// The function is invoked, and Lambda gives up waiting for it.
    AnswerLost,
    /// The function fails without an answer of its own: `errorType` and `errorMessage`.
    Fails(&'static str, &'static str),
    /// Lambda refuses: the status and the type of the error.
    Refused(u16, &'static str),
}

/// An invocation as it arrived.
#[derive(Debug, Clone)]
pub struct Invocation {
    /// The name of the function, or its ARN.
    pub function: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The JSON document.
    pub input: Value,
}

/// The Invoke API. It ends when it is dropped.
#[derive(Debug)]
pub struct InvokeApi {
    /// The endpoint.
    pub url: String,
    state: Arc<Mutex<State>>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The fates of the next invocations, the last one first.
    fates: Vec<Fate>,
    log: Vec<Invocation>,
}

impl InvokeApi {
    /// Starts it on a free port. `handle` is given the name of a function and its input, and returns the answer or the
    /// failure: a document with `errorType` and `errorMessage`.
    ///
    /// # Errors
    /// Fails with the system's errors: no port.
    pub async fn start<H, F>(handle: H) -> io::Result<Self>
    where
        H: Fn(String, Value) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Value, Value>> + Send,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let invoke = async move |Path(function): Path<String>, headers: HeaderMap, body: Bytes| {
            let input = super::document(&body);
            let fate = {
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                state.log.push(Invocation { function: function.clone(), headers, input: input.clone() });
                state.fates.pop().unwrap_or(Fate::Answered)
            };
            match fate {
                Fate::Refused(status, error_type) => refused(status, error_type),
                Fate::Fails(error_type, message) => {
                    failed(&json!({ "errorType": error_type, "errorMessage": message }))
                }
                Fate::AnswerLost => {
                    let _ = handle(function, input).await;
                    refused(504, "")
                }
                Fate::Answered => match handle(function, input).await {
                    Ok(answer) => answer.to_string().into_response(),
                    Err(failure) => failed(&failure),
                },
            }
        };
        let routes = Router::new()
            .route("/2015-03-31/functions/{name}/invocations", post(invoke))
            .layer(DefaultBodyLimit::disable());
        let server = tokio::spawn(async {
            let _ = axum::serve(listener, routes).await;
        });
        Ok(Self { url, state, server })
    }

    /// Sets the fates of the next invocations. Those after them are answered.
    pub fn fate(&self, fates: &[Fate]) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).fates = fates.iter().rev().copied().collect();
    }

    /// The invocations that arrived.
    pub fn log(&self) -> Vec<Invocation> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).log.clone()
    }
}

impl Drop for InvokeApi {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn refused(status: u16, error_type: &'static str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = json!({ "Message": "told by the test" }).to_string();
    (status, [("x-amzn-errortype", error_type)], body).into_response()
}

fn failed(failure: &Value) -> Response {
    ([("x-amz-function-error", "Unhandled")], failure.to_string()).into_response()
}
