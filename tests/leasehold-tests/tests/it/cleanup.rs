//! The clean-up after an execution, with valid and invalid events of EventBridge.

use leasehold_api::{ExecutionSecret, Service};
use leasehold_lambda::{Function, StackSecret};
use leasehold_tests::{Fault, World, json_of};
use serde_json::{Value, json};

const ARN: &str = "arn:aws:states:eu-west-1:123456789012:execution:nightly:4f1a";

/// The end of the execution, started with this input.
fn event(input: &Value) -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../events/execution-aborted.json");
    let text = std::fs::read_to_string(file).expect("there is such a file");
    let mut event: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(event["detail"]["executionArn"], ARN);
    if !input.is_null() {
        event["detail"]["input"] = json!(input.to_string());
    }
    event
}

fn function(world: &World) -> Function {
    Function::unrestricted(Service::new(world.table.clone()))
}

async fn acquire(function: &Function, key: &str, lease_id: &str) -> Result<Value, String> {
    let request = json!({ "action": "acquire", "key": key, "ownerName": "nightly", "leaseId": lease_id });
    function.answer_direct(request).await.map(json_of).map_err(|error| error.error_type)
}

async fn clean_up(function: &Function, event: Value) -> Result<Value, String> {
    function.answer_cleanup(event).await.map(json_of).map_err(|error| error.error_type)
}

/// The result for the one lock of the event.
fn moe(outcome: &str) -> Value {
    json!({ "locks": [{ "key": "Moe", "outcome": outcome }] })
}

#[tokio::test(start_paused = true)]
async fn locks_of_the_execution_are_released_once() {
    let function = function(&World::new().await);
    let aborted = event(&Value::Null);
    assert_eq!(clean_up(&function, aborted.clone()).await, Ok(moe("absent")));
    acquire(&function, "Moe", ARN).await.expect("granted");
    assert_eq!(clean_up(&function, aborted.clone()).await, Ok(moe("released")));
    assert_eq!(clean_up(&function, aborted.clone()).await, Ok(moe("replayed")));
    // A late copy of the execution's acquire must not leave a lock without a holder.
    assert_eq!(acquire(&function, "Moe", ARN).await, Err("LockLost".into()));
    acquire(&function, "Moe", "another execution").await.expect("granted");
    assert_eq!(
        clean_up(&function, aborted.clone()).await,
        Ok(moe("replayed")),
        "an end is remembered past one successor"
    );
    assert_eq!(acquire(&function, "Moe", "a third").await, Err("LockHeld".into()));
    assert_eq!(acquire(&function, "Moe", ARN).await, Err("LockLost".into()));
}

/// The reason for a second clean-up: the first one has nothing to release, so that the service still grants the acquire
/// that follows it.
#[tokio::test(start_paused = true)]
async fn second_clean_up_releases_what_arrived_after_the_first() {
    let function = function(&World::new().await);
    assert_eq!(clean_up(&function, event(&Value::Null)).await, Ok(moe("absent")));
    acquire(&function, "Moe", ARN).await.expect("granted to an execution that is no more");
    assert_eq!(clean_up(&function, event(&Value::Null)).await, Ok(moe("released")));
}

#[tokio::test(start_paused = true)]
async fn several_locks_and_a_secret() {
    let function = function(&World::new().await);
    let secret = format!("{ARN}#s3");
    for (key, lease_id) in [("a", secret.as_str()), ("b", ARN), ("c", &secret)] {
        acquire(&function, key, lease_id).await.expect("granted");
    }
    let input = json!({ "key": "a", "locks": [{ "key": "b" }, { "key": "c" }], "leaseSecret": "s3" });
    let locks = clean_up(&function, event(&input)).await.expect("done")["locks"].clone();
    let outcomes: Vec<_> = locks.as_array().expect("a list").iter().map(|lock| &lock["outcome"]).collect();
    assert_eq!(outcomes, ["released", "notHeld", "released"], "the lease id without the secret is another one");
}

/// Sends an acquire as the state machines send it.
async fn acquire_as(function: &Function, key: &str, acquisition: &str) -> Result<Value, String> {
    let execution = json!({ "arn": ARN, "acquisition": acquisition });
    let request = json!({ "action": "acquire", "key": key, "ownerName": "nightly", "execution": execution });
    function.answer_direct(request).await.map(json_of).map_err(|error| error.error_type)
}

#[tokio::test(start_paused = true)]
async fn cleanup_releases_the_acquisition_that_the_row_names() {
    let world = World::new().await;
    let mut function = function(&world);
    function.secret = StackSecret::known(ExecutionSecret::new("of the stack"));
    acquire_as(&function, "Moe", "first").await.expect("granted");
    assert_eq!(acquire_as(&function, "Moe", "second").await, Err("LockHeld".into()), "another acquisition");
    let stranger = Function::unrestricted(function.service.clone());
    assert_eq!(clean_up(&stranger, event(&Value::Null)).await, Ok(moe("notHeld")), "another stack's secret");
    assert_eq!(clean_up(&function, event(&Value::Null)).await, Ok(moe("released")));
    assert_eq!(acquire_as(&function, "Moe", "first").await, Err("LockLost".into()));
    acquire_as(&function, "Moe", "second").await.expect("granted");
    assert_eq!(clean_up(&function, event(&Value::Null)).await, Ok(moe("released")));
    // The second acquisition is still in the row of the next holder, which names none.
    acquire(&function, "Moe", ARN).await.expect("granted");
    assert_eq!(clean_up(&function, event(&Value::Null)).await, Ok(moe("released")));
}

