//! The database file: the checks before SQLite opens it, and the lock that excludes other processes.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::EngineError;

/// The first bytes of every SQLite database that is not empty.
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// A database file that this process owns for as long as this value lives.
pub(crate) struct DatabaseFile {
    path: String,
    /// The identity of the opened file. Empty until SQLite has created it.
    identity: OnceLock<(u64, u64)>,
    /// The write-ahead log, which SQLite creates when it opens the file.
    log: OnceLock<File>,
    /// Whether a sync has failed. Linux then takes the lost pages for written, so no later sync can be believed.
    is_lost: AtomicBool,
    // The end of the process, even by a kill, closes the file and releases the lock.
    _lock: File,
}

impl DatabaseFile {
    /// Locks and checks the file at `path`, which need not exist yet.
    pub(crate) fn claim(path: &Path) -> Result<Self, EngineError> {
        let path = resolve(path)?;
        let lock = lock(&path)?;
        check_contents(&path)?;
        let path = path.into_os_string().into_string().map_err(|path| EngineError::NotUtf8 { path: path.into() })?;
        Ok(Self { path, identity: OnceLock::new(), log: OnceLock::new(), is_lost: AtomicBool::new(false), _lock: lock })
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
    pub(crate) fn check(&self, has_written: bool) -> Result<(), String> {
        if has_written
            && let Some(log) = self.log.get()
            && let Err(error) = log.sync_data()
        {
            tracing::error!(%error, "the database cannot be written to the disk; start the service again");
            self.is_lost.store(true, Ordering::Relaxed);
        }
        if self.is_lost.load(Ordering::Relaxed) {
            return Err("a write did not reach the disk".to_owned());
        }
        if !self.is_in_place() {
            return Err("the database file was removed or replaced".to_owned());
        }
        Ok(())
    }

    /// Returns whether the path still leads to the file that was opened, and the log has a name.
    fn is_in_place(&self) -> bool {
        let found = fs::metadata(&self.path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        let log = self.log.get().and_then(|log| log.metadata().ok());
        found.is_some_and(|found| *self.identity.get_or_init(|| found) == found)
            && log.is_some_and(|log| log.nlink() > 0)
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

fn lock(path: &Path) -> Result<File, EngineError> {
    let lock_path = beside(path, ".lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path)
        .map_err(|source| access(&lock_path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(EngineError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(access(&lock_path, source)),
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Refuses a file that is not a database, with a clearer message than SQLite's.
fn check_contents(path: &Path) -> Result<(), EngineError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(access(path, source)),
    };
    let mut start = Vec::with_capacity(SQLITE_MAGIC.len());
    file.take(SQLITE_MAGIC.len() as u64).read_to_end(&mut start).map_err(|source| access(path, source))?;
    // SQLite accepts an empty file as a new database.
    if start.is_empty() || start == SQLITE_MAGIC {
        Ok(())
    } else {
        Err(EngineError::NotADatabase { path: path.to_owned() })
    }
}

fn access(path: &Path, source: io::Error) -> EngineError {
    EngineError::Access { path: path.to_owned(), source }
}
