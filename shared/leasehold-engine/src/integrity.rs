//! Damage in a database file is found before it can free a lock.
//!
//! SQLite notices a damaged page where its structure is wrong, and takes a changed byte of a row for its contents. Each
//! row of the engine's tables therefore has a checksum, which triggers write and compare. A row that does not match its
//! checksum cannot be changed, and the file is not opened.

use std::path::Path;
use std::{fs, io};

use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, OpenFlags, Result};

/// The column of the checksum.
pub(crate) const COLUMN: &str = "leasehold_sum";

/// The parts of a row that its checksum covers. The engine's connection has this function too, and names it after its
/// algorithm. The function changes its value with each change of one byte.
fn sum_of(row: &str) -> String {
    format!("fnv1a_hash({row}.pk || char(0) || {row}.sk || char(0) || {row}.item_json)")
}

/// The checksum of a row with these columns, as the function computes it.
pub(crate) fn row_sum(partition: &str, sort: &str, item: &str) -> i64 {
    hash([partition, "\0", sort, "\0", item].into_iter().flat_map(str::bytes)).into()
}

fn hash(text: impl Iterator<Item = u8>) -> u32 {
    text.fold(2_166_136_261, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(16_777_619))
}

/// Opens a connection of its own beside the engine's.
pub(crate) fn connect(path: &Path) -> Result<Connection> {
    // A path is absolute; a name of a database in memory begins with `file:`.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(path, flags)?;
    let flags = FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_UTF8;
    connection.create_scalar_function("fnv1a_hash", 1, flags, |context| {
        let text = context.get_raw(0).as_bytes()?;
        Ok(hash(text.iter().copied()))
    })?;
    Ok(connection)
}

/// Returns the damage in a closed database, if there is any.
///
/// # Errors
/// SQLite cannot read the file at all.
pub(crate) fn damage(path: &Path) -> Result<Option<String>> {
    let connection = connect(path)?;
    let structure: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    if structure != "ok" {
        return Ok(Some(structure));
    }
    for table in tables(&connection)? {
        if has_column(&connection, &table)? {
            let quoted = quoted(&table);
            let query = format!("SELECT pk FROM {quoted} AS row WHERE {COLUMN} IS NOT {} LIMIT 1", sum_of("row"));
            let mut query = connection.prepare(&query)?;
            let mut damaged = query.query_map([], |row| row.get::<_, String>(0))?;
            if let Some(key) = damaged.next().transpose()? {
                return Ok(Some(format!("the row {key:?} of the table {table} has changed")));
            }
        }
    }
    Ok(None)
}

/// Gives each row of the engine's tables a checksum from now on. Tables that have it already are left alone.
pub(crate) fn protect(path: &Path) -> Result<()> {
    let mut connection = connect(path)?;
    for table in tables(&connection)? {
        let transaction = connection.transaction()?;
        let quoted = quoted(&table);
        if !has_column(&transaction, &table)? {
            transaction.execute_batch(&format!(
                "ALTER TABLE {quoted} ADD COLUMN {COLUMN} INTEGER; UPDATE {quoted} AS row SET {COLUMN} = {};",
                sum_of("row")
            ))?;
        }
        for (name, sql) in triggers(&table) {
            let found = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name = ?1 AND sql = ?2";
            if transaction.query_row(found, [&name, &sql], |row| row.get::<_, u32>(0))? == 0 {
                transaction.execute_batch(&format!("DROP TRIGGER IF EXISTS {}; {sql};", self::quoted(&name)))?;
            }
        }
        transaction.commit()?;
    }
    Ok(())
}

/// The engine writes a row by an `INSERT OR REPLACE`: the old row is compared before it, and the new one gets its sum
/// after it.
fn triggers(table: &str) -> [(String, String); 2] {
    let (before, after) = (format!("{table}::compare"), format!("{table}::sum"));
    let on = quoted(table);
    let compare = format!(
        "CREATE TRIGGER {} BEFORE INSERT ON {on} BEGIN SELECT RAISE(ABORT, 'a damaged row') FROM {on} AS old \
         WHERE old.pk = NEW.pk AND old.sk = NEW.sk AND old.{COLUMN} IS NOT {}; END",
        quoted(&before),
        sum_of("old")
    );
    let sum = format!(
        "CREATE TRIGGER {} AFTER INSERT ON {on} BEGIN UPDATE {on} SET {COLUMN} = {} WHERE rowid = NEW.rowid; END",
        quoted(&after),
        sum_of("NEW")
    );
    [(before, compare), (after, sum)]
}

/// The tables of items: those of the engine itself begin with `_`, those of indexes contain `::`.
fn tables(connection: &Connection) -> Result<Vec<String>> {
    let registered = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = '_tables'";
    if connection.prepare(registered)?.query([])?.next()?.is_none() {
        return Ok(Vec::new());
    }
    let mut query = connection.prepare(
        "SELECT master.name FROM _tables JOIN sqlite_master AS master ON master.name = _tables.table_name \
         WHERE master.type = 'table'",
    )?;
    query.query_map([], |row| row.get(0))?.collect()
}

fn has_column(connection: &Connection, table: &str) -> Result<bool> {
    let found = "SELECT count(*) FROM pragma_table_info(?1) WHERE name = ?2";
    connection.query_row(found, [table, COLUMN], |row| row.get::<_, u32>(0)).map(|count| count > 0)
}

pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns whether the write-ahead log has a commit behind a damaged part, which SQLite takes for the end of the log. A
/// process that is killed leaves its last frame unfinished, and no frame behind it.
pub(crate) fn has_commit_behind_damage(log: &Path) -> io::Result<bool> {
    const HEADER: usize = 32;
    const FRAME_HEADER: usize = 24;
    let log = match fs::read(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        log => log?,
    };
    let Some((header, frames)) = log.split_at_checked(HEADER) else { return Ok(false) };
    let sum_of = if word(header, 0) & 1 == 1 { sum_of_words::<true> } else { sum_of_words::<false> };
    let mut previous = (word(header, 24), word(header, 28));
    if sum_of((0, 0), &header[..24]) != previous {
        return Ok(!frames.is_empty() && header.iter().any(|byte| *byte != 0));
    }
    let mut is_behind = false;
    for frame in frames.chunks_exact(FRAME_HEADER + word(header, 8) as usize) {
        let stored = (word(frame, 16), word(frame, 20));
        // A frame of an earlier round of the log has other salts.
        let is_intact =
            frame[8..16] == header[16..24] && sum_of(sum_of(previous, &frame[..8]), &frame[FRAME_HEADER..]) == stored;
        if is_intact && is_behind {
            return Ok(true);
        }
        is_behind |= !is_intact;
        previous = stored;
    }
    Ok(false)
}

/// The big-endian word at this place.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_be_bytes(*word))
}

/// The checksum of SQLite's log, which goes on from the one before.
fn sum_of_words<const IS_BIG_ENDIAN: bool>(start: (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let read = if IS_BIG_ENDIAN { u32::from_be_bytes } else { u32::from_le_bytes };
    let (words, _) = bytes.as_chunks::<4>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().fold(start, |(first, second), [one, two]| {
        let first = first.wrapping_add(read(*one)).wrapping_add(second);
        (first, second.wrapping_add(read(*two)).wrapping_add(first))
    })
}
