//! The schemas of one operation's request and answer.

use utoipa::openapi::path::{Parameter, ParameterIn};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{IntoParams, ToSchema};

/// The name of a schema, and a function that collects it with all schemas that it refers to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body {
    pub(crate) name: fn() -> String,
    pub(crate) collect: fn(&mut Schemas),
}

/// Schemas by their names.
pub(crate) type Schemas = Vec<(String, RefOr<Schema>)>;

/// The schema of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Input {
    /// The parameters of a query.
    Query(fn() -> Vec<Parameter>),
    /// The document of a body.
    Body(Body),
}

pub(crate) const fn body<T: ToSchema>() -> Body {
    Body {
        name: || T::name().into_owned(),
        collect: |schemas| {
            schemas.push((T::name().into_owned(), T::schema()));
            T::schemas(schemas);
        },
    }
}

pub(crate) fn query<T: IntoParams>() -> Vec<Parameter> {
    T::into_params(|| Some(ParameterIn::Query))
}
