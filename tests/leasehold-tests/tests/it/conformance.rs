//! The conformance suite over loopback HTTP, on every engine.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Builder;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use leasehold_api::Service;
use leasehold_conformance::{
    CONCURRENT_CASES, Failures, Refusals, Target, permit_races, races, run, run_with_sort_key,
};
use leasehold_dynamodb::{Clock, fresh_uuid};
use leasehold_engine::Engine;
use leasehold_protocol::{LockTable, Policy, TableSchema, check_table, ensure_table};
use leasehold_tests::{Fates, Faults};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::documented;

const CALLERS: usize = 64;
const ROUNDS: usize = 20;

/// Serves a new table of this engine.
async fn serve(dynamodb: Client, schema: TableSchema) -> Target {
    ensure_table(&dynamodb, &schema).await.expect("a new table");
    let table = LockTable::new(dynamodb.clone(), schema, Policy::default(), Clock::system());
    serve_table(table, dynamodb, false).await
}

/// Serves a table until the test's runtime ends. The suite has a client of its own.
async fn serve_table(table: LockTable, dynamodb: Client, is_multi_region: bool) -> Target {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let base_url = format!("http://{}", listener.local_addr().expect("bound"));
    let schema = table.schema().clone();
    let routes = leasehold_server::routes(Service::new(table).multi_region(is_multi_region));
    tokio::spawn(leasehold_server::run(listener, routes, std::future::pending()));
    let refusals = Refusals::default();
    Target { base_url, dynamodb, schema, concurrent_cases: CONCURRENT_CASES, is_multi_region, refusals }
}

pub(crate) async fn serve_engine(engine: &Engine, schema: TableSchema) -> Target {
    serve(patient(engine.sdk_config()), schema).await
}

/// A client of an engine. These tests are about answers, and on a busy machine the engine may take longer than the
/// service would wait.
pub(crate) fn patient(engine: Builder) -> Client {
    let patience = TimeoutConfig::builder().operation_attempt_timeout(Duration::from_mins(1)).build();
    Client::from_conf(leasehold_dynamodb::configure(engine).timeout_config(patience).build())
}

pub(crate) fn memory() -> Engine {
    Engine::memory().expect("memory is to be had")
}

/// An engine on a new file, and the folder that must outlive it: one in memory where there is such a folder, since a
/// busy disk takes seconds for each synchronisation.
fn file() -> (Engine, TempDir) {
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    (Engine::open(&folder.path().join("locks.db")).expect("a new file"), folder)
}

/// Each table is new, since DynamoDB Local may outlive a run.
async fn serve_dynamodb_local(schema: TableSchema) -> Target {
    let url = std::env::var("LEASEHOLD_TEST_DYNAMODB_ENDPOINT").expect("set by scripts/dynamodb-local.sh");
    let table_name = format!("{}-{}", schema.table_name, fresh_uuid());
    serve(leasehold_dynamodb::connect(Some(&url)).await, TableSchema { table_name, ..schema }).await
}

pub(crate) fn without_sort_key() -> TableSchema {
    TableSchema::new("locks")
}

fn with_sort_key() -> TableSchema {
    TableSchema { table_name: "locks".into(), partition_key: "pk".into(), sort_key: Some("sk".into()) }
}

async fn outcome(target: &Target) -> Result<usize, Failures> {
    match target.schema.sort_key {
        None => run(target).await,
        Some(_) => run_with_sort_key(target).await,
    }
}

async fn check(target: &Target) {
    match outcome(target).await {
        Ok(cases) => println!("{cases} cases"),
        Err(failures) => panic!("{failures}"),
    }
}

