//! A service under test, and its table.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_dynamodb::fresh_uuid;
use leasehold_protocol::TableSchema;
use leasehold_wire::operation::OPERATIONS;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::Target;
use crate::reply::{Grant, Reply};
use crate::secrets::Secrets;

pub(crate) const ACQUIRE: &str = "/v1/acquire";
pub(crate) const ACQUIRE_ALL: &str = "/v1/acquire-all";
pub(crate) const HEARTBEAT: &str = "/v1/heartbeat";
pub(crate) const RELEASE: &str = "/v1/release";
pub(crate) const WANT: &str = "/v1/want";
pub(crate) const BREAK: &str = "/v1/break";
pub(crate) const OCCURRENCE: &str = "/v1/occurrence";
pub(crate) const LOCK: &str = "/v1/lock";
pub(crate) const WATCH: &str = "/v1/watch";
pub(crate) const LOCKS: &str = "/v1/locks";
pub(crate) const HEALTH: &str = "/v1/health";

pub(crate) const JSON: &str = "application/json";

/// A row as DynamoDB stores it.
pub(crate) type Item = HashMap<String, AttributeValue>;

/// The service takes at most four seconds; a gateway waits at most thirty.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Less than any server waits before it closes an idle connection, so that no request uses a closing one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

pub(crate) fn http_client() -> reqwest::Client {
    // An error means that the process already has a provider, which is sufficient.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(ANSWER_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .build()
        .expect("a client without TLS settings")
}

/// The environment of one case.
#[derive(Debug, Clone)]
pub(crate) struct Bench {
    http: reqwest::Client,
    target: Target,
    secrets: Secrets,
}

impl Bench {
    pub(crate) fn new(target: &Target, http: reqwest::Client) -> Self {
        Self { http, target: target.clone(), secrets: Secrets::default() }
    }

    /// The names of the table's keys.
    pub(crate) fn schema(&self) -> &TableSchema {
        &self.target.schema
    }

    /// A new lock that no caller has used.
    pub(crate) fn lock(&self) -> Lock {
        self.lock_of(fresh("key"))
    }

    /// The lock of this key.
    pub(crate) fn lock_of(&self, key: impl Into<String>) -> Lock {
        let sort_key = self.schema().sort_key.as_ref().map(|_| "sort".to_owned());
        Lock { bench: self.clone(), key: key.into(), sort_key }
    }

    /// Sends a request and searches the answer for the lease ids of this case.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        content_type: Option<&str>,
        body: impl Into<Vec<u8>>,
    ) -> Reply {
        let body = body.into();
        let call = format!("{method} {path} {}", String::from_utf8_lossy(&body));
        let operation = OPERATIONS.iter().find(|operation| Some(operation.path) == path.split('?').next());
        let mut request = self.http.request(method, format!("{}{path}", self.target.base_url)).body(body);
        if let Some(content_type) = content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => panic!("{call:.300}: no answer: {error:?}"),
        };
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let bytes = response.bytes().await.expect("a complete body");
        let reply = Reply::new(call, status, headers, String::from_utf8(bytes.into()).expect("a body of UTF-8"));
        if let (Some(operation), Ok(body)) = (operation, serde_json::from_str(reply.text())) {
            self.target.refusals.record(operation, status, &body);
        }
        // A grant contains the lease id for its own caller, once.
        let own = reply.granted_lease_id().unwrap_or_default();
        self.secrets.learn(&own);
        if let Some(leak) = self.secrets.find(&reply.text().replacen(&own, "", 1)) {
            panic!("{reply}\n    which tells the secret {leak}");
        }
        reply
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        if let Some(lease_id) = body["leaseId"].as_str() {
            self.secrets.learn(lease_id);
        }
        self.call(Method::POST, path, Some(JSON), body.to_string()).await
    }

    /// Posts a body that `serde_json` would not write.
    pub(crate) async fn post_text(&self, path: &str, body: impl Into<Vec<u8>>) -> Reply {
        self.call(Method::POST, path, Some(JSON), body).await
    }

    pub(crate) async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Reply {
        self.call(Method::GET, &format!("{path}{}", query(parameters)), None, "").await
    }

    /// The locks of all pages of a listing.
    pub(crate) async fn list_all(&self, parameters: &[(&str, &str)]) -> Vec<Value> {
        let mut locks = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let cursor_parameter = cursor.as_deref().map(|cursor| ("cursor", cursor));
            let parameters: Vec<_> = parameters.iter().copied().chain(cursor_parameter).collect();
            let page = self.get(LOCKS, &parameters).await.page();
            locks.extend(page.locks);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return locks;
            }
        }
    }
}

