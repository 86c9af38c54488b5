//! Reads of indexes.

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType,
    LocalSecondaryIndex, Projection, ProjectionType, ScalarAttributeType,
};
use leasehold_tests::Sent;
use leasehold_tests::bank::{Bank, begin, request};
use leasehold_transactions::{Action, Error, Isolation, Item, ListRequest, TransactionRequest};

pub(super) const PLAYERS: &str = "players";

fn key_schema(hash: &str, range: Option<&str>) -> Vec<KeySchemaElement> {
    let element = |name: &str, kind| KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
    let hash = Some(element(hash, KeyType::Hash).expect("complete"));
    hash.into_iter().chain(range.map(|range| element(range, KeyType::Range).expect("complete"))).collect()
}

fn projection(kind: ProjectionType) -> Projection {
    Projection::builder().projection_type(kind).build()
}

/// A table of players by league and name, with indexes by team, and by score within a league.
pub(super) async fn make_players(bank: &Bank) {
    let attribute = |name: &str, kind| {
        AttributeDefinition::builder().attribute_name(name).attribute_type(kind).build().expect("complete")
    };
    let global = |name: &str, kind| {
        let index = GlobalSecondaryIndex::builder().index_name(name).projection(projection(kind));
        index.set_key_schema(Some(key_schema("team", None))).build().expect("complete")
    };
    let local = LocalSecondaryIndex::builder().index_name("by-score").projection(projection(ProjectionType::All));
    let local = local.set_key_schema(Some(key_schema("league", Some("score"))));
    bank.dynamodb
        .create_table()
        .table_name(PLAYERS)
        .billing_mode(BillingMode::PayPerRequest)
        .attribute_definitions(attribute("league", ScalarAttributeType::S))
        .attribute_definitions(attribute("name", ScalarAttributeType::S))
        .attribute_definitions(attribute("team", ScalarAttributeType::S))
        .attribute_definitions(attribute("score", ScalarAttributeType::N))
        .set_key_schema(Some(key_schema("league", Some("name"))))
        .global_secondary_indexes(global("by-team", ProjectionType::All))
        .global_secondary_indexes(global("names-by-team", ProjectionType::KeysOnly))
        .local_secondary_indexes(local.build().expect("complete"))
        .send()
        .await
        .expect("a new table");
}

pub(super) fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(super) fn key(name: &str) -> Item {
    Item::from([("league".to_owned(), text("first")), ("name".to_owned(), text(name))])
}

pub(super) fn player(name: &str, score: u32) -> Item {
    let mut player = key(name);
    player.insert("team".to_owned(), text("red"));
    player.insert("score".to_owned(), AttributeValue::N(score.to_string()));
    player
}

pub(super) fn on_players(action: Action) -> TransactionRequest {
    TransactionRequest { table: PLAYERS.into(), ..request(action) }
}

fn list(index: &str, condition: &str, value: &str) -> ListRequest {
    let mut request = ListRequest { table: PLAYERS.into(), index: Some(index.into()), ..ListRequest::default() };
    request.key_condition = Some(condition.into());
    request.values.insert(":value".into(), text(value));
    request
}

async fn scores(bank: &Bank, request: &ListRequest, isolation: Isolation) -> Vec<String> {
    let items = bank.transactions.reader.list(request, isolation).await.expect("listed").items;
    assert!(items.iter().all(|item| !item.keys().any(|name| name.starts_with("leaseholdTx"))), "{items:?}");
    let of =
        |item: &Item| format!("{} {}", item["name"].as_s().expect("a text"), item["score"].as_n().expect("a number"));
    let mut scores: Vec<_> = items.iter().map(of).collect();
    scores.sort();
    scores
}

#[tokio::test(start_paused = true)]
async fn full_index_shows_what_is_committed() {
    let bank = Bank::new().await;
    make_players(&bank).await;
    for (name, score) in [("ann", 1), ("bob", 2)] {
        let put = bank.dynamodb.put_item().table_name(PLAYERS).set_item(Some(player(name, score)));
        put.send().await.expect("put");
    }
    let id = begin(&bank.transactions).await;
    let mut raise = on_players(Action::Update { key: key("ann"), expression: "SET score = :ten".into() });
    raise.values.insert(":ten".into(), AttributeValue::N("10".into()));
    let insert = on_players(Action::Put { item: player("eve", 5) });
    let delete = on_players(Action::Delete { key: key("bob") });
    bank.transactions.add(&id, vec![raise, insert, delete], None).await.expect("added");
    let requests = [list("by-team", "team = :value", "red"), list("by-score", "league = :value", "first")];
    let scan = ListRequest { key_condition: None, values: Item::new(), ..requests[0].clone() };
    for request in requests.iter().chain([&scan]) {
        assert_eq!(scores(&bank, request, Isolation::Committed).await, ["ann 1", "bob 2"]);
        assert_eq!(scores(&bank, request, Isolation::Uncommitted).await, ["ann 10", "bob 2", "eve 5"]);
    }
    bank.transactions.commit(&id).await.expect("committed");
    for request in &requests {
        assert_eq!(scores(&bank, request, Isolation::Committed).await, ["ann 10", "eve 5"]);
    }
}

/// A global index may show a state of an item that a transaction replaced before it committed.
#[tokio::test(start_paused = true)]
async fn locked_entry_of_an_index_is_read_from_the_table() {
    let bank = Bank::new().await;
    make_players(&bank).await;
    let id = begin(&bank.transactions).await;
    bank.transactions.add(&id, vec![on_players(Action::Put { item: player("ann", 1) })], None).await.expect("added");
    bank.faults.record();
    assert_eq!(scores(&bank, &list("by-team", "team = :value", "red"), Isolation::Committed).await, [""; 0]);
    let looks = || {
        let is_look = |sent: &Sent| sent.operation == "GetItem" && sent.body["TableName"] == PLAYERS;
        bank.faults.record().into_iter().filter(is_look).count()
    };
    assert_eq!(looks(), 1);
    // No other entry costs a read.
    let by_team = list("by-team", "team = :value", "red");
    assert_eq!(scores(&bank, &by_team, Isolation::Uncommitted).await, ["ann 1"]);
    let scan = ListRequest { table: PLAYERS.into(), ..ListRequest::default() };
    assert_eq!(scores(&bank, &scan, Isolation::Committed).await, [""; 0]);
    assert_eq!(looks(), 0);
    bank.transactions.commit(&id).await.expect("committed");
    bank.faults.record();
    assert_eq!(scores(&bank, &by_team, Isolation::Committed).await, ["ann 1"]);
    assert_eq!(looks(), 0);
}

#[tokio::test(start_paused = true)]
async fn index_without_the_locks_is_refused() {
    let bank = Bank::new().await;
    make_players(&bank).await;
    for index in ["names-by-team", "none"] {
        let request = list(index, "team = :value", "red");
        for isolation in [Isolation::Committed, Isolation::Uncommitted] {
            let refused = bank.transactions.reader.list(&request, isolation).await;
            let Err(Error::InvalidRequest { field, message }) = &refused else { panic!("{refused:?}") };
            assert_eq!(field, "indexName");
            assert!(message.contains(index) && message.contains("projects all attributes"), "{message}");
        }
    }
}
