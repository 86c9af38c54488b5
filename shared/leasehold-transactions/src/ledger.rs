//! The ledger: what every coordinator reads and writes of the records of transactions.

use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_dynamodb::Clock;

use crate::coordinator::Policy;
use crate::effort::Effort;
use crate::error::Error;
use crate::id::{PublicId, TransactionId};
use crate::key::{Item, ItemKey};
use crate::model::State;
use crate::record::{self, EXPIRE_AT, Record, Transaction, record_key};
use crate::tables::{Tables, repeat};
use crate::write::Write;

/// The minimum life of rows of entries and images, whatever the retention of outcomes is: a week, in which a sweeper
/// prolongs the rows of an unfinished transaction.
const MIN_ROW_LIFE_MS: u64 = 7 * 24 * 3_600_000;

/// The records of transactions, by the rules and the clock of one coordinator.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    pub(crate) tables: Tables,
    pub(crate) policy: Policy,
    pub(crate) clock: Clock,
}

impl Ledger {
    /// Loads an open transaction. One that was ended before it was begun is rolled back for a call that begins it, and
    /// does not exist for all others.
    pub(crate) async fn open(&self, id: &PublicId, is_begin: bool) -> Result<Transaction, Error> {
        let transaction = self.tables.load(id).await?.ok_or(Error::NotFound)?;
        match transaction.record.state {
            State::Pending => Ok(transaction),
            State::Committed => Err(Error::Committed),
            State::RolledBack if transaction.record.is_tombstone && !is_begin => Err(Error::NotFound),
            State::RolledBack => Err(transaction.record.rolled_back()),
        }
    }

    /// Returns the record of a new transaction, which is not yet written. It is as old as the attempt before.
    pub(crate) async fn new_attempt(
        &self,
        id: &TransactionId,
        retry_of: Option<&TransactionId>,
    ) -> Result<Record, Error> {
        let record = self.new_record(id.public());
        let Some(before) = retry_of else { return Ok(record) };
        Ok(match self.tables.record(&before.public()).await? {
            Some(before) => {
                Record { born_at: before.born_at.min(record.born_at), attempts: before.attempts + 1, ..record }
            }
            None => record,
        })
    }

    fn new_record(&self, id: PublicId) -> Record {
        let now = self.clock.now_ms();
        // Sixty-four random bits distinguish the lives of an id.
        let nonce = leasehold_dynamodb::fresh_uuid()[..18].replace('-', "");
        Record::new(id, nonce, now, now + self.policy.idle_ms)
    }

    /// The time, in epoch seconds, at which the record of a transaction that ends now may be removed.
    pub(crate) fn forget_at(&self) -> u64 {
        (self.clock.now_ms() + self.policy.retention_ms) / 1000
    }

    /// The time, in epoch seconds, at which TTL may remove rows of entries and images that are written now. These rows
    /// have an end from the start, so that a finished transaction pays for no further write to each of them. A sweeper
    /// prolongs the rows of an unfinished transaction.
    pub(crate) fn rows_expire_at(&self) -> u64 {
        (self.clock.now_ms() + self.row_life_ms()) / 1000
    }

    pub(crate) fn row_life_ms(&self) -> u64 {
        self.policy.retention_ms.max(MIN_ROW_LIFE_MS)
    }

    pub(crate) fn record_item(&self, id: &PublicId) -> ItemKey {
        ItemKey::new(&self.tables.own, record_key(id))
    }

    /// Records a sign of life of an open transaction.
    pub(crate) async fn touch(&self, id: &PublicId) -> Result<(), Error> {
        let touched = repeat(|| {
            let write = Write::update(&self.record_item(id), "SET lastWorkedAt = :now");
            let write = write.when("#state = :pending").name("#state", "state");
            self.tables.write(write.number(":now", self.clock.now_ms()).text(":pending", State::Pending.as_str()))
        });
        if touched.await? { Ok(()) } else { self.open(id, false).await.map(drop) }
    }

