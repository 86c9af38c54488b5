//! Answers, and short checks of them. Each check covers the whole answer: its status, its headers, and that it has no
//! member outside the contract.

use std::fmt;

use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use crate::bench::{ACQUIRE, ACQUIRE_ALL, RELEASE, merged};

/// A kind of problem, as the contract defines it.
struct Kind {
    slug: &'static str,
    status: u16,
    /// The members of its document besides `type`, `status`, `title` and `detail`.
    required: &'static [&'static str],
    optional: &'static [&'static str],
    retry_after: Option<&'static str>,
}

const fn kind(slug: &'static str, status: u16, required: &'static [&'static str]) -> Kind {
    Kind { slug, status, required, optional: &[], retry_after: None }
}

const KINDS: [Kind; 16] = [
    // `locks` lists the refused ones of several locks.
    Kind { retry_after: Some("1"), optional: &["lock", "locks"], ..kind("held", 423, &[]) },
    Kind { optional: &["lock", "locks"], ..kind("lost", 409, &["reason"]) },
    Kind { optional: &["locks"], ..kind("wrong-kind", 409, &[]) },
    // A waiter has no token.
    Kind { optional: &["fencingToken"], ..kind("superseded", 409, &["sequence", "recordVersionNumber", "lock"]) },
    Kind { optional: &["lock"], ..kind("version-mismatch", 409, &[]) },
    Kind { optional: &["lock"], ..kind("already-done", 409, &[]) },
    Kind { retry_after: Some("1"), ..kind("queue-full", 423, &["lock"]) },
    Kind { optional: &["lock", "locks"], ..kind("permits-mismatch", 409, &[]) },
    Kind { optional: &["lock", "locks"], ..kind("exceeds-capacity", 409, &[]) },
    Kind { optional: &["field"], ..kind("invalid-request", 400, &[]) },
    kind("not-found", 404, &[]),
    kind("unknown-route", 404, &[]),
    kind("method-not-allowed", 405, &[]),
    kind("too-large", 413, &[]),
    kind("unsupported-media-type", 415, &[]),
    kind("corrupt-record", 500, &[]),
];

/// Words that would show an internal message in a title or a detail.
const INTERNALS: [&str; 8] = ["panic", ".rs", "src/", "sqlite", "dynoxide", "exception", "aws", "http"];

/// Below 2^53, every JSON parser holds a number exactly.
const NUMBER_LIMIT: u64 = 1 << 53;

/// An answer, and the request that it answers.
#[derive(Debug)]
pub(crate) struct Reply {
    call: String,
    status: u16,
    headers: HeaderMap,
    text: String,
}

/// A lock that was granted.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) lease_id: String,
    pub(crate) rvn: String,
    pub(crate) token: u64,
    /// The whole answer.
    pub(crate) body: Value,
}

/// A lease that was renewed.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) rvn: String,
    pub(crate) lease_ms: u64,
    pub(crate) token: u64,
}

/// A page of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) locks: Vec<Value>,
    pub(crate) unreadable: Vec<Value>,
    pub(crate) next_cursor: Option<String>,
}

