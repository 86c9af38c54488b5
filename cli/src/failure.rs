//! The failure of a command, and its exit status.

use std::error::Error;
use std::fmt;
use std::io;

use leasehold_client::wire::semaphore::permits;
use leasehold_client::wire::{Lock, RefusedLock};
use leasehold_client::{ErrorKind, LockKey, Loss, TransportError};
use serde_json::json;

use crate::output;
use crate::signals::Received;

/// The exit statuses of all commands. `run` has its own text, since it returns the command's status.
pub(crate) const EXIT_STATUSES: &str = "\
Exit status:
   0  done
   1  any other failure
   2  the command line is not valid, or a file or a name that it gives
  64  the request breaks a rule of the service
  65  the row is no readable lock record, or a file of observations is damaged
  66  there is no such lock
  69  the outcome is unknown: the service or its table cannot be reached, or is too busy
  73  the lock changed since it was looked at
  75  someone else holds the lock
  76  the lock is lost
  77  the credentials are missing, or do not allow this
  78  the service, or --dynamodb-table, is set up wrong: no table, another key, no credentials, no permission";

/// The exit statuses of this program itself: those of sysexits.h where they fit.
pub(crate) mod status {
    pub(crate) const FAILED: u8 = 1;
    pub(crate) const USAGE: u8 = 2;
    pub(crate) const INVALID_REQUEST: u8 = 64;
    pub(crate) const CORRUPT: u8 = 65;
    pub(crate) const NOT_FOUND: u8 = 66;
    pub(crate) const UNAVAILABLE: u8 = 69;
    pub(crate) const VERSION_MISMATCH: u8 = 73;
    pub(crate) const HELD: u8 = 75;
    pub(crate) const LOST: u8 = 76;
    pub(crate) const FORBIDDEN: u8 = 77;
    pub(crate) const MISCONFIGURED: u8 = 78;
    pub(crate) const CANNOT_EXECUTE: u8 = 126;
    pub(crate) const COMMAND_NOT_FOUND: u8 = 127;
    /// The base of the status after a signal, which adds its number, as in a shell.
    pub(crate) const SIGNALLED: u8 = 128;
}

const TRY_LATER: &str = "try again later, or wait longer with --wait or --extend";

/// The failure of a command.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status of the process.
    pub(crate) status: u8,
    /// The kind, for programs.
    kind: &'static str,
    /// A sentence that says what to do. `None`: nobody reads the output.
    message: Option<String>,
    /// The lock and its holder, if they are known.
    pub(crate) lock: Option<Box<Lock>>,
    /// Whether a Ctrl-C is the reason.
    pub(crate) is_interrupt: bool,
}

impl Failure {
    pub(crate) fn new(status: u8, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: Some(message.into()), lock: None, is_interrupt: false }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(status::FAILED, "failed", message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(status::USAGE, "usage", message)
    }

    /// A closed output, which nobody reads: `leasehold ls | head` is no failure.
    pub(crate) fn nobody_reads() -> Self {
        Self { status: 0, kind: "closed", message: None, lock: None, is_interrupt: false }
    }

