//! Terraform's states in a bucket: what is refused, two writers at once, and writes that arrive late.

use std::collections::HashSet;
use std::time::Duration;

use aws_sdk_dynamodb::config::Credentials;
use http::Method;
use leasehold_lambda::Bucket;
use leasehold_sandbox::{At, S3};
use leasehold_terraform::{Change, Name, Store};
use leasehold_wire::{Problem, ProblemType};
use serde_json::{Value, json};
use tokio::time::timeout;

const POINTER: &str = "states/network/pointer.json";

async fn bucket() -> (S3, Bucket) {
    let s3 = S3::start().await.expect("a free port");
    let bucket = at(&s3.url);
    (s3, bucket)
}

fn at(url: &str) -> Bucket {
    let credentials = Credentials::new("test", "test", None, None, "test");
    Bucket::at(url.to_owned(), "us-east-1".to_owned(), credentials)
}

fn name() -> Name {
    Name::parse("network").expect("plain")
}

async fn change(bucket: &Bucket, token: u64, change: Change) -> Result<(), Problem> {
    bucket.change(&name(), token, change).await
}

async fn write(bucket: &Bucket, token: u64, state: &str) -> Result<(), Problem> {
    change(bucket, token, Change::Write(state.into())).await
}

async fn read(bucket: &Bucket) -> Option<String> {
    let state = bucket.read(&name()).await.expect("it answers");
    state.map(|state| String::from_utf8(state).expect("text"))
}

fn kind(answer: Result<(), Problem>) -> Option<ProblemType> {
    answer.err().map(|problem| problem.problem_type)
}

fn states_of(s3: &S3) -> usize {
    s3.keys().iter().filter(|key| key.ends_with(".tfstate")).count()
}

/// What any S3 with conditional writes must carry out.
async fn refuses_older_tokens(bucket: &Bucket) {
    assert_eq!(read(bucket).await, None);
    change(bucket, 5, Change::Raise).await.expect("the first");
    assert_eq!(read(bucket).await, None);
    write(bucket, 5, "one").await.expect("under the newest token");
    for late in [Change::Raise, Change::Write(b"late".to_vec()), Change::Remove] {
        assert_eq!(kind(change(bucket, 4, late.clone()).await), Some(ProblemType::Lost), "{late:?}");
    }
    assert_eq!(read(bucket).await.as_deref(), Some("one"));
    change(bucket, 6, Change::Raise).await.expect("the next holder");
    assert_eq!(kind(write(bucket, 5, "late").await), Some(ProblemType::Lost));
    assert_eq!(read(bucket).await.as_deref(), Some("one"));
    write(bucket, 6, "two").await.expect("under the newest token");
    write(bucket, 9, "three").await.expect("a newer token needs no raise before");
    assert_eq!(kind(write(bucket, 8, "late").await), Some(ProblemType::Lost));
    change(bucket, 9, Change::Remove).await.expect("removed");
    change(bucket, 9, Change::Remove).await.expect("removed already");
    assert_eq!(read(bucket).await, None);
    assert_eq!(kind(write(bucket, 8, "late").await), Some(ProblemType::Lost), "a removal leaves the fence");
    write(bucket, 9, "four").await.expect("under the newest token");
    assert_eq!(read(bucket).await.as_deref(), Some("four"));
    let large = " ".repeat(5 * 1024 * 1024);
    write(bucket, 9, &large).await.expect("written");
    assert_eq!(read(bucket).await, Some(large));
}

#[tokio::test]
async fn state_is_written_under_the_newest_token_only() {
    let (s3, bucket) = bucket().await;
    refuses_older_tokens(&bucket).await;
    assert_eq!(states_of(&s3), 2, "the state, and the version before it");
}

