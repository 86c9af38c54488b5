//! A function for `scripts/contend.sh`: works under a lock, by the layers of the Rust client, and writes to the store
//! of the nemesis.

#![allow(clippy::disallowed_methods, reason = "the pauses of a contender are its behaviour")]

use std::time::Duration;

use lambda_runtime::tower::{Layer, ServiceExt};
use lambda_runtime::{Error, LambdaEvent, service_fn};
use leasehold_client::handlers::{LockLayer, Locked};
use leasehold_client::{Client, HttpTransport};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

const MARGIN: Duration = Duration::from_millis(600);

fn text(event: &Value, name: &str) -> String {
    event[name].as_str().unwrap_or_default().to_owned()
}

/// Writes again and again. Work of the kind `stops` looks at its guard; other work is dropped at the deadline. Work of
/// the kind `doubts` tells what its guard believes, and once more, and after it made sure.
async fn work(locked: Locked<Value>) -> Result<Value, Error> {
    let (store, http) = (std::env::var("LAMBDA_STORE")?, reqwest::Client::new());
    let Locked { event: LambdaEvent { payload, context, .. }, guard } = locked;
    if payload["kind"] == "doubts" {
        for is_last in [false, false, true] {
            if is_last {
                guard.ensure_held().await?;
            }
            let belief = json!({ "valid": guard.valid(), "remaining": guard.remaining().as_secs_f64() });
            http.post(&store).body(belief.to_string()).send().await?;
        }
        return Ok(Value::Null);
    }
    let ends = Instant::now() + Duration::from_secs_f64(payload["seconds"].as_f64().unwrap_or_default());
    while Instant::now() < ends && (payload["kind"] != "stops" || guard.valid()) {
        let write = json!({ "key": payload["key"], "who": context.request_id, "token": guard.fencing_token() });
        http.post(&store).body(write.to_string()).send().await?;
        sleep(Duration::from_millis(20)).await;
    }
    match payload["kind"].as_str() {
        Some("raises") => Err("as it was told".into()),
        Some("dies") => std::process::exit(1),
        _ => Ok(Value::Null),
    }
}

async fn handler(client: &Client, event: LambdaEvent<Value>) -> Result<Value, Error> {
    let key = |event: &LambdaEvent<Value>| text(&event.payload, "key");
    let layer = LockLayer::new(client.clone(), key).margin(MARGIN);
    let layer = match text(&event.payload, "contention").as_str() {
        "wait" => layer.wait(Duration::ZERO),
        "skip" => layer.skip(|| Value::Null),
        _ => layer,
    };
    layer.layer(service_fn(work)).oneshot(event).await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let transport = HttpTransport::new(&std::env::var("LAMBDA_SERVICE")?)?;
    let client = Client::builder().owner_name(format!("rust:{}", std::process::id())).build(transport);
    let client = &client;
    lambda_runtime::run(service_fn(move |event| handler(client, event))).await
}