    /// Records that all puts of a version are applied.
    pub(crate) async fn confirm(&self, transaction: &mut Transaction, version: u64) -> Result<(), Error> {
        let record = &transaction.record;
        let write = Write::update(&self.record_item(&record.id), "DELETE unapplied :version")
            .when("nonce = :nonce")
            .text(":nonce", &record.nonce)
            .value(":version", record::versions([&version]));
        self.tables.write(write).await?;
        transaction.record.unapplied.remove(&version);
        Ok(())
    }

    /// Records the reason why an item cannot be freed, for operators.
    pub(crate) async fn note_stuck(&self, record: &Record, reason: &str) -> Result<(), Error> {
        if record.stuck.as_deref() == Some(reason) {
            return Ok(());
        }
        let write = Write::update(&self.record_item(&record.id), "SET stuck = :reason")
            .when("nonce = :nonce AND attribute_not_exists(finished)")
            .text(":nonce", &record.nonce)
            .text(":reason", reason);
        self.tables.write(write).await.map(drop)
    }

    /// Keeps the old item in a row of its own.
    pub(crate) async fn keep_image(&self, id: &PublicId, row: &str, item: Item) -> Result<(), Error> {
        let image = record::image(id, row, item, self.rows_expire_at());
        self.tables.write(Write::put(&self.tables.own, image)).await.map(drop)
    }

    /// Writes the record of a transaction that was rolled back before it had one, so that a late write cannot begin it.
    /// Returns `None` where there is no other record, and otherwise that record.
    pub(crate) async fn leave_rolled_back(&self, record: &Record, reason: String) -> Result<Option<Record>, Error> {
        let record = Record { state: State::RolledBack, finished: true, reason: Some(reason), ..record.clone() };
        if self.put_finished(&record).await? {
            return Ok(None);
        }
        // An earlier attempt without an answer may have been carried out.
        let found = self.tables.record(&record.id).await?;
        Ok(found.filter(|found| found.nonce != record.nonce || found.state != record.state))
    }

    /// Spends an id under which no transaction was begun, so that none begins late. Returns whether none was begun.
    pub(crate) async fn leave_tombstone(&self, id: &PublicId) -> Result<bool, Error> {
        let record = Record { is_tombstone: true, ..self.new_record(id.clone()) };
        let reason = "it was ended before it was begun.".to_owned();
        Ok(self.leave_rolled_back(&record, reason).await?.is_none_or(|found| found.is_tombstone))
    }

    /// Writes the record of a transaction that is finished from the start, if there is none with this id.
    pub(crate) async fn put_finished(&self, record: &Record) -> Result<bool, Error> {
        self.put_new(&Record { sweep_at: None, ..record.clone() }, Some(self.forget_at())).await
    }

    /// Writes a TX record, if there is none with this id. Returns whether it did; `false` is also possible if an
    /// earlier attempt without an answer wrote it.
    pub(crate) async fn put_new(&self, record: &Record, expire_at: Option<u64>) -> Result<bool, Error> {
        let mut effort = Effort::new(&self.policy);
        loop {
            match self.tables.write(self.new_row(record, expire_at)).await {
                Err(error) if error.is_passing() => effort.failed(error).await?,
                result => return result,
            }
        }
    }

    /// Returns the write of a record that must not exist yet.
    pub(crate) fn new_row(&self, record: &Record, expire_at: Option<u64>) -> Write {
        let mut row = record.encode();
        row.extend(expire_at.map(|at| (EXPIRE_AT.to_owned(), record::number(at))));
        Write::put(&self.tables.own, row).when("attribute_not_exists(transactionId)")
    }

    /// Takes a finished transaction out of the index, and gives its record an end.
    pub(crate) async fn finish(&self, record: &Record) -> Result<(), Error> {
        let update = format!(
            "SET finished = :true, {EXPIRE_AT} = :expireAt REMOVE {}, {}, stuck",
            record::SWEEP_SHARD,
            record::SWEEP_AT
        );
        let write = Write::update(&self.record_item(&record.id), update)
            .when("nonce = :nonce")
            .text(":nonce", &record.nonce)
            .value(":true", AttributeValue::Bool(true))
            .number(":expireAt", self.forget_at());
        self.tables.write(write).await.map(drop)
    }
}