/// One lock of the table.
#[derive(Debug, Clone)]
pub(crate) struct Lock {
    pub(crate) bench: Bench,
    pub(crate) key: String,
    pub(crate) sort_key: Option<String>,
}

impl Lock {
    /// Adds the key to `fields`, for a request about this lock or an answer to it.
    pub(crate) fn with_key(&self, fields: Value) -> Value {
        let key = json!({ "key": self.key });
        let sort_key = self.sort_key.as_ref().map_or(Value::Null, |sort_key| json!({ "sortKey": sort_key }));
        merged(merged(key, sort_key), fields)
    }

    /// The query that names this lock.
    pub(crate) fn parameters(&self) -> Vec<(&str, &str)> {
        let sort_key = self.sort_key.as_deref().map(|sort_key| ("sortKey", sort_key));
        std::iter::once(("key", self.key.as_str())).chain(sort_key).collect()
    }

    pub(crate) async fn acquire(&self, owner: &str, fields: Value) -> Reply {
        let body = merged(self.with_key(json!({ "ownerName": owner })), fields);
        self.bench.post(ACQUIRE, &body).await
    }

    /// Acquires the lock, which no caller has used.
    pub(crate) async fn hold(&self, owner: &str) -> Grant {
        self.acquire(owner, json!({})).await.granted("created")
    }

    pub(crate) async fn heartbeat(&self, lease_id: &str, fields: Value) -> Reply {
        self.bench.post(HEARTBEAT, &merged(self.with_key(json!({ "leaseId": lease_id })), fields)).await
    }

    pub(crate) async fn release(&self, lease_id: &str, fields: Value) -> Reply {
        self.bench.post(RELEASE, &merged(self.with_key(json!({ "leaseId": lease_id })), fields)).await
    }

    pub(crate) async fn want(&self, owner: &str) -> Reply {
        self.bench.post(WANT, &self.with_key(json!({ "ownerName": owner }))).await
    }

    pub(crate) async fn break_it(&self, rvn: &str) -> Reply {
        self.bench.post(BREAK, &self.with_key(json!({ "recordVersionNumber": rvn }))).await
    }

    pub(crate) async fn set_occurrence(&self, last: &str, rvn: &str) -> Reply {
        let fields = json!({ "lastOccurrence": last, "recordVersionNumber": rvn });
        self.bench.post(OCCURRENCE, &self.with_key(fields)).await
    }

    pub(crate) async fn get(&self) -> Reply {
        self.bench.get(LOCK, &self.parameters()).await
    }

    /// Watches the lock, for up to `wait_ms`.
    pub(crate) async fn watch(&self, version: &str, wait_ms: &str) -> Reply {
        let parameters = [self.parameters(), vec![("version", version), ("waitMs", wait_ms)]].concat();
        self.bench.get(WATCH, &parameters).await
    }

