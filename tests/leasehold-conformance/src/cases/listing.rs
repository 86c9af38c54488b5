//! Reads of one lock, and listings of many.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::bench::{Bench, HEALTH, LOCK, LOCKS, Lock, fresh, merged};
use crate::reply::Grant;

/// Locks of a fresh owner, by which a case finds its own locks on a table in use.
async fn locks_of(bench: &Bench, owner: &str, count: usize) -> Vec<(Lock, Grant)> {
    let mut locks = Vec::with_capacity(count);
    for _ in 0..count {
        let lock = bench.lock();
        let grant = lock.hold(owner).await;
        locks.push((lock, grant));
    }
    locks
}

fn keys_in(locks: &[Value]) -> BTreeSet<String> {
    locks.iter().map(|lock| lock["key"].as_str().expect("a key").to_owned()).collect()
}

fn keys_of(locks: &[(Lock, Grant)]) -> BTreeSet<String> {
    locks.iter().map(|(lock, _)| lock.key.clone()).collect()
}

/// A cursor of the listing of this owner's locks. The owner has several.
async fn cursor_of(bench: &Bench, owner: &str) -> String {
    let page = bench.get(LOCKS, &[("limit", "1"), ("ownerName", owner)]).await.page();
    page.next_cursor.expect("there is more than one")
}

pub(super) async fn get_shows_a_lock(bench: Bench) {
    let lock = bench.lock();
    let fields = json!({ "data": "payload", "leaseDurationMs": 30_000, "attributes": { "team": "payments" } });
    let grant = lock.acquire("alice", fields).await.granted("created");
    let expected = lock.with_key(json!({
        "state": "held",
        "ownerName": "alice",
        "recordVersionNumber": grant.rvn,
        "leaseDurationMs": 30_000,
        "fencingToken": grant.token,
        "data": "payload",
        "attributes": { "team": "payments" },
    }));
    assert_eq!(lock.get().await.ok(), expected);
    lock.release(&grant.lease_id, json!({})).await.released("released");
    let released = json!({ "state": "released", "recordVersionNumber": lock.version().await });
    assert_eq!(lock.get().await.ok(), merged(expected, released));
}

pub(super) async fn get_knows_no_other_lock(bench: Bench) {
    let lock = bench.lock();
    lock.get().await.problem("not-found");
    lock.hold("alice").await;
    lock.get().await.ok();
    for neighbour in [format!("{}x", lock.key), lock.key[..lock.key.len() - 1].to_owned(), lock.key.to_uppercase()] {
        bench.lock_of(neighbour).get().await.problem("not-found");
    }
}

pub(super) async fn pages_add_up(bench: Bench) {
    let owner = fresh("owner");
    let locks = locks_of(&bench, &owner, 7).await;
    for limit in ["1", "2", "3", "6", "7", "8", "100", "1000"] {
        let listed = bench.list_all(&[("ownerName", &owner), ("limit", limit)]).await;
        assert_eq!(listed.len(), 7, "nothing twice, by pages of {limit}");
        assert_eq!(keys_in(&listed), keys_of(&locks), "by pages of {limit}");
    }
    let listed = bench.list_all(&[("ownerName", &owner)]).await;
    for (lock, grant) in &locks {
        assert!(listed.contains(&lock.view(grant, json!({}))), "{} in {listed:?}", lock.key);
    }
}

