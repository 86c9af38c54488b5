//! The credentials of the exposed DynamoDB port, and the signatures (Signature Version 4) that are made with them.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sigv4::sign::v4::{calculate_signature, generate_signing_key};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName};
use hyper::http::request::Parts;
use sha2::{Digest, Sha256};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
/// The headers that say what is asked, of whom and when. Without one of them, a signature would fit other requests too.
const SIGNED: [&str; 3] = ["host", "x-amz-date", "x-amz-target"];
/// Largest difference between a signature's time and the clock, as for AWS.
const MAX_AGE: Duration = Duration::from_mins(5);
/// Largest file that is read: some thousand profiles.
const MAX_BYTES: u64 = 1024 * 1024;

/// A file of credentials that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file cannot be read.
    #[error("cannot use the credentials of {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// Other users of this machine may read the secrets.
    #[error("cannot use the credentials of {}: other users may read it; `chmod 600` it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// The file has no credentials.
    #[error(
        "cannot use the credentials of {}: it has no profile with aws_access_key_id and aws_secret_access_key, as in \
         ~/.aws/credentials",
        path.display()
    )]
    None {
        /// The file.
        path: PathBuf,
    },
}

/// The credentials in a file, in the format of `~/.aws/credentials`. The file is read for each request, so that a
/// removed profile counts at once.
#[derive(Debug, Clone)]
pub struct Credentials(PathBuf);

/// A refusal, as DynamoDB names it.
pub(crate) struct Refusal {
    pub(crate) kind: &'static str,
    pub(crate) message: String,
}

/// The parts of a signature, and of the headers around it.
pub(crate) struct Signature<'a> {
    date: &'a str,
    access_key: &'a str,
    /// Date, region, service and terminator.
    scope: &'a str,
    headers: &'a str,
    hex: &'a str,
}

impl Credentials {
    /// Takes the credentials of a file.
    ///
    /// # Errors
    /// The file cannot be read, is open to other users, or has no credentials.
    pub fn open(path: &Path) -> Result<Self, CredentialsError> {
        let credentials = Self(path.to_owned());
        let secrets = credentials.secrets()?;
        if secrets.is_empty() { Err(CredentialsError::None { path: credentials.0 }) } else { Ok(credentials) }
    }

    /// The secrets by their access keys.
    fn secrets(&self) -> Result<HashMap<String, String>, CredentialsError> {
        let path = &self.0;
        let failed = |source| CredentialsError::File { path: path.clone(), source };
        let metadata = fs::metadata(path).map_err(failed)?;
        check_kind(&metadata).map_err(failed)?;
        if metadata.mode() & 0o077 != 0 {
            return Err(CredentialsError::Open { path: path.clone() });
        }
        Ok(profiles(&fs::read_to_string(path).map_err(failed)?))
    }

    /// The secret that a request says it was signed with. The body is not needed yet: a stranger's is not read.
    ///
    /// # Errors
    /// DynamoDB's refusal.
    pub(crate) fn secret(
        &self,
        request: &Parts,
        signature: &Signature<'_>,
        now: SystemTime,
    ) -> Result<String, Refusal> {
        signature.check_form(request, now)?;
        let mut secrets = self.secrets().map_err(|error| {
            tracing::error!(%error, "requests to the exposed port are refused");
            refused("ServiceUnavailable", "The credentials of this port cannot be read.")
        })?;
        let unknown = "The security token included in the request is invalid.";
        secrets.remove(signature.access_key).ok_or_else(|| refused("UnrecognizedClientException", unknown))
    }
}

