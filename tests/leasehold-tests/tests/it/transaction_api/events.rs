//! The functions, with valid and invalid events of API Gateway, Step Functions and the schedule.

use std::time::Duration;

use leasehold_api::TransactionService;
use leasehold_lambda::{answer_sweep, answer_transactions};
use leasehold_tests::bank::Bank;
use leasehold_tests::json_of;
use serde_json::{Value, json};

use super::{account, is_free};
use crate::events::{Answer, event};

const TIME: Duration = Duration::from_secs(50);

async fn bank() -> (Bank, TransactionService) {
    let bank = Bank::new().await;
    for (id, balance) in [("Moe", 100), ("Larry", 0), ("Curly", 7)] {
        bank.open(id, balance).await;
    }
    let service = TransactionService::new(bank.transactions.clone());
    (bank, service)
}

/// The status and the document of an answer over HTTP.
fn read(answer: &Value) -> (u64, Value) {
    let answer = Answer::read(answer);
    (answer.status, answer.body)
}

async fn http(service: &TransactionService, event: Value) -> (u64, Value) {
    read(&answer_transactions(service, event).await.map(json_of).expect("an answer over HTTP is never an error"))
}

#[tokio::test(start_paused = true)]
async fn http_events_carry_out_the_life_of_a_transaction() {
    let (bank, service) = bank().await;
    let (status, begun) = http(&service, event("http-begin")).await;
    assert_eq!((status, &begun["state"], &begun["answers"]), (200, &json!("pending"), &json!([{}])));
    let (status, added) = http(&service, event("http-add")).await;
    assert_eq!((status, &added["answers"]), (200, &json!([{}, { "item": account("Curly", 7) }])));
    assert_eq!(http(&service, event("http-items-get")).await, (200, json!({ "item": account("Moe", 100) })));
    let (status, listed) = http(&service, event("http-items-list")).await;
    let items = listed["items"].as_array().expect("a list");
    assert!(status == 200 && items.len() == 3 && items.contains(&account("Moe", 60)), "{listed}");
    let (status, ended) = http(&service, event("http-commit")).await;
    assert_eq!((status, &ended["state"]), (200, &json!("committed")));
    let (status, known) = http(&service, event("http-transaction")).await;
    assert_eq!((status, &known["state"], &known["finished"]), (200, &json!("committed"), &json!(true)));
    let (status, refused) = http(&service, event("http-rollback")).await;
    assert_eq!((status, &refused["type"]), (409, &json!("committed")));
    assert_eq!(bank.balance("Moe").await, Some(60));
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn direct_events_carry_out_the_life_of_a_transaction() {
    let (bank, service) = bank().await;
    let call = async |name: &str| answer_transactions(&service, event(name)).await.map(json_of);
    assert_eq!(call("direct-begin").await.expect("begun")["state"], "pending");
    assert_eq!(call("direct-add").await.expect("added")["answers"], json!([{}]));
    let items = call("direct-get-items").await.expect("read");
    assert_eq!(items, json!({ "answers": [{ "item": account("Moe", 100) }, { "item": account("Larry", 0) }] }));
    let listed = call("direct-list-items").await.expect("read");
    assert_eq!(listed, json!({ "items": [account("Moe", 100)] }));
    assert_eq!(call("direct-commit").await.expect("committed")["state"], "committed");
    assert_eq!(call("direct-get-transaction").await.expect("known")["finished"], json!(true));
    let refused = call("direct-rollback").await.expect_err("it is committed");
    assert_eq!(refused.error_type, "TransactionCommitted");
    let problem: Value = serde_json::from_str(&refused.error_message).expect("a problem document");
    assert_eq!(problem["status"], 409);

    let mut unknown = event("direct-commit");
    unknown["transactionId"] = json!("00000000-0000-4000-8000-000000000000");
    let refused = answer_transactions(&service, unknown).await.expect_err("there is none");
    assert_eq!(refused.error_type, "TransactionNotFound");
    let mut bare = event("direct-begin");
    bare["requests"][0]["Update"]["ConditionExpression"] = json!("attribute_not_exists(id)");
    bare["transactionId"] = json!("00000000-0000-4000-8000-000000000001");
    let refused = answer_transactions(&service, bare).await.expect_err("its condition fails");
    assert_eq!(refused.error_type, "ConditionFailed");
    bank.assert_clean().await;
}

/// Operators have a function of their own, so that a policy can separate them from callers.
#[tokio::test(start_paused = true)]
async fn only_the_sweeper_sweeps() {
    let (bank, service) = bank().await;
    assert_eq!(http(&service, event("http-sweep")).await.0, 404);
    let refused = answer_transactions(&service, event("direct-sweep")).await.expect_err("not here");
    assert_eq!(refused.error_type, "InvalidRequest");
    assert!(!refused.error_message.contains("sweep"), "{}", refused.error_message);
    assert_eq!(read(&answer_sweep(&service, event("http-begin"), TIME).await.map(json_of).expect("an answer")).0, 404);
    answer_sweep(&service, event("direct-begin"), TIME).await.expect_err("not here");

    for name in ["http-sweep", "direct-sweep", "sweep-scheduled"] {
        let mut begin = event("http-begin");
        let body: Value = serde_json::from_str(begin["body"].as_str().expect("text")).expect("JSON");
        begin["body"] = json!(json!({ "requests": body["requests"] }).to_string());
        assert_eq!(http(&service, begin).await.0, 200);
        tokio::time::sleep(Duration::from_secs(70)).await;
        assert!(!is_free(&bank, "Moe").await);
        let first = answer_sweep(&service, event(name), TIME).await.map(json_of).expect("an answer");
        let first = if name == "http-sweep" { read(&first).1 } else { first };
        assert_eq!((&first["watched"], &first["rolledBack"]), (&json!(1), &json!(0)), "{name}");
        tokio::time::sleep(Duration::from_secs(70)).await;
        let answer = answer_sweep(&service, event(name), TIME).await.map(json_of).expect("an answer");
        let swept = if name == "http-sweep" { read(&answer).1 } else { answer };
        assert_eq!((&swept["rolledBack"], &swept["more"]), (&json!(1), &json!(false)), "{name}");
        bank.assert_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn scheduled_sweep_goes_on_until_done_or_out_of_time() {
    let (bank, service) = bank().await;
    for number in 0..80 {
        let begin = json!({ "action": "begin", "requests": [super::put(&format!("account-{number}"), 1)] });
        answer_transactions(&service, begin).await.expect("begun");
    }
    tokio::time::sleep(Duration::from_secs(70)).await;
    let seen = answer_sweep(&service, event("sweep-scheduled"), TIME).await.map(json_of).expect("looked");
    assert_eq!((&seen["rolledBack"], &seen["more"]), (&json!(0), &json!(false)), "{seen}");
    tokio::time::sleep(Duration::from_secs(70)).await;
    let none = answer_sweep(&service, event("sweep-scheduled"), Duration::ZERO).await.map(json_of).expect("stopped");
    assert_eq!(none["more"], true);
    let swept = answer_sweep(&service, event("sweep-scheduled"), TIME).await.map(json_of).expect("swept");
    let first = none["rolledBack"].as_u64().expect("a number");
    assert_eq!(swept["rolledBack"].as_u64().map(|rest| rest + first), Some(80), "{none} {swept}");
    assert_eq!((&swept["failed"], &swept["more"]), (&json!(0), &json!(false)));
    bank.assert_clean().await;
}

/// The next event may reach another process, so an event that has the time looks twice.
#[tokio::test(start_paused = true)]
async fn scheduled_sweep_looks_twice_when_it_has_the_time() {
    let (bank, service) = bank().await;
    let begin = json!({ "action": "begin", "requests": [super::put("account", 1)] });
    answer_transactions(&service, begin).await.expect("begun");
    tokio::time::sleep(Duration::from_secs(70)).await;
    let time = Duration::from_secs(65);
    let swept = answer_sweep(&service, event("sweep-scheduled"), time).await.map(json_of).expect("swept");
    assert_eq!((&swept["rolledBack"], &swept["watched"]), (&json!(1), &json!(0)), "{swept}");
    bank.assert_clean().await;
}

#[tokio::test(start_paused = true)]
async fn mistaken_events_are_answered() {
    let (_bank, service) = bank().await;
    for input in
        [json!(null), json!([]), json!("begin"), json!({}), json!({ "action": 1 }), json!({ "action": "steal" })]
    {
        let refused = answer_transactions(&service, input.clone()).await.expect_err("no action");
        assert_eq!(refused.error_type, "InvalidRequest", "{input}");
    }
    // An event of another kind of gateway, and paths that do not exist.
    let refused = answer_transactions(&service, json!({ "requestContext": { "eventType": "CONNECT" } })).await;
    assert_eq!(refused.expect_err("no HTTP API").error_type, "InvalidRequest");
    for (route, path, status) in [
        ("$default", "/v1/transactions/begin", 200),
        ("$default", "/v1/transactions/begin/", 404),
        ("$default", "/v1/transactions/sweep", 404),
        ("$default", "/", 404),
        ("$default", "", 404),
        ("", "/v1/transactions/begin\u{0} ?", 404),
        ("ANY /v1/transactions/begin", "/prod/v1/transactions/begin", 200),
        ("ANY /{proxy+}", "/v1/transactions/begin", 200),
        ("ANY /{proxy+}", "/v1/transactions/Begin", 404),
    ] {
        let mut begin = event("http-begin");
        begin["routeKey"] = json!(route);
        begin["rawPath"] = json!(path);
        assert_eq!(http(&service, begin).await.0, status, "{route} {path}");
    }
    let mut wrong = event("http-begin");
    wrong["requestContext"]["http"]["method"] = json!("GET");
    assert_eq!(http(&service, wrong).await.0, 405);
    let mut encoded = event("http-begin");
    encoded["isBase64Encoded"] = json!(true);
    assert_eq!(http(&service, encoded).await.0, 400);
}
