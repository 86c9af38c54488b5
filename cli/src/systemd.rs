//! systemd: the socket that it opened, and messages about the state of the service. Without systemd, nothing happens.

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use listenfd::ListenFd;
use sd_notify::NotifyState;

/// Returns the socket that systemd opened for this process (`LISTEN_FDS`), if there is one. It is open before the
/// service starts and while it restarts, so that no client is refused.
pub(crate) fn listener() -> io::Result<Option<TcpListener>> {
    let mut sockets = ListenFd::from_env();
    if sockets.len() > 1 {
        return Err(io::Error::other(format!("it opened {}", sockets.len())));
    }
    let Some(listener) = sockets.take_tcp_listener(0)? else { return Ok(None) };
    listener.set_nonblocking(true)?;
    Ok(Some(listener))
}

/// Tells systemd the state of the service.
pub(crate) fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "systemd cannot be told");
    }
}

/// Returns the pause between two signs of life, if systemd waits for them: a third of what it allows.
pub(crate) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|allowed| allowed / 3)
}
