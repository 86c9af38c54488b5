//! `leasehold backup` and `leasehold restore`: a database of `leasehold serve` in a file of its own, and back.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aws_sdk_dynamodb::Client;
use clap::Args;
use leasehold_dynamodb::Clock;
use leasehold_engine::{Engine, EngineError};
use leasehold_protocol::{LockTable, Policy, TableSchema};
use rusqlite::{Connection, OpenFlags};
use tempfile::TempPath;

use crate::Failure;
use crate::output::note;

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
    let copy = copy(&args.db, &args.file)?;
    // A copy of a damaged database is refused.
    Engine::open(&copy).map_err(|error| Failure::failed(error.to_string()))?;
    keep(copy, &args.file)?;
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
    let copy = copy(&args.file, &args.db)?;
    let engine = Engine::open(&copy).map_err(|error| Failure::failed(error.to_string()))?;
    let client = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    let RestoreArgs { table: table_name, partition_key, sort_key, .. } = args;
    let schema = TableSchema { table_name, partition_key, sort_key };
    let table = LockTable::new(client, schema, Policy::default(), Clock::system());
    let restored = table.restore().await.map_err(Failure::failed)?;
    drop(table);
    // The end of the engine writes its log into the file.
    drop(engine);
    keep(copy, &args.db)?;
    note(&format!(
        "leasehold: {} is ready; {restored} locks have no holder, and their tokens start anew",
        args.db.display()
    ));
    Ok(())
}

/// Copies a database beside `target`. The copy is of one moment, whatever is written meanwhile.
fn copy(source: &Path, target: &Path) -> Result<TempPath, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("cannot copy {} to {}: {error}", source.display(), target.display()))
    };
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // For the owner alone, from the first byte on.
    let copy = tempfile::Builder::new().prefix(".leasehold-").tempfile_in(folder).map_err(|error| failed(&error))?;
    let copy = copy.into_temp_path();
    let database = Connection::open_with_flags(source, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|e| failed(&e))?;
    let name = copy.to_str().ok_or_else(|| failed(&"the path is not UTF-8"))?;
    database.execute("VACUUM INTO ?1", [name]).map_err(|error| failed(&error))?;
    Ok(copy)
}

/// Gives the copy its name, once it is on the disk. A file that came meanwhile stays.
fn keep(copy: TempPath, target: &Path) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot write {}: {error}", target.display()));
    for suffix in ["-wal", "-shm"] {
        let companion = beside(&copy, suffix);
        if fs::metadata(&companion).is_ok_and(|found| found.len() > 0 && suffix == "-wal") {
            return Err(failed(io::Error::other("SQLite left a log beside the copy")));
        }
        let _ = fs::remove_file(companion);
    }
    fs::set_permissions(&copy, Permissions::from_mode(0o600)).map_err(failed)?;
    File::open(&copy).and_then(|file| file.sync_all()).map_err(failed)?;
    copy.persist_noclobber(target).map_err(|error| failed(error.error))?;
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

fn check_there(path: &Path) -> Result<(), Failure> {
    match fs::metadata(path) {
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
