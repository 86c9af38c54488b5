//! Connections, with a time-out for every step of a client.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1::Builder;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use leasehold_api::http::{problem_response, unknown_route};
use leasehold_wire::{Problem, ProblemType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use crate::buffers::{self, Reserved};
use crate::places::{PLACES, Place};
use crate::tls::Tls;

/// Longest time until a connection has sent the head of its next request: longer than clients keep an idle connection,
/// so that none is closed under a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time in which a client reads nothing of its answer.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for a whole answer. The largest has four megabytes: a client slower than 70 KB/s is cut.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// Time after a stop in which a client may still send a request: it has just connected, or has not seen the stop. The
/// answer closes the connection.
const LAST_CALL: Duration = Duration::from_secs(1);
/// Longest time for the requests in flight to finish after a stop. The slowest takes four seconds.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest of hyper's own refusals, with room to spare.
const MAX_BARE_BYTES: usize = 512;
/// Largest head of a request: a query with a key and a sort key, each byte of them escaped, and usual headers.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Most bytes that are read at a time. Below hyper's first buffer, so that no buffer grows for a body.
const READ_BYTES: usize = 8 * 1024 - 1;
/// Head of a request that needs no memory of its own: a connection has a buffer for it.
const USUAL_HEAD_BYTES: usize = 16 * 1024;

/// Serves these routes until `shutdown` resolves, then finishes the requests in flight.
pub async fn run(listener: TcpListener, routes: Router, shutdown: impl Future<Output = ()>) {
    let app = routes.fallback(async || problem_response(&unknown_route()).map(Body::from));
    run_tls(listener, None, app, shutdown).await;
}

/// Serves as [`run`], with TLS if there is a certificate, and without an answer of its own to unknown paths.
pub async fn run_tls(listener: TcpListener, tls: Option<Tls>, app: Router, shutdown: impl Future<Output = ()>) {
    let (stop, stopped) = watch::channel(false);
    let accept = async |stream| {
        // A connection that was accepted is served, although a stop comes while it waits.
        let Ok(place) = timeout(DRAIN_TIMEOUT, PLACES.take()).await else {
            return tracing::warn!("no place for a connection: all others are at work");
        };
        serve_connection(stream, tls.as_ref(), app.clone(), stopped.clone(), place);
    };
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => accept(stream).await,
            // Other parts of the process have taken the descriptors: a connection gives its own back.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                PLACES.make_room().await;
            }
        }
    }
    // Those that have connected are answered, too. The system knows them all; the runtime hears of them later.
    match listener.into_std() {
        Ok(listener) => {
            for _ in 0..PLACES.limit() {
                let Ok((stream, _)) = listener.accept() else { break };
                match stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
                    Ok(stream) => accept(stream).await,
                    Err(error) => tracing::warn!(%error, "cannot serve a connection"),
                }
            }
        }
        Err(error) => tracing::warn!(%error, "cannot serve those that have just connected"),
    }
    drop(stopped);
    stop.send_replace(true);
    if timeout(DRAIN_TIMEOUT, stop.closed()).await.is_err() {
        tracing::warn!("some requests did not finish in time and were cut off");
    }
}

fn serve_connection(stream: TcpStream, tls: Option<&Tls>, app: Router, stopped: watch::Receiver<bool>, place: Place) {
    // Answers are small and complete: holding one back to fill a packet only costs time.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let place = Arc::new(place);
    let acceptor = tls.map(Tls::acceptor);
    tokio::spawn(async move {
        tokio::select! {
            () = handshake_and_serve(stream, acceptor, app, stopped, Arc::clone(&place)) => {}
            () = place.evicted() => tracing::debug!("a waiting connection made room"),
        }
    });
}