impl<'a> Signature<'a> {
    /// Reads the headers of a signature.
    ///
    /// # Errors
    /// DynamoDB's refusal of a request without one of them.
    pub(crate) fn of(headers: &'a HeaderMap) -> Result<Self, Refusal> {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let (Some(authorization), Some(date)) = (text(AUTHORIZATION), text(DATE)) else {
            return Err(refused(
                "MissingAuthenticationTokenException",
                "Request must contain either a valid (registered) AWS access key ID or X.509 certificate.",
            ));
        };
        let parts = authorization.strip_prefix(ALGORITHM).unwrap_or_default();
        let part = |name: &str| {
            let mut parts = parts.split(',').filter_map(|part| part.trim().split_once('='));
            parts.find_map(|(found, value)| (found == name && !value.is_empty()).then_some(value))
        };
        let (Some(credential), Some(headers), Some(hex)) =
            (part("Credential"), part("SignedHeaders"), part("Signature"))
        else {
            return Err(refused(
                "IncompleteSignatureException",
                "Authorization header requires 'Credential', 'Signature' and 'SignedHeaders' parameters, by \
                 AWS4-HMAC-SHA256.",
            ));
        };
        let (access_key, scope) = credential.split_once('/').unwrap_or((credential, ""));
        Ok(Self { date, access_key, scope, headers, hex })
    }

    /// Refuses a signature that is too old, or made for another service or for a part of the request.
    fn check_form(&self, request: &Parts, now: SystemTime) -> Result<(), Refusal> {
        let invalid = |message: String| Err(refused("InvalidSignatureException", message));
        let Some(time) = parse_date(self.date) else {
            return invalid(format!("The date {:?} is not of the form 20260101T000000Z.", self.date));
        };
        let age = now.duration_since(time).unwrap_or_else(|error| error.duration());
        if age > MAX_AGE {
            return invalid(format!(
                "Signature expired: {} is {} seconds from this machine's clock, and {} are allowed.",
                self.date,
                age.as_secs(),
                MAX_AGE.as_secs()
            ));
        }
        let scope: Vec<_> = self.scope.split('/').collect();
        if !matches!(scope[..], [day, _, "dynamodb", "aws4_request"] if self.date.starts_with(day) && day.len() == 8) {
            return invalid("Credential should be scoped to the date of the request and to dynamodb.".to_owned());
        }
        let is_signed = |name: &str| self.headers.split(';').any(|signed| signed == name);
        let unsigned = SIGNED.into_iter().find(|name| request.headers.contains_key(*name) && !is_signed(name));
        match unsigned {
            Some(name) => invalid(format!("The header {name:?} must be a 'SignedHeader' in the AWS Authorization.")),
            None if request.uri.path() == "/" && request.uri.query().is_none() => Ok(()),
            None => invalid("Requests go to the path / without a query.".to_owned()),
        }
    }

    /// Checks that the request was signed with this secret.
    ///
    /// # Errors
    /// DynamoDB's refusal.
    pub(crate) fn check(&self, secret: &str, request: &Parts, body: &[u8]) -> Result<(), Refusal> {
        // Of two hashes, the time of a comparison tells nothing about the texts.
        let expected = self.expected(secret, request, body);
        if expected.is_some_and(|expected| Sha256::digest(expected) == Sha256::digest(self.hex)) {
            return Ok(());
        }
        Err(refused(
            "InvalidSignatureException",
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret \
             Access Key and signing method.",
        ))
    }

    /// The signature that this request has under the secret. None: it names headers that are not there.
    fn expected(&self, secret: &str, request: &Parts, body: &[u8]) -> Option<String> {
        let mut headers = String::new();
        for name in self.headers.split(';') {
            let values = request.headers.get_all(name).iter();
            let values: Option<Vec<_>> = values.map(|value| value.to_str().ok().map(without_runs)).collect();
            let values = values.filter(|values| !values.is_empty())?;
            headers.extend([name, ":", &values.join(","), "\n"]);
        }
        let canonical = format!("{}\n/\n\n{headers}\n{}\n{}", request.method, self.headers, hex(body));
        let signed = format!("{ALGORITHM}\n{}\n{}\n{}", self.date, self.scope, hex(canonical.as_bytes()));
        let region = self.scope.split('/').nth(1)?;
        let key = generate_signing_key(secret, parse_date(self.date)?, region, "dynamodb");
        Some(calculate_signature(key, signed.as_bytes()))
    }
}

fn refused(kind: &'static str, message: impl Into<String>) -> Refusal {
    Refusal { kind, message: message.into() }
}

/// A named pipe would keep its reader waiting.
fn check_kind(metadata: &Metadata) -> io::Result<()> {
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    if metadata.len() > MAX_BYTES { Err(io::Error::other("it is too large")) } else { Ok(()) }
}

