//! Atomic, isolated changes to many DynamoDB items. Rules T1 to T7 of `docs/client.md`.
//!
//! ```no_run
//! # use leasehold_client::{Client, Error};
//! use serde::{Deserialize, Serialize};
//! use serde_json::json;
//!
//! #[derive(Serialize, Deserialize)]
//! struct Account {
//!     id: String,
//!     balance: i64,
//! }
//!
//! # async fn example(client: Client) -> Result<(), Error> {
//! let left = client
//!     .transaction(async |tx| {
//!         let Some(mut moe) = tx.get::<Account>("accounts", json!({"id": "Moe"})).await? else { return Ok(None) };
//!         moe.balance -= 100;
//!         tx.put("accounts", &moe).await?;
//!         let larry = json!({"id": "Larry"});
//!         tx.update("accounts", larry, "ADD balance :amount", json!({":amount": 100})).await?;
//!         Ok::<_, Error>(Some(moe.balance))
//!     })
//!     .await?;
//! # let _ = left;
//! # Ok(())
//! # }
//! ```
//!
//! Keys, items and values are anything that serde can serialise to an object: a struct, a map, `serde_json::json!`.
//! [`serde_dynamo`] converts them to DynamoDB's types. A caller that has DynamoDB JSON makes a [`Request`] of an
//! [`Entry`].

mod capacity;
mod handle;
mod id;
mod item;
mod options;
mod read;
mod request;
mod run;

pub use capacity::CapacityMeter;
pub use handle::Transaction;
pub use id::derive_transaction_id;
pub use item::{from_item, to_item};
/// The types on the wire. A [`Request`] can be made of an [`Entry`]; items are [`Item`]s.
pub use leasehold_wire::transactions::{
    AttributeValue, ConsumedCapacity, Entry, Isolation, Item, ItemRequest, ListItemsRequest, Participant, ReturnValues,
    Transaction as TransactionStatus, TransactionState,
};
pub use options::TransactionOptions;
pub use request::Request;
/// Adapters for `#[serde(with = "…")]`: a list that is stored as one of DynamoDB's sets.
pub use serde_dynamo::{binary_set, number_set, string_set};
