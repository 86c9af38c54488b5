//! Signals that this process gets, as a stream.

use std::io;
use std::time::Duration;

use nix::sys::signal::Signal;
use signal_hook::consts;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::emulate_default_handler;
use signal_hook::low_level::siginfo::{Cause, Origin};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::Failure;

/// Signals that ask a process to end.
const ENDING: [i32; 4] = [consts::SIGINT, consts::SIGTERM, consts::SIGHUP, consts::SIGQUIT];
/// Signals that stop a service.
const STOPPING: [i32; 2] = [consts::SIGINT, consts::SIGTERM];
/// Signals whose meaning only the command under `run` knows.
const OTHERS: [i32; 2] = [consts::SIGUSR1, consts::SIGUSR2];

/// How far apart two processes may hear of one signal.
const AT_ONCE: Duration = Duration::from_millis(500);

/// A signal that came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) signal: Signal,
    /// A process sent it to this one. Otherwise it comes from the terminal, which sends a Ctrl-C to each
    /// process of its foreground group.
    pub(crate) sent_here: bool,
}

impl Received {
    /// Returns whether it asks to end.
    pub(crate) fn is_ending(self) -> bool {
        ENDING.contains(&(self.signal as i32))
    }

    /// Returns whether it is a Ctrl-C.
    pub(crate) fn is_interrupt(self) -> bool {
        self.signal == Signal::SIGINT && !self.sent_here
    }

    /// Its number.
    pub(crate) fn number(self) -> u8 {
        u8::try_from(self.signal as i32).unwrap_or_default()
    }
}

/// Signals that this process gets. From the first of these on, they no longer end the process.
///
/// A signal that was ignored when the process started stays ignored. `nohup` asks for that, and a shell does for the
/// jobs that a script starts in the background.
pub(crate) struct Signals {
    receiver: mpsc::UnboundedReceiver<Received>,
    interrupted: bool,
}

impl Signals {
    /// Listens for signals that ask to end.
    pub(crate) fn ending() -> Result<Self, Failure> {
        Self::listen(&ENDING).map_err(|error| cannot_listen(&error))
    }

    /// Listens for signals that stop a service.
    pub(crate) fn stopping() -> io::Result<Self> {
        Self::listen(&STOPPING)
    }

    /// Listens for all signals that are passed on to a command.
    pub(crate) fn all() -> Result<Self, Failure> {
        Self::listen(&[&ENDING[..], &OTHERS].concat()).map_err(|error| cannot_listen(&error))
    }

    fn listen(wanted: &[i32]) -> io::Result<Self> {
        let ignored = ignored();
        let wanted = wanted.iter().filter(|number| ignored & (1 << (*number - 1)) == 0);
        let mut signals = SignalsInfo::<WithOrigin>::new(wanted)?;
        let (sender, receiver) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for origin in signals.forever() {
                if let Some(received) = understand(&origin)
                    && sender.send(received).is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { receiver, interrupted: false })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Received {
        match self.receiver.recv().await {
            Some(received) => self.noted(received),
            // The thread that sends lives as long as the process.
            None => std::future::pending().await,
        }
    }

    /// The next signal that asks to end.
    pub(crate) async fn next_ending(&mut self) -> Received {
        loop {
            let received = self.next().await;
            if received.is_ending() {
                return received;
            }
        }
    }

    /// The next signal that asks to end, but for those that come at once. One Ctrl-C reaches several processes, and
    /// this one may hear of it when the command has already ended by it.
    pub(crate) async fn next_impatient(&mut self) -> Received {
        let start = Instant::now();
        loop {
            let received = self.next_ending().await;
            if start.elapsed() > AT_ONCE {
                return received;
            }
        }
    }

    /// Returns whether there was a Ctrl-C.
    pub(crate) fn interrupted(&mut self) -> bool {
        while let Ok(received) = self.receiver.try_recv() {
            self.noted(received);
        }
        self.interrupted
    }

    fn noted(&mut self, received: Received) -> Received {
        self.interrupted |= received.is_interrupt();
        received
    }
}

/// Ends this process by SIGINT, and not by a status that says so: the loop of a shell that gets the same Ctrl-C goes on
/// unless its command died of it.
pub(crate) fn die_of_interrupt() {
    // If that fails, there is still the status.
    let _ = emulate_default_handler(consts::SIGINT);
}

fn cannot_listen(error: &io::Error) -> Failure {
    Failure::failed(format!("cannot wait for signals: {error}"))
}

fn understand(origin: &Origin) -> Option<Received> {
    let signal = Signal::try_from(origin.signal).ok()?;
    Some(Received { signal, sent_here: matches!(origin.cause, Cause::Sent(_)) })
}

/// The signals that this process ignores, one bit each, as far as the system tells.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
