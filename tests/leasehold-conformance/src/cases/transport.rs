//! The HTTP layer: headers, methods, routes, sizes and queries.

use reqwest::Method;
use serde_json::json;

use crate::bench::{
    ACQUIRE, BREAK, Bench, HEALTH, HEARTBEAT, JSON, LOCK, LOCKS, Lock, RELEASE, fresh, merged, number, query, text,
};

/// The largest body that is read: 2 MiB.
const MOST: usize = 2 * 1024 * 1024;

pub(super) async fn json_is_what_the_header_says(bench: Bench) {
    let body = |lock: &Lock| lock.with_key(json!({ "ownerName": "alice" })).to_string();
    for accepted in [
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        "Application/JSON",
        "application/vnd.leasehold.v1+json",
    ] {
        bench.call(Method::POST, ACQUIRE, Some(accepted), body(&bench.lock())).await.granted("created");
    }
    // A browser sends a body without a type for any web page.
    for refused in [
        None,
        Some("text/plain"),
        Some("text/json"),
        Some("application/x-www-form-urlencoded"),
        Some("multipart/form-data; boundary=application/json"),
        Some("application/jsonx"),
        Some("application/xml"),
        Some("image/svg+xml"),
        Some("application/octet-stream"),
        Some("json"),
        Some("*/*"),
    ] {
        let lock = bench.lock();
        for path in [ACQUIRE, HEARTBEAT, RELEASE, BREAK] {
            let reply = bench.call(Method::POST, path, refused, body(&lock)).await;
            reply.problem("unsupported-media-type");
        }
        assert_eq!(lock.row().await, None);
    }
}

/// Every route, and its method.
fn routes() -> impl Iterator<Item = (&'static str, Method)> {
    let writes = [ACQUIRE, HEARTBEAT, RELEASE, BREAK].map(|path| (path, Method::POST));
    let reads = [LOCK, LOCKS, HEALTH].map(|path| (path, Method::GET));
    writes.into_iter().chain(reads)
}

async fn check_not_allowed(bench: &Bench, path: &str, method: Method, allowed: &Method) {
    let reply = bench.call(method, path, Some(JSON), "{}").await;
    reply.problem("method-not-allowed");
    assert_eq!(reply.header("allow"), Some(allowed.as_str()), "{reply}");
}

pub(super) async fn options_is_no_exception(bench: Bench) {
    for (path, allowed) in routes() {
        check_not_allowed(&bench, path, Method::OPTIONS, &allowed).await;
    }
}

pub(super) async fn methods_are_fixed(bench: Bench) {
    for (path, allowed) in routes() {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            if method != allowed {
                check_not_allowed(&bench, path, method, &allowed).await;
            }
        }
        let reply = bench.call(Method::HEAD, path, None, "").await;
        let allow = reply.header("allow");
        assert_eq!((reply.status(), allow, reply.text()), (405, Some(allowed.as_str()), ""), "{reply}");
    }
}

pub(super) async fn routes_are_fixed(bench: Bench) {
    for path in [
        "/",
        "/v1",
        "/v1/",
        "/v1/acquire/",
        "/v1/acquire/x",
        "/v1//acquire",
        "/v1/lock/some-key",
        "/v1/locks/",
        "/V1/acquire",
        "/v1/Acquire",
        "/v2/acquire",
        "/acquire",
        "/v1/acquire%20",
        "/v1/acquire%3Fkey=x",
        "/v1/acquire%00",
        "/favicon.ico",
    ] {
        bench.call(Method::GET, path, None, "").await.problem("unknown-route");
        bench.call(Method::POST, path, Some(JSON), "{}").await.problem("unknown-route");
    }
}

/// A body for an acquire that is `length` bytes long, most of them blanks.
fn padded(lock: &Lock, length: usize) -> String {
    let body = lock.with_key(json!({ "ownerName": "alice" })).to_string();
    let blank = " ".repeat(length - body.len());
    body + &blank
}

pub(super) async fn two_mebibytes_are_read(bench: Bench) {
    let lock = bench.lock();
    let grant = bench.post_text(ACQUIRE, padded(&lock, MOST)).await.granted("created");
    lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
}

pub(super) async fn more_is_not_read(bench: Bench) {
    // The answer must reach a client that sends its whole body before it reads.
    let lock = bench.lock();
    for length in [MOST + 1, 2 * MOST, 5 * MOST / 2] {
        bench.post_text(ACQUIRE, padded(&lock, length)).await.problem("too-large");
    }
    assert_eq!(lock.row().await, None);
    lock.hold("alice").await;
}