    /// The public view of the lock after `grant`, with these differences.
    pub(crate) fn view(&self, grant: &Grant, differences: Value) -> Value {
        let shown = ["ownerName", "recordVersionNumber", "leaseDurationMs", "fencingToken", "data", "dataBase64"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), grant.body.get(name)?.clone())))
            .collect();
        merged(merged(self.with_key(json!({ "state": "held" })), Value::Object(shown)), differences)
    }

    /// The view after a release or a break, which changes the version.
    pub(crate) async fn released_view(&self, grant: &Grant, differences: Value) -> Value {
        let rvn = self.version().await;
        assert_ne!(rvn, grant.rvn, "an end changes the version");
        self.view(grant, merged(json!({ "state": "released", "recordVersionNumber": rvn }), differences))
    }

    /// The version of the row.
    pub(crate) async fn version(&self) -> String {
        let row = self.row().await.expect("a row");
        row["recordVersionNumber"].as_s().expect("a string").clone()
    }

    /// Checks that the lock was deleted: a tombstone is left, which reads as not there. Returns the row.
    pub(crate) async fn deleted(&self) -> Item {
        let row = self.row().await.expect("a tombstone");
        assert_eq!(row["isReleased"], text("1"));
        assert_eq!(row["deletedVersion"], row["recordVersionNumber"]);
        assert_eq!(row.get("data"), None, "the payload is gone");
        self.get().await.problem("not-found");
        assert_eq!(self.bench.list_all(&[("key", &self.key)]).await, Vec::<Value>::new());
        row
    }

    /// The row, read directly from the table.
    pub(crate) async fn row(&self) -> Option<Item> {
        let request = self.bench.target.dynamodb.get_item().table_name(&self.bench.schema().table_name);
        let output = request.set_key(Some(self.item_key())).consistent_read(true).send().await;
        output.expect("the table answers").item
    }

    /// Puts a row here, as another client would. It replaces the whole row.
    pub(crate) async fn plant(&self, attributes: Item) {
        let request = self.bench.target.dynamodb.put_item().table_name(&self.bench.schema().table_name);
        let item = self.item_key().into_iter().chain(attributes).collect();
        request.set_item(Some(item)).send().await.expect("the table takes the row");
    }

    /// Deletes the row, as TTL does.
    pub(crate) async fn remove_row(&self) {
        let request = self.bench.target.dynamodb.delete_item().table_name(&self.bench.schema().table_name);
        request.set_key(Some(self.item_key())).send().await.expect("the table deletes the row");
    }

    /// Changes only these attributes of the row, as another client would. `None` removes one.
    pub(crate) async fn overwrite<'a>(&self, changes: impl IntoIterator<Item = (&'a str, Option<AttributeValue>)>) {
        let mut row = self.row().await.expect("a row to change");
        for (name, value) in changes {
            row.remove(name);
            row.extend(value.map(|value| (name.to_owned(), value)));
        }
        self.plant(row).await;
    }

    pub(crate) fn item_key(&self) -> Item {
        let schema = self.bench.schema();
        let sort_key = schema.sort_key.as_ref().zip(self.sort_key.as_deref());
        std::iter::once((&schema.partition_key, self.key.as_str()))
            .chain(sort_key)
            .map(|(name, value)| (name.clone(), text(value)))
            .collect()
    }
}

/// A string that no other case uses.
pub(crate) fn fresh(what: &str) -> String {
    format!("{what}-{}", fresh_uuid())
}

/// Adds the members of `more` to `object`, and overwrites members of the same name.
pub(crate) fn merged(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

pub(crate) fn query(parameters: &[(&str, &str)]) -> String {
    let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let pairs: Vec<_> = parameters.iter().map(|&(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
}

pub(crate) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(crate) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(crate) fn bytes(value: impl Into<Vec<u8>>) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

/// This machine's clock, in epoch milliseconds.
#[allow(clippy::disallowed_methods, reason = "the service under test has a wall clock: this one is compared with it")]
pub(crate) fn epoch_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(since_epoch.as_millis()).expect("before the year 500 million")
}

/// Waits for a fixed time, where no event can be awaited.
#[allow(clippy::disallowed_methods, reason = "the service under test has a clock of its own")]
pub(crate) async fn pause(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
