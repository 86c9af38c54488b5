//! A request of Terraform's `http` backend, and the document that describes a lock.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, Response, StatusCode};
use leasehold_api::access::Caller;
use leasehold_api::http::problem_response;
use leasehold_wire::{Lock, LockState, Problem, ProblemType, Secret};
use md5::{Digest, Md5};
use serde::{Deserialize, Serialize};

use crate::{LEASE_HEADER, LEASE_USER, LOCK_PATH, Name};

/// The largest description of a lock, in bytes.
const MAX_LOCK_BYTES: usize = 16 * 1024;
/// The title of a refusal of a lock, for people.
const HELD_TITLE: &str = "The state is locked";
/// The longest name of a holder, in characters.
const MAX_OWNER_CHARS: usize = 200;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Reads the state.
    Read,
    /// Replaces the state.
    Write,
    /// Removes the state.
    Delete,
    /// Acquires the lock.
    Lock,
    /// Releases the lock, or breaks it.
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

    /// The largest body, in bytes, where a state has at most `max_state` bytes.
    pub fn max_body_bytes(self, max_state: usize) -> usize {
        if self == Self::Write { max_state } else { MAX_LOCK_BYTES }
    }
}

/// A request for one state.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What it asks for.
    pub action: Action,
    /// The caller, who must have a right to the key of the lock.
    pub caller: Caller,
    /// The state.
    pub name: Name,
    /// The lease id that the caller proves its possession by.
    pub lease_id: Option<Secret>,
    /// Whether the caller acquired the lock by itself, and renews it.
    pub is_run: bool,
}

impl Asked {
    /// Reads a request, except its body.
    ///
    /// # Errors
    /// `method-not-allowed`, `invalid-request`
    pub fn parse(
        method: &Method,
        path: &str,
        query: &str,
        headers: &HeaderMap,
        caller: Caller,
    ) -> Result<Self, Problem> {
        #[derive(Deserialize)]
        struct Query {
            state: Option<String>,
            #[serde(rename = "ID", alias = "id")]
            id: Option<String>,
        }
        let action = Action::of(method, path)?;
        let query: Query = serde_urlencoded::from_str(query).map_err(|error| {
            Problem::new(ProblemType::InvalidRequest, format!("The query cannot be read: {error}."))
        })?;
        let missing = || Problem::invalid("state", "Name the state in the address: /v1/terraform?state=NAME.");
        let of_run = run_of(headers);
        Ok(Self {
            action,
            caller,
            name: Name::parse(&query.state.ok_or_else(missing)?)?,
            is_run: of_run.is_some(),
            lease_id: of_run.or_else(|| query.id.as_deref().map(lease_id_of)),
        })
    }
}

/// The lease id of plain Terraform's lock.
pub(crate) fn lease_id_of(id: &str) -> Secret {
    Secret(format!("terraform-{id}"))
}

/// The lease id of a run that acquired the lock by itself.
fn run_of(headers: &HeaderMap) -> Option<Secret> {
    let named = headers.get(LEASE_HEADER).and_then(|lease_id| lease_id.to_str().ok()).map(ToOwned::to_owned);
    let of_user = || basic(headers)?.0.strip_prefix(LEASE_USER).map(ToOwned::to_owned);
    named.or_else(of_user).map(Secret)
}

/// The caller's token: the password of a request, or that of a bearer.
pub fn token(headers: &HeaderMap) -> Option<String> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let of_bearer = || scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned());
    basic(headers).map(|(_, password)| password).or_else(of_bearer)
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
pub(crate) fn check_md5(headers: &HeaderMap, body: &[u8]) -> Result<(), Problem> {
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
pub(crate) struct LockInfo {
    /// Terraform's proof of possession. In a refusal: the holder, since Terraform shows nothing else.
    #[serde(rename = "ID", skip_serializing_if = "String::is_empty")]
    pub(crate) id: String,
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
    pub(crate) fn parse(body: &[u8]) -> Result<Option<Self>, Problem> {
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
    pub(crate) fn owner(&self) -> String {
        let owner: String = self.who.chars().take(MAX_OWNER_CHARS).collect();
        if owner.is_empty() { "terraform".to_owned() } else { owner }
    }

    /// The data of the lock, which everybody may read: without the secret.
    pub(crate) fn data(&self) -> String {
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

/// Returns a refusal: the problem, and where it is about the lock, with it the description of the lock, of which
/// Terraform shows the `ID` and nothing else.
pub fn refusal(problem: Problem) -> Response<Vec<u8>> {
    // Terraform has an ID where the service has a lease id.
    let field = problem.field.map(|field| if field == "leaseId" { "ID".to_owned() } else { field });
    let detail = problem.detail.replace("leaseId", "ID").replace("lease id", "ID");
    let problem = Problem { field, detail, ..problem };
    match problem.problem_type {
        ProblemType::Held => {
            locked(&Problem { title: HELD_TITLE.to_owned(), detail: held_detail(&problem), ..problem })
        }
        ProblemType::Lost => locked(&problem),
        _ => problem_response(&problem),
    }
}

fn locked(problem: &Problem) -> Response<Vec<u8>> {
    #[derive(Serialize)]
    struct Both<'a> {
        #[serde(flatten)]
        problem: &'a Problem,
        #[serde(flatten)]
        info: LockInfo,
    }
    let nobody = || LockInfo { id: problem.detail.clone(), ..LockInfo::default() };
    let held = problem.lock.as_deref().filter(|lock| lock.state == LockState::Held);
    let info = held.map_or_else(nobody, LockInfo::of);
    let document = serde_json::to_vec(&Both { problem, info }).unwrap_or_default();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::CONFLICT);
    answer(status, "application/problem+json", document)
}

/// What a user of Terraform can do about a lock that somebody holds.
fn held_detail(problem: &Problem) -> String {
    let owner = problem.lock.as_ref().map_or("someone else", |lock| lock.owner_name.as_str());
    format!(
        "The state is locked by {owner}. Wait for it with `-lock-timeout`, or with `leasehold terraform --wait`. Where its run is gone, \
         `terraform force-unlock` frees it."
    )
}

pub(crate) fn answer(status: StatusCode, content_type: &'static str, body: Vec<u8>) -> Response<Vec<u8>> {
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn refusal_speaks_of_the_id_and_of_no_lease_id() {
        let told = |problem| {
            let document: Value = serde_json::from_slice(refusal(problem).body()).expect("JSON");
            (document["field"].clone(), document["detail"].clone())
        };
        let long = Problem::invalid("leaseId", "leaseId is 300 bytes long; at most 128 are allowed.");
        assert_eq!(told(long), ("ID".into(), "ID is 300 bytes long; at most 128 are allowed.".into()));
        let ended = "The acquisition of this lease id was released. Use a new lease id.";
        let ended = told(Problem::new(ProblemType::Lost, ended));
        assert_eq!(ended, (Value::Null, "The acquisition of this ID was released. Use a new ID.".into()));
    }
}