pub(super) async fn queries_are_strict(bench: Bench) {
    for (path, field) in [
        (LOCK, "?key=k&key=k"),
        (LOCK, "?key=k&key="),
        (LOCK, "?key=k&%6Bey=k"),
        (LOCK, ""),
        (LOCK, "?"),
        (LOCK, "?key"),
        (LOCK, "?key="),
        (LOCKS, "?key=k&key=k"),
    ]
    .map(|(path, query)| (format!("{path}{query}"), "key"))
    .into_iter()
    .chain([
        (format!("{LOCK}?key=k&extra=1"), "extra"),
        (format!("{LOCK}?key=k&Key=k"), "Key"),
        (format!("{LOCK}?key=k&cursor=x"), "cursor"),
        (format!("{LOCKS}?limit=1&limit=2"), "limit"),
        (format!("{LOCKS}?state=held&state=held"), "state"),
        (format!("{LOCKS}?cursor=a&cursor=b"), "cursor"),
        (format!("{LOCKS}?owner=alice"), "owner"),
    ]) {
        bench.get(&path, &[]).await.invalid(field);
    }
    for not_utf8 in ["?key=%ff", "?%ff=k", "?key=%c3%28", "?key=%ed%a0%80", "?key=a%00%80"] {
        bench.get(&format!("{LOCK}{not_utf8}"), &[]).await.invalid_as_a_whole();
        bench.get(&format!("{LOCKS}{not_utf8}"), &[]).await.invalid_as_a_whole();
    }
}

pub(super) async fn queries_are_decoded_once(bench: Bench) {
    let id = fresh("key");
    let lock = bench.lock_of(format!("{id} a+b%2F/?"));
    let grant = lock.hold("alice").await;
    let view = lock.view(&grant, json!({}));
    let sort_key = lock.sort_key.as_ref().map_or(String::new(), |sort_key| format!("&sortKey={sort_key}"));
    for spelling in [
        format!("?key={id}%20a%2Bb%252F%2F%3F{sort_key}"),
        format!("?key={id}+a%2bb%252F/?{sort_key}"),
        format!("?&&%6B%65%79={id}+a%2Bb%252F/%3f{sort_key}&"),
        query(&lock.parameters()),
    ] {
        assert_eq!(bench.get(&format!("{LOCK}{spelling}"), &[]).await.ok(), view, "{spelling}");
    }
    for other in [format!("?key={id}+a+b%252F/?{sort_key}"), format!("?key={id}+a%2Bb%2F/?{sort_key}")] {
        bench.get(&format!("{LOCK}{other}"), &[]).await.problem("not-found");
    }
}

pub(super) async fn every_answer_keeps_the_secret(bench: Bench) {
    // Each answer of each case is searched for the lease ids that the case has used, and for their hashes. These
    // answers are the most likely to contain one.
    let lock = bench.lock();
    let alice = lock.acquire("alice", json!({ "leaseId": fresh("lease"), "data": "hers" })).await.granted("created");
    let own = json!({ "leaseId": alice.lease_id });
    lock.acquire("bob", json!({ "leaseId": fresh("lease") })).await.held();
    lock.heartbeat(&fresh("lease"), json!({})).await.lost("taken-over");
    lock.heartbeat(&alice.lease_id, json!({ "recordVersionNumber": "x" })).await.lost("version-mismatch");
    lock.release(&alice.lease_id, json!({ "recordVersionNumber": "x" })).await.lost("version-mismatch");
    lock.break_it("x").await.version_mismatch();
    lock.get().await.ok();
    bench.list_all(&[("key", &lock.key)]).await;
    lock.heartbeat(&alice.lease_id, json!({})).await.renewed();

    for (fields, field) in [
        (json!({ "leaseDurationMs": 1 }), "leaseDurationMs"),
        (json!({ "leaseId": [alice.lease_id] }), "leaseId"),
        (json!({ "leaseId": { alice.lease_id.clone(): 1 } }), "leaseId"),
        (json!({ "attributes": { "leaseIdHash": 1 } }), "attributes"),
        (json!({ "extra": 1 }), "extra"),
    ] {
        lock.acquire("alice", merged(own.clone(), fields)).await.invalid(field);
    }
    let body = lock.with_key(own.clone()).to_string();
    bench.post_text(HEARTBEAT, body.replacen('}', ",}", 1)).await.invalid_as_a_whole();
    bench.post_text(HEARTBEAT, &body[..body.len() - 2]).await.invalid_as_a_whole();
    bench.call(Method::POST, HEARTBEAT, Some("text/plain"), body.clone()).await.problem("unsupported-media-type");
    bench.call(Method::POST, "/v1/renew", Some(JSON), body.clone()).await.problem("unknown-route");
    bench.call(Method::PUT, HEARTBEAT, Some(JSON), body).await.problem("method-not-allowed");

    lock.overwrite([("leaseDuration", Some(text("20s")))]).await;
    lock.acquire("bob", json!({})).await.problem("corrupt-record");
    lock.get().await.problem("corrupt-record");
    bench.get(LOCKS, &[("key", &lock.key)]).await.page();
    lock.overwrite([("leaseDuration", Some(text("20000"))), ("more", Some(number(1)))]).await;
    lock.release(&alice.lease_id, json!({})).await.released("released");
    lock.acquire("alice", own).await.lost("released");
    lock.heartbeat(&alice.lease_id, json!({})).await.lost("released");
    lock.acquire("bob", json!({})).await.granted("reacquired");
    lock.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over");
}
