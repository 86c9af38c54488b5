//! The database file: the checks before SQLite opens it, and the lock that excludes other processes.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;

use crate::{EngineError, integrity};

/// The first bytes of every SQLite database that is not empty.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Least space that a healthy disk has: the log grows to four megabytes before it is written into the database.
const MIN_FREE_BYTES: u64 = 16 * 1024 * 1024;
/// A sync that takes so long is shared by as many as can be.
const SLOW_SYNC: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(2);
/// The files that SQLite keeps beside the database, by the ends of their names.
const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// A database file that this process owns for as long as this value lives.
pub(crate) struct DatabaseFile {
    path: String,
    /// The write-ahead log, which SQLite creates when it opens the file.
    log: OnceLock<File>,
    /// The time of the last sync, in microseconds.
    sync_us: AtomicU64,
    /// Whether a sync has failed. Linux then takes the lost pages for written, so no later sync can be believed.
    is_lost: AtomicBool,
    // The lock belongs to the file itself, and so to all of its names. The end of the process, even by a kill, releases
    // it.
    file: File,
}

impl DatabaseFile {
    /// Locks and checks the file at `path`, which need not exist yet.
    pub(crate) fn claim(path: &Path) -> Result<Self, EngineError> {
        let path = resolve(path)?;
        let (file, is_new) = open(&path)?;
        lock(&path, &file)?;
        if !is_new {
            check_names(&path, &file)?;
            check_contents(&path, &file)?;
            check_damage(&path)?;
        }
        keep_private(&path);
        let path = path.into_os_string().into_string().map_err(|path| EngineError::NotUtf8 { path: path.into() })?;
        Ok(Self { path, log: OnceLock::new(), sync_us: AtomicU64::new(0), is_lost: AtomicBool::new(false), file })
    }

    /// The file's absolute path.
    pub(crate) fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// Opens the log, for syncs of its own. The database must be open.
    pub(crate) fn open_log(&self) -> Result<(), EngineError> {
        let path = beside(self.path(), "-wal");
        let log = File::options().write(true).open(&path).map_err(|source| access(&path, source))?;
        self.log.get_or_init(|| log);
        Ok(())
    }

    /// Makes all commits durable, if there are any, and checks that they are in the files that the path names: SQLite
    /// would go on writing to removed ones.
    ///
    /// # Errors
    /// The message for the callers. No write before this call may be acknowledged.
    #[allow(clippy::disallowed_methods, reason = "the disk does not follow a paused clock")]
    pub(crate) fn check(&self, has_written: bool) -> Result<(), String> {
        if has_written && let Some(log) = self.log.get() {
            let begun = Instant::now();
            if let Err(error) = log.sync_data() {
                tracing::error!(%error, "the database cannot be written to the disk; start the service again");
                self.is_lost.store(true, Ordering::Relaxed);
            }
            self.sync_us.store(begun.elapsed().as_micros().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
        }
        if self.is_lost.load(Ordering::Relaxed) {
            return Err("a write did not reach the disk".to_owned());
        }
        if !self.is_in_place() {
            return Err("the database file was removed or replaced".to_owned());
        }
        Ok(())
    }

    /// A pause in which callers that were just answered can ask again, so that they share a slow sync. A quick one
    /// needs no sharing.
    pub(crate) fn pause(&self) -> Duration {
        let sync = Duration::from_micros(self.sync_us.load(Ordering::Relaxed));
        if sync < SLOW_SYNC { Duration::ZERO } else { (sync / 4).min(MAX_PAUSE) }
    }

    /// Returns whether the path still leads to the file that was opened, and the log has a name.
    fn is_in_place(&self) -> bool {
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let found = fs::metadata(&self.path).map(identity).ok();
        let log = self.log.get().and_then(|log| log.metadata().ok());
        found.is_some() && found == self.file.metadata().map(identity).ok() && log.is_some_and(|log| log.nlink() > 0)
    }

    /// Refuses a disk that is nearly full, while writes still succeed.
    ///
    /// # Errors
    /// The message for the log.
    pub(crate) fn check_space(&self) -> Result<(), String> {
        let found = statvfs(self.path()).map_err(|error| error.to_string())?;
        let free = found.blocks_available() * found.fragment_size();
        if free < MIN_FREE_BYTES { Err(format!("the disk has {free} bytes left")) } else { Ok(()) }
    }

    /// Gives each row of new tables a checksum.
    pub(crate) fn protect(&self) -> Result<(), EngineError> {
        integrity::protect(self.path()).map_err(|error| open_error(self.path(), error))
    }

    /// The file's absolute path, as text.
    pub(crate) fn as_str(&self) -> &str {
        &self.path
    }
}

/// The one absolute name of the file. Two names for one file must lead to the same lock. SQLite must not take a
/// relative name such as `:memory:` or `file:…` for anything but a file.
fn resolve(path: &Path) -> Result<PathBuf, EngineError> {
    match fs::canonicalize(path) {
        Ok(found) if found.is_file() => Ok(found),
        Ok(found) => Err(EngineError::NotAFile { path: found }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => resolve_new(path),
        Err(source) => Err(access(path, source)),
    }
}

/// Does the same as [`resolve`], for a file that does not exist yet.
fn resolve_new(path: &Path) -> Result<PathBuf, EngineError> {
    let absolute = std::path::absolute(path).map_err(|source| access(path, source))?;
    let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(EngineError::NotAFile { path: absolute });
    };
    match fs::canonicalize(folder) {
        Ok(folder) => Ok(folder.join(name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(EngineError::MissingFolder { path: absolute }),
        Err(source) => Err(access(folder, source)),
    }
}

/// Opens the file, or makes it. Returns whether it is new.
fn open(path: &Path) -> Result<(File, bool), EngineError> {
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = File::options().read(true).write(true).open(path);
            file.map(|file| (file, false)).map_err(|source| access(path, source))
        }
        Err(source) => Err(access(path, source)),
    }
}

fn lock(path: &Path, file: &File) -> Result<(), EngineError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => EngineError::InUse { path: path.to_owned() },
        TryLockError::Error(source) => access(path, source),
    })
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Refuses a file with several names. The log has the name under which the file was opened: under another name, SQLite
/// would not find the log of a process that was killed.
fn check_names(path: &Path, file: &File) -> Result<(), EngineError> {
    let names = file.metadata().map_err(|source| access(path, source))?.nlink();
    if names > 1 {
        return Err(EngineError::ManyNames { path: path.to_owned(), names });
    }
    // A file can be mounted at a second place, without its log.
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    if is_mount(path, &mounts) { Err(EngineError::Mounted { path: path.to_owned() }) } else { Ok(()) }
}

