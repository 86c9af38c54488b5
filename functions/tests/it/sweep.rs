//! The sweeper as Lambda runs it: the real binary in its own sandbox. The function of the transactions starts alike.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use leasehold_dynamodb::Clock;
use leasehold_engine::Engine;
use leasehold_sandbox::{Answer, InitError, Sandbox};
use leasehold_transactions::{Policy, State, Transactions, ensure_table};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::timeout;

async fn start(variables: &[(&str, &str)]) -> Sandbox {
    let variables = [&[("_HANDLER", "sweep")], variables].concat();
    Sandbox::start(Path::new(env!("CARGO_BIN_EXE_leasehold-transactions")), &variables).await.expect("it is built")
}

async fn sweep(sandbox: &mut Sandbox, event: Value) -> Value {
    match sandbox.invoke(event).await.0 {
        Answer::Response(answer) => answer,
        Answer::Error(error) => panic!("failed: {error}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn schedule_finds_what_was_left_behind() {
    let engine = Engine::memory().expect("memory is to be had");
    let dynamodb = Client::from_conf(leasehold_dynamodb::configure(engine.sdk_config()).build());
    ensure_table(&dynamodb, "transactions").await.expect("a new table");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let exposed = engine.clone();
    tokio::spawn(async move { exposed.expose(listener, std::future::pending()).await });

    let policy = Policy { idle_ms: 1, ..Policy::default() };
    let transactions = Transactions::new(&dynamodb, "transactions", policy, Clock::system(), Vec::new());
    let id = transactions.begin(None, None).await.expect("begun");

    let variables = [
        ("LEASEHOLD_TRANSACTION_TABLE_NAME", "transactions"),
        ("LEASEHOLD_TRANSACTION_IDLE_SECONDS", "1"),
        ("AWS_ENDPOINT_URL_DYNAMODB", &url),
    ];
    let mut sandbox = start(&variables).await;
    sandbox.ready().await.expect("it starts");
    // The index has the transaction when its idle time is over by the clock. One process then looks at it twice.
    let swept = async {
        loop {
            let swept = sweep(&mut sandbox, json!({ "detail-type": "Scheduled Event" })).await;
            if swept["examined"] != 0 {
                return swept;
            }
        }
    };
    let swept = timeout(Duration::from_secs(20), swept).await.expect("in time");
    assert_eq!(
        (&swept["rolledBack"], &swept["failed"], &swept["more"]),
        (&json!(1), &json!(0), &json!(false)),
        "{swept}"
    );
    assert_eq!(transactions.status(&id.public()).await.expect("known").state, State::RolledBack);

    let swept = sweep(&mut sandbox, json!({ "action": "sweep", "limit": 1 })).await;
    assert_eq!(swept["examined"], 0);
}

#[tokio::test]
async fn mistakes_in_the_configuration_are_reported() {
    let variables = [("LEASEHOLD_TABLE_NAME", "locks"), ("LEASEHOLD_TRANSACTION_TABLE_NAME", "locks")];
    let error = start(&variables).await.ready().await.expect_err("one table");
    let InitError::Reported(error) = error else { panic!("{error:?}") };
    assert_eq!(error["errorMessage"], "The locks and the transactions need a table each, not both \"locks\".");
}
