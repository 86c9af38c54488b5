//! The way in: a loopback address or a Unix socket, closed to web pages and, with a token, to other users.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use http::header::AUTHORIZATION;
use leasehold_client::wire::{Problem, ProblemType};
use leasehold_origin::Guard;
use nix::sys::stat::{Mode, umask};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, UnixListener};

use crate::refusal::Refusal;

/// The address of the local API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// An address of the loopback interface.
    Loopback(SocketAddr),
    /// A socket that only this user can open.
    Unix(PathBuf),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("name the path of the socket".into())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        let address: SocketAddr =
            text.parse().map_err(|_| format!("{text:?} is neither ADDRESS:PORT nor unix:PATH"))?;
        if address.ip().is_loopback() {
            Ok(Self::Loopback(address))
        } else {
            Err(format!(
                "{} is not of the loopback interface, and locks are for processes of this machine",
                address.ip()
            ))
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// An open address.
pub(crate) enum Door {
    Loopback(TcpListener),
    Unix(UnixListener),
}

impl Door {
    /// Opens the address. Returns it as it is: port 0 becomes a free one.
    pub(crate) async fn open(listen: &Listen) -> io::Result<(Self, Listen)> {
        match listen {
            Listen::Loopback(address) => {
                let listener = TcpListener::bind(address).await?;
                let address = listener.local_addr()?;
                Ok((Self::Loopback(listener), Listen::Loopback(address)))
            }
            Listen::Unix(path) => Ok((Self::Unix(bind(path)?), listen.clone())),
        }
    }

    /// Serves these routes, for as long as the process lives.
    pub(crate) async fn serve(self, routes: Router, token: Option<Token>) -> io::Result<()> {
        match self {
            Self::Loopback(listener) => {
                let guard = Guard::new(listener.local_addr()?.ip(), &[]);
                axum::serve(listener, protect(routes, Some(guard), token)).await
            }
            // No page reaches a socket, and no name leads to it.
            Self::Unix(listener) => axum::serve(listener, protect(routes, None, token)).await,
        }
    }
}

/// Binds a socket with mode 0600. A socket that nobody listens at any more is replaced.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        fs::remove_file(path)?;
    }
    let before = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(path);
    umask(before);
    listener
}

/// The secret that callers must send, by its hash.
#[derive(Debug, Clone)]
pub(crate) struct Token([u8; 32]);

impl Token {
    /// Reads the token of a file. A missing file is made, with a fresh token, for this user alone.
    pub(crate) fn of_file(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(path)?,
            read => read?,
        };
        match text.trim() {
            "" => Err(io::Error::new(io::ErrorKind::InvalidData, "it has no token")),
            token => Ok(Self(hash(token))),
        }
    }

    fn allows(&self, request: &Request) -> bool {
        let sent = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        // Hashes are compared: the time tells nothing about the token.
        sent.and_then(|sent| sent.strip_prefix("Bearer ")).is_some_and(|token| hash(token) == self.0)
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[allow(clippy::disallowed_methods, reason = "a secret, which no test needs to know")]
fn make(path: &Path) -> io::Result<String> {
    let token = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{token}\n").as_bytes())?;
    Ok(token)
}

/// Refuses web pages, and callers without the token.
pub(crate) fn protect(routes: Router, guard: Option<Guard>, token: Option<Token>) -> Router {
    let check = move |request: Request, next: Next| {
        let refused = refuse(&request, guard.as_ref(), token.as_ref());
        async move {
            match refused {
                Some(refusal) => refusal.into_response(),
                None => next.run(request).await,
            }
        }
    };
    routes.layer(middleware::from_fn(check))
}

fn refuse(request: &Request, guard: Option<&Guard>, token: Option<&Token>) -> Option<Refusal> {
    let (head, ()) = request_head(request);
    if let Some(problem) = guard.and_then(|guard| guard.check(&head).err()) {
        return Some(problem.into());
    }
    let is_allowed = token.is_none_or(|token| token.allows(request));
    (!is_allowed).then(|| {
        Problem::new(ProblemType::Forbidden, "Send the token of --token-file: Authorization: Bearer TOKEN.").into()
    })
}

/// The head of a request, without its body.
fn request_head(request: &Request) -> (http::request::Parts, ()) {
    let mut head = http::Request::new(());
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = request.uri().clone();
    *head.headers_mut() = request.headers().clone();
    head.into_parts()
}

/// The address at which Lambda reaches a listener of this sandbox.
pub(crate) async fn of_sandbox(name: &str) -> IpAddr {
    let found = tokio::net::lookup_host((name, 0)).await.ok().and_then(|mut found| found.next());
    found.map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_must_be_of_this_machine() {
        assert_eq!("unix:/tmp/a".parse(), Ok(Listen::Unix("/tmp/a".into())));
        assert!("127.0.0.1:2772".parse::<Listen>().is_ok() && "[::1]:0".parse::<Listen>().is_ok());
        for text in ["0.0.0.0:2772", "10.0.0.7:1", "unix:", "localhost:1", "2772"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }
}