    pub(crate) fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::nobody_reads(),
            _ => Self::failed(format!("cannot write to standard output: {error}")),
        }
    }

    pub(crate) fn held(lock: &Lock) -> Self {
        let message = format!("{}; {TRY_LATER}", output::holder(lock));
        Self { lock: Some(Box::new(lock.clone())), ..Self::new(status::HELD, "held", message) }
    }

    pub(crate) fn some_held(locks: &[RefusedLock]) -> Self {
        let held = |refused: &RefusedLock| {
            let key = LockKey { key: refused.key.clone(), sort_key: refused.sort_key.clone() };
            let key = output::plain(&key.to_string());
            if let Some(state) = &refused.semaphore {
                let (free, capacity, queue) = (state.available, state.capacity, state.queue.len());
                let waiting = if queue == 0 { String::new() } else { format!(", and {queue} wait") };
                return format!("{key} has {free} of {} free{waiting}", permits(capacity));
            }
            let owner = refused.owner_name.as_deref().unwrap_or("someone else");
            format!("{key} is held by {}", output::plain(owner))
        };
        let held: Vec<_> = locks.iter().map(held).collect();
        Self::new(status::HELD, "held", format!("{}; {TRY_LATER}", held.join(", ")))
    }

    pub(crate) fn lost(loss: &Loss) -> Self {
        Self {
            lock: loss.lock.clone(),
            ..Self::new(
                status::LOST,
                "lost",
                format!("{} is lost: {}", output::plain(&loss.key.to_string()), loss.how()),
            )
        }
    }

    /// Adds the consequence to the message.
    pub(crate) fn and(self, consequence: &str) -> Self {
        Self { message: self.message.map(|message| message + consequence), ..self }
    }

    /// Removes the message, since it was reported.
    pub(crate) fn reported(self) -> Self {
        Self { message: None, ..self }
    }

    /// Another holder that runs the occurrence, or one that sorts after it, is no failure: nothing is to be done.
    pub(crate) fn of_occurrence(self, occurrence: &str) -> Self {
        match self.lock {
            Some(lock) if self.status == status::HELD && lock.occurrence.as_deref() >= Some(occurrence) => {
                let (key, owner) = (output::plain(&lock.key), output::plain(&lock.owner_name));
                let running = output::plain(lock.occurrence.as_deref().unwrap_or_default());
                let message = format!("{key} is already under way: {owner} runs {running}");
                Self { lock: Some(lock), ..Self::new(0, "under-way", message) }
            }
            lock => Self { lock, ..self },
        }
    }

    /// Ends with another status than `usual`.
    pub(crate) fn replace_status(self, usual: u8, wanted: u8) -> Self {
        if self.status == usual { Self { status: wanted, ..self } } else { self }
    }

    /// A signal that arrived before there was a result.
    pub(crate) fn signalled(received: Received, message: impl Into<String>) -> Self {
        let status = status::SIGNALLED + received.number();
        Self { is_interrupt: received.is_interrupt(), ..Self::new(status, "interrupted", message) }
    }

    /// Reports the failure on standard error: as a sentence, or as one JSON object.
    pub(crate) fn report(&self, json: bool) {
        let Some(message) = &self.message else { return };
        if json {
            let mut object = json!({ "error": self.kind, "status": self.status, "message": message });
            if let Some(lock) = &self.lock {
                object["lock"] = json!(lock);
            }
            output::note(&object.to_string());
        } else {
            output::note(&format!("leasehold: {message}"));
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.as_deref().unwrap_or_default())
    }
}

impl From<leasehold_client::Error> for Failure {
    fn from(error: leasehold_client::Error) -> Self {
        let (status, kind) = match error.kind() {
            ErrorKind::Held(_) => (status::HELD, "held"),
            ErrorKind::Lost(_) => (status::LOST, "lost"),
            ErrorKind::NotFound => (status::NOT_FOUND, "not-found"),
            ErrorKind::VersionMismatch => (status::VERSION_MISMATCH, "version-mismatch"),
            ErrorKind::InvalidRequest { .. } => (status::INVALID_REQUEST, "invalid-request"),
            ErrorKind::Forbidden => (status::FORBIDDEN, "forbidden"),
            ErrorKind::Throttled => (status::UNAVAILABLE, "throttled"),
            ErrorKind::Unavailable => (status::UNAVAILABLE, "unavailable"),
            ErrorKind::CorruptRecord => (status::CORRUPT, "corrupt-record"),
            ErrorKind::Misconfigured => (status::MISCONFIGURED, "misconfigured"),
            // Nothing is to be done, which is no failure.
            ErrorKind::AlreadyDone(_) => (0, "already-done"),
            ErrorKind::WrongKind => (status::INVALID_REQUEST, "wrong-kind"),
            ErrorKind::ExceedsCapacity => (status::INVALID_REQUEST, "exceeds-capacity"),
            ErrorKind::QueueFull(_) => (status::HELD, "queue-full"),
            _ => (status::FAILED, "failed"),
        };
        let lock = match error.kind() {
            ErrorKind::Held(lock) | ErrorKind::AlreadyDone(lock) => Some(lock.clone()),
            ErrorKind::Lost(loss) => loss.lock.clone(),
            _ => None,
        };
        Self { lock, ..Self::new(status, kind, sentence(&error)) }
    }
}

/// The error, its cause, and the remedy.
pub(crate) fn sentence(error: &leasehold_client::Error) -> String {
    if let ErrorKind::AlreadyDone(lock) = error.kind() {
        let last = lock.last_occurrence.as_deref().unwrap_or_default();
        return format!("{} is already done, up to {}", output::plain(&lock.key), output::plain(last));
    }
    let cause = error.source().and_then(|source| source.downcast_ref::<TransportError>());
    let message = error.in_full();
    let hint = match error.kind() {
        // Only a failed connection has a cause of its own; an invalid request has none.
        ErrorKind::Unavailable
            if cause.is_some_and(|cause| !cause.may_have_been_delivered() && cause.source().is_some()) =>
        {
            "; start a service with `leasehold serve`, or name another with --url"
        }
        ErrorKind::WrongKind => {
            "; `leasehold get` shows what it is. `run KEY --of N` asks for permits of a semaphore, and `break KEY --holder ID` \
             ends one of its holders"
        }
        ErrorKind::Forbidden => "; use --token, or --sigv4 with credentials that allow it",
        _ => "",
    };
    if hint.is_empty() { message } else { format!("{}{hint}", message.trim_end_matches('.')) }
}
