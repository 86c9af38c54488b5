//! Every value of an item comes back unchanged.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{Api, account_key};

/// Values in DynamoDB JSON, in the form in which DynamoDB returns them.
fn value() -> impl Strategy<Value = Value> {
    let text = "\\PC{0,12}";
    let base64 = vec(any::<u8>(), 0..9).prop_map(|bytes| {
        use base64::{Engine, prelude::BASE64_STANDARD};
        BASE64_STANDARD.encode(bytes)
    });
    let leaf = prop_oneof![
        text.prop_map(|text| json!({ "S": text })),
        any::<i64>().prop_map(|number| json!({ "N": number.to_string() })),
        base64.clone().prop_map(|bytes| json!({ "B": bytes })),
        any::<bool>().prop_map(|bool| json!({ "BOOL": bool })),
        Just(json!({ "NULL": true })),
        btree_set(text, 1..4).prop_map(|texts| json!({ "SS": texts })),
        btree_set(any::<i32>(), 1..4).prop_map(|numbers| {
            let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
            json!({ "NS": numbers })
        }),
        btree_set(base64, 1..4).prop_map(|blobs| json!({ "BS": blobs })),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|values| json!({ "L": values })),
            btree_map("[a-zA-Z0-9 _.-]{1,8}", inner, 0..4).prop_map(|members| json!({ "M": members })),
        ]
    })
}

/// Sets have no order.
fn sorted(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            for (name, value) in members.iter_mut() {
                *value = sorted(value.take());
                if let ("SS" | "NS" | "BS", Value::Array(elements)) = (name.as_str(), value) {
                    elements.sort_by_key(ToString::to_string);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| *value = sorted(value.take())),
        _ => {}
    }
    value
}

/// Sends the value through a one-shot and a read, through a transaction's rows and a rollback, and through an answer.
async fn comes_back(value: Value) {
    let api = Api::new().await;
    let mut item = account_key("Moe");
    item["value"] = value;
    let put = json!({ "Put": { "TableName": "accounts", "Item": item } });
    api.ok("/v1/transactions/begin", json!({ "commit": true, "requests": [put] })).await;
    assert_eq!(sorted(api.seen("Moe").await), sorted(item.clone()));

    let other = json!({ "Put": { "TableName": "accounts", "Item": account_key("Moe"), "ReturnValues": "ALL_OLD" } });
    let begun = api.ok("/v1/transactions/begin", json!({ "requests": [other] })).await;
    assert_eq!(sorted(begun["answers"][0]["item"].clone()), sorted(item.clone()));
    assert_eq!(sorted(api.seen("Moe").await), sorted(item.clone()));
    api.ok("/v1/transactions/rollback", json!({ "transactionId": begun["transactionId"] })).await;
    let read = json!({ "tableName": "accounts", "key": account_key("Moe"), "isolation": "uncommitted" });
    assert_eq!(sorted(api.ok("/v1/items/get", read).await["item"].clone()), sorted(item));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn items_come_back_as_they_went_in(value in value()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(comes_back(value));
    }
}
