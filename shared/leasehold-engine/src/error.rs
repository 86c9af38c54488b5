//! The reasons why an engine cannot be opened or served.

use std::path::PathBuf;

/// The engine could not be started, opened or served. Every message tells the user how to correct it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Another process holds the file's lock.
    #[error(
        "{} is in use by another process; stop that process, or use a different file",
        path.display()
    )]
    InUse {
        /// The database file.
        path: PathBuf,
    },

    /// The folder of the file does not exist.
    #[error(
        "cannot open {}: its folder does not exist; create it first, or use a different file",
        path.display()
    )]
    MissingFolder {
        /// The database file.
        path: PathBuf,
    },

    /// The path does not name a file.
    #[error(
        "cannot open {}: it is not a file; name a file, such as {}",
        path.display(),
        path.join("leasehold.db").display()
    )]
    NotAFile {
        /// The path that was given as the database file.
        path: PathBuf,
    },

    /// The file is not a database. It was not changed.
    #[error(
        "cannot open {}: it is not a SQLite database; use a different file, or move this one away",
        path.display()
    )]
    NotADatabase {
        /// The database file.
        path: PathBuf,
    },

    /// The file is there and has no byte. A database that lost its contents looks the same.
    #[error(
        "cannot open {}: it is empty; restore a backup if it had locks in it, or remove it to begin anew",
        path.display()
    )]
    Empty {
        /// The database file.
        path: PathBuf,
    },

    /// The file has several names, by hard links.
    #[error(
        "cannot open {}: it has {names} names (hard links), and its log is found under one of them only; remove the others",
        path.display()
    )]
    ManyNames {
        /// The database file.
        path: PathBuf,
        /// The number of its names.
        names: u64,
    },

    /// The file is mounted by itself.
    #[error(
        "cannot open {}: it is mounted by itself, and its log would be left outside; mount its folder",
        path.display()
    )]
    Mounted {
        /// The database file.
        path: PathBuf,
    },

    /// The contents of the file have changed without the engine.
    #[error("cannot open {}: it is damaged: {damage}; restore a backup", path.display())]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// The damage that was found first.
        damage: String,
    },

    /// SQLite requires its paths to be text.
    #[error(
        "cannot open {}: its path is not valid UTF-8; use a different file",
        path.display()
    )]
    NotUtf8 {
        /// The database file.
        path: PathBuf,
    },

    /// The operating system refused access to the database file or to its lock.
    #[error(
        "cannot access {}: {source}; check that this user may read and write it and its folder",
        path.display()
    )]
    Access {
        /// The file at fault.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },

    /// The database is damaged, unwritable, or written by a newer version.
    #[error(
        "cannot open {}: {source}; check that the file is writable and intact, or use a different one",
        path.display()
    )]
    Open {
        /// The database file.
        path: PathBuf,
        /// The message of the engine.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The in-memory engine did not start.
    #[error("the embedded engine did not start: {0}; this is likely a lack of memory")]
    Start(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// The HTTP server ended before its shutdown was requested.
    #[error("the embedded engine can no longer be served over HTTP: {0}; start it again")]
    Serve(String),
}
