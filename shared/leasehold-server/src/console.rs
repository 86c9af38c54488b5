//! The console: built files of `console/dist`, and the rules that the browser keeps for them.

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use axum::routing::get;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue};

/// No script but the page's own, no markup from text, no frame, no other address.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(&str, &str); 5] = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// Path of the console.
pub const PATH: &str = "/console";

/// The name and the version of the service, which the page shows to callers that the service accepts.
pub fn about(service: &str) -> Router {
    let about = serde_json::json!({ "service": service, "version": env!("CARGO_PKG_VERSION") }).to_string();
    Router::new().route("/console/about", get(async move || file("application/json", Body::from(about.clone()))))
}

/// The console's files, which are the same for every service.
pub fn routes() -> Router {
    let html = "text/html; charset=utf-8";
    let index = include_str!("../console/index.html");
    [
        ("/console", html, index),
        ("/console/", html, index),
        ("/console/console.js", "text/javascript; charset=utf-8", include_str!("../console/console.js")),
        ("/console/style.css", "text/css; charset=utf-8", include_str!("../console/style.css")),
        ("/console/icon.svg", "image/svg+xml", include_str!("../console/icon.svg")),
    ]
    .into_iter()
    .fold(Router::new(), |router, (path, media_type, content)| {
        router.route(path, get(async move || file(media_type, Body::from(content))))
    })
}

fn file(media_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    for (name, value) in HEADERS {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}
