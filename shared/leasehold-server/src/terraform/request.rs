//! A request of Terraform's `http` backend, and the document that describes a lock.

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use leasehold_api::access::Caller;
use leasehold_wire::{Lock, Problem, ProblemType, Secret};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use super::states::Name;
use super::{LEASE_USER, LOCK_PATH, PATH};

/// The largest state, in bytes.
pub(super) const MAX_STATE_BYTES: usize = 8 * 1024 * 1024;
/// The largest description of a lock, in bytes.
const MAX_LOCK_BYTES: usize = 16 * 1024;
/// The longest name of a holder, in characters.
const MAX_OWNER_CHARS: usize = 200;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write,
    Delete,
    Lock,
    Unlock,
}

impl Action {
    /// The action of a method, on the path of the states or on that of the locks.
    fn of(method: &Method, path: &str) -> Result<Self, Problem> {
        match (method.as_str(), path == LOCK_PATH) {
            ("LOCK", _) | ("PUT", true) => Ok(Self::Lock),
            ("UNLOCK", _) | ("DELETE", true) => Ok(Self::Unlock),
            ("GET", false) => Ok(Self::Read),
            ("POST", false) => Ok(Self::Write),
            ("DELETE", false) => Ok(Self::Delete),
            (_, true) => Err(method_not_allowed("This path takes PUT, which locks, and DELETE, which unlocks.")),
            (_, false) => Err(method_not_allowed("This path takes GET, POST, DELETE, LOCK and UNLOCK.")),
        }
    }

    /// The largest body, in bytes.
    pub(super) fn max_body_bytes(self) -> usize {
        if self == Self::Write { MAX_STATE_BYTES } else { MAX_LOCK_BYTES }
    }
}

/// A request for one state.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) action: Action,
    pub(super) caller: Caller,
    pub(super) name: Name,
    /// The lease id that the caller proves its possession by.
    pub(super) lease_id: Option<Secret>,
    /// Whether the caller acquired the lock by itself, and renews it.
    pub(super) is_run: bool,
}

impl Asked {
    pub(super) fn parse(parts: &Parts) -> Result<Self, Problem> {
        #[derive(Deserialize)]
        struct Query {
            state: Option<String>,
            #[serde(rename = "ID", alias = "id")]
            id: Option<String>,
        }
        let action = Action::of(&parts.method, parts.uri.path())?;
        let query = parts.uri.query().unwrap_or_default();
        let query: Query = serde_urlencoded::from_str(query).map_err(|error| {
            Problem::new(ProblemType::InvalidRequest, format!("The query cannot be read: {error}."))
        })?;
        let missing = || Problem::invalid("state", "Name the state in the address: /v1/terraform?state=NAME.");
        let of_run = run_of(&parts.headers);
        Ok(Self {
            action,
            caller: parts.extensions.get().cloned().unwrap_or_else(Caller::unrestricted),
            name: Name::parse(&query.state.ok_or_else(missing)?)?,
            is_run: of_run.is_some(),
            lease_id: of_run.or_else(|| query.id.as_deref().map(lease_id_of)),
        })
    }
}

/// The lease id of plain Terraform's lock.
pub(super) fn lease_id_of(id: &str) -> Secret {
    Secret(format!("terraform-{id}"))
}

/// The lease id in the user name, of a run that acquired the lock by itself.
fn run_of(headers: &HeaderMap) -> Option<Secret> {
    let (user, _) = basic(headers)?;
    user.strip_prefix(LEASE_USER).map(|lease_id| Secret(lease_id.to_owned()))
}

/// The token of a request to these paths: Terraform sends it as a password.
pub(crate) fn token(parts: &Parts) -> Option<String> {
    let is_here = [PATH, LOCK_PATH].contains(&parts.uri.path());
    is_here.then(|| basic(&parts.headers))?.map(|(_, password)| password)
}

