//! Transactions whose requests are all known, begun and committed in one call.
//!
//! The short path is one TransactWriteItems call (or TransactGetItems, if the transaction only reads). It applies where
//! the requests fit into one call and find no lock: a condition on each item respects the locks of other transactions.
//! All other transactions take the long path.

use crate::attributes::{self, ID, ItemLock};
use crate::coordinator::{MAX_BYTES, MAX_WRITES};
use crate::effort::Effort;
use crate::enlist::Enlister;
use crate::error::Error;
use crate::expression::both;
use crate::id::TransactionId;
use crate::key::Item;
use crate::ledger::Ledger;
use crate::model::{Action, Answer, Operation, State};
use crate::prepare::Prepared;
use crate::record::{Record, RecordEntry};
use crate::settle::Wanted;
use crate::tables::{Reason, Written};
use crate::write::Write;

/// A transaction in one call.
pub(crate) struct OneShot<'a> {
    pub(crate) enlister: &'a Enlister,
    pub(crate) record: Record,
    /// Whether the caller named the id: a read without one leaves no record.
    pub(crate) is_named: bool,
    pub(crate) prepared: &'a [Prepared],
}

/// The result of the short path.
enum Short {
    Done(Vec<Answer>),
    /// The short path does not apply.
    Closed,
}

impl OneShot<'_> {
    /// Carries out all requests. Returns their answers, or the error and whether the outcome is certain.
    ///
    /// # Errors
    /// `Unknown`, with the id, where no id was named and the outcome is not certain.
    pub(crate) async fn run(&self, id: &TransactionId) -> Result<Vec<Answer>, Error> {
        let error = match self.attempt().await {
            Ok(answers) => return Ok(answers),
            Err(error) => error,
        };
        if !error.ends_one_shot() && self.is_named {
            return Err(error);
        }
        // Before the final error, a record must stop an earlier attempt without an answer that may still come late.
        match self.enlister.settler.abandon(&self.record).await {
            Some(State::Committed) => self.answer_repeat().await,
            Some(_) if error.is_passing() && !self.only_reads() => Err(Error::RolledBack { reason: error.to_string() }),
            Some(_) => Err(error),
            None if !self.is_named => Err(Error::Unknown { id: id.clone(), source: Box::new(error) }),
            None if error.is_passing() => Err(error),
            None => Err(Error::Unavailable("the outcome is not certain".into())),
        }
    }

    async fn attempt(&self) -> Result<Vec<Answer>, Error> {
        let is_read = !self.prepared.is_empty() && self.only_reads();
        let short = if is_read { self.read_all().await? } else { self.write_all().await? };
        if let Short::Done(answers) = short {
            return Ok(answers);
        }
        let id = &self.record.id;
        let (transaction, answers) = match self.enlister.add(id, self.prepared, Some(self.record.clone())).await {
            Ok(added) => added,
            // The call is a repeat, and its answers were removed with the locks.
            Err(Error::Committed) => return self.answer_repeat().await,
            Err(error) => return Err(error),
        };
        let settled = self.enlister.settler.settle_known(id, Some(transaction), Wanted::whole_commit()).await?;
        if settled.record.state == State::Committed { Ok(answers) } else { Err(settled.record.rolled_back()) }
    }

    /// Answers a call whose id is that of a committed transaction. Fails unless that transaction had the same requests.
    async fn answer_repeat(&self) -> Result<Vec<Answer>, Error> {
        self.found().await?;
        self.answer_again()
    }

    /// Answers a repeat of a committed call. The answers were removed with the locks.
    fn answer_again(&self) -> Result<Vec<Answer>, Error> {
        if self.asks_for_nothing() { Ok(vec![Answer::default(); self.prepared.len()]) } else { Err(Error::Committed) }
    }

    /// Returns the record that the tables have under this id, if it is of the same requests.
    async fn found(&self) -> Result<Record, Error> {
        let found = self.ledger().tables.record(&self.record.id).await?.ok_or(Error::NotFound)?;
        found.refuse_other(self.record.digest.as_deref())?;
        Ok(found)
    }

    const fn ledger(&self) -> &Ledger {
        &self.enlister.ledger
    }

    /// Whether the requests change nothing.
    fn only_reads(&self) -> bool {
        self.prepared.iter().all(|request| request.operation() == Operation::Get)
    }

    /// Whether the requests fit into one TransactWriteItems call, and ask for nothing that it does not return.
    fn fits(&self) -> bool {
        let bytes: usize = self.prepared.iter().map(Prepared::bytes).sum();
        self.asks_for_nothing() && self.prepared.len() < MAX_WRITES && bytes <= MAX_BYTES
    }

    fn asks_for_nothing(&self) -> bool {
        !self.prepared.iter().any(Prepared::wants_item)
    }

    /// The record of a transaction that is completed by one call. It lists the items while that adds no cost.
    fn committed(&self) -> Record {
        let entry = |request: &Prepared| RecordEntry {
            key: request.key.clone(),
            operation: request.operation(),
            version: 1,
            digest: request.digest.clone(),
        };
        let entries: Vec<_> = self.prepared.iter().map(entry).collect();
        let record = Record { state: State::Committed, finished: true, sweep_at: None, ..self.record.clone() };
        if record.has_room_for(&entries) { Record { entries, ..record } } else { record }
    }

    /// Makes all writes in one call, with a record of the outcome.
    async fn write_all(&self) -> Result<Short, Error> {
        if !self.fits() {
            return Ok(Short::Closed);
        }
        let ledger = self.ledger();
        let mut effort = Effort::new(&ledger.policy);
        loop {
            let record_write = ledger.new_row(&self.committed(), Some(ledger.forget_at()));
            let writes = std::iter::once(record_write).chain(self.prepared.iter().map(write)).collect();
            let reasons = match ledger.tables.transact(writes).await {
                Ok(Written::Done) => return Ok(Short::Done(vec![Answer::default(); self.prepared.len()])),
                Ok(Written::Cancelled(reasons)) => reasons,
                Err(error) if error.is_passing() => {
                    effort.failed(error).await?;
                    continue;
                }
                // The call may be too large, which is no obstacle on the long path. Any other fault comes up on the
                // long path too.
                Err(_) => return Ok(Short::Closed),
            };
            let mut reasons = reasons.into_iter();
            match reasons.next() {
                Some(Reason::Condition(_)) => return self.repeated().await,
                // This same call may be under way, and may have caused the reasons that the items give.
                Some(Reason::Busy) => {
                    effort.pause().await?;
                    continue;
                }
                _ => {}
            }
            match verdict(reasons.collect(), self.prepared) {
                Verdict::Busy => effort.pause().await?,
                Verdict::Locked => return Ok(Short::Closed),
                Verdict::Refused(error) => return self.refuse(error).await,
            }
        }
    }

    async fn read_all(&self) -> Result<Short, Error> {
        if self.prepared.len() > MAX_WRITES {
            return Ok(Short::Closed);
        }
        let ledger = self.ledger();
        let keys: Vec<_> = self.prepared.iter().map(|request| request.key.clone()).collect();
        let items = match ledger.tables.read_together(&keys).await {
            Ok(Some(items)) => items,
            Err(error) if error.is_passing() => return Err(error),
            // Other writers are changing the items, or the items are too large to be read at once.
            Ok(None) | Err(_) => return Ok(Short::Closed),
        };
        if items.iter().flatten().any(|item| ItemLock::of(item).is_some()) {
            return Ok(Short::Closed);
        }
        if self.is_named && !ledger.put_finished(&self.committed()).await? {
            let found = ledger.tables.record(&self.record.id).await?.ok_or(Error::NotFound)?;
            match found.state {
                // A repeat of a completed read reads anew.
                State::Committed => found.refuse_other(self.record.digest.as_deref())?,
                State::RolledBack => return Err(found.rolled_back()),
                State::Pending => return Ok(Short::Closed),
            }
        }
        let answer = |(item, request): (Option<Item>, &Prepared)| Answer { item: request.project(item) };
        Ok(Short::Done(items.into_iter().map(attributes::present).zip(self.prepared).map(answer).collect()))
    }

    /// Keeps a record of a transaction that failed, as the long path does.
    async fn refuse(&self, error: Error) -> Result<Short, Error> {
        if self.ledger().leave_rolled_back(&self.record, error.to_string()).await?.is_none() {
            return Err(error);
        }
        // An earlier attempt without an answer was carried out after all.
        self.repeated().await
    }

    /// Answers a call whose id is in use. It is either a repeat, or a call that reuses the id of another transaction.
    async fn repeated(&self) -> Result<Short, Error> {
        let found = self.found().await?;
        match found.state {
            State::Committed => self.answer_again().map(Short::Done),
            State::RolledBack => Err(found.rolled_back()),
            State::Pending => Ok(Short::Closed),
        }
    }
}

