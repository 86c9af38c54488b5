//! Transactions whose requests are all known, begun and committed in one call.
//!
//! What fits into one TransactWriteItems call (or TransactGetItems, if it only reads) and meets no lock goes through it: the
//! locks of other transactions are honoured by a condition on each item. All else takes the long way.

use crate::attributes::{self, ID, Lock, size};
use crate::coordinator::{MAX_BYTES, MAX_WRITES, Transactions, rolled_back, shown};
use crate::effort::Effort;
use crate::error::Error;
use crate::expression::both;
use crate::model::{Answer, Participant, ReturnValues, State, TransactionId};
use crate::prepare::Prepared;
use crate::record::{Effect, Record, digest_of_all};
use crate::tables::{Reason, Written};
use crate::write::Write;

/// What the short way came to.
enum Short {
    Done(Vec<Answer>),
    /// It cannot be gone.
    Closed,
}

impl Transactions {
    pub(crate) async fn one_shot(&self, id: &TransactionId, prepared: &[Prepared]) -> Result<Vec<Answer>, Error> {
        let record = Record {
            digest: Some(digest_of_all(prepared.iter().map(|request| &request.digest))),
            ..self.new_record(id)
        };
        // Of an empty one, both would do.
        let short = if !prepared.is_empty() && prepared.iter().all(|request| request.effect == Effect::Get) {
            self.read_all(&record, prepared).await?
        } else {
            self.write_all(&record, prepared).await?
        };
        if let Short::Done(answers) = short {
            return Ok(answers);
        }
        let mut effort = Effort::new(&self.policy);
        match self.enlist(id, prepared, Some(record), &mut effort).await {
            // The call is a repeat, and its answers are gone with the locks.
            Err(Error::Committed) if asks_for_nothing(prepared) => return Ok(vec![Answer::default(); prepared.len()]),
            result => result?,
        };
        let answers = self.answers(id, prepared, &effort).await?;
        let record = self.settle(id, State::Committed, None).await?.record;
        if record.state == State::Committed { Ok(answers) } else { Err(rolled_back(&record)) }
    }

    async fn write_all(&self, record: &Record, prepared: &[Prepared]) -> Result<Short, Error> {
        let bytes: usize = prepared.iter().map(Prepared::bytes).sum();
        if !asks_for_nothing(prepared) || prepared.len() >= MAX_WRITES || bytes > MAX_BYTES {
            return Ok(Short::Closed);
        }
        let mut effort = Effort::new(&self.policy);
        loop {
            let row = self.finished_row(&committed(record, prepared));
            let record_write = Write::put(&self.tables.own, row).when("attribute_not_exists(transactionId)");
            let writes = std::iter::once(record_write).chain(prepared.iter().map(write)).collect();
            let reasons = match self.tables.transact(writes).await {
                Ok(Written::Done) => return Ok(Short::Done(vec![Answer::default(); prepared.len()])),
                Ok(Written::Cancelled(reasons)) => reasons,
                Err(error) if error.is_passing() => {
                    effort.failed(error).await?;
                    continue;
                }
                // It may be too large, which is no obstacle on the long way; if something else is wrong, that says it too.
                Err(_) => return Ok(Short::Closed),
            };
            let mut reasons = reasons.into_iter();
            match reasons.next() {
                Some(Reason::Condition(_)) => return self.repeated(record, prepared).await,
                // This very call may be under way, and what is said of its items due to that.
                Some(Reason::Busy) => {
                    effort.pause().await?;
                    continue;
                }
                _ => {}
            }
            let mut is_busy = false;
            for (reason, request) in reasons.zip(prepared) {
                match reason {
                    Reason::None => {}
                    Reason::Busy => is_busy = true,
                    Reason::Condition(item) if item.as_ref().and_then(Lock::of).is_some() => return Ok(Short::Closed),
                    Reason::Condition(item) => {
                        let item = shown(request, item);
                        let error = Error::ConditionFailed { request: request.index, item };
                        return self.refuse(record, prepared, error).await;
                    }
                    Reason::Invalid(message) => {
                        let error = Error::invalid(format!("requests[{}]", request.index), message);
                        return self.refuse(record, prepared, error).await;
                    }
                    Reason::TooLarge(message) => {
                        return self.refuse(record, prepared, Error::TooLarge(message)).await;
                    }
                }
            }
            if !is_busy {
                return Ok(Short::Closed);
            }
            effort.pause().await?;
        }
    }