/// The second pass comes a minute after the end, when the execution may have been redriven and have acquired anew.
#[tokio::test(start_paused = true)]
async fn cleanup_leaves_acquisitions_after_a_redrive_alone() {
    let function = function(&World::new().await);
    let ended = |redrives: Value| {
        let mut ended = event(&Value::Null);
        ended["detail"]["redriveCount"] = redrives;
        ended
    };
    acquire_as(&function, "Moe", "first.1").await.expect("granted");
    assert_eq!(clean_up(&function, ended(json!(0))).await, Ok(moe("notHeld")));
    assert_eq!(clean_up(&function, ended(json!(1))).await, Ok(moe("released")), "its own end");
    acquire_as(&function, "Moe", "second.10").await.expect("granted");
    assert_eq!(clean_up(&function, ended(json!(9))).await, Ok(moe("notHeld")));
    assert_eq!(clean_up(&function, ended(Value::Null)).await, Ok(moe("released")), "an event that counts no redrives");

    let permits = json!({
        "action": "semaphore-acquire", "key": "permits", "capacity": 1, "permits": 1, "ownerName": "4f1a#third.2",
        "execution": { "arn": ARN, "acquisition": "third.2" },
    });
    function.answer_direct(permits).await.expect("granted");
    let mut end = event(&json!({ "key": "permits" }));
    for (redrives, outcome) in [(1, "notHeld"), (2, "released")] {
        end["detail"]["redriveCount"] = json!(redrives);
        let cleaned = clean_up(&function, end.clone()).await.expect("done");
        assert_eq!(cleaned["locks"][0]["outcome"], outcome, "{redrives} redrives");
    }
}

#[tokio::test(start_paused = true)]
async fn cleanup_of_one_acquisition_leaves_the_others_alone() {
    let function = function(&World::new().await);
    acquire_as(&function, "Moe", "second").await.expect("granted");
    let mut asked = event(&Value::Null);
    asked["detail"]["acquisition"] = json!("first");
    assert_eq!(clean_up(&function, asked.clone()).await, Ok(moe("notHeld")));
    asked["detail"]["acquisition"] = json!("second");
    assert_eq!(clean_up(&function, asked).await, Ok(moe("released")));
}

#[tokio::test(start_paused = true)]
async fn failure_is_named_and_keeps_nothing_from_being_released() {
    let world = World::new().await;
    let function = function(&world);
    acquire(&function, "b", ARN).await.expect("granted");
    world.faults.script([Fault::ServerError; 3]);
    let input = json!({ "locks": [{ "key": "a" }, { "key": "b" }] });
    assert_eq!(clean_up(&function, event(&input)).await, Err("Unavailable".into()));
    acquire(&function, "b", "another execution").await.expect("b was released");
}

#[tokio::test(start_paused = true)]
async fn input_that_names_no_lock_releases_none() {
    let function = function(&World::new().await);
    assert_eq!(clean_up(&function, event(&json!({ "date": "2026-11-21" }))).await, Ok(json!({ "locks": [] })));
}

#[tokio::test(start_paused = true)]
async fn malformed_event_is_refused() {
    let function = function(&World::new().await);
    let with = |input: Value| {
        let mut event = event(&Value::Null);
        event["detail"]["input"] = input;
        event
    };
    for event in [
        json!([]),
        json!({ "detail": {} }),
        with(Value::Null),
        with(json!("not JSON")),
        with(json!("\"Moe\"")),
        with(json!("{\"key\": 7}")),
        with(json!("{\"key\": \"\"}")),
        with(json!("{\"locks\": [{\"sortKey\": \"a\"}]}")),
    ] {
        assert_eq!(clean_up(&function, event.clone()).await, Err("InvalidRequest".into()), "{event}");
    }
}

/// Two acquisitions of the execution, a ticket of its own, and the entries of others.
#[tokio::test(start_paused = true)]
async fn permits_and_tickets_of_the_execution_are_given_back() {
    let function = function(&World::new().await);
    let permits = async |action: &str, arn: &str, acquisition: &str| {
        let (_, name) = arn.rsplit_once(':').expect("an ARN");
        let input = json!({
            "action": action, "key": "Moe", "capacity": 3, "ownerName": format!("{name}#{acquisition}"),
            "execution": { "arn": arn, "acquisition": acquisition },
        });
        function.answer_direct(input).await.map(json_of).expect("no refusal")
    };
    let other = "arn:aws:states:eu-west-1:123456789012:execution:nightly:other";
    permits("semaphore-acquire", ARN, "one").await;
    permits("semaphore-acquire", ARN, "two").await;
    permits("semaphore-acquire", other, "three").await;
    permits("semaphore-enqueue", ARN, "four").await;
    permits("semaphore-enqueue", other, "five").await;

    assert_eq!(clean_up(&function, event(&Value::Null)).await, Ok(moe("released")));
    let left = function.answer_direct(json!({ "action": "semaphore-get", "key": "Moe" })).await.map(json_of);
    let left = left.expect("a semaphore");
    let names = |member: &str| {
        let entries = left[member].as_array().expect("a list");
        entries.iter().map(|entry| entry["ownerName"].as_str().expect("a text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (&left["available"], names("holders"), names("queue")),
        (&json!(2), vec!["other#three".to_owned()], vec!["other#five".to_owned()])
    );
    assert_eq!(clean_up(&function, event(&Value::Null)).await, Ok(moe("notHeld")));

    // The execution itself asks for one acquisition, and still runs.
    permits("semaphore-enqueue", ARN, "six").await;
    let mut one = event(&Value::Null);
    one["detail"]["acquisition"] = json!("seven");
    assert_eq!(clean_up(&function, one.clone()).await, Ok(moe("notHeld")));
    one["detail"]["acquisition"] = json!("six");
    assert_eq!(clean_up(&function, one).await, Ok(moe("released")));
}
