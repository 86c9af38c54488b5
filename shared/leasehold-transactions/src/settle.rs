//! The decision of a transaction, and its completion.

use crate::complete::{finish, is_unapplied};
use crate::coordinator::{StepResult, Transactions};
use crate::effort::Effort;
use crate::error::Error;
use crate::key::ItemKey;
use crate::model::{Operation, PublicId, State};
use crate::record::{self, EXPIRE_AT, Record, Transaction};
use crate::write::Write;

/// The end of a transaction.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) record: Record,
    /// The reason why it is decided and not finished: the sweeper will retry.
    pub(crate) unfinished: Option<Error>,
}

impl Transactions {
    /// Decides a transaction, if it is not decided, and completes it. Returns the outcome, which may be the other one.
    /// After the decision, no failure hides the outcome.
    pub(crate) async fn settle(&self, id: &PublicId, outcome: State, reason: Option<String>) -> Result<Settled, Error> {
        self.settle_known(id, None, outcome, reason).await
    }

    /// Settles a transaction that may just have been loaded.
    pub(crate) async fn settle_known(
        &self,
        id: &PublicId,
        known: Option<Transaction>,
        outcome: State,
        reason: Option<String>,
    ) -> Result<Settled, Error> {
        let mut effort = Effort::new(&self.policy);
        let mut known = known;
        let mut decided = None;
        let mut nonce = None;
        loop {
            let mut transaction = match known.take() {
                Some(transaction) => transaction,
                None => match self.tables.load(id).await {
                    Ok(found) => found.ok_or(Error::NotFound)?,
                    Err(error) => return unfinished(decided, error),
                },
            };
            if transaction.record.is_tombstone {
                return Err(Error::NotFound);
            }
            if *nonce.get_or_insert_with(|| transaction.record.nonce.clone()) != transaction.record.nonce {
                // The record is of another life of the id, which is not the caller's.
                return unfinished(decided, Error::Unavailable("the record expired meanwhile".into()));
            }
            let is_decided = transaction.record.state != State::Pending;
            if is_decided {
                decided = Some(transaction.record.clone());
            }
            if transaction.record.finished {
                return Ok(Settled { record: transaction.record, unfinished: None });
            }
            let step = if is_decided {
                match self.complete(&transaction).await {
                    Ok(()) => return Ok(Settled { record: transaction.record, unfinished: None }),
                    Err(error) => Err(error),
                }
            } else {
                match self.decide(&mut transaction, outcome, reason.as_deref()).await {
                    // The commit may only have to wait for puts.
                    Ok(StepResult::Stale)
                        if outcome == State::Committed && !transaction.record.unapplied.is_empty() =>
                    {
                        self.confirm_applied(&mut transaction).await
                    }
                    step => step,
                }
            };
            let waited = match step {
                Ok(StepResult::Done) => {
                    known = Some(transaction);
                    Ok(())
                }
                Ok(StepResult::Waited) => Ok(()),
                Ok(StepResult::Again) => effort.pause().await,
                Ok(StepResult::Stale) => effort.stale(&transaction).await,
                Err(error) if error.is_passing() => effort.failed(error).await,
                Ok(StepResult::Abort(error)) | Err(error) => Err(error),
            };
            match waited {
                Ok(()) => {}
                Err(error) if decided.is_some() || error.is_passing() => return unfinished(decided, error),
                Err(error) if outcome == State::Committed => return self.give_up(id, error).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Rolls back a transaction that cannot be committed.
    async fn give_up(&self, id: &PublicId, error: Error) -> Result<Settled, Error> {
        let reason = match &error {
            Error::RolledBack { reason } => reason.clone(),
            error => error.to_string(),
        };
        // Boxed, since the two functions call each other: at most once, because a rollback confirms no puts.
        let settled = Box::pin(self.settle(id, State::RolledBack, Some(reason))).await?;
        if settled.record.state == State::Committed { Ok(settled) } else { Err(error) }
    }

    /// Decides. The condition requires that the decider knows all entries and that a commit waits for no put.
    async fn decide(
        &self,
        transaction: &mut Transaction,
        outcome: State,
        reason: Option<&str>,
    ) -> Result<StepResult, Error> {
        let record = &transaction.record;
        let set_reason = if reason.is_some() { ", reason = :reason" } else { "" };
        let applied = if outcome == State::Committed { " AND attribute_not_exists(unapplied)" } else { "" };
        let mut write = Write::update(
            &self.record_item(&record.id),
            format!("SET #state = :outcome, lastWorkedAt = :now{set_reason}"),
        )
        .when(format!("#state = :pending AND #version = :version AND nonce = :nonce{applied}"))
        .name("#state", "state")
        .name("#version", "version")
        .text(":pending", State::Pending.as_str())
        .number(":version", record.version)
        .text(":nonce", &record.nonce)
        .text(":outcome", outcome.as_str())
        .number(":now", self.clock.now_ms());
        if let Some(reason) = reason {
            write = write.text(":reason", reason);
        }
        if !self.tables.write(write).await? {
            return Ok(StepResult::Stale);
        }
        transaction.record.state = outcome;
        transaction.record.reason = reason.map(str::to_owned);
        Ok(StepResult::Done)
    }

    /// Checks whether the puts that the record lists as unapplied are applied after all: their coordinator may have
    /// crashed before it recorded that. The content of a put that is really missing is known to its caller only.
    async fn confirm_applied(&self, transaction: &mut Transaction) -> Result<StepResult, Error> {
        let versions = transaction.record.unapplied.clone();
        for version in versions {
            let keys: Vec<_> = puts_of(transaction, version);
            let items = self.tables.read(&keys).await?;
            if items.iter().any(|item| is_unapplied(&transaction.record, item.as_ref())) {
                let reason = "a put was not carried out: repeat an add that was not answered before the commit.";
                return Ok(StepResult::Abort(Error::RolledBack { reason: reason.to_owned() }));
            }
            self.confirm(transaction, version).await?;
        }
        Ok(StepResult::Done)
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

    /// Frees all items of a decided transaction, and finishes it.
    async fn complete(&self, transaction: &Transaction) -> Result<(), Error> {
        let record = &transaction.record;
        let stuck = self.free(record, &transaction.keys()).await?;
        if let Some(reason) = stuck {
            self.note_stuck(record, &reason).await?;
            return Err(Error::stuck(&record.id, &reason));
        }
        if !transaction.is_whole {
            // The record must stay, because a coordinator that finds one of its items needs the outcome.
            self.note_stuck(record, LOST_ENTRIES).await?;
            return Err(Error::Unavailable(LOST_ENTRIES.into()));
        }
        self.tables.write(finish(&self.record_item(&record.id), record, self.forget_at())).await.map(drop)
    }

    /// Records the reason why an item cannot be freed, for operators.
    async fn note_stuck(&self, record: &Record, reason: &str) -> Result<(), Error> {
        if record.stuck.as_deref() == Some(reason) {
            return Ok(());
        }
        let write = Write::update(&self.record_item(&record.id), "SET stuck = :reason")
            .when("nonce = :nonce AND attribute_not_exists(finished)")
            .text(":nonce", &record.nonce)
            .text(":reason", reason);
        self.tables.write(write).await.map(drop)
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
}

const LOST_ENTRIES: &str = "its entries expired, since no sweeper prolonged them; \
                            an item is freed when another transaction meets it.";

/// The items of the puts of one version.
pub(crate) fn puts_of(transaction: &Transaction, version: u64) -> Vec<ItemKey> {
    let is_put = |entry: &&record::RecordEntry| entry.version == version && entry.operation == Operation::Put;
    transaction.entries.iter().filter(is_put).map(|entry| entry.key.clone()).collect()
}

fn unfinished(decided: Option<Record>, error: Error) -> Result<Settled, Error> {
    let Some(record) = decided else {
        return Err(error);
    };
    tracing::warn!(transaction = %record.id, error = error.for_log(), "is decided, and could not be completed");
    Ok(Settled { record, unfinished: Some(error) })
}
