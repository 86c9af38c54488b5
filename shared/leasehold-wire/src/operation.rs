//! The table of the operations. An operation is written down here, once.
//!
//! Both HTTP fronts, direct invocations, authorization, the OpenAPI document, the functions' permissions, the stacks
//! and the clients' lists are made from this table, or a test compares them with it.

use std::marker::PhantomData;
use std::ops::Deref;

use crate::ProblemType::{
    self, AlreadyDone, Committed, ConditionFailed, Contended, CorruptRecord, ExceedsCapacity, Forbidden, Held,
    InvalidRequest, Lost, MethodNotAllowed, Misconfigured, NotFound, PermitsMismatch, QueueFull, RolledBack,
    Superseded, Throttled, TooLarge, TransactionNotFound, Unavailable, UnsupportedMediaType, VersionMismatch,
    WrongKind,
};
#[cfg(feature = "openapi")]
use crate::openapi::schema;
use crate::semaphore::{
    AcquirePermitsRequest, AcquirePermitsResponse, BreakEntryRequest, CapacityRequest, CapacityResponse, EnqueueAnswer,
    EnqueueRequest, HeartbeatPermitsRequest, HeartbeatPermitsResponse, ReleasePermitsRequest,
};
use crate::transactions::{
    AddRequest, AddResponse, BeginRequest, BeginResponse, CommitRequest, CommitResponse, EndRequest, EndResponse,
    GetItemsRequest, GetItemsResponse, GetTransactionRequest, ListItemsRequest, ListItemsResponse,
    ListTransactionsRequest, ListTransactionsResponse, StraysRequest, StraysResponse, SweepRequest, SweepResponse,
    Transaction, UnlockRequest, UnlockResponse,
};
use crate::{
    AcquireAllRequest, AcquireAllResponse, AcquireRequest, AcquireResponse, BreakRequest, GetRequest, HealthRequest,
    HealthResponse, HeartbeatRequest, HeartbeatResponse, HistoryRequest, HistoryResponse, ListRequest, ListResponse,
    Lock, OccurrenceRequest, OccurrenceResponse, ReleaseRequest, ReleaseResponse, WantRequest, WantResponse,
    WatchRequest,
};

/// One operation.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// The name in the log and in the metrics, and the `action` of a direct invocation.
    pub name: &'static str,
    /// The name in the OpenAPI document.
    pub id: &'static str,
    /// The description.
    pub summary: &'static str,
    /// The HTTP method.
    pub method: Method,
    /// The path. It never contains a key: gateways decode paths before they pass them on.
    pub path: &'static str,
    /// Whether direct invocations have the operation.
    pub is_direct: bool,
    /// The subject.
    pub subject: Subject,
    /// The family, by privilege and urgency.
    pub family: Family,
    /// The right that a caller needs. An operation without a scope refuses everybody.
    pub scope: Option<Scope>,
    /// The load that one request is for a server.
    pub load: Load,
    /// The actions that the operation uses, as in the role of its function.
    pub dynamodb: &'static [&'static str],
    /// The description of success.
    pub success: &'static str,
    /// The refusals, in groups, without those that follow from the method and from the scope.
    pub refusals: &'static [&'static [Refusal]],
    /// The schemas of request and answer.
    #[cfg(feature = "openapi")]
    pub(crate) schemas: (schema::Input, schema::Body),
}

