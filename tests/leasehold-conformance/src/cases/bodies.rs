//! Faulty bodies, and the field at fault in each.

use serde_json::{Value, json};

use crate::bench::{ACQUIRE, BREAK, Bench, HEARTBEAT, Lock, RELEASE, fresh, merged};

/// The smallest valid body of each operation.
fn smallest(lock: &Lock) -> [(&'static str, Value); 4] {
    [
        (ACQUIRE, lock.with_key(json!({ "ownerName": "alice" }))),
        (HEARTBEAT, lock.with_key(json!({ "leaseId": fresh("lease") }))),
        (RELEASE, lock.with_key(json!({ "leaseId": fresh("lease") }))),
        (BREAK, lock.with_key(json!({ "recordVersionNumber": fresh("version") }))),
    ]
}

fn names(body: &Value) -> Vec<String> {
    body.as_object().expect("an object").keys().cloned().collect()
}

fn without(body: &Value, name: &str) -> Value {
    let mut body = body.clone();
    body.as_object_mut().expect("an object").remove(name);
    body
}

/// A body for an acquire of this lock, in which `value` is the raw JSON of the field `name`.
fn acquire_with(lock: &Lock, name: &str, value: &str) -> String {
    let body = lock.with_key(json!({ "ownerName": "alice", name: "VALUE" })).to_string();
    body.replace(r#""VALUE""#, value)
}

pub(super) async fn body_that_is_not_json_is_refused(bench: Bench) {
    let lock = bench.lock();
    for path in [ACQUIRE, HEARTBEAT, RELEASE, BREAK] {
        for body in [
            "",
            " ",
            "\n",
            "{",
            "{]",
            "}",
            r#"{"key"}"#,
            r#"{"key":"#,
            r#"{"key":"k"#,
            "{'key':'k'}",
            "{key:1}",
            "key=k&ownerName=alice",
            "<lock/>",
            "\0",
            "{\0}",
            r#"{"key":"k",}"#,
            "{\"key\":\"\n\"}",
            "//\n{}",
        ] {
            bench.post_text(path, body).await.invalid_as_a_whole();
        }
    }
    for (path, body) in smallest(&lock) {
        let body = body.to_string();
        bench.post_text(path, &body[..body.len() - 1]).await.invalid_as_a_whole();
        bench.post_text(path, format!("\u{feff}{body}")).await.invalid_as_a_whole();
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn body_is_refused_when_it_is_no_object(bench: Bench) {
    let lock = bench.lock();
    for (path, body) in smallest(&lock) {
        let values: Vec<_> = body.as_object().expect("an object").values().cloned().collect();
        for body in
            ["[]", "null", "true", "1", "\"key\"", "[{}]", &json!(values).to_string(), &json!([body]).to_string()]
        {
            bench.post_text(path, body).await.invalid_as_a_whole();
        }
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn text_after_the_object_is_refused(bench: Bench) {
    let lock = bench.lock();
    for (path, body) in smallest(&lock) {
        for rest in ["x", "{}", "\0", ",", "]", &body.to_string()] {
            bench.post_text(path, format!("{body}{rest}")).await.invalid_as_a_whole();
        }
    }
    assert_eq!(lock.row().await, None);
    let body = lock.with_key(json!({ "ownerName": "alice" }));
    bench.post_text(ACQUIRE, format!(" \r\n\t{body}\r\n\t ")).await.granted("created");
}

pub(super) async fn missing_fields_are_named(bench: Bench) {
    let lock = bench.lock();
    for (path, body) in smallest(&lock) {
        for name in names(&body) {
            bench.post(path, &without(&body, &name)).await.invalid(&name);
        }
    }
    bench.post(ACQUIRE, &json!({})).await.invalid("key");
    assert_eq!(lock.row().await, None);
}

pub(super) async fn empty_fields_are_named(bench: Bench) {
    let lock = bench.lock();
    let optional = [
        (ACQUIRE, vec!["leaseId", "observedRecordVersionNumber"]),
        (HEARTBEAT, vec!["recordVersionNumber"]),
        (RELEASE, vec!["recordVersionNumber"]),
        (BREAK, vec![]),
    ];
    for ((path, body), (_, optional)) in smallest(&lock).into_iter().zip(optional) {
        for name in names(&body).into_iter().chain(optional.into_iter().map(str::to_owned)) {
            bench.post(path, &merged(body.clone(), json!({ name.clone(): "" }))).await.invalid(&name);
        }
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn unknown_fields_are_named(bench: Bench) {
    let lock = bench.lock();
    for (path, body) in smallest(&lock) {
        for name in ["extra", "Key", "owner", "leaseID", "lease_id", "leaseDuration", "action", "key ", "ключ"] {
            bench.post(path, &merged(body.clone(), json!({ name: "x" }))).await.invalid(name);
        }
    }
    // A field of one operation is unknown to another.
    for (path, name) in [
        (ACQUIRE, "recordVersionNumber"),
        (ACQUIRE, "delete"),
        (HEARTBEAT, "ownerName"),
        (HEARTBEAT, "attributes"),
        (RELEASE, "leaseDurationMs"),
        (RELEASE, "deleteData"),
        (BREAK, "leaseId"),
        (BREAK, "delete"),
    ] {
        let (_, body) = smallest(&lock).into_iter().find(|(of, _)| *of == path).expect("one of the four");
        bench.post(path, &merged(body, json!({ name: "x" }))).await.invalid(name);
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn duplicate_fields_are_named(bench: Bench) {
    let lock = bench.lock();
    for (path, body) in smallest(&lock) {
        for name in names(&body) {
            let text = body.to_string();
            let (open, value) = (&text[..text.len() - 1], &body[&name]);
            bench.post_text(path, format!(r#"{open},"{name}":{value}}}"#)).await.invalid(&name);
        }
    }
    let twice = acquire_with(&lock, "data", r#""a","data":"b""#);
    bench.post_text(ACQUIRE, twice).await.invalid("data");
    assert_eq!(lock.row().await, None);
}

pub(super) async fn fields_of_the_wrong_type_are_named(bench: Bench) {
    let lock = bench.lock();
    let optional = [
        (
            ACQUIRE,
            json!({
                "leaseId": "x", "observedRecordVersionNumber": "x", "data": "x", "dataBase64": "", "leaseDurationMs": 1000,
                "staleness": "rvn", "replaceData": true, "onlyIfExists": true, "attributes": {},
            }),
        ),
        (
            HEARTBEAT,
            json!({
                "recordVersionNumber": "x", "data": "x", "dataBase64": "", "leaseDurationMs": 1000, "deleteData": true,
            }),
        ),
        (RELEASE, json!({ "recordVersionNumber": "x", "data": "x", "dataBase64": "", "delete": true })),
        (BREAK, json!({})),
    ];
    let values = [json!("text"), json!(1), json!(1.5), json!(true), json!([]), json!({}), json!([{}])];
    for ((path, body), (_, optional)) in smallest(&lock).into_iter().zip(optional) {
        for (name, good) in merged(body.clone(), optional).as_object().expect("an object") {
            let is_same_type = |value: &Value| std::mem::discriminant(value) == std::mem::discriminant(good);
            for value in values.iter().filter(|value| !is_same_type(value)) {
                bench.post(path, &merged(body.clone(), json!({ name: value }))).await.invalid(name);
            }
        }
    }
    for staleness in ["", "RVN", "Clock", "time"] {
        lock.acquire("alice", json!({ "staleness": staleness })).await.invalid("staleness");
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn null_is_as_good_as_absent(bench: Bench) {
    let lock = bench.lock();
    let nothing = json!({
        "leaseId": null, "leaseDurationMs": null, "observedRecordVersionNumber": null, "staleness": null, "data": null,
        "dataBase64": null, "replaceData": null, "onlyIfExists": null, "attributes": null,
    });
    let grant = lock.acquire("alice", nothing).await.granted("created");
    assert_eq!(lock.get().await.ok(), lock.view(&grant, json!({})));
    assert_eq!(grant.body["leaseDurationMs"], 20_000);
    let nothing = json!({
        "leaseDurationMs": null, "recordVersionNumber": null, "data": null, "dataBase64": null, "deleteData": null,
    });
    lock.heartbeat(&grant.lease_id, nothing).await.renewed();
    let nothing = json!({ "recordVersionNumber": null, "data": null, "dataBase64": null, "delete": null });
    lock.release(&grant.lease_id, nothing).await.released("released");
    // Required fields must be present.
    for (path, body) in smallest(&lock) {
        for name in names(&body) {
            bench.post(path, &merged(body.clone(), json!({ name.clone(): null }))).await.invalid(&name);
        }
    }
}

pub(super) async fn leases_are_whole_numbers(bench: Bench) {
    let lock = bench.lock();
    for lease in [
        "-1",
        "-9223372036854775809",
        "1.5",
        "20000.0",
        "2e4",
        "18446744073709551616",
        "1e300",
        "-0.0",
        "\"20000\"",
        "true",
        "[20000]",
        "{}",
    ] {
        bench.post_text(ACQUIRE, acquire_with(&lock, "leaseDurationMs", lease)).await.invalid("leaseDurationMs");
    }
    for lease in ["1e999", "020000", "+20000", "0x4e20", "NaN", "Infinity", "20_000", ".5", "20000."] {
        bench.post_text(ACQUIRE, acquire_with(&lock, "leaseDurationMs", lease)).await.invalid_as_a_whole();
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn data_comes_in_one_form(bench: Bench) {
    let (lock, free) = (bench.lock(), bench.lock());
    let grant = lock.hold("alice").await;
    let row = lock.row().await;
    let both = json!({ "data": "A", "dataBase64": "QQ==" });
    free.acquire("alice", both.clone()).await.invalid("dataBase64");
    lock.heartbeat(&grant.lease_id, both.clone()).await.invalid("dataBase64");
    lock.release(&grant.lease_id, both).await.invalid("dataBase64");
    assert_eq!((lock.row().await, free.row().await), (row, None));
}

pub(super) async fn data_and_its_deletion_exclude_each_other(bench: Bench) {
    let lock = bench.lock();
    let grant = lock.hold("alice").await;
    let row = lock.row().await;
    for data in [json!({ "data": "A" }), json!({ "dataBase64": "QQ==" }), json!({ "data": "" })] {
        let both = merged(data.clone(), json!({ "deleteData": true }));
        lock.heartbeat(&grant.lease_id, both).await.invalid("deleteData");
        lock.release(&grant.lease_id, merged(data, json!({ "delete": true }))).await.invalid("delete");
    }
    assert_eq!(lock.row().await, row);
}

pub(super) async fn base64_is_strict(bench: Bench) {
    let lock = bench.lock();
    for base64 in ["!", "A", "QQ", "QQ=", "QQ===", "QR==", "_w==", " QQ==", "QQ==\n", "QQ==QQ==", "====", "é", "\0"] {
        lock.acquire("alice", json!({ "dataBase64": base64 })).await.invalid("dataBase64");
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn text_is_unicode(bench: Bench) {
    let lock = bench.lock();
    for text in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#, r#""\udc00\ud800""#, r#""\u12""#, r#""\x41""#] {
        bench.post_text(ACQUIRE, acquire_with(&lock, "data", text)).await.invalid_as_a_whole();
    }
    assert_eq!(lock.row().await, None);
    let pair = acquire_with(&lock, "data", r#""\ud83d\udd12\u0000""#);
    assert_eq!(bench.post_text(ACQUIRE, pair).await.granted("created").body["data"], "🔒\0");
}

pub(super) async fn bytes_are_utf_8(bench: Bench) {
    let lock = bench.lock();
    for bytes in [&b"\xff"[..], b"\xc3\x28", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"] {
        let body = acquire_with(&lock, "data", "\"\u{1}\"").into_bytes();
        let position = body.iter().position(|&byte| byte == 1).expect("the place for the bytes");
        let body = [&body[..position], bytes, &body[position + 1..]].concat();
        bench.post_text(ACQUIRE, body).await.invalid_as_a_whole();
    }
    assert_eq!(lock.row().await, None);
}

pub(super) async fn nesting_has_limits(bench: Bench) {
    let lock = bench.lock();
    for depth in [200, 100_000] {
        let nested = format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        bench.post_text(ACQUIRE, acquire_with(&lock, "attributes", &nested)).await.invalid_as_a_whole();
        let nested = format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        bench.post_text(ACQUIRE, acquire_with(&lock, "attributes", &nested)).await.invalid_as_a_whole();
        bench.post_text(ACQUIRE, acquire_with(&lock, "data", &"[".repeat(depth))).await.invalid("data");
    }
    assert_eq!(lock.row().await, None);
}
