//! Options that several commands share: the lock, its payload, and the settings of a request.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use leasehold_client::wire::Secret;
use leasehold_client::{LockKey, LockRequest, Wait};

use crate::Failure;
use crate::duration;

/// The default lease.
pub(crate) const DEFAULT_LEASE: &str = "20s";

/// The shortest time for a release: one release and one retry.
const SHORTEST_GIVE_BACK: Duration = Duration::from_secs(1);
/// The longest time for a release: the client's bound for any other operation.
const LONGEST_GIVE_BACK: Duration = Duration::from_secs(10);

/// The lock.
#[derive(Debug, Clone, Args)]
pub(crate) struct LockArgs {
    /// The lock's key: any text of 1 to 2048 bytes.
    pub(crate) key: String,

    /// The lock's sort key, on a table that has one.
    #[arg(long, value_name = "TEXT")]
    sort_key: Option<String>,
}

impl LockArgs {
    pub(crate) fn lock_key(&self) -> LockKey {
        LockKey { key: self.key.clone(), sort_key: self.sort_key.clone() }
    }
}

/// The lease.
#[derive(Debug, Clone, Args)]
pub(crate) struct LeaseArgs {
    /// The lease: the time without a heartbeat after which others may take the lock over. 100ms to 1d.
    #[arg(long, value_name = "DURATION", default_value = DEFAULT_LEASE, value_parser = duration::parse)]
    pub(crate) lease: Duration,
}

/// The proof of possession.
#[derive(Debug, Clone, Args)]
pub(crate) struct LeaseIdArgs {
    /// The lease id that `acquire` printed. The variable keeps it out of the list of processes.
    #[arg(long, value_name = "LEASE_ID", env = "LEASEHOLD_LEASE_ID", hide_env_values = true)]
    lease_id: String,
}

impl LeaseIdArgs {
    pub(crate) fn secret(&self) -> Secret {
        Secret(self.lease_id.clone())
    }
}

/// The data to store with the lock.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataArgs {
    /// Store this text with the lock, for its next holder. At most 256 KiB.
    #[arg(long, value_name = "TEXT")]
    data: Option<String>,

    /// Store the content of this file; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    data_file: Option<PathBuf>,
}

impl DataArgs {
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>, Failure> {
        match (&self.data, &self.data_file) {
            (Some(text), _) => Ok(Some(text.clone().into_bytes())),
            (None, Some(path)) => read(path).map(Some),
            (None, None) => Ok(None),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    bytes.map_err(|error| Failure::failed(format!("cannot read {}: {error}", path.display())))
}

/// How to ask.
#[derive(Debug, Clone, Args)]
pub(crate) struct AskArgs {
    /// Poll a held lock this often, at least 50ms. Default: watch the lock, and ask when it is free.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) poll: Option<Duration>,

    /// The owner's name, for people to read. Default: the host's name and the process id.
    #[arg(long, value_name = "NAME")]
    pub(crate) owner: Option<String>,
}

/// Sets the options of [`AskArgs`]. Requests for a lock, for permits and for several locks have the same ones.
macro_rules! asking {
    ($request:expr, $args:expr) => {{
        let (mut request, args) = ($request, &$args);
        if let Some(poll) = args.poll {
            request = request.poll_interval(poll);
        }
        if let Some(owner) = &args.owner {
            request = request.owner_name(owner);
        }
        request
    }};
}
pub(crate) use asking;

/// How to ask for a lock, and how long to wait for it.
#[derive(Debug, Clone, Args)]
pub(crate) struct RequestArgs {
    /// Wait this long for a held lock, or `forever`; `0s` asks once. Default: the holder's lease and two seconds, which
    /// outlives a dead holder. A service that cannot be reached is tried for this time, too: by default for 1.5 s only.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_wait, conflicts_with_all = ["no_wait", "extend"])]
    wait: Option<Wait>,

    /// Ask once, and do not wait.
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Wait while the holder is seen to be alive, and then for its lease and two seconds.
    #[arg(long, conflicts_with = "no_wait")]
    extend: bool,

    #[command(flatten)]
    pub(crate) ask: AskArgs,

    #[command(flatten)]
    data: DataArgs,

    /// Fail if the lock has never been held.
    #[arg(long)]
    only_if_exists: bool,

    /// Store a further attribute in the row. May be repeated.
    #[arg(long, value_name = "NAME=TEXT", value_parser = parse_attribute)]
    attribute: Vec<(String, String)>,

    /// Let the service judge by its clock whether the holder is dead. This needs no wait, and trusts the servers'
    /// clocks.
    #[arg(long)]
    pub(crate) stale_by_clock: bool,

    /// Continue from the observations of earlier runs, kept in this file. A job that is too short to watch a dead
    /// holder for a whole lease can then take over. This trusts the clocks of all users of the file to a second.
    #[arg(long, value_name = "FILE")]
    pub(crate) observations: Option<PathBuf>,
}

impl RequestArgs {
    /// The time in which a command that did not get the lock may release an unanswered request: the time of its wait,
    /// within bounds.
    pub(crate) fn give_back_within(&self) -> Duration {
        match self.wait {
            Some(Wait::AtMost(wait)) => wait.clamp(SHORTEST_GIVE_BACK, LONGEST_GIVE_BACK),
            _ if self.no_wait => SHORTEST_GIVE_BACK,
            _ => LONGEST_GIVE_BACK,
        }
    }

    /// The length of the wait.
    pub(crate) fn wait(&self) -> Wait {
        match (self.wait, Wait::default()) {
            (Some(wait), _) => wait,
            (None, Wait::OneLease { margin, .. }) => Wait::OneLease { margin, extend: self.extend },
            (None, other) => other,
        }
    }

    pub(crate) fn has_data(&self) -> bool {
        self.data.data.is_some() || self.data.data_file.is_some()
    }

    /// Reads the payload.
    pub(crate) fn data(&self) -> Result<Option<Vec<u8>>, Failure> {
        self.data.read()
    }

    /// Returns the options that only a request for one plain lock has, where they were given.
    pub(crate) fn of_a_plain_lock(&self) -> impl Iterator<Item = &'static str> {
        let given = [("--only-if-exists", self.only_if_exists), ("--attribute", !self.attribute.is_empty())];
        given.into_iter().filter(|(_, given)| *given).map(|(name, _)| name)
    }

    /// Builds the request for a plain lock, without the heartbeats.
    pub(crate) fn request(&self, key: LockKey, lease: Duration) -> Result<LockRequest, Failure> {
        let mut request = asking!(LockRequest::new(key), self.ask).lease(lease).wait(self.wait());
        if let Some(data) = self.data()? {
            request = request.data(data);
        }
        if self.only_if_exists {
            request = request.only_if_exists();
        }
        if self.stale_by_clock {
            request = request.stale_by_clock();
        }
        Ok(self.attribute.iter().fold(request, |request, (name, value)| request.attribute(name, value.as_str())))
    }
}

fn parse_attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not of the form NAME=TEXT")),
    }
}
