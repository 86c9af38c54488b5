//! Runs a body until its transaction is committed. Rules T2, T4 and T7.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use leasehold_wire::operation;
use leasehold_wire::transactions::{BeginRequest, BeginResponse, Entry, Item};

use super::capacity::wanted;
use super::id::id_after;
use super::{Request, Transaction, TransactionOptions};
use crate::clock::{Instant, deadline, fresh_uuid, sleep};
use crate::remote::Backoff;
use crate::{Client, Error, ErrorKind};

impl Client {
    /// Runs `body` in a transaction, and commits it. If `body` returns an error, the transaction is rolled back, and
    /// the error is returned.
    ///
    /// After a conflict with another transaction, the transaction is rolled back, and `body` is run again in a new one.
    /// Its changes to items happen once; its other effects may happen several times.
    ///
    /// `body` is an async closure, or a closure that returns a future, as `|tx| async move { … }`. If the future is
    /// dropped, the transaction is rolled back in the background.
    ///
    /// # Errors
    /// Those of `body`; those of [`Transaction::add`]; after the last try, [`ErrorKind::Contended`] or
    /// [`ErrorKind::RolledBack`]. [`ErrorKind::Unavailable`] at the commit: the outcome is unknown, and
    /// [`Error::transaction_id`] names the transaction.
    pub async fn transaction<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        body: impl FnMut(Arc<Transaction>) -> F,
    ) -> Result<T, E> {
        self.transaction_with(&TransactionOptions::default(), body).await
    }

    /// Runs `body` in a transaction, with other settings than the defaults.
    ///
    /// # Errors
    /// As [`Client::transaction`].
    pub async fn transaction_with<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        options: &TransactionOptions,
        mut body: impl FnMut(Arc<Transaction>) -> F,
    ) -> Result<T, E> {
        options.check()?;
        let mut tries = Tries::new(options);
        // The previous attempt, whose age the next one keeps.
        let mut before = None;
        loop {
            let refusal = match self.attempt(options, &mut before, &mut body).await {
                Ok(value) => return Ok(value),
                Err(refusal) => refusal,
            };
            match refusal.contention {
                Some(contention) if tries.again(&contention).await => {}
                _ => return Err(refusal.error),
            }
        }
    }

    async fn attempt<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        options: &TransactionOptions,
        before: &mut Option<String>,
        body: &mut impl FnMut(Arc<Transaction>) -> F,
    ) -> Result<T, Refusal<E>> {
        let tx = Arc::new(
            Transaction::begin(self.clone(), before.take(), options.capacity.clone()).await.map_err(Refusal::of)?,
        );
        *before = Some(tx.id().to_owned());
        let kept = async {
            if let Some(period) = options.keep_alive {
                tx.keep(period).await;
            }
            std::future::pending::<Infallible>().await
        };
        let done = tokio::select! {
            biased;
            done = body(Arc::clone(&tx)) => done,
            never = kept => match never {},
        };
        let value = match done {
            Ok(value) => value,
            Err(error) => {
                let contention = tx.contention();
                if let Err(failure) = tx.send_rollback().await {
                    tracing::warn!(transaction = tx.id(), error = %failure, "could not be rolled back");
                }
                return Err(Refusal { error, contention });
            }
        };
        let Err(error) = tx.send_commit().await else { return Ok(value) };
        if !error.is_contention() {
            // The outcome is unknown, or the added requests are at fault. The drop rolls back as soon as it can.
            return Err(Refusal::of(error));
        }
        // An abandoned commit may still arrive. The body therefore runs again only when that commit certainly has no
        // effect.
        match tx.send_rollback().await {
            Ok(()) => Err(Refusal::of(error)),
            Err(error) if *error.kind() == ErrorKind::Committed => Ok(value),
            Err(error) => Err(Refusal { error: error.into(), contention: None }),
        }
    }

    /// Carries out all requests in one call: at most 1000. They are committed together, or not at all. The answers are
    /// in the order of the requests. After a conflict the call is tried again.
    ///
    /// If the future is dropped, the outcome is unknown.
    ///
    /// # Errors
    /// Those of [`Client::transaction`]. [`ErrorKind::Committed`]: the transaction is committed, but its answer, with
    /// the items of the writes, was lost.
    pub async fn transact<R: Into<Request>>(
        &self,
        requests: impl IntoIterator<Item = R>,
    ) -> Result<Vec<Option<Item>>, Error> {
        self.transact_with(&TransactionOptions::default(), requests).await
    }

    /// Carries out all requests in one call, with other settings than the defaults. There is no body, and nothing to
    /// keep alive.
    ///
    /// # Errors
    /// As [`Client::transact`].
    pub async fn transact_with<R: Into<Request>>(
        &self,
        options: &TransactionOptions,
        requests: impl IntoIterator<Item = R>,
    ) -> Result<Vec<Option<Item>>, Error> {
        self.check_open()?;
        let entries: Vec<Entry> =
            requests.into_iter().map(|request| request.into().entry()).collect::<Result<_, _>>()?;
        let mut tries = Tries::new(options);
        let (mut id, mut gave_way) = (options.id.clone().unwrap_or_else(fresh_uuid), false);
        let mut before: Option<String> = None;
        loop {
            let request = BeginRequest {
                transaction_id: Some(id.clone()),
                retry_of: before.clone(),
                requests: Some(entries.clone()),
                commit: Some(true),
                return_consumed_capacity: wanted(options.capacity.as_ref()),
            };
            let error = match self.call_transaction::<_, BeginResponse>(&id, operation::BEGIN.path, &request).await {
                Ok(response) => {
                    if let Some(meter) = &options.capacity {
                        meter.add(response.consumed_capacity);
                    }
                    return Ok(response.answers.unwrap_or_default().into_iter().map(|answer| answer.item).collect());
                }
                Err(error) => error,
            };
            match error.kind() {
                // The answer was to a repeat. An abandoned first try may have been carried out, or may yet be. Only the
                // same id prevents a second effect.
                ErrorKind::Contended { .. } => gave_way = true,
                // The rollback is certain.
                ErrorKind::RolledBack => {
                    let next = id_after(&id)?;
                    before = Some(std::mem::replace(&mut id, next));
                    if std::mem::take(&mut gave_way) {
                        continue;
                    }
                }
                _ => return Err(error),
            }
            if !tries.again(&error).await {
                return Err(error);
            }
        }
    }
}

/// The reason why an attempt failed.
struct Refusal<E> {
    error: E,
    /// The conflict, if another attempt may get past it.
    contention: Option<Error>,
}

impl<E: From<Error>> Refusal<E> {
    fn of(error: Error) -> Self {
        let contention = error.is_contention().then(|| error.clone());
        Self { error: error.into(), contention }
    }
}

/// The remaining tries, and their end.
struct Tries {
    left: u32,
    until: Instant,
    backoff: Backoff,
}

impl Tries {
    fn new(options: &TransactionOptions) -> Self {
        Self { left: options.tries, until: deadline(options.deadline), backoff: Backoff::default() }
    }

    /// Waits for the next try. Returns false if there is none.
    async fn again(&mut self, error: &Error) -> bool {
        self.left = self.left.saturating_sub(1);
        let pause = self.backoff.pause(error);
        if self.left == 0 || deadline(pause) >= self.until {
            return false;
        }
        sleep(pause).await;
        true
    }
}