pub(super) async fn page_has_no_more_than_asked_for(bench: Bench) {
    let owner = fresh("owner");
    locks_of(&bench, &owner, 4).await;
    let mut cursor = None;
    for _ in 0..3 {
        let after = cursor.as_deref().map(|cursor: &str| ("cursor", cursor));
        let parameters: Vec<_> = [("limit", "3")].into_iter().chain(after).collect();
        let page = bench.get(LOCKS, &parameters).await.page();
        assert!(page.locks.len() + page.unreadable.len() <= 3, "{page:?}");
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    // The first page contains three of four locks. The cursor leads to the fourth, with any limit.
    let page = bench.get(LOCKS, &[("ownerName", &owner), ("limit", "3")]).await.page();
    assert!(page.locks.len() <= 3, "{page:?}");
    let cursor = page.next_cursor.as_deref().expect("there is a fourth");
    let parameters = [("ownerName", owner.as_str()), ("limit", "100"), ("cursor", cursor)];
    let rest = bench.get(LOCKS, &parameters).await.page();
    assert!(rest.locks.len() + page.locks.len() <= 4, "{rest:?} after {page:?}");
}

pub(super) async fn unfiltered_listing_has_every_lock(bench: Bench) {
    let locks = locks_of(&bench, "alice", 3).await;
    let listed = keys_in(&bench.list_all(&[("limit", "1000")]).await);
    assert!(listed.is_superset(&keys_of(&locks)));
    let listed = keys_in(&bench.list_all(&[("state", "held")]).await);
    assert!(listed.is_superset(&keys_of(&locks)));
}

pub(super) async fn filters_by_state_and_owner(bench: Bench) {
    let owner = fresh("owner");
    let mut locks = locks_of(&bench, &owner, 5).await;
    let released = locks.split_off(3);
    for (lock, grant) in &released {
        lock.release(&grant.lease_id, json!({})).await.released("released");
    }
    for (state, expected) in [("held", &locks), ("released", &released)] {
        for limit in ["1", "2", "100"] {
            let parameters = [("ownerName", owner.as_str()), ("state", state), ("limit", limit)];
            let listed = bench.list_all(&parameters).await;
            assert_eq!((listed.len(), keys_in(&listed)), (expected.len(), keys_of(expected)), "{state}");
            assert!(listed.iter().all(|lock| lock["state"] == state), "{listed:?}");
        }
    }
    assert_eq!(bench.list_all(&[("ownerName", &owner)]).await.len(), 5);
    for nobody in [owner.to_uppercase(), owner[1..].to_owned(), fresh("owner")] {
        assert_eq!(bench.list_all(&[("ownerName", &nobody)]).await, Vec::<Value>::new());
    }
    // The last owner of a released lock counts, a former one does not.
    let (lock, _) = &released[0];
    let other = fresh("owner");
    lock.acquire(&other, json!({})).await.granted("reacquired");
    assert_eq!(keys_in(&bench.list_all(&[("ownerName", &other)]).await), BTreeSet::from([lock.key.clone()]));
    assert_eq!(bench.list_all(&[("ownerName", &owner)]).await.len(), 4);
}

pub(super) async fn key_lists_its_locks(bench: Bench) {
    let lock = bench.lock();
    let by_key = [("key", lock.key.as_str())];
    assert_eq!(bench.get(LOCKS, &by_key).await.ok(), json!({ "locks": [] }));
    let grant = lock.hold("alice").await;
    let listed = json!({ "locks": [lock.view(&grant, json!({}))] });
    assert_eq!(bench.get(LOCKS, &by_key).await.ok(), listed);
    for (filter, value, expected) in
        [("state", "held", 1), ("state", "released", 0), ("ownerName", "alice", 1), ("ownerName", "bob", 0)]
    {
        assert_eq!(bench.list_all(&[by_key[0], (filter, value)]).await.len(), expected, "{filter} {value}");
    }
}

pub(super) async fn forged_cursor_is_refused(bench: Bench) {
    let owner = fresh("owner");
    locks_of(&bench, &owner, 2).await;
    let cursor = cursor_of(&bench, &owner).await;
    let with = async |cursor: &str| bench.get(LOCKS, &[("ownerName", &owner), ("cursor", cursor)]).await;
    assert_eq!(with(&cursor).await.page().locks.len(), 1, "as it was given, it is good");

    let flipped = (0..cursor.len()).map(|position| {
        let mut forged = cursor.clone().into_bytes();
        forged[position] = if forged[position] == b'A' { b'B' } else { b'A' };
        String::from_utf8(forged).expect("ASCII")
    });
    let other = [
        String::new(),
        "A".to_owned(),
        "not a cursor".to_owned(),
        "\0".to_owned(),
        "x".repeat(4000),
        format!("{cursor}A"),
        format!("{cursor}AAAA"),
        format!("{cursor}="),
        format!(" {cursor}"),
        cursor[1..].to_owned(),
        cursor[..cursor.len() - 1].to_owned(),
        cursor.to_lowercase(),
    ];
    for forged in flipped.chain(other) {
        with(&forged).await.invalid("cursor");
    }
}

pub(super) async fn cursor_belongs_to_its_listing(bench: Bench) {
    let owner = fresh("owner");
    let locks = locks_of(&bench, &owner, 3).await;
    let cursor = cursor_of(&bench, &owner).await;
    let (other, key) = (fresh("owner"), locks[0].0.key.as_str());
    let others: [&[(&str, &str)]; 5] = [
        &[],
        &[("ownerName", &other)],
        &[("ownerName", &owner), ("state", "held")],
        &[("ownerName", &owner), ("key", key)],
        &[("key", key)],
    ];
    for parameters in others {
        let parameters = [parameters, &[("cursor", &cursor)]].concat();
        bench.get(LOCKS, &parameters).await.invalid("cursor");
    }
    // The limit may change from page to page.
    let parameters = [("ownerName", owner.as_str()), ("limit", "2"), ("cursor", cursor.as_str())];
    assert_eq!(bench.get(LOCKS, &parameters).await.page().locks.len(), 2);
}

pub(super) async fn parameters_have_bounds(bench: Bench) {
    for limit in ["0", "1001", "abc", "", "-1", "1.5", "1e2", "0x10", "99999999999999999999999", "10 "] {
        bench.get(LOCKS, &[("limit", limit)]).await.invalid("limit");
    }
    for (name, value) in [
        ("state", "lost"),
        ("state", "HELD"),
        ("state", ""),
        ("ownerName", ""),
        ("key", ""),
        ("leaseId", "secret"),
        ("LIMIT", "1"),
        ("", "1"),
    ] {
        bench.get(LOCKS, &[(name, value)]).await.invalid(name);
    }
    bench.get(LOCKS, &[("key", &"k".repeat(2049))]).await.invalid("key");
    bench.get(LOCKS, &[("limit", "1000"), ("key", &"k".repeat(2048))]).await.page();
    bench.get(LOCK, &[("key", "k"), ("limit", "1")]).await.invalid("limit");
}

pub(super) async fn service_is_healthy(bench: Bench) {
    assert_eq!(bench.get(HEALTH, &[]).await.ok(), json!({ "status": "ok" }));
}