/// `LEASEHOLD_TEST_S3_URL` is the address of an empty bucket, for the credentials `test` and `test`.
#[tokio::test]
#[ignore = "it asks for a bucket: scripts/ministack.sh"]
async fn bucket_of_a_local_aws_refuses_older_tokens() {
    let url = std::env::var("LEASEHOLD_TEST_S3_URL").expect("the address of a bucket");
    let bucket = at(&url);
    refuses_older_tokens(&bucket).await;
    let writes = (0..4).map(|number| {
        let bucket = bucket.clone();
        tokio::spawn(async move { write(&bucket, 20 + number % 2, &number.to_string()).await })
    });
    let mut refused = 0;
    for write in writes.collect::<Vec<_>>() {
        match kind(write.await.expect("no panic")) {
            None => {}
            Some(ProblemType::Lost) => refused += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused <= 2, "{refused} of those with the older token");
    let state = read(&bucket).await.expect("a state");
    assert!(["1", "3"].contains(&state.as_str()), "{state} is of the older token");
    let elsewhere = at(&format!("{url}-that-is-not-there"));
    let problem = elsewhere.read(&name()).await.expect_err("no bucket");
    assert_eq!(problem.problem_type, ProblemType::Misconfigured);
}

/// The run is admitted, and writes its object. Before it writes the pointer, the next holder comes.
#[tokio::test]
async fn write_is_refused_when_the_next_holder_came_between() {
    let (s3, bucket) = bucket().await;
    write(&bucket, 1, "before").await.expect("written");
    let held = s3.hold(Method::PUT, "pointer.json", At::Arrival);
    let late = {
        let bucket = bucket.clone();
        tokio::spawn(async move { write(&bucket, 1, "late").await })
    };
    let open = held.arrived().await;
    change(&bucket, 2, Change::Raise).await.expect("the next holder");
    assert_eq!(read(&bucket).await.as_deref(), Some("before"));
    open.send(()).expect("it waits");
    assert_eq!(kind(late.await.expect("no panic")), Some(ProblemType::Lost));
    assert_eq!(read(&bucket).await.as_deref(), Some("before"));
    assert_eq!(states_of(&s3), 1, "the refused state is removed");
    write(&bucket, 2, "after").await.expect("under the newest token");
}

/// The next holder comes, and cleans up, before the late run has written even its object.
#[tokio::test]
async fn refused_write_leaves_no_object() {
    let (s3, bucket) = bucket().await;
    write(&bucket, 1, "before").await.expect("written");
    let held = s3.hold(Method::PUT, ".tfstate", At::Arrival);
    let late = {
        let bucket = bucket.clone();
        tokio::spawn(async move { write(&bucket, 1, "late").await })
    };
    let open = held.arrived().await;
    change(&bucket, 2, Change::Raise).await.expect("the next holder");
    open.send(()).expect("it waits");
    assert_eq!(kind(late.await.expect("no panic")), Some(ProblemType::Lost));
    assert_eq!((read(&bucket).await.as_deref(), states_of(&s3)), (Some("before"), 1));
}

/// Two requests of one run: the second one cleans up between the object and the pointer of the first.
#[tokio::test]
async fn clean_up_leaves_a_write_that_is_on_its_way() {
    let (s3, bucket) = bucket().await;
    let held = s3.hold(Method::PUT, "pointer.json", At::Arrival);
    let first = {
        let bucket = bucket.clone();
        tokio::spawn(async move { write(&bucket, 1, "first").await })
    };
    let open = held.arrived().await;
    change(&bucket, 1, Change::Raise).await.expect("it cleans up");
    assert_eq!(states_of(&s3), 1);
    open.send(()).expect("it waits");
    first.await.expect("no panic").expect("written");
    assert_eq!(read(&bucket).await.as_deref(), Some("first"));
}

/// The next holder reads what the run before it wrote, or that run is refused.
#[tokio::test]
async fn next_holder_reads_a_write_that_came_between() {
    let (s3, bucket) = bucket().await;
    change(&bucket, 1, Change::Raise).await.expect("the first");
    let held = s3.hold(Method::PUT, "pointer.json", At::Arrival);
    let next = {
        let bucket = bucket.clone();
        tokio::spawn(async move { change(&bucket, 2, Change::Raise).await })
    };
    let open = held.arrived().await;
    write(&bucket, 1, "last").await.expect("the fence is not raised yet");
    open.send(()).expect("it waits");
    next.await.expect("no panic").expect("raised, around the write");
    assert_eq!(read(&bucket).await.as_deref(), Some("last"));
    assert_eq!(kind(write(&bucket, 1, "late").await), Some(ProblemType::Lost));
}

#[tokio::test]
async fn write_counts_when_its_answer_is_lost() {
    let (s3, bucket) = bucket().await;
    for comes_next in [false, true] {
        let token = if comes_next { 2 } else { 1 };
        let held = s3.hold(Method::PUT, "pointer.json", At::Answer);
        let writing = {
            let bucket = bucket.clone();
            tokio::spawn(async move { write(&bucket, token, &format!("under {token}")).await })
        };
        let open = held.arrived().await;
        if comes_next {
            // It takes the state over, and with it the object.
            change(&bucket, 3, Change::Raise).await.expect("the next holder");
        }
        open.send(()).expect("it waits");
        writing.await.expect("no panic").expect("it was written");
        assert_eq!(read(&bucket).await, Some(format!("under {token}")));
    }
}

#[tokio::test]
async fn writers_all_get_through_when_they_write_at_once() {
    let (s3, bucket) = bucket().await;
    let writes = (0..6).map(|number: u64| {
        let bucket = bucket.clone();
        tokio::spawn(async move { write(&bucket, 7, &number.to_string()).await })
    });
    for write in writes.collect::<Vec<_>>() {
        write.await.expect("no panic").expect("they hold one lock");
    }
    let state = read(&bucket).await.expect("a state");
    assert!(state.parse::<u64>().is_ok_and(|number| number < 6), "{state}");
    assert_eq!(states_of(&s3), 2, "the state, and the version before it");
}

/// The object of a write whose content another one brought in the meantime is of no use.
#[tokio::test]
async fn object_is_removed_when_another_write_had_its_content() {
    let (s3, bucket) = bucket().await;
    write(&bucket, 1, "one").await.expect("written");
    let held = s3.hold(Method::PUT, "pointer.json", At::Arrival);
    let second = {
        let bucket = bucket.clone();
        tokio::spawn(async move { write(&bucket, 1, "two").await })
    };
    let open = held.arrived().await;
    write(&bucket, 1, "two").await.expect("written");
    open.send(()).expect("it waits");
    second.await.expect("no panic").expect("it is there already");
    assert_eq!((read(&bucket).await.as_deref(), states_of(&s3)), (Some("two"), 2), "and the version before");
}

#[tokio::test]
async fn change_goes_on_when_s3_asks_for_another_try() {
    let (s3, bucket) = bucket().await;
    // A pointer that is gone, as after a bucket was put back, and another write at the same moment.
    let refusals =
        [(409, "ConditionalRequestConflict"), (404, "NoSuchKey"), (503, "SlowDown"), (500, "InternalError"), (429, "")];
    for (token, (status, code)) in (1..).zip(refusals) {
        s3.refuse(&Method::PUT, "pointer.json", 1, status, code);
        write(&bucket, token, code).await.unwrap_or_else(|problem| panic!("{code}: {problem:?}"));
        assert_eq!(read(&bucket).await.as_deref(), Some(code));
    }
    assert_eq!(states_of(&s3), 2, "each try writes the same object");
    for (status, code) in [(409, "OperationAborted"), (404, "NoSuchBucket"), (403, "AccessDenied")] {
        s3.refuse(&Method::PUT, "pointer.json", 1, status, code);
        assert_eq!(kind(write(&bucket, 9, "nine").await), Some(ProblemType::Misconfigured), "{code}");
    }
    s3.refuse(&Method::GET, "pointer.json", 3, 503, "SlowDown");
    assert_eq!(kind(change(&bucket, 9, Change::Raise).await), Some(ProblemType::Unavailable));
}

#[tokio::test]
async fn change_counts_when_its_clean_up_fails() {
    let (s3, bucket) = bucket().await;
    for state in ["one", "two"] {
        write(&bucket, 1, state).await.expect("written");
    }
    s3.refuse(&Method::GET, "", 1, 403, "AccessDenied");
    change(&bucket, 2, Change::Raise).await.expect("raised");
    s3.refuse(&Method::DELETE, ".tfstate", 1, 403, "AccessDenied");
    write(&bucket, 2, "three").await.expect("written");
    assert_eq!(states_of(&s3), 3, "what stays");
    change(&bucket, 3, Change::Raise).await.expect("raised");
    assert_eq!((read(&bucket).await.as_deref(), states_of(&s3)), (Some("three"), 2));
}

/// A removal and a raise keep the version before: the one that a person may want back.
#[tokio::test]
async fn version_before_is_kept_when_a_state_is_removed() {
    let (s3, bucket) = bucket().await;
    write(&bucket, 1, "one").await.expect("written");
    write(&bucket, 1, "two").await.expect("written");
    change(&bucket, 2, Change::Raise).await.expect("raised");
    assert_eq!(states_of(&s3), 2);
    change(&bucket, 2, Change::Remove).await.expect("removed");
    change(&bucket, 3, Change::Remove).await.expect("removed already, under a newer token");
    assert_eq!((read(&bucket).await, states_of(&s3)), (None, 1), "the last one");
    assert_eq!(kind(write(&bucket, 2, "late").await), Some(ProblemType::Lost));
}

#[tokio::test]
async fn repeat_of_a_write_changes_nothing() {
    let (s3, bucket) = bucket().await;
    write(&bucket, 1, "one").await.expect("written");
    write(&bucket, 1, "two").await.expect("written");
    let keys = s3.keys();
    write(&bucket, 1, "two").await.expect("repeated");
    assert_eq!(s3.keys(), keys, "the version before stays");
    change(&bucket, 1, Change::Raise).await.expect("raised already");
    assert_eq!(s3.keys(), keys);
    // Nothing is written that would come in the way of another change.
    for key in ["pointer.json", ".tfstate"] {
        s3.refuse(&Method::PUT, key, 1, 403, "AccessDenied");
    }
    write(&bucket, 1, "two").await.expect("repeated");
    change(&bucket, 1, Change::Raise).await.expect("raised already");
}

#[tokio::test]
async fn clean_up_leaves_what_the_pointer_names() {
    let (s3, bucket) = bucket().await;
    for state in ["one", "two", "three"] {
        write(&bucket, 1, state).await.expect("written");
    }
    let named: HashSet<_> = s3.keys().into_iter().collect();
    assert_eq!(named.len(), 3, "the pointer, the state and the version before it: {named:?}");
    // Left by processes that died: under an older token, under that of a holder to come, and of another state.
    let old = "states/network/00000000000000000001-dead.tfstate";
    let newer = "states/network/00000000000000000009-alive.tfstate";
    let other = "states/network.other/00000000000000000001-dead.tfstate";
    for key in [old, newer, other] {
        s3.set(key, Some("left"));
    }
    for token in 2..8 {
        change(&bucket, token, Change::Raise).await.expect("the next holder");
        assert_eq!(read(&bucket).await.as_deref(), Some("three"), "an old object, and the one that is named");
    }
    let mut expected = named.clone();
    expected.extend([newer.to_owned(), other.to_owned()]);
    assert_eq!(s3.keys().into_iter().collect::<HashSet<_>>(), expected);
}

#[tokio::test]
async fn reader_follows_when_its_object_is_replaced() {
    let (s3, bucket) = bucket().await;
    write(&bucket, 1, "one").await.expect("written");
    let held = s3.hold(Method::GET, ".tfstate", At::Arrival);
    let reading = {
        let bucket = bucket.clone();
        tokio::spawn(async move { read(&bucket).await })
    };
    let open = held.arrived().await;
    for state in ["two", "three"] {
        write(&bucket, 1, state).await.expect("written");
    }
    open.send(()).expect("it waits");
    assert_eq!(reading.await.expect("no panic").as_deref(), Some("three"));
}

#[tokio::test]
async fn state_is_not_missing_when_its_bucket_is() {
    let (s3, bucket) = bucket().await;
    write(&bucket, 1, "one").await.expect("written");
    s3.remove();
    assert_eq!(bucket.read(&name()).await.expect_err("no bucket").problem_type, ProblemType::Misconfigured);
    assert_eq!(kind(write(&bucket, 1, "two").await), Some(ProblemType::Misconfigured));
}

#[tokio::test]
async fn state_is_refused_when_its_objects_are_damaged() {
    let (s3, bucket) = bucket().await;
    let pointer = |token: Value| json!({ "fencingToken": token, "version": 1, "state": null, "previous": null });
    let strange = json!({ "fencingToken": 1, "version": 1, "state": null, "previous": null, "more": 1 });
    let named = json!({ "key": "states/network/1-1.tfstate", "sha256": "", "more": 1 });
    let stranger = json!({ "fencingToken": 1, "version": 1, "state": named, "previous": null });
    for damaged in [
        "",
        "{",
        "{}",
        &pointer(json!(-1)).to_string(),
        &pointer(json!("1")).to_string(),
        &strange.to_string(),
        &stranger.to_string(),
    ] {
        s3.set(POINTER, Some(damaged));
        assert_eq!(kind(write(&bucket, 1, "one").await), Some(ProblemType::Unavailable), "{damaged} admits nobody");
        bucket.read(&name()).await.expect_err("no state can be told");
    }
    s3.set(POINTER, None);
    write(&bucket, 1, "one").await.expect("written");
    let object = s3.keys().into_iter().find(|key| key.ends_with(".tfstate")).expect("a state");
    for content in [Some("another"), None] {
        s3.set(&object, content);
        assert_eq!(bucket.read(&name()).await.expect_err("damaged").problem_type, ProblemType::Unavailable);
    }
}

#[tokio::test]
async fn silent_bucket_is_no_answer() {
    let bucket = at("http://127.0.0.1:1/nobody");
    let answer = timeout(Duration::from_secs(30), bucket.read(&name())).await.expect("it gives up");
    assert_eq!(answer.expect_err("nobody listens").problem_type, ProblemType::Unavailable);
}
