//! Keys are any text. The service does not trim, decode twice, fold or truncate them.

use serde_json::json;

use crate::bench::{ACQUIRE, BREAK, Bench, HEARTBEAT, LOCK, LOCKS, Lock, RELEASE, fresh, merged};

/// The longest key, in bytes of UTF-8.
const MOST: usize = 2048;

/// Texts that a path, a query, a shell, a log or a database might mishandle.
pub(super) const ODD: [&str; 28] = [
    "/",
    "a/b/c",
    "..",
    "%",
    "%2F",
    "%00",
    "100%25",
    "?",
    "a?b=c",
    "#",
    "&",
    "a&b=c",
    "+",
    "a+b",
    " ",
    "a b",
    "\0",
    "\r\n\t",
    "\"\\",
    "{}",
    "'; --",
    "🔒👩‍👩‍👧",
    "مرحبا",
    "\u{202e}\u{200b}\u{feff}",
    "e\u{301}",
    "\u{7f}\u{80}",
    "\u{ffff}",
    "\u{10ffff}",
];

/// Uses one lock in all operations. Each answer must name this key, and the listings must find it.
pub(super) async fn check_round_trip(lock: &Lock) {
    let owner = fresh("owner");
    let grant = lock.hold(&owner).await;
    let view = lock.view(&grant, json!({}));
    assert_eq!(grant.body["key"], lock.key.as_str());
    assert_eq!(grant.body["sortKey"].as_str(), lock.sort_key.as_deref());
    assert_eq!(lock.acquire("bob", json!({})).await.held(), view);
    assert_eq!(lock.get().await.ok(), view);
    assert_eq!(lock.bench.list_all(&[("ownerName", &owner)]).await, std::slice::from_ref(&view));
    assert_eq!(lock.bench.list_all(&[("ownerName", &owner), ("key", &lock.key)]).await, [view]);
    let renewal = lock.heartbeat(&grant.lease_id, json!({})).await.renewed();
    lock.break_it(&renewal.rvn).await.released("released");
    lock.release(&grant.lease_id, json!({ "delete": true })).await.released("replayed");
    lock.get().await.problem("not-found");
    lock.deleted().await;
}

pub(super) async fn odd_keys_round_trip(bench: Bench) {
    for odd in ODD {
        check_round_trip(&bench.lock_of(format!("{odd}{}{odd}", fresh("key")))).await;
    }
}

pub(super) async fn look_alikes_are_different_locks(bench: Bench) {
    let id = fresh("key");
    let alike = [
        "a/b",
        "a%2Fb",
        "a%252Fb",
        "a%2fb",
        "/a/b",
        "a/b/",
        "a//b",
        "a/./b",
        "A/b",
        "a b",
        "a+b",
        "a%20b",
        "a b ",
        " a b",
        "a b\0",
        "\u{e9}",
        "e\u{301}",
        "\u{feff}a/b",
        "a/b?",
        "a/b#",
    ];
    let mut held = Vec::new();
    for text in alike {
        // The text stands between two marks, where a blank at either end counts, and also at the very ends of the key.
        for key in [format!("{id}:{text}:"), format!("{text}{id}{text}")] {
            let lock = bench.lock_of(key);
            let grant = lock.hold(text).await;
            held.push((lock, grant));
        }
    }
    for (lock, grant) in held {
        assert_eq!(lock.get().await.ok(), lock.view(&grant, json!({})));
        lock.release(&grant.lease_id, json!({ "delete": true })).await.released("released");
    }
}

pub(super) async fn longest_key_round_trips(bench: Bench) {
    let id = fresh("key");
    let pad = MOST - id.len();
    check_round_trip(&bench.lock_of(format!("{id}{}", "k".repeat(pad)))).await;
    check_round_trip(&bench.lock_of(format!("{}{id}", "\0".repeat(pad)))).await;
    check_round_trip(&bench.lock_of(format!("{id}{}{}", "é".repeat(pad / 2), "k".repeat(pad % 2)))).await;
    check_round_trip(&bench.lock_of(format!("{}{id}{}", "🔒".repeat(pad / 4), "k".repeat(pad % 4)))).await;
}

