//! A table with a sort key: many locks under one key.

use serde_json::{Value, json};

use super::keys::{ODD, check_round_trip};
use crate::bench::{ACQUIRE, BREAK, Bench, HEARTBEAT, LOCK, LOCKS, Lock, RELEASE, fresh};

/// The longest sort key, in bytes of UTF-8.
const MOST: usize = 1024;

fn under(key: &Lock, sort_key: impl Into<String>) -> Lock {
    Lock { sort_key: Some(sort_key.into()), ..key.clone() }
}

/// The sort keys in the listing of this key, in its order.
async fn sort_keys_of(bench: &Bench, parameters: &[(&str, &str)]) -> Vec<String> {
    let listed = bench.list_all(parameters).await;
    listed.iter().map(|lock| lock["sortKey"].as_str().expect("a sort key").to_owned()).collect()
}

pub(super) async fn missing_sort_key_is_refused(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let row = lock.row().await;
    for sort_key in [json!({}), json!({ "sortKey": null }), json!({ "sortKey": "" })] {
        let nameless = |fields: Value| {
            crate::bench::merged(crate::bench::merged(json!({ "key": lock.key }), sort_key.clone()), fields)
        };
        for (path, fields) in [
            (ACQUIRE, json!({ "ownerName": "bob" })),
            (HEARTBEAT, json!({ "leaseId": grant.lease_id })),
            (RELEASE, json!({ "leaseId": grant.lease_id })),
            (RELEASE, json!({ "leaseId": grant.lease_id, "delete": true })),
            (BREAK, json!({ "recordVersionNumber": grant.rvn })),
        ] {
            bench.post(path, &nameless(fields)).await.invalid("sortKey");
        }
    }
    bench.get(LOCK, &[("key", &lock.key)]).await.invalid("sortKey");
    bench.get("/v1/history", &[("key", &lock.key)]).await.invalid("sortKey");
    bench.get(LOCK, &[("key", &lock.key), ("sortKey", "")]).await.invalid("sortKey");
    // A listing contains all sort keys of a key.
    bench.get(LOCKS, &[("key", &lock.key), ("sortKey", "sort")]).await.invalid("sortKey");
    assert_eq!(lock.row().await, row);
}

pub(super) async fn sort_keys_are_independent(bench: Bench) {
    let key = bench.lock();
    let (a, b) = (under(&key, "a"), under(&key, "b"));
    let (alice, bob) = (a.hold("alice").await, b.hold("bob").await);
    assert_eq!(a.acquire("bob", json!({})).await.held(), a.view(&alice, json!({})));
    assert_eq!(b.acquire("alice", json!({})).await.held(), b.view(&bob, json!({})));
    assert_eq!(b.heartbeat(&alice.lease_id, json!({})).await.lost("taken-over"), b.view(&bob, json!({})));
    assert_eq!(b.release(&alice.lease_id, json!({})).await.lost("taken-over"), b.view(&bob, json!({})));
    assert_eq!(b.break_it(&alice.rvn).await.version_mismatch(), b.view(&bob, json!({})));
    let observed = json!({ "observedRecordVersionNumber": alice.rvn });
    assert_eq!(b.acquire("carol", observed).await.held(), b.view(&bob, json!({})));

    a.release(&alice.lease_id, json!({ "delete": true })).await.released("released");
    a.get().await.problem("not-found");
    assert_eq!(b.get().await.ok(), b.view(&bob, json!({})));
    // One lease id may hold several locks: it is valid for one acquisition of each.
    let both = json!({ "leaseId": bob.lease_id });
    a.acquire("bob", both.clone()).await.granted("created");
    b.release(&bob.lease_id, json!({})).await.released("released");
    b.acquire("bob", both).await.lost("released");
    a.heartbeat(&bob.lease_id, json!({})).await.renewed();
    under(&key, "c").get().await.problem("not-found");
}

pub(super) async fn key_lists_its_sort_keys_in_order(bench: Bench) {
    let key = bench.lock();
    let mut sort_keys = ["b", "a", "B", "10", "2", "a b", "a\0", "aa", "é", "e\u{301}", "🔒", "/", "%2F"];
    for sort_key in sort_keys {
        under(&key, sort_key).hold("alice").await;
    }
    // A neighbouring key, whose locks must not appear in the listing.
    bench.lock_of(format!("{}x", key.key)).hold("alice").await;
    sort_keys.sort_unstable();
    for limit in ["1", "2", "5", "12", "13", "14", "1000"] {
        let listed = sort_keys_of(&bench, &[("key", &key.key), ("limit", limit)]).await;
        assert_eq!(listed, sort_keys, "by pages of {limit}");
    }
    let page = bench.get(LOCKS, &[("key", &key.key), ("limit", "5")]).await.page();
    assert_eq!(page.locks.len(), 5);
    let cursor = page.next_cursor.expect("there are thirteen");
    let neighbour = format!("{}x", key.key);
    bench.get(LOCKS, &[("key", &neighbour), ("cursor", &cursor)]).await.invalid("cursor");
    bench.get(LOCKS, &[("cursor", &cursor)]).await.invalid("cursor");
}

pub(super) async fn listing_of_a_key_can_be_filtered(bench: Bench) {
    let key = bench.lock();
    for (sort_key, owner, is_released) in
        [("a", "alice", false), ("b", "bob", false), ("c", "alice", true), ("d", "alice", false), ("e", "bob", true)]
    {
        let lock = under(&key, sort_key);
        let grant = lock.hold(owner).await;
        if is_released {
            lock.release(&grant.lease_id, json!({})).await.released("released");
        }
    }
    for limit in ["1", "2", "100"] {
        let of_key = [("key", key.key.as_str()), ("limit", limit)];
        for (filters, expected) in [
            (vec![("state", "held")], ["a", "b", "d"].as_slice()),
            (vec![("state", "released")], &["c", "e"]),
            (vec![("ownerName", "alice")], &["a", "c", "d"]),
            (vec![("ownerName", "alice"), ("state", "held")], &["a", "d"]),
            (vec![("ownerName", "carol")], &[]),
        ] {
            assert_eq!(sort_keys_of(&bench, &[&of_key[..], &filters].concat()).await, expected, "{filters:?}");
        }
    }
}

pub(super) async fn odd_sort_keys_round_trip(bench: Bench) {
    for odd in ODD {
        check_round_trip(&under(&bench.lock(), odd)).await;
    }
}

pub(super) async fn sort_keys_have_limits(bench: Bench) {
    for longest in ["s".repeat(MOST), "é".repeat(MOST / 2), "🔒".repeat(MOST / 4), "\0".repeat(MOST)] {
        let key = bench.lock();
        check_round_trip(&under(&key, longest.clone())).await;
        let longer = under(&key, longest + "s");
        longer.acquire("alice", json!({})).await.invalid("sortKey");
        longer.heartbeat(&fresh("lease"), json!({})).await.invalid("sortKey");
        longer.release(&fresh("lease"), json!({})).await.invalid("sortKey");
        longer.break_it(&fresh("version")).await.invalid("sortKey");
        longer.get().await.invalid("sortKey");
    }
}
