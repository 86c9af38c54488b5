//! The decision of a transaction, and its completion.

use std::time::Duration;

use tokio::time::timeout;

use crate::capacity::counted_here;
use crate::complete::{Freeing, free};
use crate::coordinator::StepResult;
use crate::effort::Effort;
use crate::error::Error;
use crate::id::PublicId;
use crate::ledger::Ledger;
use crate::model::{Expected, State};
use crate::record::{self, Record, Transaction};
use crate::write::Write;

/// The maximum time for which an answer waits until the items of a decided transaction are free, where nothing goes on
/// behind the answer; and the time for which a rollback waits.
const FREEING_BEFORE_ANSWER: Duration = Duration::from_secs(1);

/// The maximum time for which the answer to a commit waits, where the items are freed behind it: readers that go past
/// transactions rarely see the locks then.
const GRACE: Duration = Duration::from_millis(200);

/// The maximum time for which items are freed behind an answer. A sweeper frees the rest.
const FREEING_BEHIND_ANSWER: Duration = Duration::from_secs(20);

/// The decision that a call wants.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) outcome: State,
    /// The reason of a rollback.
    pub(crate) reason: Option<String>,
    /// What the caller of a commit knows about the transaction.
    pub(crate) expected: Expected,
    /// Whether the commit goes on without the items that a writer past the protocol took from the transaction.
    pub(crate) tells_overwritten: bool,
}

impl Wanted {
    pub(crate) fn commit(expected: Expected) -> Self {
        Self { outcome: State::Committed, reason: None, expected, tells_overwritten: true }
    }

    /// A commit whose answer has no room for items that were overwritten.
    pub(crate) fn whole_commit() -> Self {
        Self { tells_overwritten: false, ..Self::commit(Expected::default()) }
    }

    pub(crate) fn rollback(reason: impl Into<Option<String>>) -> Self {
        Self {
            outcome: State::RolledBack,
            reason: reason.into(),
            expected: Expected::default(),
            tells_overwritten: false,
        }
    }
}

/// A decided transaction.
#[derive(Debug)]
pub(crate) struct Decided {
    pub(crate) transaction: Transaction,
    /// What frees the items, where they were read before the decision.
    freeing: Option<Freeing>,
}

/// The end of a transaction.
#[derive(Debug)]
pub(crate) struct Settled {
    pub(crate) record: Record,
    /// The reason why it is decided and not finished, as far as is known: the sweeper will retry.
    pub(crate) unfinished: Option<Error>,
}

/// Ends transactions: decides them, and frees their items.
#[derive(Debug, Clone)]
pub(crate) struct Settler {
    pub(crate) ledger: Ledger,
}

impl Settler {
    /// Decides a transaction, if it is not decided, and frees its items: behind the answer, or for a moment before it.
    /// Returns the outcome, which may be the other one. After the decision, no failure hides the outcome.
    pub(crate) async fn settle(&self, id: &PublicId, wanted: Wanted) -> Result<Settled, Error> {
        self.settle_known(id, None, wanted).await
    }

    /// Settles a transaction that may just have been loaded.
    pub(crate) async fn settle_known(
        &self,
        id: &PublicId,
        known: Option<Transaction>,
        wanted: Wanted,
    ) -> Result<Settled, Error> {
        let decided = self.decided(id, known, &wanted).await?;
        Ok(self.release(decided).await)
    }

    /// Frees the items of a decided transaction: behind the answer, or for a moment before it.
    async fn release(&self, decided: Decided) -> Settled {
        let record = decided.transaction.record.clone();
        if record.finished {
            return Settled { record, unfinished: None };
        }
        if !self.ledger.policy.frees_behind_answers {
            let unfinished = self.complete_within(FREEING_BEFORE_ANSWER, &decided).await;
            return Settled { record, unfinished };
        }
        let this = self.clone();
        let freed = async move { this.complete_within(FREEING_BEHIND_ANSWER, &decided).await };
        let task = tokio::spawn(counted_here(freed));
        // The answer to a rollback tells that an item cannot be restored, if that is found soon.
        let time = if record.state == State::RolledBack { FREEING_BEFORE_ANSWER } else { GRACE };
        let unfinished = timeout(time, task).await.ok().and_then(Result::ok).flatten();
        Settled { record, unfinished }
    }