/// Returns whether something is mounted at a path, by the system's table of mounts. Its paths have blanks and
/// backslashes in octal digits.
fn is_mount(path: &Path, mounts: &[u8]) -> bool {
    let mut written = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => written.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            byte => written.push(*byte),
        }
    }
    mounts.split(|byte| *byte == b'\n').any(|line| line.split(|byte| *byte == b' ').nth(4) == Some(&written))
}

/// Refuses a file that is not a database, with a clearer message than SQLite's.
fn check_contents(path: &Path, file: &File) -> Result<(), EngineError> {
    let mut start = Vec::with_capacity(SQLITE_MAGIC.len());
    file.take(SQLITE_MAGIC.len() as u64).read_to_end(&mut start).map_err(|source| access(path, source))?;
    if start.is_empty() {
        return Err(EngineError::Empty { path: path.to_owned() });
    }
    if start == SQLITE_MAGIC { Ok(()) } else { Err(EngineError::NotADatabase { path: path.to_owned() }) }
}

/// Refuses a damaged database: a damaged row could read as a free lock.
fn check_damage(path: &Path) -> Result<(), EngineError> {
    let log = beside(path, "-wal");
    if integrity::has_commit_behind_damage(&log).map_err(|source| access(&log, source))? {
        let damage = "its log has commits behind a damaged one".to_owned();
        return Err(EngineError::Damaged { path: path.to_owned(), damage });
    }
    match integrity::damage(path).map_err(|error| open_error(path, error))? {
        Some(damage) => Err(EngineError::Damaged { path: path.to_owned(), damage }),
        None => Ok(()),
    }
}

/// Keeps other users from the files. New companions get the mode of the database.
fn keep_private(path: &Path) {
    for file in [path.to_owned()].into_iter().chain(COMPANIONS.map(|suffix| beside(path, suffix))) {
        let Ok(mode) = fs::metadata(&file).map(|metadata| metadata.mode()) else { continue };
        if mode & 0o077 != 0
            && let Err(error) = fs::set_permissions(&file, Permissions::from_mode(mode & 0o700))
        {
            tracing::warn!(file = %file.display(), %error, "other users may read or change this file");
        }
    }
    let folder = path.parent().and_then(|folder| fs::metadata(folder).ok());
    // In a folder with the sticky bit, such as /tmp, nobody replaces the files of others.
    if folder.is_some_and(|folder| folder.mode() & 0o1002 == 0o002) {
        tracing::warn!(file = %path.display(), "every user may replace this file: its folder is open to all");
    }
}

pub(crate) fn open_error(path: &Path, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> EngineError {
    EngineError::Open { path: path.to_owned(), source: error.into() }
}

fn access(path: &Path, source: io::Error) -> EngineError {
    EngineError::Access { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_is_found_by_its_exact_path() {
        let mounts = b"22 1 0:21 / /proc rw - proc proc rw\n\
                       30 1 8:1 /a.db /data/my\\040locks\\134.db rw,relatime - ext4 /dev/sda1 rw\n";
        for (path, expected) in
            [("/proc", true), ("/data/my locks\\.db", true), ("/data", false), ("/data/my", false), ("/proc/x", false)]
        {
            assert_eq!(is_mount(Path::new(path), mounts), expected, "{path}");
        }
    }
}
