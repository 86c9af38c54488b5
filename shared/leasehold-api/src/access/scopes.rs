//! Key scopes: the keys that a principal may touch.

use leasehold_protocol::{MAX_KEY_BYTES, Principal};
use serde::Deserialize;

use super::pattern::Pattern;

/// The key prefixes that principals may touch. A principal that no entry names may touch no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scopes(Vec<Scope>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Scope {
    principal: Pattern,
    prefixes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScopeEntry {
    principal: String,
    prefixes: Vec<String>,
}

impl Scopes {
    /// Reads `[{"principal": "arn:aws:iam::123456789012:role/orders-*", "prefixes": ["orders/"]}, …]`. In a principal,
    /// `*` stands for any characters but `/` and `:`. A principal that is only `*` is everyone; an empty prefix is
    /// every key.
    ///
    /// # Errors
    /// Returns a sentence that names the mistake, and its place.
    pub fn parse(json: &str) -> Result<Self, String> {
        let mut deserializer = serde_json::Deserializer::from_str(json);
        let entries: Vec<ScopeEntry> = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            let path = error.path().to_string();
            let place = if path == "." { String::new() } else { format!("{path}: ") };
            format!("{place}{}.", error.inner())
        })?;
        deserializer.end().map_err(|error| format!("{error}."))?;
        if entries.is_empty() {
            return Err("It names nobody, so that nobody could touch any key.".to_owned());
        }
        entries.into_iter().enumerate().map(|(index, entry)| entry.check(index)).collect::<Result<_, _>>().map(Self)
    }

    /// Returns the prefixes of this principal, or `None` where it may touch every key.
    pub(super) fn prefixes_of(&self, principal: &Principal) -> Option<Vec<String>> {
        let scopes = self.0.iter().filter(|scope| scope.principal.matches(principal));
        let prefixes: Vec<_> = scopes.flat_map(|scope| &scope.prefixes).cloned().collect();
        (!prefixes.iter().any(String::is_empty)).then_some(prefixes)
    }
}

impl ScopeEntry {
    fn check(self, index: usize) -> Result<Scope, String> {
        let principal = Pattern::parse(&self.principal).map_err(|mistake| format!("[{index}].principal: {mistake}"))?;
        if self.prefixes.is_empty() {
            return Err(format!(
                "[{index}].prefixes: It is empty: leave the entry out, or write [\"\"] for every key."
            ));
        }
        if self.prefixes.iter().any(|prefix| prefix.len() > MAX_KEY_BYTES) {
            return Err(format!("[{index}].prefixes: No key is longer than {MAX_KEY_BYTES} bytes."));
        }
        Ok(Scope { principal, prefixes: self.prefixes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (json, mistake) in [
            ("", "EOF while parsing a value"),
            (" ", "EOF while parsing a value"),
            ("orders/", "expected value"),
            ("{}", "invalid type: map, expected a sequence"),
            ("null", "invalid type: null"),
            ("[]", "It names nobody"),
            ("[] []", "trailing characters"),
            (r#"[{"principal":"direct"}]"#, "[0]: missing field `prefixes`"),
            (r#"[{"prefixes":[""]}]"#, "[0]: missing field `principal`"),
            (
                r#"[{"principal":"direct","prefixes":[""]},{"principal":"direct","prefix":""}]"#,
                "[1].prefix: unknown field",
            ),
            (r#"[{"principal":"direct","principal":"*","prefixes":[""]}]"#, "[0]: duplicate field"),
            (r#"[{"principal":"direct","prefixes":"orders/"}]"#, "[0].prefixes: invalid type"),
            (r#"[{"principal":"direct","prefixes":[null]}]"#, "[0].prefixes[0]: invalid type"),
            (r#"[{"principal":["direct"],"prefixes":[""]}]"#, "[0].principal: invalid type"),
            (r#"[{"principal":"direct","prefixes":[]}]"#, "[0].prefixes: It is empty"),
            (r#"[{"principal":"deploy","prefixes":[""]}]"#, "[0].principal: \"deploy\" is no principal"),
        ] {
            let error = Scopes::parse(json).expect_err(json);
            assert!(error.starts_with(mistake) && error.ends_with('.'), "{json}: {error}");
        }
        let long = format!(r#"[{{"principal":"direct","prefixes":["{}"]}}]"#, "x".repeat(MAX_KEY_BYTES + 1));
        assert!(Scopes::parse(&long).expect_err("too long").starts_with("[0].prefixes: No key"));
    }
}