    /// Completes a decided transaction for at most this time. Returns the reason why it is not finished.
    async fn complete_within(&self, time: Duration, decided: &Decided) -> Option<Error> {
        let completed = Box::pin(self.complete(decided));
        let error = match timeout(time, completed).await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error,
            Err(_) => Error::Unavailable("the items could not be freed in time".into()),
        };
        let id = &decided.transaction.record.id;
        tracing::warn!(transaction = %id, error = error.for_log(), "is decided, and could not be completed");
        Some(error)
    }

    /// Decides a transaction, if it is not decided.
    pub(crate) async fn decided(
        &self,
        id: &PublicId,
        known: Option<Transaction>,
        wanted: &Wanted,
    ) -> Result<Decided, Error> {
        let mut effort = Effort::new(&self.ledger.policy);
        let mut known = known;
        let mut nonce = None;
        loop {
            let mut transaction = match known.take() {
                Some(transaction) => transaction,
                None => self.ledger.tables.load(id).await?.ok_or(Error::NotFound)?,
            };
            if transaction.record.is_tombstone {
                return Err(Error::NotFound);
            }
            if *nonce.get_or_insert_with(|| transaction.record.nonce.clone()) != transaction.record.nonce {
                // The record is of another life of the id, which is not the caller's.
                return Err(Error::Unavailable("the record expired meanwhile".into()));
            }
            if transaction.record.state != State::Pending {
                return Ok(Decided { transaction, freeing: None });
            }
            let step = match self.decide(&mut transaction, wanted).await {
                Ok(Ok(freeing)) => return Ok(Decided { transaction, freeing }),
                // The commit may only have to wait for puts.
                Ok(Err(StepResult::Stale))
                    if wanted.outcome == State::Committed && !transaction.record.unapplied.is_empty() =>
                {
                    self.confirm_applied(&mut transaction).await
                }
                Ok(Err(step)) => Ok(step),
                Err(error) => Err(error),
            };
            let paused = match step {
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
            match paused {
                Ok(()) => {}
                Err(error @ Error::InvalidRequest { .. }) => return Err(error),
                Err(error) if error.is_passing() || wanted.outcome != State::Committed => return Err(error),
                Err(error) => return self.give_up(id, error).await,
            }
        }
    }

    /// Rolls back a transaction that cannot be committed.
    async fn give_up(&self, id: &PublicId, error: Error) -> Result<Decided, Error> {
        let reason = match &error {
            Error::RolledBack { reason } => reason.clone(),
            error => error.to_string(),
        };
        // Boxed, since the two functions call each other: at most once, because a rollback confirms no puts.
        let decided = Box::pin(self.decided(id, None, &Wanted::rollback(reason))).await?;
        if decided.transaction.record.state == State::Committed {
            return Ok(decided);
        }
        self.release(decided).await;
        Err(error)
    }

    /// Decides. The condition requires that the decider knows all entries and that a commit waits for no put. A commit
    /// reads the items first: as they are in this version of the transaction, they stay until they are freed.
    async fn decide(
        &self,
        transaction: &mut Transaction,
        wanted: &Wanted,
    ) -> Result<Result<Option<Freeing>, StepResult>, Error> {
        let is_commit = wanted.outcome == State::Committed;
        let mut record = Record { state: wanted.outcome, reason: wanted.reason.clone(), ..transaction.record.clone() };
        let freeing = if is_commit && record.unapplied.is_empty() {
            wanted.expected.check(transaction)?;
            let freeing = Freeing::read(&self.ledger.tables, &record, &transaction.keys()).await?;
            record.overwritten.clone_from(&freeing.lost);
            Some(freeing)
        } else {
            None
        };
        if !record.overwritten.is_empty() && !wanted.tells_overwritten {
            let reason = "a writer that does not respect transactions deleted or replaced one of its items.";
            return Ok(Err(StepResult::Abort(Error::RolledBack { reason: reason.to_owned() })));
        }
        let set_reason = if wanted.reason.is_some() { ", reason = :reason" } else { "" };
        let set_lost = if record.overwritten.is_empty() { "" } else { ", overwritten = :overwritten" };
        let applied = if is_commit { " AND attribute_not_exists(unapplied)" } else { "" };
        let mut write = Write::update(
            &self.ledger.record_item(&record.id),
            format!("SET #state = :outcome, lastWorkedAt = :now{set_reason}{set_lost}"),
        )
        .when(format!("#state = :pending AND #version = :version AND nonce = :nonce{applied}"))
        .name("#state", "state")
        .name("#version", "version")
        .text(":pending", State::Pending.as_str())
        .number(":version", record.version)
        .text(":nonce", &record.nonce)
        .text(":outcome", wanted.outcome.as_str())
        .number(":now", self.ledger.clock.now_ms());
        if let Some(reason) = &wanted.reason {
            write = write.text(":reason", reason);
        }
        if !record.overwritten.is_empty() {
            write = write.value(":overwritten", record::encode_keys(&record.overwritten));
        }
        if !self.ledger.tables.write(write).await? {
            return Ok(Err(StepResult::Stale));
        }
        transaction.record = record;
        Ok(Ok(freeing))
    }

    /// Checks whether the puts that the record lists as unapplied are applied after all: their coordinator may have
    /// crashed before it recorded that. The content of a put that is really missing is known to its caller only.
    async fn confirm_applied(&self, transaction: &mut Transaction) -> Result<StepResult, Error> {
        let versions = transaction.record.unapplied.clone();
        for version in versions {
            let keys = transaction.puts_of(version);
            let items = self.ledger.tables.read(&keys).await?;
            if items.iter().any(|item| transaction.record.awaits_put_on(item.as_ref())) {
                let reason = "a put was not carried out: repeat an add that was not answered before the commit.";
                return Ok(StepResult::Abort(Error::RolledBack { reason: reason.to_owned() }));
            }
            self.ledger.confirm(transaction, version).await?;
        }
        Ok(StepResult::Done)
    }

    /// Frees all items of a decided transaction, and finishes it.
    pub(crate) async fn complete(&self, decided: &Decided) -> Result<(), Error> {
        let Decided { transaction, freeing } = decided;
        let record = &transaction.record;
        let stuck = free(&self.ledger, record, transaction.keys(), freeing.clone()).await?;
        if let Some((key, reason)) = stuck {
            self.ledger.note_stuck(record, &format!("{key}: {reason}")).await?;
            return Err(Error::stuck(&record.id, &key, &reason));
        }
        if !transaction.is_whole {
            // The record must stay, because a coordinator that finds one of its items needs the outcome.
            self.ledger.note_stuck(record, LOST_ENTRIES).await?;
            return Err(Error::Unavailable(LOST_ENTRIES.into()));
        }
        self.ledger.finish(record).await
    }

    /// Rolls back a transaction that no caller will continue, begun or not. Returns the outcome; if it is not certain,
    /// a sweeper will end the transaction.
    pub(crate) async fn abandon(&self, record: &Record) -> Option<State> {
        let reason = "the call that began it failed.".to_owned();
        let ended = match self.ledger.leave_rolled_back(record, reason.clone()).await {
            Ok(None) => Ok(State::RolledBack),
            Ok(Some(_)) => self.settle(&record.id, Wanted::rollback(reason)).await.map(|settled| settled.record.state),
            Err(error) => Err(error),
        };
        match ended {
            Ok(state) => Some(state),
            Err(Error::NotFound) => Some(State::RolledBack),
            Err(error) => {
                tracing::warn!(transaction = %record.id, error = error.for_log(), "could not be rolled back");
                None
            }
        }
    }
}

const LOST_ENTRIES: &str = "its entries expired, since no sweeper prolonged them; \
                            an item is freed when another transaction meets it.";

impl Expected {
    /// Refuses a transaction that is not what the caller knows: an add was not carried out, or one more was.
    fn check(&self, transaction: &Transaction) -> Result<(), Error> {
        let (items, writes) = (transaction.keys().len() as u64, transaction.writes() as u64);
        let counts = [
            ("expectedItems", "items", self.items.filter(|expected| *expected != items), items),
            ("expectedWrites", "requests other than Get", self.writes.filter(|expected| *expected > writes), writes),
        ];
        for (field, noun, expected, found) in counts {
            if let Some(expected) = expected.filter(|_| transaction.is_whole) {
                let detail = format!(
                    "The transaction has {found} {noun}, and not {expected}. Repeat the add that was not answered, or \
                     roll back. The transaction is open."
                );
                return Err(Error::invalid(field, detail));
            }
        }
        Ok(())
    }
}
