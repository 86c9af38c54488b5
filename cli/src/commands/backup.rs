//! `leasehold backup` and `leasehold restore`: a database of `leasehold serve` in a file of its own, and back.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_sdk_dynamodb::Client;
use clap::Args;
use leasehold_dynamodb::Clock;
use leasehold_engine::{Engine, EngineError};
use leasehold_protocol::{LockTable, Policy, TableSchema};
use rusqlite::{Connection, OpenFlags};
use tempfile::{TempDir, TempPath};

use crate::Failure;
use crate::output::note;
use crate::signals;

/// The beginning of the names of folders in which a copy is made.
const UNFINISHED: &str = ".leasehold-backup-";

/// Copy the database of `leasehold serve` into a file, also while the service runs.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The new file. It is complete, or not there.
    file: PathBuf,

    /// The database.
    #[arg(long, value_name = "PATH", default_value = "leasehold.db")]
    db: PathBuf,
}

/// Make a database for `leasehold serve` of a backup, in which no old fencing token is given again.
///
/// Each fencing token starts above all that were given, and the holders and waiters of the time of the backup lose
/// their locks and places.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The backup.
    file: PathBuf,

    /// The new database. Move the one that is there away, with its companions `-wal` and `-shm`.
    #[arg(long, value_name = "PATH", default_value = "leasehold.db")]
    db: PathBuf,

    /// The name of the table of the locks.
    #[arg(long, value_name = "NAME", default_value = "leasehold", env = "LEASEHOLD_TABLE_NAME")]
    table: String,

    /// The name of the partition key of the locks' table.
    #[arg(long, value_name = "NAME", default_value = "key", env = "LEASEHOLD_PARTITION_KEY")]
    partition_key: String,

    /// The name of its sort key, if it has one.
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_SORT_KEY")]
    sort_key: Option<String>,
}

/// # Errors
/// A sentence about the database or the new file.
pub(crate) fn backup(args: &BackupArgs) -> Result<(), Failure> {
    refuse_existing(&args.file)?;
    check_there(&args.db)?;
    // Where no service runs, this checks the database and its log before SQLite reads them.
    let _engine = match Engine::open(&args.db) {
        Ok(engine) => Some(engine),
        Err(EngineError::InUse { .. }) => None,
        Err(error) => return Err(Failure::failed(error.to_string())),
    };
    let copy = Copy::of(&args.db, &args.file)?;
    // A copy of a damaged database is refused.
    drop(copy.open(&args.db)?);
    copy.keep(&args.file)?;
    note(&format!("leasehold: the backup is in {}", args.file.display()));
    Ok(())
}

/// # Errors
/// A sentence about the backup, the new database or the clock.
pub(crate) async fn restore(args: RestoreArgs) -> Result<(), Failure> {
    check_there(&args.file)?;
    for suffix in ["", "-wal", "-shm"] {
        refuse_existing(&beside(&args.db, suffix))?;
    }
    let copy = Copy::of(&args.file, &args.db)?;
    let engine = copy.open(&args.file)?;
    let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let RestoreArgs { table: table_name, partition_key, sort_key, .. } = args;
    let schema = TableSchema { table_name, partition_key, sort_key };
    let table = LockTable::new(client, schema, Policy::default(), Clock::system());
    let restored = table.restore().await.map_err(Failure::failed)?;
    drop(table);
    // The end of the engine writes its log into the file.
    drop(engine);
    copy.keep(&args.db)?;
    note(&format!(
        "leasehold: {} is ready; {restored} locks have no holder, and their tokens start anew",
        args.db.display()
    ));
    Ok(())
}

/// A copy of a database that has no name of its own yet.
struct Copy {
    path: TempPath,
    _workshop: Workshop,
}

