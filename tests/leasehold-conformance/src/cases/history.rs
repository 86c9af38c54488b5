//! The history, which a service keeps or not.

use serde_json::{Value, json};

use crate::bench::Bench;

const HISTORY: &str = "/v1/history";

pub(super) async fn history_is_told_or_refused(bench: Bench) {
    let lock = bench.lock();
    let reply = bench.get(HISTORY, &lock.parameters()).await;
    if reply.status() == 404 {
        reply.problem("not-found");
    } else {
        assert_eq!(reply.ok(), json!({ "entries": Value::Array(Vec::new()) }));
    }
}

pub(super) async fn requests_are_checked(bench: Bench) {
    let lock = bench.lock();
    for (name, value) in [("limit", "0"), ("limit", "1001"), ("limit", "many"), ("sinceMs", "-1"), ("colour", "red")] {
        let parameters = [lock.parameters(), vec![(name, value)]].concat();
        bench.get(HISTORY, &parameters).await.problem("invalid-request");
    }
}
