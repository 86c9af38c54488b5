//! The routes of a service: its operations in the table, each bound to the method that carries it out.

use std::fmt;
use std::pin::Pin;

use leasehold_wire::operation::{self, Operation, Subject, Typed};
use leasehold_wire::{Problem, ProblemType};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::access::Caller;
use crate::traced::{operation_span, traced};
use crate::{Service, TransactionService, parse};

/// The maximum size of an answer about transactions. A Lambda function's answer has at most 6 MB, and contains the
/// document with its quotes escaped.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// A service with routes.
pub trait Routed: Clone + Send + Sync + 'static {
    /// All operations of the service.
    const ROUTES: &'static [Route<Self>];
}

/// One operation of a service: its entry in the table, and its implementation.
pub struct Route<S: 'static> {
    /// The entry in the table.
    pub operation: &'static Operation,
    carry_out: for<'a> fn(&'a S, &'a Caller, Input<'a>) -> Answer<'a>,
}

/// The answer of an operation: a JSON document. Boxed, so that this crate compiles the protocols down to the SDK: a
/// future that is not boxed is compiled again in each crate that polls it.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Box<RawValue>, Problem>> + Send + 'a>>;

impl<S: 'static> Route<S> {
    /// The operation with its implementation.
    pub const fn new(
        operation: &'static Operation,
        carry_out: for<'a> fn(&'a S, &'a Caller, Input<'a>) -> Answer<'a>,
    ) -> Self {
        Self { operation, carry_out }
    }

    /// Admits a caller that has the right which the operation needs.
    ///
    /// # Errors
    /// `forbidden`
    pub fn admit(&'static self, caller: Caller) -> Result<Admitted<S>, Problem> {
        caller.check_scope(self.operation)?;
        Ok(Admitted { route: self, caller })
    }
}

impl<S: 'static> fmt::Debug for Route<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation.name)
    }
}

/// An operation, for a caller that may use it.
#[derive(Debug)]
pub struct Admitted<S: 'static> {
    route: &'static Route<S>,
    caller: Caller,
}

impl<S: 'static> Admitted<S> {
    /// The entry in the table.
    pub fn operation(&self) -> &'static Operation {
        self.route.operation
    }

    /// Carries out the operation.
    ///
    /// # Errors
    /// The refusals of the operation.
    pub async fn carry_out(&self, service: &S, input: Input<'_>) -> Result<Box<RawValue>, Problem> {
        (self.route.carry_out)(service, &self.caller, input).await
    }
}

/// The source of the fields of a request.
#[derive(Debug)]
pub enum Input<'a> {
    /// A body.
    Body(&'a [u8]),
    /// A query string, still encoded.
    Query(&'a str),
    /// The members of a JSON object, without the `action`.
    Members(Map<String, Value>),
}

/// Reads the request of this operation.
fn request<Q: DeserializeOwned, A>(_: &Typed<Q, A>, input: Input<'_>) -> Result<Q, Problem> {
    match input {
        Input::Body(body) => parse::json(body),
        Input::Query(query) => parse::query(query),
        Input::Members(members) => parse::object(members),
    }
}

/// Returns the answer of this operation as a JSON document.
fn answer<Q, A: Serialize>(operation: &Typed<Q, A>, answer: &A) -> Result<Box<RawValue>, Problem> {
    let document = document(answer);
    let bytes = document.get().len();
    if operation.subject == Subject::Transaction && bytes > MAX_ANSWER_BYTES {
        let detail = format!(
            "The request was carried out, but its answer has {bytes} bytes, and at most {MAX_ANSWER_BYTES} are allowed. Ask for \
             fewer items at a time, or for less of each."
        );
        return Err(Problem::new(ProblemType::TooLarge, detail));
    }
    Ok(document)
}

/// Returns an answer as a JSON document.
pub fn document(answer: &impl Serialize) -> Box<RawValue> {
    // The serialisation of strings, numbers and maps with string keys cannot fail.
    to_raw_value(answer).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Returns the refusal of an operation that needs transactions, where the locks are in several regions.
pub fn no_transactions(operation: &Operation) -> Problem {
    let instead = match operation.subject {
        Subject::Transaction => "",
        Subject::Lock | Subject::Semaphore => " Acquire the keys one after another, everywhere in the same order.",
    };
    let name = operation.name;
    let detail = format!(
        "This service has no {name}: its locks are in several regions, where there are no transactions.{instead}"
    );
    Problem::new(ProblemType::InvalidRequest, detail)
}

/// Refuses an operation that needs transactions before anything else, where the locks are in several regions.
async fn check_regions(is_multi_region: bool, operation: &Operation, caller: &Caller) -> Result<(), Problem> {
    if !(is_multi_region && operation.needs_transactions()) {
        return Ok(());
    }
    traced(operation_span(operation.name, "", caller), async { Err(no_transactions(operation)) }).await
}

/// Binds operations to the methods that carry them out. The types of both must agree.
macro_rules! routes {
    (|$service:ident: &$type:ty, $caller:ident, $request:ident| { $($name:ident => $work:expr,)+ }) => {
        impl Routed for $type {
            const ROUTES: &'static [Route<Self>] = &[$(Route::new(operation::$name.operation(), |$service, $caller, input| {
                Box::pin(async move {
                    check_regions($service.is_multi_region, &operation::$name, $caller).await?;
                    let $request = request(&operation::$name, input)?;
                    answer(&operation::$name, &$work.await?)
                })
            })),+];
        }
    };
}

routes!(|service: &Service, caller, request| {
    ACQUIRE => service.acquire(caller, request),
    ACQUIRE_ALL => service.acquire_all(caller, request),
    HEARTBEAT => service.heartbeat(caller, request),
    RELEASE => service.release(caller, request),
    WANT => service.want(caller, request),
    BREAK => service.break_lock(caller, request),
    OCCURRENCE => service.set_occurrence(caller, request),
    GET => service.get(caller, request),
    WATCH => service.watch(caller, request),
    LIST => service.list(caller, request),
    HISTORY => service.history(caller, request),
    HEALTH => service.health(caller, request),
    SEMAPHORE_ACQUIRE => service.acquire_permits(caller, request),
    SEMAPHORE_HEARTBEAT => service.heartbeat_permits(caller, request),
    SEMAPHORE_RELEASE => service.release_permits(caller, request),
    SEMAPHORE_BREAK => service.break_entry(caller, request),
    SEMAPHORE_ENQUEUE => service.enqueue(caller, request),
    SEMAPHORE_CAPACITY => service.set_capacity(caller, request),
    SEMAPHORE_GET => service.get_semaphore(caller, request),
});

routes!(|service: &TransactionService, caller, request| {
    BEGIN => service.begin(request),
    ADD => service.add(request),
    COMMIT => service.commit(request),
    ROLLBACK => service.rollback(request),
    GET_TRANSACTION => service.get(request),
    GET_ITEMS => service.get_items(request),
    LIST_ITEMS => service.list_items(request),
    SWEEP => service.sweep(request),
    LIST_TRANSACTIONS => service.list(request),
    STRAYS => service.strays(request),
    UNLOCK => service.unlock(request),
});
