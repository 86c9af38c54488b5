//! Transactions whose requests are all known, begun and committed in one call.
//!
//! The short path is one TransactWriteItems call (or TransactGetItems, if the transaction only reads). It applies where
//! the requests fit into one call and find no lock: a condition on each item respects the locks of other transactions.
//! All other transactions take the long path.

use crate::attributes::{self, ID, ItemLock};
use crate::coordinator::{MAX_BYTES, MAX_WRITES, Transactions, rolled_back};
use crate::effort::Effort;
use crate::enlist::{refuse_other, shown};
use crate::error::Error;
use crate::expression::both;
use crate::model::{Action, Answer, Operation, ReturnValues, State};
use crate::prepare::Prepared;
use crate::record::{Record, RecordEntry};
use crate::settle::Wanted;
use crate::tables::{Reason, Written};
use crate::transactions::reads_only;
use crate::write::Write;

/// The result of the short path.
enum Short {
    Done(Vec<Answer>),
    /// The short path does not apply.
    Closed,
}

impl Transactions {
    /// Carries out all requests at once. `is_named` says whether the caller named the id: a read without one leaves no
    /// record.
    pub(crate) async fn one_shot(
        &self,
        record: &Record,
        is_named: bool,
        prepared: &[Prepared],
    ) -> Result<Vec<Answer>, Error> {
        let id = &record.id;
        let short = if !prepared.is_empty() && reads_only(prepared) {
            self.read_all(record, is_named, prepared).await?
        } else {
            self.write_all(record, prepared).await?
        };
        if let Short::Done(answers) = short {
            return Ok(answers);
        }
        let mut effort = Effort::new(&self.policy);
        let transaction = match self.enlist(id, prepared, Some(record.clone()), &mut effort).await {
            Ok(transaction) => transaction,
            // The call is a repeat, and its answers were removed with the locks.
            Err(Error::Committed) => return self.answer_repeat(record, prepared).await,
            Err(error) => return Err(error),
        };
        let answers = self.answers(&transaction.record, prepared).await?;
        let settled = self.settle_known(id, Some(transaction), Wanted::whole_commit()).await?;
        if settled.record.state == State::Committed { Ok(answers) } else { Err(rolled_back(&settled.record)) }
    }

    /// Answers a call whose id is that of a committed transaction. Fails unless that transaction had the same requests.
    pub(crate) async fn answer_repeat(&self, record: &Record, prepared: &[Prepared]) -> Result<Vec<Answer>, Error> {
        let found = self.tables.record(&record.id).await?.ok_or(Error::NotFound)?;
        refuse_other(&found, record.digest.as_deref())?;
        answer_again(prepared)
    }

    /// Makes all writes in one call, with a record of the outcome.
    async fn write_all(&self, record: &Record, prepared: &[Prepared]) -> Result<Short, Error> {
        if !fits(prepared) {
            return Ok(Short::Closed);
        }
        let mut effort = Effort::new(&self.policy);
        loop {
            let record_write = self.new_row(&committed(record, prepared), Some(self.forget_at()));
            let writes = std::iter::once(record_write).chain(prepared.iter().map(write)).collect();
            let reasons = match self.tables.transact(writes).await {
                Ok(Written::Done) => return Ok(Short::Done(vec![Answer::default(); prepared.len()])),
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
                Some(Reason::Condition(_)) => return self.repeated(record, prepared).await,
                // This same call may be under way, and may have caused the reasons that the items give.
                Some(Reason::Busy) => {
                    effort.pause().await?;
                    continue;
                }
                _ => {}
            }
            match verdict(reasons.collect(), prepared) {
                Verdict::Busy => effort.pause().await?,
                Verdict::Locked => return Ok(Short::Closed),
                Verdict::Refused(error) => return self.refuse(record, prepared, error).await,
            }
        }
    }

    async fn read_all(&self, record: &Record, is_named: bool, prepared: &[Prepared]) -> Result<Short, Error> {
        if prepared.len() > MAX_WRITES {
            return Ok(Short::Closed);
        }
        let keys: Vec<_> = prepared.iter().map(|request| request.key.clone()).collect();
        let items = match self.tables.read_together(&keys).await {
            Ok(Some(items)) => items,
            Err(error) if error.is_passing() => return Err(error),
            // Other writers are changing the items, or the items are too large to be read at once.
            Ok(None) | Err(_) => return Ok(Short::Closed),
        };
        if items.iter().flatten().any(|item| ItemLock::of(item).is_some()) {
            return Ok(Short::Closed);
        }
        if is_named && !self.put_finished(&committed(record, prepared)).await? {
            let found = self.tables.record(&record.id).await?.ok_or(Error::NotFound)?;
            match found.state {
                // A repeat of a completed read reads anew.
                State::Committed => refuse_other(&found, record.digest.as_deref())?,
                State::RolledBack => return Err(rolled_back(&found)),
                State::Pending => return Ok(Short::Closed),
            }
        }
        let answer = |(item, request): (Option<attributes::Item>, &Prepared)| Answer { item: request.project(item) };
        Ok(Short::Done(items.into_iter().map(attributes::present).zip(prepared).map(answer).collect()))
    }

    /// Keeps a record of a transaction that failed, as the long path does.
    async fn refuse(&self, record: &Record, prepared: &[Prepared], error: Error) -> Result<Short, Error> {
        if self.leave_rolled_back(record, error.to_string()).await?.is_none() {
            return Err(error);
        }
        // An earlier attempt without an answer was carried out after all.
        self.repeated(record, prepared).await
    }

    /// Answers a call whose id is in use. It is either a repeat, or a call that reuses the id of another transaction.
    async fn repeated(&self, record: &Record, prepared: &[Prepared]) -> Result<Short, Error> {
        let found = self.tables.record(&record.id).await?.ok_or(Error::NotFound)?;
        refuse_other(&found, record.digest.as_deref())?;
        match found.state {
            State::Committed => answer_again(prepared).map(Short::Done),
            State::RolledBack => Err(rolled_back(&found)),
            State::Pending => Ok(Short::Closed),
        }
    }
}

/// Whether the requests fit into one TransactWriteItems call, and ask for nothing that it does not return.
fn fits(prepared: &[Prepared]) -> bool {
    let bytes: usize = prepared.iter().map(Prepared::bytes).sum();
    asks_for_nothing(prepared) && prepared.len() < MAX_WRITES && bytes <= MAX_BYTES
}

/// Answers a repeat of a committed call. The answers were removed with the locks.
fn answer_again(prepared: &[Prepared]) -> Result<Vec<Answer>, Error> {
    if asks_for_nothing(prepared) { Ok(vec![Answer::default(); prepared.len()]) } else { Err(Error::Committed) }
}

fn asks_for_nothing(prepared: &[Prepared]) -> bool {
    prepared
        .iter()
        .all(|prepared| prepared.operation() != Operation::Get && prepared.request.return_values == ReturnValues::None)
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
                let item = shown(request, item);
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

/// The record of a transaction that is completed by one call. It lists the items while that adds no cost.
fn committed(record: &Record, prepared: &[Prepared]) -> Record {
    let entry = |request: &Prepared| RecordEntry {
        key: request.key.clone(),
        operation: request.operation(),
        version: 1,
        digest: request.digest.clone(),
    };
    let entries: Vec<_> = prepared.iter().map(entry).collect();
    let record = Record { state: State::Committed, finished: true, sweep_at: None, ..record.clone() };
    if record.has_room_for(&entries) { Record { entries, ..record } } else { record }
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