/// The result of a cancelled call.
enum Verdict {
    /// Other writes of the items are under way: retry.
    Busy,
    /// A transaction holds an item.
    Locked,
    Refused(Error),
}

fn verdict(reasons: Vec<Reason>, prepared: &[Prepared]) -> Verdict {
    let mut is_busy = false;
    for (reason, request) in reasons.into_iter().zip(prepared) {
        match reason {
            Reason::None => {}
            Reason::Busy => is_busy = true,
            Reason::Condition(item) if item.as_ref().and_then(ItemLock::of).is_some() => return Verdict::Locked,
            Reason::Condition(item) => {
                let item = request.shown(item);
                let key = Box::new(request.key.clone());
                return Verdict::Refused(Error::ConditionFailed { request: request.index, key, item });
            }
            Reason::Invalid(message) => {
                return Verdict::Refused(Error::invalid(request.path(), message));
            }
            Reason::TooLarge(message) => return Verdict::Refused(Error::TooLarge(message)),
        }
    }
    if is_busy { Verdict::Busy } else { Verdict::Locked }
}

/// The write of one request, conditional on no transaction holding the item.
fn write(prepared: &Prepared) -> Write {
    let request = &prepared.request;
    let condition = both(&format!("attribute_not_exists({ID})"), request.condition.as_deref());
    let write = match &request.action {
        Action::Get { .. } | Action::Check { .. } => Write::check(&prepared.key),
        Action::Put { item } => Write::put(prepared.key.table(), item.clone()),
        Action::Update { expression, .. } => Write::update(&prepared.key, expression),
        Action::Delete { .. } => Write::delete(&prepared.key),
    };
    write.when(condition).with_users(&request.names, &request.values)
}