async fn handshake_and_serve(
    stream: TcpStream,
    acceptor: Option<TlsAcceptor>,
    app: Router,
    stopped: watch::Receiver<bool>,
    place: Arc<Place>,
) {
    let Some(acceptor) = acceptor else { return serve(stream, app, stopped, place).await };
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, app, stopped, place).await,
        Ok(Err(error)) => tracing::debug!(%error, "no TLS"),
        Err(_) => tracing::debug!("no TLS in time"),
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    mut stopped: watch::Receiver<bool>,
    place: Arc<Place>,
) {
    let app = TowerToHyperService::new(app);
    let stream = Guarded::new(stream, Arc::clone(&place));
    let stopping = stopped.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        place.work();
        request.extensions_mut().insert(Arc::clone(&place));
        let (answer, place, stopping) = (app.call(request), Arc::clone(&place), stopping.clone());
        async move {
            let mut answer = answer.await?;
            if *stopping.borrow() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            place.answered();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = pin!(
        Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    let last_call = async {
        // An error: the service is gone.
        drop(stopped.wait_for(|stopped| *stopped).await);
        sleep_until(Instant::now() + LAST_CALL).await;
    };
    let ended = tokio::select! {
        // A request that has come in time is read before the end of the last call.
        biased;
        ended = connection.as_mut() => ended,
        () = last_call => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// A stream that ends when the other side reads nothing. The stream turns hyper's bare refusals into problem documents.
struct Guarded<S> {
    inner: S,
    place: Arc<Place>,
    /// The bytes that have come since the last request was complete, or the last body began.
    head: usize,
    head_memory: Reserved,
    /// The beginning of the answer that is being written.
    answer_begun: Option<Instant>,
    stalled: Option<Pin<Box<Sleep>>>,
    /// The document in place of hyper's bare refusal, and the number of its written bytes.
    refusal: Option<(Vec<u8>, usize)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Guarded<S> {
    fn new(inner: S, place: Arc<Place>) -> Self {
        Self { inner, place, head: 0, head_memory: None, answer_begun: None, stalled: None, refusal: None }
    }

    /// Counts the bytes of a head. A long one needs memory of its own, until it is complete.
    fn count_head(&mut self, bytes: usize) -> io::Result<()> {
        if !self.place.awaits_head() {
            (self.head, self.head_memory) = (0, None);
            return Ok(());
        }
        self.head += bytes;
        if self.head > USUAL_HEAD_BYTES && self.head_memory.is_none() {
            self.head_memory = buffers::reserve_now(MAX_HEAD_BYTES);
            if self.head_memory.is_none() {
                return Err(io::Error::other("no memory for a long head"));
            }
        }
        Ok(())
    }

    /// Passes a result of the stream on, unless it has been pending for too long.
    fn watched<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let begun = *self.answer_begun.get_or_insert_with(Instant::now);
        let stalled = self.stalled.get_or_insert_with(|| {
            let end = (Instant::now() + STALL_TIMEOUT).min(begun + ANSWER_TIMEOUT);
            Box::pin(sleep_until(end))
        });
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }

    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some((document, written)) = &mut self.refusal {
            if *written == document.len() {
                self.refusal = None;
                break;
            }
            *written += ready!(Pin::new(&mut self.inner).poll_write(cx, &document[*written..]))?;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let size = buffer.remaining().min(READ_BYTES);
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(size));
        ready!(Pin::new(&mut this.inner).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        buffer.advance(read);
        // A client that sends its next request has read its answer.
        if read > 0 && this.stalled.is_none() {
            this.answer_begun = None;
        }
        Poll::Ready(this.count_head(read))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.refusal.is_none() {
            this.refusal = explained(bytes).map(|document| (document, 0));
        }
        let polled = if this.refusal.is_some() {
            this.poll_refusal(cx).map_ok(|()| bytes.len())
        } else {
            Pin::new(&mut this.inner).poll_write(cx, bytes)
        };
        this.watched(cx, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(first) = parts.first().filter(|first| self.refusal.is_some() || explained(first).is_some()) {
            return self.poll_write(cx, first);
        }
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_write_vectored(cx, parts);
        this.watched(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_flush(cx);
        let polled = this.watched(cx, polled);
        if polled.is_ready() {
            this.answer_begun = None;
            this.place.flushed();
        }
        polled
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll_shutdown(cx);
        this.watched(cx, polled)
    }
}

/// Returns the problem document for a refusal that hyper is about to write. Every answer of this service has a content
/// type.
fn explained(head: &[u8]) -> Option<Vec<u8>> {
    if head.len() > MAX_BARE_BYTES || !head.starts_with(b"HTTP/1.") {
        return None;
    }
    let head = std::str::from_utf8(head).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ").or_else(|| head.strip_prefix("HTTP/1.0 "))?.get(..3)?;
    if !head.ends_with("\r\n\r\n") || !head.contains("content-length: 0\r\n") || head.contains("content-type:") {
        return None;
    }
    let (kind, status, reason, detail) = match status {
        "400" => (ProblemType::InvalidRequest, 400, "Bad Request", "This is no HTTP request."),
        "414" => (ProblemType::TooLarge, 414, "URI Too Long", "The path and the query are too long."),
        "431" => {
            (ProblemType::TooLarge, 431, "Request Header Fields Too Large", "The headers are too many or too long.")
        }
        _ => return None,
    };
    let problem = Problem { status, ..Problem::new(kind, detail) };
    let body = problem_response(&problem).into_body();
    let mut document = format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    document.extend(body);
    Some(document)
}

#[cfg(test)]
mod tests {
    use axum::routing::any;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn served(app: Router) -> DuplexStream {
        let (client, server) = duplex(1024);
        tokio::spawn(async move {
            let (_stop, stopped) = watch::channel(false);
            let place = Arc::new(PLACES.take().await);
            serve(server, app, stopped, place).await;
        });
        client
    }

    async fn refusal(request: &str) -> String {
        let mut client = served(Router::new());
        let _ = client.write_all(request.as_bytes()).await;
        let mut answer = String::new();
        let _ = client.read_to_string(&mut answer).await;
        answer
    }

    #[tokio::test]
    async fn malformed_request_is_refused_in_a_problem_document() {
        let answer = refusal("nonsense\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("content-type: application/problem+json"), "{head}");
        let problem: Problem = serde_json::from_str(body).expect("a problem");
        assert_eq!((problem.status, problem.problem_type), (400, ProblemType::InvalidRequest));
    }

    #[tokio::test]
    async fn long_head_is_refused_in_a_problem_document() {
        let long = "x".repeat(MAX_HEAD_BYTES);
        for request in [format!("GET /{long} HTTP/1.1\r\n\r\n"), format!("GET / HTTP/1.1\r\nhost: {long}\r\n\r\n")] {
            let answer = refusal(&request).await;
            assert!(answer.starts_with("HTTP/1.1 431") || answer.starts_with("HTTP/1.1 414"), "{answer}");
            assert!(answer.contains("\"type\":\"too-large\""), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_does_not_read_is_cut() {
        let app = Router::new().fallback(any(async || "x".repeat(1_000_000)));
        let mut client = served(app);
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        let started = Instant::now();
        let mut little = [0; 100];
        client.read_exact(&mut little).await.expect("the beginning");
        sleep_until(started + STALL_TIMEOUT * 2).await;
        let mut rest = Vec::new();
        let _ = client.read_to_end(&mut rest).await;
        assert!(rest.len() < 10_000, "the answer was not completed: {}", rest.len());
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_reads_slowly_is_cut_in_the_end() {
        let app = Router::new().fallback(any(async || "x".repeat(1_000_000)));
        let mut client = served(app);
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        let mut buffer = [0; 1024];
        let mut read = 0;
        for _ in 0..200 {
            sleep_until(Instant::now() + Duration::from_secs(1)).await;
            match client.read(&mut buffer).await {
                Ok(length) if length > 0 => read += length,
                _ => break,
            }
        }
        assert!(read < 100_000, "a kilobyte a second for one minute: {read}");
    }
}
