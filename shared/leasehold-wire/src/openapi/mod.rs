//! The OpenAPI document, made from the table of operations and from the types: `docs/openapi.json` is this, and a test
//! holds the two together.

mod lengths;
pub(crate) mod schema;

use std::collections::BTreeMap;

use lengths::Lengths;
use schema::{Body, Input, Schemas};
use utoipa::openapi::path::{HttpMethod, OperationBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{AnyOfBuilder, Object, Schema, Type};
use utoipa::openapi::{
    ContentBuilder, HeaderBuilder, OpenApi as Document, Ref, RefOr, Required, Response, ResponseBuilder,
};
use utoipa::{Modify, OpenApi, PartialSchema};

use crate::operation::{OPERATIONS, Operation, Refusal, Subject};
use crate::{Problem, ProblemType};

/// API version 1.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Leasehold",
        version = "1",
        description = "Locks on one DynamoDB table. Acquire, heartbeat, release and break are each one conditional \
            write; the caller owns the heartbeat and judges staleness by comparing record version numbers across its \
            own polls. Transactions change items of any tables together: locked, changed for the transaction's own eyes, \
            and committed by one conditional write.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    servers((url = "http://127.0.0.1:8080", description = "leasehold serve")),
    components(schemas(Problem)),
    modifiers(&Operations, &Lengths, &Parts)
)]
pub struct Api;

/// Writes the operations of the table into a document.
struct Operations;

impl Modify for Operations {
    fn modify(&self, document: &mut Document) {
        let mut schemas = Schemas::new();
        for operation in OPERATIONS {
            let (method, described) = describe(operation, &mut schemas);
            document.paths.add_path_operation(operation.path, vec![method], described);
        }
        document.components.get_or_insert_default().schemas.extend(schemas);
    }
}

/// Corrects the schemas of types that contain the members of another type, or none of them: the whole is an object
/// either way, and never null.
struct Parts;

impl Modify for Parts {
    fn modify(&self, document: &mut Document) {
        for schema in document.components.iter_mut().flat_map(|components| components.schemas.values_mut()) {
            let RefOr::T(Schema::AllOf(whole)) = schema else { continue };
            for part in &mut whole.items {
                if let RefOr::T(Schema::OneOf(optional)) = part {
                    let kinds = optional.items.iter().filter(|kind| matches!(kind, RefOr::Ref(_))).cloned();
                    let none = Object::with_type(Type::Object);
                    let either = kinds.fold(AnyOfBuilder::new(), AnyOfBuilder::item).item(none).build();
                    *part = RefOr::T(Schema::AnyOf(either));
                }
            }
        }
    }
}

fn describe(operation: &Operation, schemas: &mut Schemas) -> (HttpMethod, OperationBuilder) {
    let (input, answer) = operation.schemas;
    let summary: Vec<_> = operation.summary.lines().map(str::trim).collect();
    let described = OperationBuilder::new()
        .operation_id(Some(operation.id))
        .summary(Some(summary.join("\n")))
        .tags(Some(match operation.subject {
            Subject::Lock => None,
            Subject::Semaphore => Some("semaphore"),
            Subject::Transaction => Some("transactions"),
        }))
        .response("200", success(operation, answer, schemas));
    let described = responses(operation)
        .into_iter()
        .fold(described, |described, (status, response)| described.response(status.to_string(), response));
    match input {
        Input::Query(parameters) => {
            let parameters = Some(parameters()).filter(|parameters| !parameters.is_empty());
            (HttpMethod::Get, described.parameters(parameters))
        }
        Input::Body(body) => {
            let content = ContentBuilder::new().schema(Some(reference(body, schemas))).build();
            let body = RequestBodyBuilder::new().content("application/json", content).required(Some(Required::True));
            (HttpMethod::Post, described.request_body(Some(body.build())))
        }
    }
}

fn reference(body: Body, schemas: &mut Schemas) -> Ref {
    (body.collect)(schemas);
    Ref::from_schema_name((body.name)())
}

fn success(operation: &Operation, answer: Body, schemas: &mut Schemas) -> Response {
    let content = ContentBuilder::new().schema(Some(reference(answer, schemas))).build();
    ResponseBuilder::new().description(operation.success).content("application/json", content).build()
}

/// Returns the refusals of an operation, by their status.
fn responses(operation: &Operation) -> BTreeMap<u16, Response> {
    let mut by_status = BTreeMap::<u16, Vec<_>>::new();
    for refusal in operation.all_refusals() {
        by_status.entry(refusal.kinds[0].status()).or_default().push(refusal);
    }
    by_status.into_iter().map(|(status, refusals)| (status, response(&refusals))).collect()
}

fn response(refusals: &[&Refusal]) -> Response {
    let sentences: Vec<_> = refusals
        .iter()
        .map(|refusal| {
            let kinds: Vec<_> = refusal.kinds.iter().copied().map(name).collect();
            format!("{}: {}", kinds.join(", "), refusal.detail)
        })
        .collect();
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    let response = ResponseBuilder::new().description(sentences.join(" ")).content("application/problem+json", content);
    let kinds = || refusals.iter().flat_map(|refusal| refusal.kinds);
    let pausing: Vec<_> = kinds().copied().filter(|kind| kind.retry_after_seconds().is_some()).collect();
    if pausing.is_empty() {
        return response.build();
    }
    let when = if pausing.len() == kinds().count() {
        String::new()
    } else {
        format!(", for {}", pausing.into_iter().map(name).collect::<Vec<_>>().join(", "))
    };
    let header = HeaderBuilder::new().schema(Some(u32::schema())).description(Some(format!("Seconds{when}")));
    response.header("Retry-After", header.build()).build()
}

/// The name of a kind, as code.
fn name(kind: ProblemType) -> String {
    format!("`{}`", serde_json::to_value(kind).ok().as_ref().and_then(|name| name.as_str()).unwrap_or_default())
}
