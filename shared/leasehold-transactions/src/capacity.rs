//! The capacity that the work of one call consumes, as DynamoDB tells it.
//!
//! An interceptor of the SDK's client asks DynamoDB for it, within [`measured`] only, and adds it up. DynamoDB tells
//! nothing about a request that it refuses, though it charges for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::{
    AfterDeserializationInterceptorContextRef, BeforeSerializationInterceptorContextMut,
};
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::operation::batch_execute_statement::{BatchExecuteStatementInput, BatchExecuteStatementOutput};
use aws_sdk_dynamodb::operation::batch_get_item::{BatchGetItemInput, BatchGetItemOutput};
use aws_sdk_dynamodb::operation::delete_item::{DeleteItemInput, DeleteItemOutput};
use aws_sdk_dynamodb::operation::get_item::{GetItemInput, GetItemOutput};
use aws_sdk_dynamodb::operation::put_item::{PutItemInput, PutItemOutput};
use aws_sdk_dynamodb::operation::query::{QueryInput, QueryOutput};
use aws_sdk_dynamodb::operation::scan::{ScanInput, ScanOutput};
use aws_sdk_dynamodb::operation::transact_get_items::{TransactGetItemsInput, TransactGetItemsOutput};
use aws_sdk_dynamodb::operation::transact_write_items::{TransactWriteItemsInput, TransactWriteItemsOutput};
use aws_sdk_dynamodb::operation::update_item::{UpdateItemInput, UpdateItemOutput};
use aws_sdk_dynamodb::types::{ConsumedCapacity, ReturnConsumedCapacity};

tokio::task_local! {
    static METER: Meter;
}

/// The sums by table.
type Meter = Arc<Mutex<BTreeMap<String, Units>>>;

/// The capacity units that a table and its indexes gave, in the sense of DynamoDB's `ConsumedCapacity`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Units {
    /// The read units: multiples of one half.
    pub read: f64,
    /// The write units.
    pub write: f64,
}

/// Carries out some work, and returns also what it consumed until its end, by table.
pub async fn measured<T>(work: impl Future<Output = T>) -> (T, BTreeMap<String, Units>) {
    let meter = Meter::default();
    let result = METER.scope(meter.clone(), work).await;
    let units = std::mem::take(&mut *meter.lock().unwrap_or_else(PoisonError::into_inner));
    (result, units)
}

/// Counts work for a task of its own where the present task counts.
pub(crate) fn counted_here<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let meter = METER.try_with(Meter::clone).ok();
    async move {
        match meter {
            Some(meter) => METER.scope(meter, work).await,
            None => work.await,
        }
    }
}

/// Returns a client whose calls are counted within [`measured`].
pub(crate) fn counting(client: &Client) -> Client {
    Client::from_conf(client.config().to_builder().interceptor(Counter).build())
}

#[derive(Debug)]
struct Counter;

impl Intercept for Counter {
    fn name(&self) -> &'static str {
        "Counter"
    }

    fn modify_before_serialization(
        &self,
        context: &mut BeforeSerializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if METER.try_with(|_| ()).is_ok() {
            ask(context);
        }
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let _ = METER.try_with(|meter| {
            let mut sums = meter.lock().unwrap_or_else(PoisonError::into_inner);
            for (capacity, is_write) in told(context) {
                sums.entry(capacity.table_name().unwrap_or_default().to_owned()).or_default().add(capacity, is_write);
            }
        });
        Ok(())
    }
}

impl Units {
    /// Adds what one request consumed. Only requests of several items tell reads and writes apart.
    fn add(&mut self, told: &ConsumedCapacity, is_write: bool) {
        let (read, write) = (told.read_capacity_units(), told.write_capacity_units());
        if read.is_some() || write.is_some() {
            self.read += read.unwrap_or_default();
            self.write += write.unwrap_or_default();
        } else {
            let sum = if is_write { &mut self.write } else { &mut self.read };
            *sum += told.capacity_units().unwrap_or_default();
        }
    }
}

/// Defines, by one list of the requests that consume capacity, how to ask for it and where an answer tells it.
macro_rules! requests {
    ($($input:ident => $output:ident: $is_write:literal,)*) => {
        fn ask(context: &mut BeforeSerializationInterceptorContextMut<'_>) {
            $(if let Some(input) = context.input_mut().downcast_mut::<$input>() {
                input.return_consumed_capacity = Some(ReturnConsumedCapacity::Total);
            })*
        }

        fn told<'a>(context: &'a AfterDeserializationInterceptorContextRef<'_>) -> Vec<(&'a ConsumedCapacity, bool)> {
            let mut told = Vec::new();
            if let Ok(output) = context.output_or_error() {
                $(if let Some(output) = output.downcast_ref::<$output>() {
                    told.extend(output.consumed_capacity().into_iter().map(|capacity| (capacity, $is_write)));
                })*
            }
            told
        }
    };
}

requests! {
    GetItemInput => GetItemOutput: false,
    BatchGetItemInput => BatchGetItemOutput: false,
    TransactGetItemsInput => TransactGetItemsOutput: false,
    QueryInput => QueryOutput: false,
    ScanInput => ScanOutput: false,
    PutItemInput => PutItemOutput: true,
    UpdateItemInput => UpdateItemOutput: true,
    DeleteItemInput => DeleteItemOutput: true,
    TransactWriteItemsInput => TransactWriteItemsOutput: true,
    BatchExecuteStatementInput => BatchExecuteStatementOutput: true,
}
