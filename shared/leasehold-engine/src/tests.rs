//! All tests use a real SDK client, as applications do.

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::put_item::builders::PutItemFluentBuilder;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ReturnConsumedCapacity, ReturnValue,
    ReturnValuesOnConditionCheckFailure, ScalarAttributeType, Select, TimeToLiveSpecification,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::{Engine, EngineError, expiry, urgent};

const TABLE: &str = "locks";

/// Returns the error. `unwrap_err` would need `Engine: Debug`.
fn refused(result: Result<Engine, EngineError>) -> EngineError {
    result.expect_err("the file must be refused")
}

/// Opens a file that was in use a moment ago. A worker thread may release the last handle a little after its answer.
#[allow(clippy::disallowed_methods, reason = "nothing tells when the handle is given back")]
async fn opened_again(path: &Path) -> Result<Engine, EngineError> {
    for _ in 0..200 {
        match Engine::open(path) {
            Err(EngineError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            opened => return opened,
        }
    }
    panic!("{} stays in use", path.display());
}

async fn reopened(path: &Path) -> Engine {
    opened_again(path).await.unwrap()
}

fn client(engine: &Engine) -> Client {
    let config = engine.sdk_config().retry_config(RetryConfig::disabled());
    Client::from_conf(config.build())
}

async fn client_with_table(engine: &Engine) -> Client {
    let client = client(engine);
    create(&client, TABLE).await.unwrap();
    client
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

/// A write that succeeds only where there is no row.
fn claim(client: &Client, key: &str, owner: &str) -> PutItemFluentBuilder {
    client
        .put_item()
        .table_name(TABLE)
        .item("key", text(key))
        .item("owner", text(owner))
        .condition_expression("attribute_not_exists(#key)")
        .expression_attribute_names("#key", "key")
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
}

async fn owner(client: &Client, key: &str) -> Option<AttributeValue> {
    let found = client.get_item().table_name(TABLE).key("key", text(key)).consistent_read(true).send().await.unwrap();
    found.item.and_then(|mut item| item.remove("owner"))
}

#[tokio::test]
async fn failed_condition_carries_the_old_item() {
    let client = client_with_table(&Engine::memory().unwrap()).await;
    claim(&client, "k", "first").send().await.unwrap();

    let error = claim(&client, "k", "second").send().await.unwrap_err();
    let PutItemError::ConditionalCheckFailedException(failed) = error.into_service_error() else {
        panic!("not a failed condition");
    };
    assert_eq!(failed.item().unwrap()["owner"], text("first"));
    assert_eq!(owner(&client, "k").await, Some(text("first")));
    assert_eq!(owner(&client, "other").await, None);
}

#[tokio::test]
async fn one_of_many_contenders_wins_in_either_mode() {
    let folder = tempfile::tempdir().unwrap();
    let file = Engine::open(&folder.path().join("db")).unwrap();
    for engine in [Engine::memory().unwrap(), file] {
        let client = client_with_table(&engine).await;
        let mut contenders = tokio::task::JoinSet::new();
        for n in 0..32 {
            contenders.spawn(claim(&client, "k", &n.to_string()).send());
        }
        let results = contenders.join_all().await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn paused_clock_does_not_time_requests_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = Engine::open(&folder.path().join("db")).unwrap();
    for engine in [Engine::memory().unwrap(), file] {
        let client = client_with_table(&engine).await;
        let claimed = claim(&client, "k", "me").send();
        tokio::time::timeout(Duration::from_millis(1), claimed)
            .await
            .expect("no virtual time passes during a request")
            .unwrap();
    }
}

#[tokio::test]
async fn request_gives_way_to_other_tasks() {
    let client = client_with_table(&Engine::memory().unwrap()).await;
    let bystander_ran = Cell::new(false);
    let request = async {
        claim(&client, "k", "me").send().await.unwrap();
        bystander_ran.get()
    };
    let bystander = async { bystander_ran.set(true) };
    // The order matters: only a request that yields lets the bystander run before it ends.
    let (gave_way, ()) = tokio::join!(biased; request, bystander);
    assert!(gave_way);
}

#[tokio::test]
async fn file_keeps_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leasehold.db");

    let engine = Engine::open(&path).unwrap();
    let client = client_with_table(&engine).await;
    claim(&client, "k", "me").send().await.unwrap();
    drop((client, engine));

    let engine = reopened(&path).await;
    assert_eq!(owner(&self::client(&engine), "k").await, Some(text("me")));
}

#[tokio::test]
async fn file_is_open_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leasehold.db");
    let engine = Engine::open(&path).unwrap();

    let other_name = folder.path().join(".").join("leasehold.db");
    let error = refused(Engine::open(&other_name));
    assert!(matches!(error, EngineError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("leasehold.db is in use by another process"), "{error}");

    // A clone inside a client keeps the file locked, as any other does.
    let client = client(&engine);
    drop(engine);
    refused(Engine::open(&path));
    drop(client);
    Engine::open(&path).unwrap();
}

#[cfg(unix)]
#[test]
fn link_to_an_open_file_is_the_open_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leasehold.db");
    let link = folder.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let _engine = Engine::open(&path).unwrap();
    let error = refused(Engine::open(&link));
    assert!(matches!(error, EngineError::InUse { .. }), "{error}");
}

/// SQLite would find no log of a killed process under another name of its file.
#[test]
fn file_with_two_names_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("leasehold.db"), folder.path().join("link.db"));
    let engine = Engine::open(&path).unwrap();
    std::fs::hard_link(&path, &link).unwrap();
    for name in [&path, &link] {
        let error = refused(Engine::open(name));
        assert!(matches!(error, EngineError::InUse { .. }), "{error}");
    }
    drop(engine);
    let error = refused(Engine::open(&link));
    assert!(error.to_string().contains("it has 2 names (hard links)"), "{error}");
    std::fs::remove_file(&link).unwrap();
    Engine::open(&path).unwrap();
}

