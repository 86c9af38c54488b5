//! The signals that this process receives, as a stream.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
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

/// The largest difference in time between two processes that receive one signal.
const AT_ONCE: Duration = Duration::from_millis(500);

/// A received signal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) signal: Signal,
    /// Whether a process sent the signal to this one. Otherwise the terminal sent it, as a Ctrl-C, to each process of
    /// its foreground group.
    pub(crate) sent_here: bool,
}

impl Received {
    /// Returns whether the signal asks the process to end.
    pub(crate) fn is_ending(self) -> bool {
        ENDING.contains(&(self.signal as i32))
    }

    /// Returns whether the signal is a Ctrl-C.
    pub(crate) fn is_interrupt(self) -> bool {
        self.signal == Signal::SIGINT && !self.sent_here
    }

    /// Returns the number of the signal.
    pub(crate) fn number(self) -> u8 {
        u8::try_from(self.signal as i32).unwrap_or_default()
    }
}

/// Lets a write fail where the file would exceed the largest size that the process may give it. The signal would end
/// the process in the middle. Commands that this process starts do not inherit it.
///
/// # Errors
/// The system refuses.
pub(crate) fn survive_full_files() -> io::Result<()> {
    signal_hook::flag::register(Signal::SIGXFSZ as i32, Arc::new(AtomicBool::new(false))).map(drop)
}

/// The signals that this process receives. From the first listener on, they no longer end the process.
///
/// A signal that was ignored when the process started stays ignored. `nohup` asks for that, and a shell does for the
/// jobs that a script starts in the background.
pub(crate) struct Signals {
    receiver: mpsc::UnboundedReceiver<Received>,
    interrupted: bool,
}

impl Signals {
    /// Listens for signals that ask the process to end.
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

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Received {
        match self.receiver.recv().await {
            Some(received) => self.noted(received),
            // The sending thread lives as long as the process.
            None => std::future::pending().await,
        }
    }

    /// Waits for the next signal that asks the process to end.
    pub(crate) async fn next_ending(&mut self) -> Received {
        loop {
            let received = self.next().await;
            if received.is_ending() {
                return received;
            }
        }
    }

    /// Waits for the next signal that asks the process to end, without those that arrive at once. One Ctrl-C reaches
    /// several processes, and this one may receive it after the command has ended by it.
    pub(crate) async fn next_impatient(&mut self) -> Received {
        let start = Instant::now();
        loop {
            let received = self.next_ending().await;
            if start.elapsed() > AT_ONCE {
                return received;
            }
        }
    }

    /// Returns whether there was a Ctrl-C. This process may receive it after the command that ended by it.
    pub(crate) async fn interrupted(&mut self) -> bool {
        let interrupt = async {
            while !self.interrupted {
                self.next().await;
            }
        };
        tokio::time::timeout(AT_ONCE, interrupt).await.is_ok()
    }

    fn noted(&mut self, received: Received) -> Received {
        self.interrupted |= received.is_interrupt();
        received
    }
}

/// Ends this process by SIGINT, and not by a status. A shell's loop that gets the same Ctrl-C continues unless its
/// command died of the signal.
pub(crate) fn die_of_interrupt() {
    die_of(Signal::SIGINT);
}

/// Ends this process by a signal.
pub(crate) fn die_of(signal: Signal) {
    // If the signal fails, the status remains.
    let _ = emulate_default_handler(signal as i32);
}

fn cannot_listen(error: &io::Error) -> Failure {
    Failure::failed(format!("cannot wait for signals: {error}"))
}

fn understand(origin: &Origin) -> Option<Received> {
    let signal = Signal::try_from(origin.signal).ok()?;
    Some(Received { signal, sent_here: matches!(origin.cause, Cause::Sent(_)) })
}

/// Returns the signals that this process ignores, one bit each, if the system tells.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