/// The secrets of the profiles, by their access keys.
fn profiles(text: &str) -> HashMap<String, String> {
    let mut profiles: Vec<[Option<&str>; 2]> = vec![[None; 2]];
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            profiles.push([None; 2]);
        }
        let (Some((name, value)), Some([access_key, secret])) = (line.split_once('='), profiles.last_mut()) else {
            continue;
        };
        match name.trim() {
            "aws_access_key_id" => *access_key = Some(value.trim()),
            "aws_secret_access_key" => *secret = Some(value.trim()),
            _ => {}
        }
    }
    let complete = profiles.into_iter().filter_map(|[access_key, secret]| access_key.zip(secret));
    let complete = complete.filter(|(access_key, secret)| !access_key.is_empty() && !secret.is_empty());
    complete.map(|(access_key, secret)| (access_key.to_owned(), secret.to_owned())).collect()
}

/// Reads a time such as `20260101T000000Z`.
fn parse_date(text: &str) -> Option<SystemTime> {
    let digits = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let [year, month, day] = [digits(0, 4)?, digits(4, 6)?, digits(6, 8)?];
    let [hour, minute, second] = [digits(9, 11)?, digits(11, 13)?, digits(13, 15)?];
    let is_valid = text.len() == 16
        && (text.as_bytes()[8], text.as_bytes()[15]) == (b'T', b'Z')
        && (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !is_valid {
        return None;
    }
    // The days since 1970 in the Gregorian calendar, of years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(UNIX_EPOCH + Duration::from_secs(((days * 24 + hour) * 60 + minute) * 60 + second))
}

fn without_runs(value: &str) -> String {
    value.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

fn hex(content: &[u8]) -> String {
    Sha256::digest(content).iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use hyper::Request;

    use super::*;

    const FILE: &str = "[default]\naws_access_key_id = ALICE\naws_secret_access_key = wonder\n\
                        # [gone]\n[bob]\naws_secret_access_key=builds\naws_access_key_id=BOB\n\
                        [half]\naws_access_key_id = HALF\n[empty]\naws_access_key_id =\naws_secret_access_key =\n";

    fn at(date: &str) -> SystemTime {
        parse_date(date).expect("a date")
    }

    fn file(content: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("credentials");
        fs::write(&path, content).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        (folder, path)
    }

    #[test]
    fn file_is_read_as_profiles() {
        let expected =
            [("ALICE", "wonder"), ("BOB", "builds")].map(|(key, secret)| (key.to_owned(), secret.to_owned()));
        assert_eq!(profiles(FILE), expected.into());
    }

    #[test]
    fn file_without_credentials_or_open_to_all_is_refused() {
        for (content, mode, words) in [
            (FILE, 0o600, ""),
            (FILE, 0o640, "other users may read it"),
            ("", 0o600, "it has no profile"),
            ("[half]\naws_access_key_id = HALF\n", 0o600, "it has no profile"),
        ] {
            let (_folder, path) = file(content, mode);
            let refused = Credentials::open(&path).err().map(|error| error.to_string());
            assert_eq!(refused.is_none(), words.is_empty(), "{content:?} {mode:o}");
            assert!(refused.is_none_or(|sentence| sentence.contains(words)));
        }
        let (folder, _) = file(FILE, 0o600);
        assert!(Credentials::open(folder.path()).err().is_some_and(|error| error.to_string().contains("not a file")));
    }

    #[test]
    fn date_is_read_to_the_second() {
        for (text, seconds) in [
            ("19700101T000000Z", Some(0)),
            ("20000229T235959Z", Some(951_868_799)),
            ("20260101T000000Z", Some(1_767_225_600)),
            ("20261231T120000Z", Some(1_798_718_400)),
            ("2026-01-01T00:00", None),
            ("20260101T000000", None),
            ("20261301T000000Z", None),
            ("20260101 000000Z", None),
            ("é0260101T00000Z", None),
        ] {
            let found = parse_date(text).map(|time| time.duration_since(UNIX_EPOCH).expect("later").as_secs());
            assert_eq!(found, seconds, "{text}");
        }
    }

    /// A request as botocore signs it for DynamoDB, and the parts that a stranger may change.
    #[test]
    fn signature_is_good_for_one_request_and_five_minutes() {
        const DATE: &str = "20260102T030405Z";
        const HEADERS: &str = "content-type;host;x-amz-date;x-amz-target";
        const SCOPE: &str = "20260102/eu-west-1/dynamodb/aws4_request";
        const TARGET: &str = "DynamoDB_20120810.ListTables";
        // By botocore 1.43 with these credentials.
        const GOOD: &str = "99a94612958ddf93e922afad154edd169a3d99a83702e10d3c52f5ba3acdf507";
        // A good signature of the first three headers.
        const WITHOUT_TARGET: &str = "8409355d120b11201ff37dcfec943226ebd1dc2b84d5f6667b4d7edcb8617f79";
        let (_folder, path) = file(FILE, 0o600);
        let credentials = Credentials::open(&path).expect("valid");
        let request = |headers: &str, scope: &str, signature: &str, target: &str, uri: &str| {
            let credential = format!("Credential=ALICE/{scope}, SignedHeaders={headers}, Signature={signature}");
            let request = Request::post(uri).header("host", "localhost:8000").header("x-amz-date", DATE);
            let request = request.header("content-type", "application/x-amz-json-1.0").header("x-amz-target", target);
            let request = request.header("authorization", format!("{ALGORITHM} {credential}"));
            request.body(()).expect("valid").into_parts().0
        };
        let kind_of = |request: &Parts, body: &str, now: &str| {
            let signature = Signature::of(&request.headers).ok().expect("complete");
            let secret = credentials.secret(request, &signature, at(now));
            let checked = secret.and_then(|secret| signature.check(&secret, request, body.as_bytes()));
            checked.err().map_or("", |refusal| refusal.kind)
        };
        let whole = request(HEADERS, SCOPE, GOOD, TARGET, "/");
        assert_eq!(kind_of(&whole, "{}", DATE), "");
        assert_eq!(kind_of(&whole, "{}", "20260102T030905Z"), "");
        let invalid = "InvalidSignatureException";
        assert_eq!(kind_of(&whole, "{}", "20260102T030906Z"), invalid, "too old");
        assert_eq!(kind_of(&whole, "{}", "20260102T025904Z"), invalid, "of the future");
        assert_eq!(kind_of(&whole, "{ }", DATE), invalid, "another body");
        for (case, other) in [
            ("another target", request(HEADERS, SCOPE, GOOD, "DynamoDB_20120810.DeleteTable", "/")),
            ("another signature", request(HEADERS, SCOPE, &GOOD.replace('0', "1"), TARGET, "/")),
            ("another path", request(HEADERS, SCOPE, GOOD, TARGET, "/x")),
            ("a query", request(HEADERS, SCOPE, GOOD, TARGET, "/?x")),
            ("a header that is missing", request("cookie;host;x-amz-date;x-amz-target", SCOPE, GOOD, TARGET, "/")),
            (
                "a target that is not signed",
                request("content-type;host;x-amz-date", SCOPE, WITHOUT_TARGET, TARGET, "/"),
            ),
            ("another region", request(HEADERS, "20260102/us-east-1/dynamodb/aws4_request", GOOD, TARGET, "/")),
            ("another day", request(HEADERS, "20260101/eu-west-1/dynamodb/aws4_request", GOOD, TARGET, "/")),
            ("another service", request(HEADERS, "20260102/eu-west-1/s3/aws4_request", GOOD, TARGET, "/")),
            ("no scope", request(HEADERS, "", GOOD, TARGET, "/")),
        ] {
            assert_eq!(kind_of(&other, "{}", DATE), invalid, "{case}");
        }

        fs::write(&path, FILE.replace("ALICE", "ALICIA")).expect("written");
        assert_eq!(kind_of(&whole, "{}", DATE), "UnrecognizedClientException", "a removed profile counts at once");
        fs::remove_file(&path).expect("removed");
        assert_eq!(kind_of(&whole, "{}", DATE), "ServiceUnavailable");
    }
}