#[test]
fn lock_on_another_file_blocks_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = std::fs::File::create(folder.path().join("leasehold.db.lock")).unwrap();
    foreign.lock().unwrap();
    Engine::open(&folder.path().join("leasehold.db")).unwrap();
}

#[tokio::test]
async fn files_are_private_when_they_are_made_or_found() {
    use std::fs::{Permissions, metadata, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leasehold.db");
    for _ in 0..2 {
        let engine = reopened(&path).await;
        let client = client(&engine);
        let _ = create(&client, TABLE).await;
        put(&client, TABLE, "Moe").await;
        for name in ["leasehold.db", "leasehold.db-wal", "leasehold.db-shm"] {
            let mode = metadata(folder.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        drop((client, engine));
        set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    }
}

#[test]
fn empty_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leasehold.db");
    std::fs::write(&path, "").unwrap();
    let error = refused(Engine::open(&path));
    assert!(error.to_string().contains("it is empty; restore a backup"), "{error}");
}

/// The files of a database with a claimed row and some others: closed, or as a kill leaves them.
async fn claimed(folder: &Path, is_closed: bool) -> Vec<(&'static str, Vec<u8>)> {
    let path = folder.join("original.db");
    let engine = Engine::open(&path).unwrap();
    let client = client_with_table(&engine).await;
    claim(&client, "claimed", "me").send().await.unwrap();
    for other in ["a", "b", "c"] {
        put(&client, TABLE, other).await;
    }
    let read = || {
        let files = ["", "-wal"].map(|end| (end, std::fs::read(folder.join(format!("original.db{end}")))));
        files.into_iter().filter_map(|(end, content)| Some((end, content.ok()?))).collect()
    };
    if !is_closed {
        return read();
    }
    drop((client, engine));
    drop(reopened(&path).await);
    read()
}

/// A claim of a row that is there must never succeed, whichever bit has changed.
#[tokio::test]
async fn flipped_bit_frees_no_row() {
    for is_closed in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let files = claimed(folder.path(), is_closed).await;
        let (mut refusals, mut flips) = (0, 0);
        for (end, content) in &files {
            let is_in_row = |at: &usize| content[*at..].starts_with(b"claimed") || content[..*at].ends_with(b"claimed");
            let near_rows = (0..content.len()).filter(is_in_row).flat_map(|at| at.saturating_sub(12)..at + 24);
            let near_rows = near_rows.filter(|at| *at < content.len());
            for at in (0..content.len()).step_by(1021).chain(near_rows) {
                flips += 1;
                let path = folder.path().join(format!("{flips}.db"));
                for (other, content) in &files {
                    let mut content = content.clone();
                    if other == end {
                        content[at] ^= 1 << (at % 8);
                    }
                    std::fs::write(folder.path().join(format!("{flips}.db{other}")), content).unwrap();
                }
                match Engine::open(&path) {
                    Err(_) => refusals += 1,
                    Ok(engine) => {
                        let again = claim(&client(&engine), "claimed", "thief").send().await;
                        assert!(again.is_err(), "bit {} of byte {at} of {end:?}, closed: {is_closed}", at % 8);
                    }
                }
            }
        }
        assert!(refusals > 20, "{refusals} of {flips}");
    }
}

/// The file is damaged while it is open: the row is read again from the disk.
#[tokio::test]
async fn damaged_row_cannot_be_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leasehold.db");
    let engine = Engine::open(&path).unwrap();
    let client = client_with_table(&engine).await;
    claim(&client, "k", "me").send().await.unwrap();
    let beside = rusqlite::Connection::open(&path).unwrap();
    beside.execute("UPDATE locks SET item_json = replace(item_json, 'owner', 'ovner')", []).unwrap();
    let error = client
        .update_item()
        .table_name(TABLE)
        .key("key", text("k"))
        .update_expression("SET thief = :thief")
        .condition_expression("attribute_not_exists(#owner)")
        .expression_attribute_names("#owner", "owner")
        .expression_attribute_values(":thief", text("thief"))
        .send()
        .await
        .unwrap_err();
    assert_eq!(error.into_service_error().code(), Some("InternalServerError"));
    put(&client, TABLE, "other").await;

    drop((client, engine, beside));
    let error = refused(opened_again(&path).await);
    let expected = "it is damaged: the row \"S:k\" of the table locks has changed; restore a backup";
    assert!(error.to_string().ends_with(expected), "{error}");
}

