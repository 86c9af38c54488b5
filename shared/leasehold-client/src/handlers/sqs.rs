//! A lock for each record of an SQS event.

use std::collections::{HashMap, HashSet};
use std::error::Error as StdError;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use lambda_runtime::LambdaEvent;
use lambda_runtime::tower::{Layer, Service};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answer, Deadline, Locked, Terms, options_of_terms, ready};
use crate::clock::Instant;
use crate::{Acquisition, Client, Error, LockKey, LockRequest};

/// The longest visibility time-out of SQS.
const LONGEST_HIDDEN: Duration = Duration::from_hours(12);

/// An event of SQS.
#[derive(Debug, Clone, Deserialize)]
pub struct SqsEvent {
    /// The messages.
    #[serde(rename = "Records")]
    pub records: Vec<SqsRecord>,
}

/// A message of an event.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SqsRecord {
    /// The id, by which a batch names a message that is to come again.
    pub message_id: String,
    /// The handle of this receipt.
    pub receipt_handle: String,
    /// The content.
    pub body: String,
    /// What SQS says of the message, such as `MessageGroupId`.
    #[serde(default)]
    pub attributes: HashMap<String, String>,
    /// What the sender says of the message.
    #[serde(default)]
    pub message_attributes: Value,
    /// The ARN of the queue.
    #[serde(rename = "eventSourceARN")]
    pub event_source_arn: String,
}

/// The answer to a batch: the messages that are to come again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchResponse {
    /// The messages.
    pub batch_item_failures: Vec<BatchItemFailure>,
}

/// A message that is to come again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchItemFailure {
    /// The id of the message.
    pub item_identifier: String,
}

/// A message to hide: the arguments of `ChangeMessageVisibility`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hide {
    /// The URL of the queue.
    pub queue_url: String,
    /// The handle of the receipt.
    pub receipt_handle: String,
    /// The visibility time-out in seconds: until the lock may be free, 12 h at the most.
    pub seconds: u32,
}

/// Runs a handler for each record of an SQS event, under a lock of its own. The handler gets a [`Locked`] record.
///
/// A record whose lock is held comes again when the lock may be free: `hide` sets its visibility, and the others go on.
/// A record whose handler fails, or for which no time is left, comes again too, and in a FIFO queue so do the later
/// ones of its group. Set `ReportBatchItemFailures` on the event source mapping.
pub struct SqsLayer<F, H> {
    terms: Terms,
    needs: Duration,
    key: Arc<F>,
    hide: Arc<H>,
}

impl<F, H> SqsLayer<F, H> {
    /// Creates a layer whose key is a function of the record. `hide` calls `ChangeMessageVisibility`.
    pub fn new<K, A>(client: Client, key: F, hide: H) -> Self
    where
        F: Fn(&SqsRecord) -> K,
        H: Fn(Hide) -> A,
    {
        Self { terms: Terms::new(client), needs: Duration::ZERO, key: Arc::new(key), hide: Arc::new(hide) }
    }

    options_of_terms!();

    /// Sets the time that a record's work needs, any duration: a record without it comes again. Default: none.
    #[must_use]
    pub fn work_needs(mut self, needs: Duration) -> Self {
        self.needs = needs;
        self
    }
}

/// The service of an [`SqsLayer`].
pub struct SqsService<S, F, H> {
    inner: S,
    terms: Terms,
    needs: Duration,
    key: Arc<F>,
    hide: Arc<H>,
}

impl<S, F, H> Layer<S> for SqsLayer<F, H> {
    type Service = SqsService<S, F, H>;

    fn layer(&self, inner: S) -> Self::Service {
        let (terms, key, hide) = (self.terms.clone(), Arc::clone(&self.key), Arc::clone(&self.hide));
        SqsService { inner, terms, needs: self.needs, key, hide }
    }
}

impl<S, F, H, K, A, D> Service<LambdaEvent<SqsEvent>> for SqsService<S, F, H>
where
    S: Service<Locked<SqsRecord>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: From<Error> + std::fmt::Display + Send,
    S::Response: Send,
    F: Fn(&SqsRecord) -> K + Send + Sync + 'static,
    K: Into<LockKey>,
    H: Fn(Hide) -> A + Send + Sync + 'static,
    A: Future<Output = Result<D, Box<dyn StdError + Send + Sync>>> + Send,
    D: Send,
{
    type Response = BatchResponse;
    type Error = S::Error;
    type Future = Answer<BatchResponse, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, event: LambdaEvent<SqsEvent>) -> Self::Future {
        let mut inner = ready(&mut self.inner);
        let (terms, needs) = (self.terms.clone(), self.needs);
        let (key, hide) = (Arc::clone(&self.key), Arc::clone(&self.hide));
        let deadline = terms.deadline(&event);
        Box::pin(async move {
            let mut response = BatchResponse::default();
            // Groups of a FIFO queue, whose later records must wait.
            let mut stopped = HashSet::new();
            for record in event.payload.records {
                let group = record.attributes.get("MessageGroupId").cloned();
                let id = record.message_id.clone();
                let waits = group.as_ref().is_some_and(|group| stopped.contains(group));
                let has_time = deadline.stops().saturating_duration_since(Instant::now()) > needs;
                let record = LambdaEvent::new(record, event.context.clone());
                let is_done = !waits && has_time && {
                    let key = key(&record.payload).into();
                    match one(&mut inner, &terms, deadline, key, record, &*hide).await {
                        Ok(is_done) => is_done,
                        Err(error) => {
                            tracing::warn!(%id, %error, "a record failed, and comes again");
                            false
                        }
                    }
                };
                if !is_done {
                    stopped.extend(group);
                    response.batch_item_failures.push(BatchItemFailure { item_identifier: id });
                }
            }
            Ok(response)
        })
    }
}

/// Runs the handler for one record. Returns whether the record is done.
async fn one<S, H, A, D>(
    inner: &mut S,
    terms: &Terms,
    deadline: Deadline,
    key: LockKey,
    event: LambdaEvent<SqsRecord>,
    hide: &H,
) -> Result<bool, S::Error>
where
    S: Service<Locked<SqsRecord>>,
    S::Error: From<Error>,
    H: Fn(Hide) -> A,
    A: Future<Output = Result<D, Box<dyn StdError + Send + Sync>>>,
{
    match terms.ask(LockRequest::new(key), deadline).await? {
        Acquisition::Granted(guard) => {
            let guard = terms.of_invocation(guard, deadline);
            let work = async {
                poll_fn(|cx| inner.poll_ready(cx)).await?;
                inner.call(Locked { event, guard: Arc::clone(&guard) }).await
            };
            let result = terms.until_the_deadline(&guard, deadline, work).await;
            deadline.give_back_quietly(&guard).await;
            result.map(|_| true)
        }
        Acquisition::Held(held) => {
            let record = event.payload;
            let lease = Duration::from_millis(held.lock.lease_duration_ms).min(LONGEST_HIDDEN);
            let seconds = u32::try_from(lease.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
            let message =
                Hide { queue_url: queue_url(&record.event_source_arn), receipt_handle: record.receipt_handle, seconds };
            if let Err(error) = hide(message).await {
                // The record comes again after the queue's own time.
                tracing::warn!(id = %record.message_id, %error, "the visibility of a record could not be changed");
            }
            Ok(false)
        }
    }
}

/// The URL of a queue with this ARN.
fn queue_url(arn: &str) -> String {
    let parts: Vec<_> = arn.split(':').collect();
    let [_, partition, _, region, account, queue] = parts[..] else { return arn.to_owned() };
    let domain = if partition == "aws-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://sqs.{region}.{domain}/{account}/{queue}")
}