impl Reply {
    pub(crate) fn new(call: String, status: u16, headers: HeaderMap, text: String) -> Self {
        Self { call, status, headers, text }
    }

    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("ASCII"))
    }

    /// The lease id in this answer, if it is a grant.
    pub(crate) fn granted_lease_id(&self) -> Option<String> {
        let grants = [ACQUIRE, ACQUIRE_ALL, "/v1/semaphore/acquire", "/v1/semaphore/enqueue"];
        let is_acquire = grants.iter().any(|path| self.call.starts_with(&format!("POST {path} ")));
        let is_grant = self.status == 200 && is_acquire;
        is_grant.then(|| self.body()["leaseId"].as_str().map(str::to_owned)).flatten()
    }

    /// Checks for status 200, and returns the document.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self}");
        self.check_headers("application/json", None);
        self.body()
    }

    #[track_caller]
    pub(crate) fn granted(&self, outcome: &str) -> Grant {
        let body = self.ok();
        let required =
            ["key", "ownerName", "leaseId", "recordVersionNumber", "leaseDurationMs", "fencingToken", "outcome"];
        self.check_members(&body, &required, &["sortKey", "data", "dataBase64", "previousOwnerName"]);
        assert_eq!(body["outcome"], outcome, "{self}");
        Grant {
            lease_id: self.text_of(&body, "leaseId"),
            rvn: self.fresh_version(&body),
            token: self.token_of(&body),
            body,
        }
    }

    #[track_caller]
    pub(crate) fn renewed(&self) -> Renewal {
        let body = self.ok();
        self.check_members(&body, &["recordVersionNumber", "leaseDurationMs", "fencingToken"], &[]);
        let lease_ms = body["leaseDurationMs"].as_u64().unwrap_or_else(|| panic!("{self}\n    has no lease"));
        Renewal { rvn: self.fresh_version(&body), lease_ms, token: self.token_of(&body) }
    }

    /// Checks the answer to a release or a break.
    #[track_caller]
    pub(crate) fn released(&self, outcome: &str) {
        // A release of a lock that ended no lease cannot know that nobody waits.
        let wanted = outcome != "released" && self.call.starts_with(&format!("POST {RELEASE} "));
        let wanted = if wanted { json!({ "wanted": true }) } else { json!({}) };
        assert_eq!(self.ok(), merged(json!({ "outcome": outcome }), wanted), "{self}");
    }

    #[track_caller]
    pub(crate) fn page(&self) -> Page {
        let mut body = self.ok();
        self.check_members(&body, &["locks"], &["unreadable", "nextCursor"]);
        let mut list = |name: &str| match body[name].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        };
        Page {
            locks: list("locks"),
            unreadable: list("unreadable"),
            next_cursor: body["nextCursor"].as_str().map(str::to_owned),
        }
    }

    /// Checks for a problem of this kind, and returns the document.
    #[track_caller]
    pub(crate) fn problem(&self, slug: &str) -> Value {
        let kind = KINDS.iter().find(|kind| kind.slug == slug).expect("a kind of this API");
        assert_eq!(self.status, kind.status, "{self}");
        self.check_headers("application/problem+json", kind.retry_after);
        let body = self.body();
        self.check_members(&body, &[&["type", "status", "title", "detail"], kind.required].concat(), kind.optional);
        assert_eq!((&body["type"], &body["status"]), (&json!(slug), &json!(kind.status)), "{self}");
        for member in ["title", "detail"] {
            let text = self.text_of(&body, member).to_lowercase();
            assert!(!text.is_empty(), "{self}\n    has an empty {member}");
            let internal = INTERNALS.iter().find(|internal| text.contains(*internal));
            assert_eq!(internal, None, "{self}\n    has a {member} from inside");
        }
        body
    }

    /// Checks that the lock is held, and returns its public view.
    #[track_caller]
    pub(crate) fn held(&self) -> Value {
        let lock = self.problem("held")["lock"].take();
        assert_ne!(lock, Value::Null, "{self}\n    shows no lock");
        lock
    }

    /// Checks that the lock is lost, and returns its public view, null if there is none.
    #[track_caller]
    pub(crate) fn lost(&self, reason: &str) -> Value {
        let mut body = self.problem("lost");
        assert_eq!(body["reason"], reason, "{self}");
        body["lock"].take()
    }

    /// Checks that a later request with this number was carried out: nothing is lost, and the document contains the
    /// lock.
    #[track_caller]
    pub(crate) fn superseded(&self, sequence: u64) -> Value {
        let mut body = self.problem("superseded");
        assert_eq!(body["sequence"], sequence, "{self}");
        let lock = body["lock"].take();
        for member in ["recordVersionNumber", "fencingToken"] {
            assert_eq!(body[member], lock[member], "{self}");
        }
        lock
    }

    /// Checks that the lock changed, and returns its public view, null if there is none.
    #[track_caller]
    pub(crate) fn version_mismatch(&self) -> Value {
        self.problem("version-mismatch")["lock"].take()
    }

    /// Checks that the occurrence is done, and returns the public view of the lock, null if there is none.
    #[track_caller]
    pub(crate) fn already_done(&self) -> Value {
        self.problem("already-done")["lock"].take()
    }

    /// Checks that some of several locks are held, lost or no locks, and returns the named ones.
    #[track_caller]
    pub(crate) fn refused_locks(&self, slug: &str) -> Vec<Value> {
        match self.problem(slug)["locks"].take() {
            Value::Array(locks) => locks,
            other => panic!("{self}\n    names no locks: {other}"),
        }
    }

    /// Checks that the request is invalid, with this field at fault.
    #[track_caller]
    pub(crate) fn invalid(&self, field: &str) {
        assert_eq!(self.problem("invalid-request")["field"], field, "{self}");
    }

    /// Checks that the request is invalid as a whole.
    #[track_caller]
    pub(crate) fn invalid_as_a_whole(&self) {
        assert_eq!(self.problem("invalid-request").get("field"), None, "{self}");
    }

    #[track_caller]
    fn body(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{self}\n    which is not JSON: {error}"))
    }

    #[track_caller]
    fn check_headers(&self, content_type: &str, retry_after: Option<&str>) {
        assert_eq!(self.header("content-type"), Some(content_type), "{self}");
        assert_eq!(self.header("cache-control"), Some("no-store"), "{self}");
        assert_eq!(self.header("retry-after"), retry_after, "{self}");
    }

    #[track_caller]
    pub(crate) fn check_members(&self, body: &Value, required: &[&str], optional: &[&str]) {
        let members = body.as_object().unwrap_or_else(|| panic!("{self}\n    which is not an object"));
        for name in required {
            assert!(members.contains_key(*name), "{self}\n    lacks {name}");
        }
        for name in members.keys() {
            let is_known = required.contains(&name.as_str()) || optional.contains(&name.as_str());
            assert!(is_known, "{self}\n    has {name}, which is not in the contract");
        }
    }

    #[track_caller]
    fn text_of(&self, body: &Value, name: &str) -> String {
        body[name].as_str().unwrap_or_else(|| panic!("{self}\n    has no text {name}")).to_owned()
    }

    /// Checks for a UUID, as the other clients expect it.
    #[track_caller]
    fn fresh_version(&self, body: &Value) -> String {
        let rvn = self.text_of(body, "recordVersionNumber");
        let lengths: Vec<_> = rvn.split('-').map(str::len).collect();
        let is_hex = rvn.bytes().all(|byte| byte == b'-' || matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        assert!(is_hex && lengths == [8, 4, 4, 4, 12], "{self}\n    has the version {rvn}, which is no UUID");
        rvn
    }

    #[track_caller]
    fn token_of(&self, body: &Value) -> u64 {
        let token = body["fencingToken"].as_u64().unwrap_or_else(|| panic!("{self}\n    has no fencing token"));
        assert!((1..NUMBER_LIMIT).contains(&token), "{self}\n    has a fencing token that not every parser can hold");
        token
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n    {:.300}\n    was answered {} {:.900}", self.call, self.status, self.text)
    }
}