#[test]
fn missing_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = refused(Engine::open(&folder.path().join("absent").join("db")));
    assert!(matches!(error, EngineError::MissingFolder { .. }));
    assert!(
        error.to_string().ends_with("absent/db: its folder does not exist; create it first, or use a different file"),
        "{error}"
    );
}

#[test]
fn folder_is_not_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let error = refused(Engine::open(folder.path()));
    assert!(matches!(error, EngineError::NotAFile { .. }));
    assert!(error.to_string().contains("it is not a file; name a file, such as /"), "{error}");
}

#[test]
fn file_that_is_no_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes.txt");
    for contents in ["short", "a file that is longer than any header"] {
        std::fs::write(&path, contents).unwrap();
        let error = refused(Engine::open(&path));
        assert!(matches!(error, EngineError::NotADatabase { .. }));
        assert!(
            error.to_string().ends_with("it is not a SQLite database; use a different file, or move this one away"),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap(), contents);
    }
}

#[test]
fn damaged_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.db");
    std::fs::write(&path, b"SQLite format 3\0and then nothing that makes sense").unwrap();
    let error = refused(Engine::open(&path));
    assert!(matches!(error, EngineError::Open { .. }));
    assert!(error.to_string().contains("check that the file is writable and intact"), "{error}");
}