impl Operation {
    /// Returns the handler of the Lambda function that serves the operation over HTTP: that of its family, or that of
    /// the operations that wait.
    pub fn function(&self) -> &'static str {
        match self.load {
            Load::Waiting => "watch",
            Load::Small | Load::Bulky => self.family.function(),
        }
    }

    /// Returns the `action` of a direct invocation, where the operation has one.
    pub fn action(&self) -> Option<&'static str> {
        self.is_direct.then_some(self.name)
    }

    /// Returns all refusals: those of the row, and those that follow from the scope, from the method, and from
    /// DynamoDB.
    pub fn all_refusals(&self) -> impl Iterator<Item = &'static Refusal> {
        let scope = (self.scope == Some(Scope::Keys)).then_some(&OUT_OF_SCOPE);
        let body = (self.method == Method::Post).then_some(BODY).into_iter().flatten();
        self.refusals.iter().copied().flatten().chain(scope).chain(body).chain(FAILURES)
    }

    /// Returns the largest body that is read, in bytes.
    pub fn max_body_bytes(&self) -> usize {
        match self.subject {
            // The largest payload takes 1.5 MB when each of its bytes needs an escape.
            Subject::Lock => 2 * 1024 * 1024,
            // The longest key, names and observed entries take less than a tenth of this.
            Subject::Semaphore => 128 * 1024,
            // An event of a Lambda function has at most 6 MB, and contains the body with its quotes escaped. Larger
            // transactions use several adds.
            Subject::Transaction => 4 * 1024 * 1024,
        }
    }

    /// Returns whether the operation needs transactions of DynamoDB, which a table in several regions does not have.
    pub fn needs_transactions(&self) -> bool {
        self.subject == Subject::Transaction || self.name == ACQUIRE_ALL.name
    }

    /// Returns whether a request may have expressions of its caller. In transactions, only what ends one or looks at
    /// it has none.
    pub fn takes_expressions(&self) -> bool {
        let without = [COMMIT.name, ROLLBACK.name, GET_TRANSACTION.name];
        self.family == Family::Transact && !without.contains(&self.name)
    }
}

/// The HTTP method of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The request is the query.
    Get,
    /// The request is the body.
    Post,
}

impl Method {
    /// Returns the name of the method.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }
}

/// The subject of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Locks, and the rows of a lock table as such.
    Lock,
    /// Semaphores.
    Semaphore,
    /// Transactions, and items of users' tables.
    Transaction,
}

/// The families of operations, by privilege and urgency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// A holder keeps what it has, or releases it. A holder that cannot renew loses its lock.
    Hold,
    /// A caller asks for a lock, or waits for it.
    Ask,
    /// A caller reads.
    Read,
    /// An operator intervenes.
    Operate,
    /// A caller uses transactions.
    Transact,
    /// An operator looks after transactions.
    Sweep,
    /// A state machine, or another caller inside the account, has a function carry out operations.
    Invoke,
}

impl Family {
    /// Returns the handler of the family's Lambda function.
    pub fn function(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Ask => "ask",
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Transact => "transact",
            Self::Sweep => "sweep",
            Self::Invoke => "invoke",
        }
    }
}

/// The right that an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// None: probes come from machines that have no credentials.
    Anyone,
    /// The keys that the request names, or that the answer shows.
    Keys,
    /// Transactions, which reach the tables of items.
    Transactions,
}

/// The load that one request is for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Some calls of DynamoDB, and a small answer.
    Small,
    /// An answer that may have megabytes.
    Bulky,
    /// A wait, next to no work.
    Waiting,
}

/// A refusal, of one or several kinds.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// The kinds, of one HTTP status.
    pub kinds: &'static [ProblemType],
    /// The description.
    pub detail: &'static str,
}

const fn refusal(kinds: &'static [ProblemType], detail: &'static str) -> Refusal {
    Refusal { kinds, detail }
}

/// An operation with the types of its request and its answer.
#[derive(Debug)]
pub struct Typed<Q, A> {
    operation: Operation,
    types: PhantomData<fn(Q) -> A>,
}

impl<Q, A> Typed<Q, A> {
    /// Returns the operation.
    pub const fn operation(&'static self) -> &'static Operation {
        &self.operation
    }
}

impl<Q, A> Deref for Typed<Q, A> {
    type Target = Operation;