/// The user and the password of a request.
fn basic(headers: &HeaderMap) -> Option<(String, String)> {
    let (scheme, encoded) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let decoded = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(encoded.trim()).ok())??;
    let text = String::from_utf8(decoded).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// # Errors
/// `invalid-request`, if the request says another checksum: its body was damaged on the way.
pub(super) fn check_md5(headers: &HeaderMap, body: &[u8]) -> Result<(), Problem> {
    let mut said = headers.get_all("content-md5").into_iter().peekable();
    if said.peek().is_none() {
        return Ok(());
    }
    let checksum = STANDARD.encode(Md5::digest(body));
    if said.all(|said| said.as_bytes() == checksum.as_bytes()) {
        return Ok(());
    }
    Err(Problem::invalid("Content-MD5", "Content-MD5 is not the checksum of the body. Nothing was written."))
}

/// Terraform's description of a lock.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct LockInfo {
    /// Terraform's proof of possession. In a refusal: the holder, since Terraform shows nothing else.
    #[serde(rename = "ID", skip_serializing_if = "String::is_empty")]
    pub(super) id: String,
    operation: String,
    info: String,
    who: String,
    version: String,
    // Terraform reads a time here, and no empty text.
    #[serde(skip_serializing_if = "String::is_empty")]
    created: String,
    path: String,
}

impl LockInfo {
    /// The description in a body. `force-unlock` sends none.
    pub(super) fn parse(body: &[u8]) -> Result<Option<Self>, Problem> {
        // Some clients write `null` for no description.
        if matches!(body.trim_ascii(), b"" | b"null") {
            return Ok(None);
        }
        let unread = |error| {
            let detail = format!("The body must be Terraform's description of the lock: {error}.");
            Problem::new(ProblemType::InvalidRequest, detail)
        };
        serde_json::from_slice(body).map(Some).map_err(unread)
    }

    /// The holder's name, for people.
    pub(super) fn owner(&self) -> String {
        let owner: String = self.who.chars().take(MAX_OWNER_CHARS).collect();
        if owner.is_empty() { "terraform".to_owned() } else { owner }
    }

    /// The data of the lock, which everybody may read: without the secret.
    pub(super) fn data(&self) -> String {
        let data = Self { id: String::new(), ..self.clone() };
        serde_json::to_string(&data).unwrap_or_default()
    }

    /// The description of a lock as it is.
    fn of(lock: &Lock) -> Self {
        let known = lock.data.as_deref().and_then(|data| serde_json::from_str::<Self>(data).ok());
        // The data of an earlier holder stays with the lock.
        let known = known.filter(|known| known.owner() == lock.owner_name).unwrap_or_default();
        let details: Vec<_> =
            [known.operation.as_str(), known.created.as_str()].into_iter().filter(|text| !text.is_empty()).collect();
        let owner = lock.owner_name.clone();
        let id = if details.is_empty() { owner.clone() } else { format!("{owner} ({})", details.join(", ")) };
        Self { id, who: owner, ..known }
    }
}

/// A refusal: the problem, and with it the description of the lock, of which Terraform shows the `ID` and nothing else.
pub(super) fn locked(problem: &Problem) -> Response {
    #[derive(Serialize)]
    struct Both<'a> {
        #[serde(flatten)]
        problem: &'a Problem,
        #[serde(flatten)]
        info: LockInfo,
    }
    let nobody = || LockInfo { id: problem.detail.clone(), ..LockInfo::default() };
    let held = problem.lock.as_deref().filter(|lock| lock.state == leasehold_wire::LockState::Held);
    let info = held.map_or_else(nobody, LockInfo::of);
    let document = serde_json::to_vec(&Both { problem, info }).unwrap_or_default();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::CONFLICT);
    answer(status, "application/problem+json", Body::from(document))
}

pub(super) fn answer(status: StatusCode, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn method_not_allowed(detail: &str) -> Problem {
    Problem::new(ProblemType::MethodNotAllowed, detail)
}