#[test]
fn path_through_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = refused(Engine::open(&file.join("db")));
    assert!(matches!(error, EngineError::Access { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn path_that_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let name = std::ffi::OsStr::from_bytes(b"\xff.db");
    let error = refused(Engine::open(&folder.path().join(name)));
    assert!(matches!(error, EngineError::NotUtf8 { .. }), "{error}");
}

#[test]
fn empty_path_is_refused() {
    let error = refused(Engine::open(Path::new("")));
    assert!(matches!(error, EngineError::Access { .. }), "{error}");
}

/// No name that SQLite reads as a database in memory may be taken for a durable one.
#[test]
fn name_that_means_something_to_sqlite_is_still_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for name in [":memory:", "file:db?mode=memory"] {
        Engine::open(&folder.path().join(name)).unwrap();
        assert!(folder.path().join(name).is_file(), "{name}");
    }
}

#[tokio::test]
async fn refused_values_are_validation_errors() {
    let client = client_with_table(&Engine::memory().unwrap()).await;
    let deep = (0..100).fold(text("leaf"), |inner, _| AttributeValue::L(vec![inner]));
    for (value, words) in [
        (
            AttributeValue::Null(false),
            "1 validation error detected: One or more parameter values were invalid: \
             Null attribute value types must have the value of true",
        ),
        (AttributeValue::N("twelve".into()), "numeric value"),
        (AttributeValue::Ss(vec![]), "may not be empty"),
        (deep, "Nesting Levels have exceeded supported limits"),
    ] {
        let error = claim(&client, "k", "me").item("value", value).send().await.unwrap_err().into_service_error();
        assert_validation(&error, words);
    }
}

#[tokio::test]
async fn refused_requests_are_validation_errors() {
    let client = client_with_table(&Engine::memory().unwrap()).await;
    let base = || client.update_item().table_name(TABLE).key("key", text("k"));

    let overlapping = base()
        .update_expression("SET a = :one REMOVE a")
        .expression_attribute_values(":one", AttributeValue::N("1".into()))
        .send()
        .await;
    assert_validation(&overlapping.unwrap_err().into_service_error(), "overlap");

    let unknown = base().return_values(ReturnValue::from("SOME")).send().await;
    assert_validation(&unknown.unwrap_err().into_service_error(), "enum value set");

    let null = base()
        .update_expression("SET a = :no")
        .expression_attribute_values(":no", AttributeValue::Null(false))
        .send()
        .await;
    assert_validation(&null.unwrap_err().into_service_error(), "must have the value of true");
}

#[tokio::test]
async fn update_in_a_transaction_leaves_the_key_alone() {
    use aws_sdk_dynamodb::types::{Put, TransactWriteItem, Update};

    let client = client_with_table(&Engine::memory().unwrap()).await;
    claim(&client, "k", "me").send().await.unwrap();
    let put = Put::builder().table_name(TABLE).item("key", text("new")).build().unwrap();
    for expression in ["REMOVE #k", "SET #k = :v", "SET other = :v REMOVE #k", "ADD other :n, #k :n"] {
        let update = Update::builder().table_name(TABLE).key("key", text("k")).update_expression(expression);
        let update = update.expression_attribute_names("#k", "key");
        let update = [(":v", text("l")), (":n", AttributeValue::N("1".into()))]
            .into_iter()
            .filter(|(name, _)| expression.contains(name))
            .fold(update, |update, (name, value)| update.expression_attribute_values(name, value));
        let update = TransactWriteItem::builder().update(update.build().unwrap()).build();
        let put = TransactWriteItem::builder().put(put.clone()).build();
        let refused = client.transact_write_items().transact_items(put).transact_items(update).send().await;
        let refused = refused.expect_err(expression).into_service_error();
        let message = refused.message().unwrap_or_default();
        assert!(message.ends_with("[None, ValidationError]"), "{refused:?}");
        assert_eq!(keys(&client, TABLE).await, ["k"], "{expression}");
    }
    let again = claim(&client, "k", "another").send().await.unwrap_err();
    assert_eq!(again.code(), Some("ConditionalCheckFailedException"), "it is held");
}

fn assert_validation(error: &(impl ProvideErrorMetadata + std::fmt::Debug), words: &str) {
    assert_eq!(error.code(), Some("ValidationException"), "{error:?}");
    let message = error.message().unwrap_or_default();
    assert!(message.contains(words), "{message}");
    for leak in ["VALIDATION", "SERIALIZATION", " at line "] {
        assert!(!message.contains(leak), "{message}");
    }
}

#[tokio::test]
async fn unknown_table_and_unknown_operation_have_errors_of_their_own() {
    let client = client(&Engine::memory().unwrap());

    let missing = claim(&client, "k", "me").send().await.unwrap_err();
    assert!(matches!(missing.into_service_error(), PutItemError::ResourceNotFoundException(_)));

    let unknown = client.describe_limits().send().await.unwrap_err();
    assert_eq!(unknown.into_service_error().code(), Some("UnknownOperationException"));
}

#[tokio::test]
async fn other_clients_see_the_same_data_over_http() {
    let engine = Engine::memory().unwrap();
    client_with_table(&engine).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(async move {
        let stopped = async { stopped.await.unwrap_or_default() };
        engine.expose(listener, stopped).await
    });

    let mut connection = TcpStream::connect(address).await.unwrap();
    connection
        .write_all(
            b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 2\r\n\
              content-type: application/x-amz-json-1.0\r\n\
              x-amz-target: DynamoDB_20120810.ListTables\r\nx-amz-date: 20260101T000000Z\r\n\
              authorization: AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/dynamodb/aws4_request, \
              SignedHeaders=host, Signature=0\r\n\r\n{}",
        )
        .await
        .unwrap();
    let mut reply = String::new();
    connection.read_to_string(&mut reply).await.unwrap();
    assert!(reply.ends_with(r#"{"TableNames":["locks"]}"#), "{reply}");

    stop.send(()).unwrap();
    server.await.unwrap().unwrap();
}

async fn create(client: &Client, table: &str) -> Result<(), aws_sdk_dynamodb::Error> {
    client
        .create_table()
        .table_name(table)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(
            AttributeDefinition::builder()
                .attribute_name("key")
                .attribute_type(ScalarAttributeType::S)
                .build()
                .unwrap(),
        )
        .key_schema(KeySchemaElement::builder().attribute_name("key").key_type(KeyType::Hash).build().unwrap())
        .send()
        .await?;
    Ok(())
}

async fn put(client: &Client, table: &str, key: &str) {
    client.put_item().table_name(table).item("key", text(key)).send().await.unwrap();
}

async fn keys(client: &Client, table: &str) -> Vec<String> {
    let rows = client.scan().table_name(table).send().await.unwrap();
    let mut keys: Vec<_> = rows.items().iter().map(|row| row["key"].as_s().unwrap().clone()).collect();
    keys.sort();
    keys
}

#[tokio::test]
async fn tables_that_differ_in_case_are_two_tables() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leasehold.db");
    let tables = ["leasehold", "LeaseHold", "LEASEHOLD", "exact._lease_hold", "_tables", "sqlite_sequence"];
    {
        let client = client(&Engine::open(&path).unwrap());
        for table in tables {
            create(&client, table).await.unwrap();
            put(&client, table, table).await;
        }
        let taken = create(&client, "LeaseHold").await.unwrap_err();
        assert!(matches!(taken, aws_sdk_dynamodb::Error::ResourceInUseException(_)), "{taken:?}");
    }

    let client = client(&reopened(&path).await);
    for table in tables {
        assert_eq!(keys(&client, table).await, [table], "{table}");
        let described = client.describe_table().table_name(table).send().await.unwrap();
        let described = described.table.unwrap();
        assert_eq!(described.table_name(), Some(table));
        assert!(described.table_arn().unwrap().ends_with(&format!("/{table}")), "{described:?}");
    }
    let mut listed = client.list_tables().send().await.unwrap().table_names.unwrap();
    listed.sort();
    let mut expected = tables.map(str::to_owned);
    expected.sort();
    assert_eq!(listed, expected);

    client.delete_table().table_name("LeaseHold").send().await.unwrap();
    assert_eq!(keys(&client, "leasehold").await, ["leasehold"]);
    assert!(client.scan().table_name("LeaseHold").send().await.is_err());
}

#[tokio::test]
async fn batches_and_statements_reach_the_exact_table() {
    use aws_sdk_dynamodb::types::{KeysAndAttributes, Put, TransactWriteItem};

    let client = client(&Engine::memory().unwrap());
    for table in ["orders", "Orders"] {
        create(&client, table).await.unwrap();
    }
    put(&client, "orders", "plain").await;
    let put = Put::builder().table_name("Orders").item("key", text("capital")).build().unwrap();
    client.transact_write_items().transact_items(TransactWriteItem::builder().put(put).build()).send().await.unwrap();
    assert_eq!(keys(&client, "Orders").await, ["capital"]);

    let wanted = KeysAndAttributes::builder().keys([("key".to_owned(), text("capital"))].into()).build().unwrap();
    let read = client.batch_get_item().request_items("Orders", wanted).send().await.unwrap();
    assert_eq!(read.responses.unwrap()["Orders"].len(), 1);

    let selected = client.execute_statement().statement(r#"SELECT * FROM "Orders""#).send().await.unwrap();
    assert_eq!(selected.items()[0]["key"], text("capital"));
}

#[tokio::test]
async fn unknown_case_of_a_table_is_not_found() {
    let engine = Engine::memory().unwrap();
    let client = client_with_table(&engine).await;
    for table in ["Locks", "LOCKS", "exact._locks", "exact.locks"] {
        let refused = client.scan().table_name(table).send().await.unwrap_err();
        assert_eq!(refused.code(), Some("ResourceNotFoundException"), "{table}");
    }
    create(&client, "Locks").await.unwrap();
    let refused = client.scan().table_name("exact._locks").send().await.unwrap_err();
    assert_eq!(refused.code(), Some("ResourceNotFoundException"), "the stored name is no name of the table");
}

#[tokio::test]
async fn failed_create_table_leaves_nothing_registered() {
    use aws_sdk_dynamodb::types::{GlobalSecondaryIndex, Projection, ProjectionType};

    let client = client(&Engine::memory().unwrap());
    create(&client, "other").await.unwrap();
    let key = || KeySchemaElement::builder().attribute_name("key").key_type(KeyType::Hash).build().unwrap();
    let index = |name: &str| {
        let projection = Projection::builder().projection_type(ProjectionType::All).build();
        GlobalSecondaryIndex::builder().index_name(name).key_schema(key()).projection(projection).build().unwrap()
    };
    let refused = client
        .create_table()
        .table_name("Failing")
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(
            AttributeDefinition::builder()
                .attribute_name("key")
                .attribute_type(ScalarAttributeType::S)
                .build()
                .unwrap(),
        )
        .key_schema(key())
        // SQLite takes these two names for one.
        .global_secondary_indexes(index("Index"))
        .global_secondary_indexes(index("index"))
        .send()
        .await;
    assert!(refused.is_err());
    assert_eq!(client.list_tables().send().await.unwrap().table_names(), ["other"]);
}

#[tokio::test]
async fn pages_of_a_query_end_without_a_sort_key() {
    let client = client_with_table(&Engine::memory().unwrap()).await;
    put(&client, TABLE, "Moe").await;
    let query = client.query().table_name(TABLE).key_condition_expression("#key = :key").limit(1);
    let query = query.expression_attribute_names("#key", "key").expression_attribute_values(":key", text("Moe"));
    let first = query.clone().send().await.unwrap();
    assert_eq!(first.count(), 1);
    let next =
        query.clone().set_exclusive_start_key(Some([("key".to_owned(), text("Moe"))].into())).send().await.unwrap();
    assert_eq!((next.items(), next.count(), next.last_evaluated_key()), ([].as_slice(), 0, None));
}

#[tokio::test]
async fn foreign_transaction_is_refused_when_it_would_hold_up_others() {
    use serde_json::{Value, json};

    let folder = tempfile::tempdir().unwrap();
    for engine in [Engine::memory().unwrap(), Engine::open(&folder.path().join("db")).unwrap()] {
        let client = client_with_table(&engine).await;
        let members: Vec<_> = (0..20_000).map(|number| number.to_string()).collect();
        let large =
            client.put_item().table_name(TABLE).item("key", text("large")).item("a", AttributeValue::Ns(members));
        large.send().await.unwrap();
        let condition = vec!["a <> a"; 100].join(" OR ");
        let key = json!({ "key": { "S": "large" } });
        let check = json!({ "TableName": TABLE, "Key": key, "ConditionExpression": condition });
        let put = json!({ "TableName": TABLE, "Item": { "key": { "S": "new" } } });
        let body = json!({ "TransactItems": [{ "Put": put }, { "ConditionCheck": check }] });
        let answer = async |body: &Value| {
            let target = "DynamoDB_20120810.TransactWriteItems".to_owned();
            let (status, document) = engine.answer(target, body.to_string().into()).await;
            (status, String::from_utf8(document).unwrap())
        };
        let (status, document) = answer(&body).await;
        assert!(status == 400 && document.contains("ValidationException"), "{document}");
        assert!(document.contains("Mention fewer or smaller attributes"), "{document}");
        assert_eq!(owner(&client, "new").await, None);

        let mut lighter = body;
        lighter["TransactItems"][1]["ConditionCheck"]["ConditionExpression"] = json!("a = a");
        assert_eq!(answer(&lighter).await.0, 200);
        assert_eq!(keys(&client, TABLE).await.len(), 2);

        // Leasehold's own requests have no price.
        let own = client.delete_item().table_name(TABLE).key("key", text("large")).condition_expression(condition);
        assert_eq!(own.send().await.unwrap_err().code(), Some("ConditionalCheckFailedException"));
        let foreign = client.scan().table_name(TABLE).filter_expression(vec!["a <> a"; 100].join(" OR "));
        let refused = crate::foreign(foreign.send()).await.unwrap_err();
        assert_eq!(refused.code(), Some("ValidationException"));
    }
}

/// A client of an engine with a table whose items have a time to live in `until`, and the times of the items in it.
async fn client_with_times(engine: &Engine, table: &str, times: &[(&str, AttributeValue)]) -> Client {
    let client = client(engine);
    create(&client, table).await.unwrap();
    let ttl = TimeToLiveSpecification::builder().enabled(true).attribute_name("until").build().unwrap();
    client.update_time_to_live().table_name(table).time_to_live_specification(ttl).send().await.unwrap();
    for (key, time) in times {
        let put = client.put_item().table_name(table).item("key", text(key)).item("until", time.clone());
        put.item("owner", text("me")).send().await.unwrap();
    }
    client
}

fn time(seconds: u64) -> AttributeValue {
    AttributeValue::N(seconds.to_string())
}

const NOW: u64 = 1_800_000_000;

#[tokio::test]
async fn item_is_deleted_when_two_rounds_find_its_time_over() {
    let engine = Engine::memory().unwrap();
    let times = [
        ("over", time(NOW - 1)),
        ("over for long", time(NOW - 5 * 365 * 24 * 3600)),
        ("now", time(NOW)),
        ("later", time(NOW + 1)),
        ("six years before", time(NOW - 6 * 365 * 24 * 3600)),
        ("text", text("1")),
        ("minus", AttributeValue::N("-1".to_owned())),
    ];
    let client = client_with_times(&engine, TABLE, &times).await;
    claim(&client, "none", "me").send().await.unwrap();
    // SQLite takes this for the same name.
    let other = client_with_times(&engine, "Locks", &times[..3]).await;
    create(&client, "without").await.unwrap();
    client.put_item().table_name("without").item("key", text("over")).item("until", time(1)).send().await.unwrap();
    let mut rounds = engine.expiry();
    assert_eq!(rounds.round(NOW).await, Ok(0));
    assert_eq!(rounds.round(NOW).await, Ok(4));
    assert_eq!(keys(&client, TABLE).await, ["later", "minus", "none", "now", "six years before", "text"]);
    assert_eq!(keys(&other, "Locks").await, ["now"]);
    assert_eq!(keys(&client, "without").await, ["over"]);
    assert_eq!(rounds.round(NOW).await, Ok(0));
}

#[tokio::test]
async fn items_of_many_looks_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::open(&folder.path().join("locks.db")).unwrap();
    let names: Vec<_> = (0..250).map(|number| format!("{number:03}")).collect();
    let time_of = |number: usize| time(if number % 50 == 49 { NOW + 1 } else { NOW - 1 });
    let times: Vec<_> = names.iter().enumerate().map(|(number, name)| (name.as_str(), time_of(number))).collect();
    let client = client_with_times(&engine, TABLE, &times).await;
    let mut rounds = engine.expiry();
    assert_eq!((rounds.round(NOW).await, rounds.round(NOW).await), (Ok(0), Ok(245)));
    assert_eq!(keys(&client, TABLE).await, ["049", "099", "149", "199", "249"]);
}

#[tokio::test]
async fn item_stays_when_somebody_still_writes_it() {
    let engine = Engine::memory().unwrap();
    let client = client_with_times(&engine, TABLE, &[("written", time(NOW - 1)), ("left", time(NOW - 1))]).await;
    let mut rounds = engine.expiry();
    for round in 0..4 {
        // A client that does not know the time to live.
        let update = client.update_item().table_name(TABLE).key("key", text("written"));
        let update = update.update_expression("SET version = :v").expression_attribute_values(":v", time(round));
        // A deletion between two updates would show.
        let update = update.condition_expression("attribute_exists(#until)");
        update.expression_attribute_names("#until", "until").send().await.unwrap();
        rounds.round(NOW).await.unwrap();
    }
    assert_eq!(keys(&client, TABLE).await, ["written"]);
}

#[tokio::test]
async fn item_stays_when_it_changes_after_the_last_look() {
    let engine = Engine::memory().unwrap();
    let client = client_with_times(&engine, TABLE, &[("k", time(NOW - 1))]).await;
    let change = |name: &str, value: AttributeValue| {
        let update = client.update_item().table_name(TABLE).key("key", text("k"));
        let update = update.update_expression("SET #n = :v").expression_attribute_names("#n", name);
        update.expression_attribute_values(":v", value).send()
    };
    for (name, value) in [("until", time(NOW - 2)), ("owner", text("another"))] {
        let deletions = expiry::deletions(&engine.core, NOW).await;
        change(name, value).await.unwrap();
        for deletion in deletions {
            assert_eq!(expiry::delete(&engine.core, &deletion).await, Ok(false), "{name}");
        }
    }
    for deletion in expiry::deletions(&engine.core, NOW).await {
        assert_eq!(expiry::delete(&engine.core, &deletion).await, Ok(true));
    }
    assert!(keys(&client, TABLE).await.is_empty());
}

#[tokio::test]
async fn damaged_item_is_not_taken_for_one_whose_time_is_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let engine = Engine::open(&path).unwrap();
    let client = client_with_times(&engine, TABLE, &[("k", time(NOW + 10))]).await;
    let damage = format!("UPDATE {TABLE} SET item_json = replace(item_json, '{}', '{}')", NOW + 10, NOW - 10);
    assert_eq!(rusqlite::Connection::open(&path).unwrap().execute(&damage, []).unwrap(), 1);
    let mut rounds = engine.expiry();
    assert_eq!((rounds.round(NOW).await, rounds.round(NOW).await), (Ok(0), Ok(0)));
    assert_eq!(keys(&client, TABLE).await, ["k"]);
}

#[tokio::test]
async fn follower_is_told_that_a_row_expired() {
    let engine = Engine::memory().unwrap();
    let client = client_with_times(&engine, TABLE, &[("over", time(NOW - 1)), ("deleted", time(NOW - 1))]).await;
    let mut changes = engine.follow(TABLE, vec!["key".to_owned()]);
    let mut rounds = engine.expiry();
    rounds.round(NOW).await.unwrap();
    client.delete_item().table_name(TABLE).key("key", text("deleted")).send().await.unwrap();
    rounds.round(NOW).await.unwrap();
    for (key, is_expiry) in [("deleted", false), ("over", true)] {
        let change = changes.recv().await.unwrap();
        assert!(change.new.is_none() && change.old.is_some_and(|row| row.contains(key)));
        assert_eq!(change.is_expiry, is_expiry, "{key}");
    }
}

/// Items of many sizes, some with `is_even`.
async fn client_with_items(engine: &Engine, count: usize) -> Client {
    let client = client_with_table(engine).await;
    for number in 0..count {
        let put = client.put_item().table_name(TABLE).item("key", text(&format!("{number:03}")));
        let put = put.item("data", text(&"x".repeat(number * 37 % 9000)));
        put.item("even", AttributeValue::Bool(number % 2 == 0)).send().await.unwrap();
    }
    client
}

#[tokio::test]
async fn page_of_many_parts_is_one_page() {
    let engine = Engine::memory().unwrap();
    let client = client_with_items(&engine, 200).await;
    let whole = client.scan().table_name(TABLE).send().await.unwrap();
    assert_eq!((whole.count(), whole.scanned_count(), whole.items().len()), (200, 200, 200));
    assert!(whole.last_evaluated_key().is_none() && whole.consumed_capacity().is_none());
    let filtered = client.scan().table_name(TABLE).filter_expression("even = :true");
    let filtered = filtered.expression_attribute_values(":true", AttributeValue::Bool(true)).consistent_read(true);
    let filtered = filtered.send().await.unwrap();
    assert_eq!((filtered.count(), filtered.scanned_count()), (100, 200));
    let counted = client.scan().table_name(TABLE).select(Select::Count).send().await.unwrap();
    assert_eq!((counted.count(), counted.items().len()), (200, 0));
    // The limit counts what is read.
    let limited = client.scan().table_name(TABLE).limit(77).send().await.unwrap();
    assert_eq!((limited.count(), limited.items().len()), (77, 77));
    let mut found: Vec<_> = limited.items().iter().map(|item| item["key"].clone()).collect();
    let mut next = limited.last_evaluated_key().cloned();
    while let Some(start) = next {
        let page = client.scan().table_name(TABLE).limit(77).set_exclusive_start_key(Some(start)).send().await.unwrap();
        found.extend(page.items().iter().map(|item| item["key"].clone()));
        next = page.last_evaluated_key().cloned();
    }
    found.sort_by_key(|key| key.as_s().unwrap().clone());
    found.dedup();
    assert_eq!(found.len(), 200);
    let priced = client.scan().table_name(TABLE).return_consumed_capacity(ReturnConsumedCapacity::Total).send().await;
    assert!(priced.unwrap().consumed_capacity().is_some());
    assert!(client.scan().table_name(TABLE).limit(0).send().await.is_err());
}

#[tokio::test]
async fn page_ends_after_a_megabyte() {
    let engine = Engine::memory().unwrap();
    let client = client_with_table(&engine).await;
    for number in 0..60 {
        let put = client.put_item().table_name(TABLE).item("key", text(&format!("{number:03}")));
        put.item("data", text(&"x".repeat(50_000))).send().await.unwrap();
    }
    // What the filter leaves out was read, too.
    for (filter, found) in [("begins_with(#d, :x)", true), ("NOT begins_with(#d, :x)", false)] {
        let page = client.scan().table_name(TABLE).filter_expression(filter).expression_attribute_names("#d", "data");
        let page = page.expression_attribute_values(":x", text("x")).send().await.unwrap();
        assert!((20..=23).contains(&page.scanned_count()), "{filter}: {}", page.scanned_count());
        assert_eq!(page.count() > 0, found);
        assert!(page.last_evaluated_key().is_some());
    }
}

#[tokio::test]
async fn holder_is_answered_between_two_parts_of_a_page() {
    let engine = Engine::memory().unwrap();
    let client = client_with_items(&engine, 300).await;
    let is_read = AtomicBool::new(false);
    let scan = async {
        let page = client.scan().table_name(TABLE).send().await.unwrap();
        is_read.store(true, Ordering::Relaxed);
        page.count()
    };
    let renewals = async {
        let mut renewed = 0;
        while !is_read.load(Ordering::Relaxed) {
            urgent(client.get_item().table_name(TABLE).key("key", text("000")).send()).await.unwrap();
            renewed += 1;
        }
        renewed
    };
    let (count, renewed) = tokio::join!(scan, renewals);
    assert!(count > 200 && renewed >= 3, "{count} {renewed}");
}
