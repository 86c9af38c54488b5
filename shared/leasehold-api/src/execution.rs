//! Lease ids of Step Functions executions.
//!
//! An execution may acquire several locks, or one lock several times: in a loop, in the iterations of a Map, in the
//! branches of a Parallel. Each acquisition needs a lease id of its own, and the clean-up after an aborted execution
//! must be able to derive the same lease id again. An execution therefore names itself and the acquisition, in place of
//! a lease id: `"execution": {"arn": …, "acquisition": …}`. The acquisition is a random text. An acquire stores the
//! acquisition as an additional attribute of the row, where the clean-up reads it.
//!
//! Neither the ARN nor the acquisition is a secret. The lease id is their keyed hash under a secret of the stack, which
//! is known to the functions only.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use leasehold_wire::{Lock, Problem};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::Sha256;

use crate::{convert, parse};

/// The additional attribute that names the acquisition of an execution.
const ACQUISITION: &str = "executionAcquisition";

/// The secret from which the lease ids of executions are derived. Without a secret, a reader of a row who knows the
/// execution's ARN can derive its lease id.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExecutionSecret(String);

impl ExecutionSecret {
    /// Takes a secret of any length; an empty one protects nothing.
    pub fn new(secret: impl Into<String>) -> Self {
        Self(secret.into())
    }

    /// Replaces `execution` in the input of a direct invocation by its lease id.
    ///
    /// # Errors
    /// `invalid-request` for an `execution` that cannot be read, or that comes with a `leaseId`.
    pub fn name_lease(&self, mut input: Value) -> Result<Value, Problem> {
        let Value::Object(members) = &mut input else { return Ok(input) };
        let Some(execution) = members.remove("execution") else { return Ok(input) };
        if members.contains_key("leaseId") {
            return Err(Problem::invalid("execution", "Give either execution or leaseId."));
        }
        let Value::Object(execution) = execution else {
            return Err(Problem::invalid("execution", "execution must be an object with arn and acquisition."));
        };
        let execution: Execution = parse::object(execution).map_err(|problem| convert::within("execution", problem))?;
        let lease_id = self.lease_id(&execution.arn, &execution.acquisition, execution.secret.as_deref());
        members.insert("leaseId".to_owned(), lease_id.into());
        if members.get("action").is_some_and(|action| action == "acquire") {
            let attributes = members.entry("attributes").or_insert_with(|| Map::new().into());
            // A value other than an object is refused when the request is read.
            if let Value::Object(attributes) = attributes {
                attributes.insert(ACQUISITION.to_owned(), execution.acquisition.into());
            }
        }
        Ok(input)
    }

    #[allow(clippy::expect_used, reason = "HMAC takes a key of any length")]
    pub(crate) fn lease_id(&self, arn: &str, acquisition: &str, secret: Option<&str>) -> String {
        // A JSON array, so that no two lists of texts give the same bytes.
        let named = serde_json::json!([arn, acquisition, secret]).to_string();
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).expect("HMAC takes a key of any length");
        mac.update(named.as_bytes());
        BASE64_URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())
    }
}

impl std::fmt::Debug for ExecutionSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ExecutionSecret(redacted)")
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Execution {
    arn: String,
    acquisition: String,
    secret: Option<String>,
}

/// The acquisition that the row names, which may be that of an earlier holder.
pub(crate) fn acquisition_of(lock: &Lock) -> Option<&str> {
    lock.attributes.get(ACQUISITION)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(secret: &str, execution: &Value) -> Result<Value, Option<String>> {
        let input = json!({ "action": "heartbeat", "key": "k", "execution": execution });
        let named = ExecutionSecret::new(secret).name_lease(input).map_err(|problem| problem.field)?;
        assert!(named.get("execution").is_none() && named.get("attributes").is_none(), "{named}");
        Ok(named["leaseId"].clone())
    }

    #[test]
    fn each_part_of_an_execution_changes_its_lease_id() {
        let ids = [
            named("s", &json!({ "arn": "a", "acquisition": "1" })),
            named("t", &json!({ "arn": "a", "acquisition": "1" })),
            named("s", &json!({ "arn": "b", "acquisition": "1" })),
            named("s", &json!({ "arn": "a", "acquisition": "2" })),
            named("s", &json!({ "arn": "a", "acquisition": "1", "secret": "x" })),
            named("s", &json!({ "arn": "a\",\"1", "acquisition": "" })),
        ];
        for (index, id) in ids.iter().enumerate() {
            assert!(id.as_ref().is_ok_and(Value::is_string), "{id:?}");
            assert!(!ids[..index].contains(id), "{ids:?}");
        }
        assert_eq!(ids[0], named("s", &json!({ "arn": "a", "acquisition": "1" })));
    }

    #[test]
    fn unreadable_execution_is_refused_with_its_field() {
        for (execution, field) in [
            (json!("arn"), "execution"),
            (json!({ "arn": "a" }), "execution.acquisition"),
            (json!({ "arn": 1, "acquisition": "1" }), "execution.arn"),
            (json!({ "arn": "a", "acquisition": "1", "place": 1 }), "execution.place"),
        ] {
            assert_eq!(named("s", &execution).expect_err("unreadable").as_deref(), Some(field));
        }
        let both = json!({ "leaseId": "l", "execution": { "arn": "a", "acquisition": "1" } });
        assert!(ExecutionSecret::default().name_lease(both).is_err());
    }

    #[test]
    fn acquire_stores_the_acquisition_beside_other_attributes() {
        let execution = json!({ "arn": "a", "acquisition": "1" });
        let input = json!({ "action": "acquire", "attributes": { "team": "b" }, "execution": execution });
        let named = ExecutionSecret::default().name_lease(input).expect("readable");
        assert_eq!(named["attributes"], json!({ "team": "b", "executionAcquisition": "1" }));
        let without = json!({ "action": "get", "key": "k" });
        assert_eq!(ExecutionSecret::default().name_lease(without.clone()).expect("readable"), without);
    }
}