async fn check_refused(lock: &Lock) {
    let bench = &lock.bench;
    bench.post(ACQUIRE, &lock.with_key(json!({ "ownerName": "alice" }))).await.invalid("key");
    bench.post(HEARTBEAT, &lock.with_key(json!({ "leaseId": fresh("lease") }))).await.invalid("key");
    bench.post(RELEASE, &lock.with_key(json!({ "leaseId": fresh("lease") }))).await.invalid("key");
    bench.post(BREAK, &lock.with_key(json!({ "recordVersionNumber": fresh("version") }))).await.invalid("key");
    bench.get(LOCK, &lock.parameters()).await.invalid("key");
    bench.get(LOCKS, &[("key", &lock.key)]).await.invalid("key");
}

pub(super) async fn longer_key_is_refused(bench: Bench) {
    let id = fresh("key");
    for length in [MOST + 1, MOST + 2, 4096, 8000] {
        check_refused(&bench.lock_of(format!("{id}{}", "k".repeat(length - id.len())))).await;
    }
    check_refused(&bench.lock_of("")).await;
}

pub(super) async fn bytes_count_and_not_characters(bench: Bench) {
    // A character of several bytes at the end, within the limit and across it.
    for character in ["é", "€", "🔒"] {
        let id = fresh("key");
        let ascii = |length: usize| format!("{id}{}", "k".repeat(length - id.len()));
        let width = character.len();
        check_round_trip(&bench.lock_of(ascii(MOST - width) + character)).await;
        for over in 1..=width {
            check_refused(&bench.lock_of(ascii(MOST - width + over) + character)).await;
        }
    }
    check_refused(&bench.lock_of("é".repeat(MOST / 2 + 1))).await;
    check_refused(&bench.lock_of("🔒".repeat(MOST / 4 + 1))).await;
}

pub(super) async fn other_texts_have_limits(bench: Bench) {
    let (owner, lease_id, rvn) = ("é".repeat(512), "🔒".repeat(256), "v".repeat(1024));
    let longer = "é".repeat(512) + "x";
    let lock = bench.lock();
    let grant = lock.acquire(&owner, json!({ "leaseId": lease_id })).await.granted("created");
    assert_eq!((&grant.lease_id, &grant.body["ownerName"]), (&lease_id, &json!(owner)));
    lock.acquire("bob", json!({ "observedRecordVersionNumber": rvn })).await.held();
    lock.heartbeat(&lease_id, json!({ "recordVersionNumber": rvn })).await.lost("version-mismatch");
    lock.release(&lease_id, json!({ "recordVersionNumber": rvn })).await.lost("version-mismatch");
    lock.break_it(&rvn).await.version_mismatch();

    let row = lock.row().await;
    let possession = lock.with_key(json!({ "leaseId": lease_id }));
    let acquire = lock.with_key(json!({ "ownerName": "bob" }));
    for (path, body, field) in [
        (ACQUIRE, &acquire, "ownerName"),
        (ACQUIRE, &acquire, "leaseId"),
        (ACQUIRE, &acquire, "observedRecordVersionNumber"),
        (HEARTBEAT, &possession, "leaseId"),
        (HEARTBEAT, &possession, "recordVersionNumber"),
        (RELEASE, &possession, "leaseId"),
        (RELEASE, &possession, "recordVersionNumber"),
        (BREAK, &lock.with_key(json!({})), "recordVersionNumber"),
    ] {
        bench.post(path, &merged(body.clone(), json!({ field: longer }))).await.invalid(field);
    }
    assert_eq!(lock.row().await, row);
    lock.release(&lease_id, json!({})).await.released("released");
}
