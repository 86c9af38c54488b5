//! Running a body until its transaction is committed. Rules T2, T4 and T7.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use leasehold_wire::path;
use leasehold_wire::transactions::{BeginRequest, BeginResponse, Entry, Item};

use super::{Request, Transaction, TransactionOptions};
use crate::clock::{Instant, deadline, fresh_uuid, sleep};
use crate::remote::Backoff;
use crate::{Client, Error, ErrorKind};

impl Client {
    /// Runs `body` in a transaction, and commits it. If `body` returns an error, all is rolled back, and the error
    /// handed on. If another transaction got in the way, all is rolled back, and `body` is run again from the start, in
    /// a new transaction: what it does beside may happen several times, what it does to items once.
    ///
    /// `body` is an async closure, or a closure that returns a future, as `|tx| async move { … }`. If the future is
    /// dropped, the transaction is rolled back in the background.
    ///
    /// # Errors
    /// Those of `body`; those of [`Transaction::add`]; after the last try, [`ErrorKind::Contended`] or
    /// [`ErrorKind::RolledBack`]. [`ErrorKind::Unavailable`] at the commit: nobody knows, and [`Error::transaction_id`]
    /// says of which.
    pub async fn transaction<T, E: From<Error>, F: Future<Output = Result<T, E>>>(
        &self,
        body: impl FnMut(Arc<Transaction>) -> F,
    ) -> Result<T, E> {
        self.transaction_with(&TransactionOptions::default(), body).await
    }

    /// The same, with other settings than the defaults.
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
        // The attempt before, whose age the next one keeps.
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
        let tx = Arc::new(Transaction::begin(self.clone(), before.take()).await.map_err(Refusal::of)?);
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
            // Nobody knows, or something is wrong with what was added. The drop decides it, as soon as it can.
            return Err(Refusal::of(error));
        }
        // A commit that was given up may still arrive. So the body runs again only when it is certain that it cannot be
        // of effect.
        match tx.send_rollback().await {
            Ok(()) => Err(Refusal::of(error)),
            Err(error) if *error.kind() == ErrorKind::Committed => Ok(value),
            Err(error) => Err(Refusal { error: error.into(), contention: None }),
        }
    }

    /// All requests in one call: at most 1000. They are committed together, or not at all. What they ask for is
    /// answered in their order. When others get in the way, it is tried again.
    ///
    /// If the future is dropped, nobody knows.
    ///
    /// # Errors
    /// Those of [`Client::transaction`]. [`ErrorKind::Committed`]: it is done, but the answer was lost, and
    /// with it what the writes were to return.
    pub async fn transact<R: Into<Request>>(
        &self,
        requests: impl IntoIterator<Item = R>,
    ) -> Result<Vec<Option<Item>>, Error> {
        self.transact_with(&TransactionOptions::default(), requests).await
    }

    /// The same, with other settings than the defaults. There is no body, and nothing to keep alive.
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
        let (mut id, mut gave_way) = (fresh_uuid(), false);
        let mut before: Option<String> = None;
        loop {
            let request = BeginRequest {
                transaction_id: Some(id.clone()),
                retry_of: before.clone(),
                requests: Some(entries.clone()),
                commit: Some(true),
            };
            let error = match self.call_transaction::<_, BeginResponse>(&id, path::BEGIN, &request).await {
                Ok(response) => {
                    return Ok(response.answers.unwrap_or_default().into_iter().map(|answer| answer.item).collect());
                }
                Err(error) => error,
            };
            match error.kind() {
                // It was said of a repeat. A first try that was given up may have got through, or may still: only the
                // same id keeps it from being done twice.
                ErrorKind::Contended { .. } => gave_way = true,
                // So this is certain.
                ErrorKind::RolledBack => {
                    before = Some(std::mem::replace(&mut id, fresh_uuid()));
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

/// Why an attempt came to nothing.
struct Refusal<E> {
    error: E,
    /// What got in the way, if another attempt may get past it.
    contention: Option<Error>,
}

impl<E: From<Error>> Refusal<E> {
    fn of(error: Error) -> Self {
        let contention = error.is_contention().then(|| error.clone());
        Self { error: error.into(), contention }
    }
}

/// How often, and until when.
struct Tries {
    left: u32,
    until: Instant,
    backoff: Backoff,
}

impl Tries {
    fn new(options: &TransactionOptions) -> Self {
        Self { left: options.tries, until: deadline(options.deadline), backoff: Backoff::default() }
    }

    /// Waits until it may be tried again; false if it may not.
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
