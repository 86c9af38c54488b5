//! The name of a state.

use leasehold_wire::Problem;

/// The longest name of a state, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// The beginning of the keys of the locks.
const PREFIX: &str = "terraform/";

/// The name of a state: letters, digits, `.`, `_` and `-`, at most 128, the first a letter or a digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// # Errors
    /// `invalid-request`: other characters could name another file.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if text.len() <= MAX_NAME_BYTES && begins_well && text.chars().all(is_plain) {
            return Ok(Self(text.to_owned()));
        }
        let rule = format!(
            "state must be 1 to {MAX_NAME_BYTES} letters, digits, dots, underscores and hyphens, and begin with a letter or a digit."
        );
        Err(Problem::invalid("state", rule))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of the lock of this state.
    pub fn key(&self) -> String {
        format!("{PREFIX}{}", self.0)
    }

    /// The state that has a lock of this key, if one has.
    pub fn of_key(key: &str) -> Option<Self> {
        Self::parse(key.strip_prefix(PREFIX)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_refused_when_it_could_name_another_file() {
        for name in ["network", "prod.eu-west-1", "a", "9_b"] {
            let key = format!("terraform/{name}");
            assert_eq!(Name::parse(name).expect(name).key(), key);
            assert_eq!(Name::of_key(&key).expect(name).as_str(), name);
            assert_eq!(Name::of_key(name), None);
        }
        for name in ["", ".hidden", "..", "a/b", "a\\b", "a\0", "ä", "-x", &"a".repeat(MAX_NAME_BYTES + 1)] {
            assert_eq!(Name::parse(name).expect_err(name).field.as_deref(), Some("state"));
        }
    }
}