    fn deref(&self) -> &Operation {
        &self.operation
    }
}

/// Finds the schema of a request.
#[cfg(feature = "openapi")]
macro_rules! input {
    (Get $request:ty) => {
        schema::Input::Query(schema::query::<$request>)
    };
    (Post $request:ty) => {
        schema::Input::Body(schema::body::<$request>())
    };
}

/// Declares the operations, and the list of them all.
macro_rules! operations {
    ($($(#[doc = $doc:literal])+ $name:ident: $method:ident($request:ty) -> $answer:ty { $($fields:tt)+ })+) => {
        $(
            $(#[doc = $doc])+
            pub static $name: Typed<$request, $answer> = Typed {
                operation: Operation {
                    method: Method::$method,
                    summary: concat!($($doc, "\n"),+),
                    #[cfg(feature = "openapi")]
                    schemas: (input!($method $request), schema::body::<$answer>()),
                    $($fields)+
                },
                types: PhantomData,
            };
        )+

        /// All operations.
        pub static OPERATIONS: &[&Operation] = &[$(&$name.operation),+];
    };
}

/// The refusals that any operation may answer.
const FAILURES: &[Refusal] = &[
    refusal(&[InvalidRequest], "the request breaks a rule of this API. `field` names the field at fault."),
    refusal(&[MethodNotAllowed], "this path takes another method, which `Allow` names."),
    refusal(
        &[Throttled],
        "slow down, and try again with the same lease id or transaction id. `Retry-After` says when.",
    ),
    refusal(&[CorruptRecord], "the row is not a readable record of this service; an operator must look at it."),
    refusal(&[Misconfigured], "the service cannot work with its table, and its operator must act."),
    refusal(
        &[Unavailable],
        "the outcome of the request is unknown; try again with the same lease id or transaction id. \
                 `Retry-After` says when.",
    ),
];

/// The refusal that follows from the scope of keys.
const OUT_OF_SCOPE: Refusal = refusal(
    &[Forbidden],
    "the caller may not touch this key, or the lock is bound to another principal. (A gateway that refuses the \
             credentials answers 401 or 403 as well, with a document of its own.)",
);

/// The refusals that follow from a body.
const BODY: &[Refusal] = &[
    refusal(
        &[TooLarge],
        "the payload is over 256 KiB, or the body over 2 MiB (4 MiB for transactions), or the row or the answer \
                 exceeds the limits of DynamoDB or of the service.",
    ),
    refusal(&[UnsupportedMediaType], "the body is not declared as JSON."),
];

/// A function without a route of the table: it carries out operations of the table for events, for direct invocations,
/// and for requests of another protocol.
#[derive(Debug, Clone, Copy)]
pub struct Unrouted {
    /// The handler of the Lambda function.
    pub function: &'static str,
    /// The family.
    pub family: Family,
    /// The operations that the function carries out.
    pub operations: &'static [&'static Operation],
    /// The actions that it uses beside those of its operations.
    pub dynamodb: &'static [&'static str],
}

impl Unrouted {
    /// Whether the function carries out this operation.
    pub fn carries_out(&self, operation: &Operation) -> bool {
        self.operations.iter().any(|own| own.name == operation.name)
    }
}

/// Direct invocations of the operations on locks and semaphores, such as those of `run-under-lock`.
pub static INVOKE: Unrouted = Unrouted {
    function: "invoke",
    family: Family::Invoke,
    operations: &[
        &ACQUIRE.operation,
        &ACQUIRE_ALL.operation,
        &HEARTBEAT.operation,
        &RELEASE.operation,
        &WANT.operation,
        &BREAK.operation,
        &OCCURRENCE.operation,
        &GET.operation,
        &SEMAPHORE_ACQUIRE.operation,
        &SEMAPHORE_HEARTBEAT.operation,
        &SEMAPHORE_RELEASE.operation,
        &SEMAPHORE_BREAK.operation,
        &SEMAPHORE_ENQUEUE.operation,
        &SEMAPHORE_CAPACITY.operation,
        &SEMAPHORE_GET.operation,
    ],
    dynamodb: &[],
};

/// The clean-up after an execution that ended without a release.
pub static CLEANUP: Unrouted = Unrouted {
    function: "cleanup",
    family: Family::Invoke,
    operations: &[&GET.operation, &RELEASE.operation, &SEMAPHORE_GET.operation, &SEMAPHORE_RELEASE.operation],
    dynamodb: &[],
};

/// The history of the locks, from the stream of their table. It carries out no operation.
pub static RECORD: Unrouted = Unrouted {
    function: "record",
    family: Family::Read,
    operations: &[],
    // Lambda reads the stream under the function's role.
    dynamodb: &[
        "BatchWriteItem on history",
        "DescribeStream on locks/stream",
        "GetRecords on locks/stream",
        "GetShardIterator on locks/stream",
        "ListStreams on \"*\"",
    ],
};

/// Terraform's states, in the protocol of its `http` backend, which has paths and methods of its own.
pub static TERRAFORM: Unrouted = Unrouted {
    function: "terraform",
    family: Family::Operate,
    operations: &[&ACQUIRE.operation, &HEARTBEAT.operation, &RELEASE.operation, &BREAK.operation, &GET.operation],
    dynamodb: &[],
};

/// The removal of expired rows, where the table is in several regions and so has no TTL. It carries out no operation.
pub static EXPIRE: Unrouted = Unrouted {
    function: "expire",
    family: Family::Sweep,
    operations: &[],
    dynamodb: &["DeleteItem on locks", "Scan on locks"],
};

/// The action of each function of the locks when it starts: it looks at the regions of its table.
pub const AT_THE_START: &str = "DescribeTable on locks";

/// All functions without a route of the table.
pub static UNROUTED: &[&Unrouted] = &[&INVOKE, &CLEANUP, &RECORD, &EXPIRE, &TERRAFORM];

/// One write of a row of the lock table.
const WRITE: &[&str] = &["UpdateItem on locks"];
/// One read of a row of the lock table.
const READ: &[&str] = &["GetItem on locks"];

/// The refusal of an operation on a lock.
const ONLY_LOCKS: Refusal = refusal(&[WrongKind], "the key belongs to a semaphore.");
/// The refusal of an operator's change of a lock.
const OUTDATED: Refusal = refusal(&[VersionMismatch], "the lock changed since the operator looked.");
/// The refusal of an operation on a semaphore.
const ONLY_SEMAPHORES: Refusal = refusal(&[WrongKind], "the key belongs to a lock.");
/// The refusals of a member of a semaphore.
const MEMBER: &[Refusal] = &[
    refusal(&[Lost], "the lease id has no permits; `reason` says why. `lock` shows the semaphore."),
    refusal(
        &[Superseded],
        "a later request under this lease id was carried out, and `sequence` is the number to exceed.",
    ),
    refusal(&[PermitsMismatch], "the lease id has another number of permits."),
];
/// The refusals of a request for permits.
const ASKER: &[Refusal] = &[refusal(&[ExceedsCapacity], "the semaphore has fewer permits in all."), ONLY_SEMAPHORES];
/// The refusals of a semaphore's operator.
const OPERATOR: &[Refusal] = &[
    refusal(&[VersionMismatch], "the semaphore changed since the operator looked; `lock` shows it."),
    ONLY_SEMAPHORES,
];
/// The refusal of a read of a semaphore that is not there.
const NO_SEMAPHORE: Refusal = refusal(&[NotFound], "there is no semaphore of this key.");
/// The refusals of an addition to a transaction.
const ENLIST: &[Refusal] = &[
    refusal(&[Contended], "another transaction, `publicId`, has an item; try again."),
    refusal(
        &[ConditionFailed],
        "the condition of `requests[request]` does not hold, and the transaction was rolled back.",
    ),
];
/// The refusals of an operation on items of users.
const TABLES: &[Refusal] = &[refusal(&[Forbidden], "the service may not use the table.")];
/// The refusals of an operation on a transaction that should be there.
const LOOK_UP: &[Refusal] =
    &[refusal(&[TransactionNotFound], "the transaction was never begun, or ended so long ago that it was removed.")];

operations! {
    /// Acquires a lock.
    ACQUIRE: Post(AcquireRequest) -> AcquireResponse {
        name: "acquire",
        id: "acquire",
        path: "/v1/acquire",
        is_direct: true,
        subject: Subject::Lock,
        family: Family::Ask,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The caller holds the lock.",
        refusals: &[&[
            refusal(&[NotFound], "there is no row, and `onlyIfExists` was given."),
            refusal(&[Lost], "the acquisition of this lease id has ended."),
            refusal(
                &[Superseded],
                "a later request under this lease id was carried out, and this one changed nothing; the \
                 caller still has the lock.",
            ),
            refusal(
                &[AlreadyDone],
                "the occurrence, or a later one, was completed; the data of `lock` is the result.",
            ),
            refusal(
                &[Held],
                "another caller holds the lock. `lock` says who, for how long, and which version to observe.",
            ),
            ONLY_LOCKS,
        ]],
    }

    /// Acquires several keys, all or none, in one transaction of DynamoDB: locks, and permits of semaphores. All have
    /// one fencing token. Heartbeats and releases name one key each, under the one lease id. A request waits in no
    /// queue: while somebody waits for one of the semaphores, it is refused.
    ACQUIRE_ALL: Post(AcquireAllRequest) -> AcquireAllResponse {
        name: "acquire-all",
        id: "acquire_all",
        path: "/v1/acquire-all",
        is_direct: true,
        subject: Subject::Lock,
        family: Family::Ask,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The caller holds all keys.",
        refusals: &[&[
            refusal(
                &[Lost],
                "the lease id holds some of the keys and not those in `locks`, or its acquisition of those \
                 has ended, or it waits in their queues.",
            ),
            refusal(
                &[Superseded],
                "a later request under this lease id was carried out, and this one changed nothing; the \
                 caller still has the keys.",
            ),
            refusal(
                &[Held],
                "other callers hold some of the locks, or permits that are missing, or wait for them. `locks` says \
                 which keys, who, for how long, and which versions to observe.",
            ),
            refusal(
                &[WrongKind],
                "a key without `capacity` belongs to a semaphore, or one with `capacity` to a lock; `locks` names it.",
            ),
            refusal(&[ExceedsCapacity], "a semaphore has fewer permits in all; `locks` shows it."),
            refusal(
                &[PermitsMismatch],
                "the lease id holds all keys, and another number of permits; `locks` shows the semaphore.",
            ),
        ]],
    }

    /// Renews a lease.
    HEARTBEAT: Post(HeartbeatRequest) -> HeartbeatResponse {
        name: "heartbeat",
        id: "heartbeat",
        path: "/v1/heartbeat",
        is_direct: true,
        subject: Subject::Lock,
        family: Family::Hold,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The lease starts anew.",
        refusals: &[&[
            refusal(&[Lost], "the lock is not the caller's. `reason` says why, and `lock` shows its state."),
            refusal(
                &[Superseded],
                "a later request under this lease id was carried out, and this one changed nothing. The \
                 caller still holds the lock; `sequence` is the number to exceed.",
            ),
            ONLY_LOCKS,
        ]],
    }

    /// Releases a lock. May be repeated.
    RELEASE: Post(ReleaseRequest) -> ReleaseResponse {
        name: "release",
        id: "release",
        path: "/v1/release",
        is_direct: true,
        subject: Subject::Lock,
        family: Family::Hold,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "Nobody holds the lock under this lease id any more.",
        refusals: &[&[
            refusal(&[Lost], "the lock is not the caller's. `reason` says why, and `lock` shows its state."),
            ONLY_LOCKS,
        ]],
    }

    /// Marks a held lock, so that its holder learns that somebody waits. The mark is a hint: it changes no lease and no
    /// record version number.
    WANT: Post(WantRequest) -> WantResponse {
        name: "want",
        id: "want",
        path: "/v1/want",
        is_direct: true,
        subject: Subject::Lock,
        family: Family::Ask,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The lock carries a mark, or needs none.",
        refusals: &[&[
            ONLY_LOCKS,
        ]],
    }

    /// Takes a lock from its holder, as an operator.
    BREAK: Post(BreakRequest) -> ReleaseResponse {
        name: "break",
        id: "break",
        path: "/v1/break",
        is_direct: true,
        subject: Subject::Lock,
        family: Family::Operate,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The lock has no holder.",
        refusals: &[&[
            OUTDATED,
            ONLY_LOCKS,
        ]],
    }

    /// Sets which occurrence counts as the last one that is done, as an operator. A job whose last occurrence is far in
    /// the future runs again after it.
    OCCURRENCE: Post(OccurrenceRequest) -> OccurrenceResponse {
        name: "occurrence",
        id: "occurrence",
        path: "/v1/occurrence",
        is_direct: true,
        subject: Subject::Lock,
        family: Family::Operate,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The lock records the occurrence as the last one that is done.",
        refusals: &[&[
            OUTDATED,
            ONLY_LOCKS,
            refusal(&[Held], "the lock has a holder, whose run may still complete an occurrence: break it first."),
        ]],
    }

    /// Reads one lock, strongly consistent.
    GET: Get(GetRequest) -> Lock {
        name: "get",
        id: "get",
        path: "/v1/lock",
        is_direct: true,
        subject: Subject::Lock,
        family: Family::Read,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: READ,
        success: "The lock as it is.",
        refusals: &[&[
            refusal(&[NotFound], "there is no lock of this key, or it was deleted."),
            ONLY_LOCKS,
        ]],
    }

    /// Waits until a lock changes: its record version number is no longer `version`, or it is released. The answer is a
    /// hint, which may come late or without a change; the next write decides. After `waitMs` the answer is the lock as
    /// it is.
    WATCH: Get(WatchRequest) -> Lock {
        name: "watch",
        id: "watch",
        path: "/v1/watch",
        is_direct: false,
        subject: Subject::Lock,
        family: Family::Read,
        scope: Some(Scope::Keys),
        load: Load::Waiting,
        dynamodb: READ,
        success: "The lock, changed or not: its version tells.",
        refusals: &[&[
            refusal(&[NotFound], "there is no such lock, or none any more."),
            refusal(&[WrongKind], "the key belongs to a row of an unknown kind."),
        ]],
    }

    /// Lists locks.
    LIST: Get(ListRequest) -> ListResponse {
        name: "list",
        id: "list",
        path: "/v1/locks",
        is_direct: false,
        subject: Subject::Lock,
        family: Family::Read,
        scope: Some(Scope::Keys),
        load: Load::Bulky,
        dynamodb: &["Query on locks", "Scan on locks"],
        success: "One page of the locks that the caller may see.",
        refusals: &[],
    }

    /// Tells who held a lock, when, and how it ended, from the newest event on. A service that keeps no history
    /// refuses.
    HISTORY: Get(HistoryRequest) -> HistoryResponse {
        name: "history",
        id: "history",
        path: "/v1/history",
        is_direct: false,
        subject: Subject::Lock,
        family: Family::Read,
        scope: Some(Scope::Keys),
        load: Load::Bulky,
        dynamodb: &["Query on history"],
        success: "One page of the lock's history.",
        refusals: &[&[
            refusal(&[NotFound], "the service keeps no history."),
        ]],
    }

    /// Says whether the service and its table answer.
    HEALTH: Get(HealthRequest) -> HealthResponse {
        name: "health",
        id: "health",
        path: "/v1/health",
        is_direct: false,
        subject: Subject::Lock,
        family: Family::Read,
        scope: Some(Scope::Anyone),
        load: Load::Small,
        dynamodb: READ,
        success: "The service and its table answer.",
        refusals: &[],
    }

    /// Acquires permits of a semaphore.
    SEMAPHORE_ACQUIRE: Post(AcquirePermitsRequest) -> AcquirePermitsResponse {
        name: "semaphore-acquire",
        id: "acquirePermits",
        path: "/v1/semaphore/acquire",
        is_direct: true,
        subject: Subject::Semaphore,
        family: Family::Ask,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The caller has the permits.",
        refusals: &[
            &[
                refusal(&[Held], "too few permits are free, or somebody is ahead. `lock` shows the semaphore."),
            ],
            MEMBER,
            ASKER,
        ],
    }

    /// Renews the lease of a holder, and may release permits.
    SEMAPHORE_HEARTBEAT: Post(HeartbeatPermitsRequest) -> HeartbeatPermitsResponse {
        name: "semaphore-heartbeat",
        id: "heartbeatPermits",
        path: "/v1/semaphore/heartbeat",
        is_direct: true,
        subject: Subject::Semaphore,
        family: Family::Hold,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The lease of the holder starts anew.",
        refusals: &[MEMBER, &[ONLY_SEMAPHORES]],
    }

    /// Releases permits, or withdraws a ticket. May be repeated.
    SEMAPHORE_RELEASE: Post(ReleasePermitsRequest) -> ReleaseResponse {
        name: "semaphore-release",
        id: "releasePermits",
        path: "/v1/semaphore/release",
        is_direct: true,
        subject: Subject::Semaphore,
        family: Family::Hold,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The lease id has no permits and no ticket any more.",
        refusals: &[&[
            refusal(&[Lost], "the lease id has no permits and no ticket; `reason` says why. `lock` shows the semaphore."),
            ONLY_SEMAPHORES,
        ]],
    }

    /// Removes a holder or a ticket, as an operator.
    SEMAPHORE_BREAK: Post(BreakEntryRequest) -> ReleaseResponse {
        name: "semaphore-break",
        id: "breakEntry",
        path: "/v1/semaphore/break",
        is_direct: true,
        subject: Subject::Semaphore,
        family: Family::Operate,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The holder or the ticket is removed.",
        refusals: &[OPERATOR],
    }

    /// Takes a place in the queue of a semaphore, or refreshes it, and removes the observed dead.
    SEMAPHORE_ENQUEUE: Post(EnqueueRequest) -> EnqueueAnswer {
        name: "semaphore-enqueue",
        id: "enqueue",
        path: "/v1/semaphore/enqueue",
        is_direct: true,
        subject: Subject::Semaphore,
        family: Family::Ask,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The caller has a ticket, or the permits, where they were free and nobody waited.",
        refusals: &[
            &[
                refusal(&[QueueFull], "100 wait already."),
                refusal(
                    &[Held],
                    "an entry that was observed as dead shows a sign of life, or the `epoch` is too old. `lock` shows the semaphore.",
                ),
            ],
            MEMBER,
            ASKER,
        ],
    }

    /// Changes the capacity of a semaphore, as an operator.
    SEMAPHORE_CAPACITY: Post(CapacityRequest) -> CapacityResponse {
        name: "semaphore-capacity",
        id: "setCapacity",
        path: "/v1/semaphore/capacity",
        is_direct: true,
        subject: Subject::Semaphore,
        family: Family::Operate,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: WRITE,
        success: "The semaphore has the capacity that was asked for.",
        refusals: &[
            &[
                NO_SEMAPHORE,
            ],
            OPERATOR,
        ],
    }

    /// Reads one semaphore, strongly consistent.
    SEMAPHORE_GET: Get(GetRequest) -> Lock {
        name: "semaphore-get",
        id: "getSemaphore",
        path: "/v1/semaphore",
        is_direct: true,
        subject: Subject::Semaphore,
        family: Family::Read,
        scope: Some(Scope::Keys),
        load: Load::Small,
        dynamodb: READ,
        success: "The semaphore with its holders and its queue.",
        refusals: &[&[
            NO_SEMAPHORE,
            ONLY_SEMAPHORES,
        ]],
    }

    /// Opens a transaction, with or without requests, or carries out a whole transaction in one call.
    BEGIN: Post(BeginRequest) -> BeginResponse {
        name: "begin",
        id: "begin",
        path: "/v1/transactions/begin",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Transact,
        scope: Some(Scope::Transactions),
        load: Load::Small,
        dynamodb: &[
            "BatchGetItem on items",
            "ConditionCheckItem on items",
            "DeleteItem on items",
            "DescribeTable on items",
            "GetItem on items",
            "PutItem on items",
            "PutItem on transactions",
            "Query on transactions",
            "UpdateItem on items",
            "UpdateItem on transactions",
        ],
        success: "The transaction is open, or committed where that was asked for.",
        refusals: &[
            ENLIST,
            &[
                refusal(&[RolledBack, Committed], "the transaction that was named is over."),
            ],
            TABLES,
        ],
    }

    /// Adds requests to a transaction. Without requests, keeps it alive. May be repeated with its `callId`.
    ADD: Post(AddRequest) -> AddResponse {
        name: "add",
        id: "add",
        path: "/v1/transactions/add",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Transact,
        scope: Some(Scope::Transactions),
        load: Load::Small,
        dynamodb: &[
            "BatchGetItem on items",
            "DescribeTable on items",
            "GetItem on items",
            "PutItem on items",
            "Query on items",
            "Query on transactions",
            "UpdateItem on items",
            "UpdateItem on transactions",
        ],
        success: "The requests are part of the transaction.",
        refusals: &[
            ENLIST,
            &[
                refusal(&[RolledBack, Committed], "the transaction is over."),
            ],
            LOOK_UP,
            TABLES,
        ],
    }

    /// Commits all changes of a transaction. May be repeated.
    COMMIT: Post(CommitRequest) -> CommitResponse {
        name: "commit",
        id: "commit",
        path: "/v1/transactions/commit",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Transact,
        scope: Some(Scope::Transactions),
        load: Load::Small,
        dynamodb: &[
            "BatchGetItem on items",
            "GetItem on items",
            "PartiQLDelete on items",
            "PartiQLUpdate on items",
            "Query on transactions",
            "UpdateItem on items",
            "UpdateItem on transactions",
        ],
        success: "The transaction is committed: everybody sees all of its changes.",
        refusals: &[
            &[
                refusal(
                    &[RolledBack],
                    "the transaction was rolled back before, and changed nothing. `detail` says why.",
                ),
            ],
            LOOK_UP,
        ],
    }

    /// Rolls back all changes of a transaction. May be repeated.
    ROLLBACK: Post(EndRequest) -> EndResponse {
        name: "rollback",
        id: "rollback",
        path: "/v1/transactions/rollback",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Transact,
        scope: Some(Scope::Transactions),
        load: Load::Small,
        dynamodb: &[
            "BatchGetItem on items",
            "DeleteItem on items",
            "GetItem on items",
            "Query on transactions",
            "UpdateItem on items",
            "UpdateItem on transactions",
        ],
        success: "The transaction is rolled back: all of its changes are undone.",
        refusals: &[
            &[
                refusal(&[Committed], "the transaction is committed, and cannot be undone any more."),
            ],
            LOOK_UP,
        ],
    }

    /// Returns the state of a transaction, even long after its end.
    GET_TRANSACTION: Get(GetTransactionRequest) -> Transaction {
        name: "get-transaction",
        id: "transaction",
        path: "/v1/transaction",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Transact,
        scope: Some(Scope::Transactions),
        load: Load::Small,
        dynamodb: &["Query on transactions"],
        success: "The transaction, its state and its items.",
        refusals: &[LOOK_UP],
    }

    /// Reads items at an isolation level.
    GET_ITEMS: Post(GetItemsRequest) -> GetItemsResponse {
        name: "get-items",
        id: "get_items",
        path: "/v1/items/get",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Transact,
        scope: Some(Scope::Transactions),
        load: Load::Bulky,
        dynamodb: &[
            "BatchGetItem on items",
            "DescribeTable on items",
            "GetItem on items",
            "GetItem on transactions",
        ],
        success: "The items that exist, each with the attributes that were asked for.",
        refusals: &[TABLES],
    }

    /// Reads a page of a table at an isolation level: a Query or a Scan.
    LIST_ITEMS: Post(ListItemsRequest) -> ListItemsResponse {
        name: "list-items",
        id: "list_items",
        path: "/v1/items/list",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Transact,
        scope: Some(Scope::Transactions),
        load: Load::Bulky,
        dynamodb: &["DescribeTable on items", "GetItem on transactions", "Query on items", "Scan on items"],
        success: "One page of the items that match.",
        refusals: &[TABLES],
    }

    /// Ends idle transactions, or one transaction whatever its age. For operators; the service also ends idle
    /// transactions by itself.
    SWEEP: Post(SweepRequest) -> SweepResponse {
        name: "sweep",
        id: "sweep",
        path: "/v1/transactions/sweep",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Sweep,
        scope: Some(Scope::Transactions),
        load: Load::Small,
        dynamodb: &[
            "BatchGetItem on items",
            "DeleteItem on items",
            "GetItem on items",
            "GetItem on transactions",
            "PartiQLDelete on items",
            "PartiQLUpdate on items",
            "PutItem on items",
            "Query on transactions",
            "Query on transactions/sweep",
            "UpdateItem on items",
            "UpdateItem on transactions",
        ],
        success: "The numbers of transactions that the sweep looked at, completed and rolled back.",
        refusals: &[LOOK_UP],
    }

    /// Lists the transactions that are open, and the decided ones whose items are still locked. For operators.
    LIST_TRANSACTIONS: Get(ListTransactionsRequest) -> ListTransactionsResponse {
        name: "list-transactions",
        id: "list_transactions",
        path: "/v1/transactions",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Sweep,
        scope: Some(Scope::Transactions),
        load: Load::Bulky,
        dynamodb: &["BatchGetItem on transactions", "GetItem on transactions", "Query on transactions/sweep"],
        success: "One page of the transactions that are open or stuck.",
        refusals: &[],
    }

    /// Examines a part of a table for strays: locked items whose transaction is unknown or finished. For operators.
    STRAYS: Post(StraysRequest) -> StraysResponse {
        name: "strays",
        id: "strays",
        path: "/v1/transactions/strays",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Sweep,
        scope: Some(Scope::Transactions),
        load: Load::Bulky,
        dynamodb: &[
            "BatchGetItem on items",
            "BatchGetItem on transactions",
            "DescribeTable on items",
            "GetItem on items",
            "GetItem on transactions",
            "Scan on items",
        ],
        success: "The strays among the items that were examined.",
        refusals: &[TABLES],
    }

    /// Unlocks an item whose transaction is unknown, on condition of the lock that was seen. For operators.
    UNLOCK: Post(UnlockRequest) -> UnlockResponse {
        name: "unlock",
        id: "unlock",
        path: "/v1/transactions/unlock",
        is_direct: true,
        subject: Subject::Transaction,
        family: Family::Sweep,
        scope: Some(Scope::Transactions),
        load: Load::Small,
        dynamodb: &[
            "DeleteItem on items",
            "DescribeTable on items",
            "GetItem on items",
            "GetItem on transactions",
            "PutItem on items",
            "UpdateItem on items",
        ],
        success: "The item is locked by no transaction.",
        refusals: &[TABLES],
    }
}
