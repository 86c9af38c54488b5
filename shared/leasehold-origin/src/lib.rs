//! # Protection against web pages of other origins
//!
//! A browser on this machine may have any page open. A page can send requests to any address. A foreign `Origin` tells
//! its requests from the console's own. A host name that resolves to this machine (DNS rebinding) makes a page
//! same-origin for the browser. The service therefore lists the host names that it answers to.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap, ORIGIN};
use http::request::Parts;
use leasehold_wire::{Problem, ProblemType};

/// The host names that a service answers to.
#[derive(Debug, Clone)]
pub struct Guard {
    listen: IpAddr,
    names: Vec<String>,
}

impl Guard {
    /// A service that listens on this address. It answers to loopback names, its own address and `names`.
    pub fn new(listen: IpAddr, names: &[String]) -> Self {
        Self { listen, names: names.iter().map(|name| normal(name)).collect() }
    }

    /// Refuses requests to another host and requests that a foreign web page sends.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn check(&self, request: &Parts) -> Result<(), Problem> {
        let mut hosts = request.headers.get_all(HOST).iter();
        let (Some(Ok(host)), None) = (hosts.next().map(|host| host.to_str()), hosts.next()) else {
            return Err(refused("A request needs one Host header."));
        };
        let authority = request.uri.authority().map_or(host, http::uri::Authority::as_str);
        for name in [host, authority] {
            if !self.answers_to(name) {
                return Err(refused(format!(
                    "This service does not answer to the host name {:?}. Whoever runs it can allow the name with \
                     --allow-host.",
                    name.chars().take(100).collect::<String>()
                )));
            }
        }
        check_origin(&request.headers, host)
    }

    fn answers_to(&self, host: &str) -> bool {
        let host = normal(without_port(host));
        if host == "localhost" || self.names.contains(&host) {
            return true;
        }
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
        // An address is not a name: it cannot resolve to another machine.
        address.parse().is_ok_and(|address: IpAddr| {
            address.is_loopback() || address == self.listen || self.listen.is_unspecified()
        })
    }
}

/// Refuses requests of pages from other origins. Other clients send no such headers.
///
/// # Errors
/// `forbidden`.
fn check_origin(headers: &HeaderMap, host: &str) -> Result<(), Problem> {
    for origin in headers.get_all(ORIGIN) {
        let authority = origin.to_str().ok().and_then(|origin| {
            let (scheme, authority) = origin.split_once("://")?;
            let port = match scheme {
                "http" => ":80",
                "https" => ":443",
                _ => return None,
            };
            Some(authority.strip_suffix(port).unwrap_or(authority))
        });
        let own = host.strip_suffix(":80").or_else(|| host.strip_suffix(":443")).unwrap_or(host);
        if !authority.is_some_and(|authority| authority.eq_ignore_ascii_case(own)) {
            return Err(refused("This service takes no requests from web pages of another origin."));
        }
    }
    let sites = headers.get_all("sec-fetch-site");
    if sites.iter().any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
        return Err(refused("This service takes no requests from web pages of another site."));
    }
    Ok(())
}

/// Whether a browser opens a page. A link from anywhere may lead to the page, and shows nothing to the site of the
/// link.
fn is_navigation(request: &Parts) -> bool {
    let is =
        |name: &str, value: &str| request.headers.get(name).is_some_and(|found| found.as_bytes() == value.as_bytes());
    request.method == http::Method::GET && is("sec-fetch-mode", "navigate") && is("sec-fetch-dest", "document")
}

/// Removes the headers that a link from another site adds to the request for a page.
pub fn forgive_navigation(request: &mut Parts) {
    if is_navigation(request) {
        request.headers.remove("sec-fetch-site");
    }
}

fn refused(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemType::Forbidden, detail)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn checked(guard: &Guard, headers: &[(&str, &str)]) -> bool {
        let request = headers.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        guard.check(&request.body(()).expect("valid").into_parts().0).is_ok()
    }

    fn guard(listen: &str) -> Guard {
        Guard::new(listen.parse().expect("an address"), &["locks.example.com".to_owned(), "Team.".to_owned()])
    }

    #[test]
    fn host_is_allowed_by_name_or_own_address() {
        for (listen, host, allowed) in [
            ("127.0.0.1", "127.0.0.1:8080", true),
            ("127.0.0.1", "localhost", true),
            ("127.0.0.1", "LOCALHOST.:9", true),
            ("127.0.0.1", "[::1]:8080", true),
            ("127.0.0.1", "127.8.9.1", true),
            ("127.0.0.1", "locks.example.com:443", true),
            ("127.0.0.1", "team", true),
            ("127.0.0.1", "evil.test", false),
            ("127.0.0.1", "evil.test:8080", false),
            ("127.0.0.1", "localhost.evil.test", false),
            ("127.0.0.1", "127.0.0.1.evil.test", false),
            ("127.0.0.1", "127.0.0.1@evil.test", false),
            ("127.0.0.1", "evil.test#127.0.0.1", false),
            ("127.0.0.1", "10.0.0.7", false),
            ("127.0.0.1", "", false),
            ("10.0.0.7", "10.0.0.7:8080", true),
            ("10.0.0.7", "10.0.0.8:8080", false),
            ("0.0.0.0", "10.0.0.8:8080", true),
            ("0.0.0.0", "evil.test", false),
        ] {
            assert_eq!(checked(&guard(listen), &[("host", host)]), allowed, "{listen} {host}");
        }
        assert!(!checked(&guard("127.0.0.1"), &[]));
        assert!(!checked(&guard("127.0.0.1"), &[("host", "localhost"), ("host", "localhost")]));
    }

    #[test]
    fn target_that_names_another_host_is_refused() {
        for (target, allowed) in
            [("http://localhost:8080/v1/locks", true), ("http://evil.test/v1/locks", false), ("/v1/locks", true)]
        {
            let request = Request::get(target).header("host", "localhost:8080").body(()).expect("valid");
            assert_eq!(guard("127.0.0.1").check(&request.into_parts().0).is_ok(), allowed, "{target}");
        }
    }

    #[test]
    fn origin_must_be_the_services_own() {
        for (origin, allowed) in [
            ("http://127.0.0.1:8080", true),
            ("http://127.0.0.1:8081", false),
            ("http://localhost:8080", false),
            ("https://evil.test", false),
            ("null", false),
            ("", false),
            ("file://", false),
            ("http://127.0.0.1:8080.evil.test", false),
            ("chrome-extension://127.0.0.1:8080", false),
        ] {
            let headers = [("host", "127.0.0.1:8080"), ("origin", origin)];
            assert_eq!(checked(&guard("127.0.0.1"), &headers), allowed, "{origin}");
        }
        let default_port = [("host", "locks.example.com"), ("origin", "https://locks.example.com")];
        assert!(checked(&guard("127.0.0.1"), &default_port));
    }

    #[test]
    fn fetch_from_another_site_is_refused() {
        for (site, allowed) in [("same-origin", true), ("none", true), ("same-site", false), ("cross-site", false)] {
            let headers = [("host", "localhost"), ("sec-fetch-site", site)];
            assert_eq!(checked(&guard("127.0.0.1"), &headers), allowed, "{site}");
        }
    }
}