/// A service that is already running, and the DynamoDB of its table.
async fn deployed() -> Target {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let base_url = variable("LEASEHOLD_TEST_URL").expect("LEASEHOLD_TEST_URL: where the service is");
    let table_name = variable("LEASEHOLD_TEST_TABLE").expect("LEASEHOLD_TEST_TABLE: the table that it uses");
    let mut schema = TableSchema::new(table_name);
    if let Some(name) = variable("LEASEHOLD_TEST_PARTITION_KEY") {
        schema.partition_key = name;
    }
    schema.sort_key = variable("LEASEHOLD_TEST_SORT_KEY");
    let endpoint = variable("LEASEHOLD_TEST_DYNAMODB_ENDPOINT");
    let dynamodb = leasehold_dynamodb::connect(endpoint.as_deref()).await;
    // A stand-in for AWS may serve one request at a time: a call that waits for a second is tried again by the service.
    let refusals = Refusals::default();
    Target { base_url, dynamodb, schema, concurrent_cases: 4, is_multi_region: false, refusals }
}

/// The cases, separated by blanks, that a stand-in for AWS cannot pass. Each must fail: an exception that is no longer
/// needed must be removed.
fn expected_failures() -> BTreeSet<String> {
    let list = std::env::var("LEASEHOLD_TEST_EXPECTED_FAILURES").unwrap_or_default();
    list.split_whitespace().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms() {
    documented::suite().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_conforms_with_a_sort_key() {
    check(&serve_engine(&memory(), with_sort_key()).await).await;
}

/// A table in several regions: it has no transactions, no TTL and no local index, and one write in so many meets one of
/// another region.
async fn serve_regions(one_in: u32, schema: TableSchema) -> (Target, Faults) {
    let direct = patient(memory().sdk_config());
    ensure_table(&direct, &schema).await.expect("a new table");
    let (client, faults) = Faults::between(&direct);
    faults.set(Fates::regions(fastrand::u64(..), one_in));
    check_table(&client, &schema).await.expect("it is there");
    let table = LockTable::new(client, schema.clone(), Policy::default(), Clock::system());
    // The suite lays rows by its own hand.
    let target = serve_table(table, direct, true).await;
    (target, faults)
}

#[tokio::test(flavor = "multi_thread")]
async fn several_regions_conform_when_each_write_conflicts() {
    let (target, faults) = serve_regions(1, without_sort_key()).await;
    check(&target).await;
    assert!(faults.take_calls() > 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_regions_conform_when_some_writes_conflict() {
    check(&serve_regions(4, without_sort_key()).await.0).await;
    check(&serve_regions(4, with_sort_key()).await.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_has_one_winner() {
    races(&serve_engine(&memory(), without_sort_key()).await, CALLERS, ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_grants_no_permit_twice() {
    permit_races(&serve_engine(&memory(), without_sort_key()).await, CALLERS, ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_grants_no_permit_twice() {
    let (engine, _folder) = file();
    permit_races(&serve_engine(&engine, without_sort_key()).await, CALLERS, ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
async fn dynamodb_local_grants_no_permit_twice() {
    permit_races(&serve_dynamodb_local(without_sort_key()).await, CALLERS, ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_conforms() {
    let (engine, _folder) = file();
    check(&serve_engine(&engine, without_sort_key()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_has_one_winner() {
    let (engine, _folder) = file();
    races(&serve_engine(&engine, without_sort_key()).await, CALLERS, ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
async fn dynamodb_local_conforms() {
    check(&serve_dynamodb_local(without_sort_key()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
async fn dynamodb_local_conforms_with_a_sort_key() {
    check(&serve_dynamodb_local(with_sort_key()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs DynamoDB Local: scripts/dynamodb-local.sh"]
async fn dynamodb_local_has_one_winner() {
    races(&serve_dynamodb_local(without_sort_key()).await, CALLERS, ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a deployed service: scripts/ministack.sh, scripts/sam-local.sh"]
async fn deployed_conforms() {
    match outcome(&deployed().await).await {
        Ok(cases) => {
            assert_eq!(expected_failures(), BTreeSet::new(), "these passed");
            println!("{cases} cases");
        }
        Err(failures) => {
            let failed = failures.failed.iter().map(|failure| failure.case.to_owned()).collect();
            assert_eq!(expected_failures(), failed, "left: expected to fail; right: failed.\n{failures}");
            println!("{} cases, of which {} failed as expected: {failures}", failures.cases, failures.failed.len());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a deployed service: scripts/ministack.sh, scripts/sam-local.sh"]
async fn deployed_has_one_winner() {
    races(&deployed().await, 8, 4).await;
}