    async fn read_all(&self, record: &Record, prepared: &[Prepared]) -> Result<Short, Error> {
        if prepared.len() > MAX_WRITES {
            return Ok(Short::Closed);
        }
        let keys: Vec<_> = prepared.iter().map(|request| request.key.clone()).collect();
        let items = match self.tables.read_together(&keys).await {
            Ok(Some(items)) => items,
            Err(error) if error.is_passing() => return Err(error),
            // Somebody writes them, or they are too large to be read at once.
            Ok(None) | Err(_) => return Ok(Short::Closed),
        };
        if items.iter().flatten().any(|item| Lock::of(item).is_some()) {
            return Ok(Short::Closed);
        }
        let row = self.finished_row(&committed(record, prepared));
        if !self.put_new(row).await? {
            // A repeat of what is done reads anew.
            if let Short::Closed = self.repeated(record, prepared).await? {
                return Ok(Short::Closed);
            }
        }
        let answer = |(item, request): (Option<attributes::Item>, &Prepared)| Answer { item: request.project(item) };
        Ok(Short::Done(items.into_iter().map(attributes::present).zip(prepared).map(answer).collect()))
    }

    /// Keeps a record of a transaction that came to nothing, as the long way does.
    async fn refuse(&self, record: &Record, prepared: &[Prepared], error: Error) -> Result<Short, Error> {
        if self.leave_rolled_back(record, &error).await? {
            return Err(error);
        }
        // An attempt that was given up was carried out after all.
        self.repeated(record, prepared).await
    }

    /// There is such a transaction already: this call is a repeat.
    async fn repeated(&self, record: &Record, prepared: &[Prepared]) -> Result<Short, Error> {
        let found = self.tables.record(&record.id).await?.ok_or(Error::NotFound)?;
        match found.state {
            State::Committed if found.digest.is_some() && found.digest != record.digest => {
                Err(Error::invalid("transactionId", "Another transaction has this id."))
            }
            State::Committed => Ok(Short::Done(vec![Answer::default(); prepared.len()])),
            State::RolledBack => Err(rolled_back(&found)),
            State::Pending => Ok(Short::Closed),
        }
    }
}

fn asks_for_nothing(prepared: &[Prepared]) -> bool {
    prepared
        .iter()
        .all(|prepared| prepared.effect != Effect::Get && prepared.request.return_values == ReturnValues::None)
}

fn committed(record: &Record, prepared: &[Prepared]) -> Record {
    let participant = |request: &Prepared| Participant { key: request.key.clone(), operation: request.effect.name() };
    Record {
        state: State::Committed,
        finished: true,
        participants: prepared.iter().map(participant).collect(),
        ..record.clone()
    }
}

/// The write of one request, if no transaction has the item.
fn write(prepared: &Prepared) -> Write {
    let request = &prepared.request;
    let condition = both(&format!("attribute_not_exists({ID})"), request.condition.as_deref());
    let write = match &prepared.effect {
        Effect::Get | Effect::Check => Write::check(&prepared.key),
        Effect::Put(item) => Write::put(prepared.key.table(), item.clone()),
        Effect::Update { expression, .. } => Write::update(&prepared.key, expression),
        Effect::Delete => Write::delete(&prepared.key),
    };
    write.when(condition).with_users(&request.names, &request.values)
}

impl Prepared {
    /// About as many bytes as a write of it has.
    fn bytes(&self) -> usize {
        let content = match &self.effect {
            Effect::Put(item) => size(item),
            Effect::Get | Effect::Check | Effect::Update { .. } | Effect::Delete => size(self.key.attributes()),
        };
        content + size(&self.request.values)
    }
}