impl Copy {
    /// Copies a database beside `target`. The copy is of one moment, whatever is written meanwhile.
    fn of(source: &Path, target: &Path) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::failed(format!("cannot copy {} to {}: {error}", source.display(), target.display()))
        };
        signals::survive_full_files().map_err(|error| failed(&error))?;
        let workshop = Workshop::open(folder_of(target)).map_err(|error| failed(&error))?;
        let path = workshop.folder.path().join("copy.db");
        let database =
            Connection::open_with_flags(source, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|e| failed(&e))?;
        let name = path.to_str().ok_or_else(|| failed(&"the path is not UTF-8"))?;
        database.execute("VACUUM INTO ?1", [name]).map_err(|error| failed(&error))?;
        let path = TempPath::try_from_path(path).map_err(|error| failed(&error))?;
        Ok(Self { path, _workshop: workshop })
    }

    /// Checks and opens the copy. What is wrong with it is wrong with its source.
    fn open(&self, source: &Path) -> Result<Engine, Failure> {
        Engine::open(&self.path).map_err(|error| {
            let copies = [self.path.to_path_buf(), fs::canonicalize(&self.path).unwrap_or_default()];
            let named = |message: String, copy: PathBuf| match copy.to_str() {
                None | Some("") => message,
                Some(copy) => message.replace(copy, &source.display().to_string()),
            };
            Failure::failed(copies.into_iter().rev().fold(error.to_string(), named))
        })
    }

    /// Gives the copy its name, once it is on the disk. A file that came meanwhile stays.
    fn keep(self, target: &Path) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::failed(format!("cannot write {}: {error}", target.display()));
        let log = fs::metadata(beside(&self.path, "-wal"));
        if log.is_ok_and(|found| found.len() > 0) {
            return Err(failed(io::Error::other("SQLite left a log beside the copy")));
        }
        fs::set_permissions(&self.path, Permissions::from_mode(0o600)).map_err(failed)?;
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(failed)?;
        self.path.persist_noclobber(target).map_err(|error| failed(error.error))?;
        File::open(folder_of(target)).and_then(|folder| folder.sync_all()).map_err(failed)
    }
}

/// A folder in which a copy is made, with its companions. Only its owner can enter it. It is locked for as long as its
/// process lives: what a killed one left is told by that.
struct Workshop {
    folder: TempDir,
    _in_use: File,
}

impl Workshop {
    /// Makes such a folder, and removes those that no process uses.
    fn open(beside: &Path) -> io::Result<Self> {
        remove_unfinished(beside)?;
        loop {
            let folder = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(beside)?;
            let in_use = File::open(folder.path())?;
            in_use.lock()?;
            // Before it was locked, another process may have removed it.
            let found = fs::metadata(folder.path()).map(|found| found.ino()).ok();
            if found == Some(in_use.metadata()?.ino()) {
                return Ok(Self { folder, _in_use: in_use });
            }
        }
    }
}

fn remove_unfinished(folder: &Path) -> io::Result<()> {
    let is_unfinished = |name: &OsStr| name.as_bytes().starts_with(UNFINISHED.as_bytes());
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if is_unfinished(&entry.file_name()) && entry.file_type()?.is_dir() {
            // Another process may have removed it meanwhile, or it belongs to another user.
            let Ok(in_use) = File::open(entry.path()) else { continue };
            if in_use.try_lock().is_ok()
                && let Err(error) = fs::remove_dir_all(entry.path())
            {
                note(&format!("leasehold: {} is left over, and cannot be removed: {error}", entry.path().display()));
            }
        }
    }
    Ok(())
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn check_there(path: &Path) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() == 0 => {
            Err(Failure::failed(format!("{} is empty: it is no backup and no database", path.display())))
        }
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => Err(Failure::failed(format!("{} is not a file", path.display()))),
        Err(error) => Err(Failure::failed(format!("cannot read {}: {error}", path.display()))),
    }
}

fn refuse_existing(path: &Path) -> Result<(), Failure> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(Failure::failed(format!("{} is there already; move it away, or name another", path.display())));
    }
    Ok(())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
