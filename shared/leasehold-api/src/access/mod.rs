//! Access: key scopes, and locks that are bound to the principal that acquired them.

mod pattern;
mod principal;
mod scopes;
mod tokens;

use leasehold_protocol::Principal;
use leasehold_wire::operation::{Operation, Scope};
use leasehold_wire::{Problem, ProblemType};

pub use principal::{anonymous, direct, from_arn, from_authorizer, from_claim, from_lattice};
pub use scopes::Scopes;
pub use tokens::{Bearers, TokenEntry, token_hash};

/// The rules of one deployment. Without rules, every caller may touch every key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// The keys that a principal may touch. Without scopes, every principal may touch all.
    pub scopes: Option<Scopes>,
    /// Binds a lock to the principal that acquired it.
    pub owner_binding: bool,
}

impl Access {
    /// Returns the rights of a caller, once for each request. Without a principal the caller is unknown.
    pub fn caller(&self, principal: Option<Principal>) -> Caller {
        if self.scopes.is_none() && !self.owner_binding {
            return Caller::unrestricted();
        }
        let prefixes = match (&principal, &self.scopes) {
            (None, _) => Some(Vec::new()),
            (Some(_), None) => None,
            (Some(principal), Some(scopes)) => scopes.prefixes_of(principal),
        };
        Caller { principal, prefixes, is_bound: self.owner_binding, transactions: true }
    }
}

/// The caller of a request, with its rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    principal: Option<Principal>,
    /// The prefixes of the keys that the caller may touch. Without them, every key.
    prefixes: Option<Vec<String>>,
    is_bound: bool,
    transactions: bool,
}

impl Caller {
    /// Returns a caller that may touch every key, and whose locks are bound to no principal.
    pub fn unrestricted() -> Self {
        Self { principal: None, prefixes: None, is_bound: false, transactions: true }
    }

    /// Returns a caller without any right.
    pub fn unknown() -> Self {
        Self { principal: None, prefixes: Some(Vec::new()), is_bound: false, transactions: false }
    }

    /// Returns a caller that is named by its credentials. It may touch the keys that begin with one of `prefixes`;
    /// without prefixes, all. With `is_bound`, the locks that it acquires are bound to it.
    pub fn named(principal: Principal, prefixes: Option<Vec<String>>, is_bound: bool) -> Self {
        Self { principal: Some(principal), prefixes, is_bound, transactions: true }
    }

    /// Returns the caller with or without the right to transactions.
    #[must_use]
    pub fn with_transactions(self, transactions: bool) -> Self {
        Self { transactions, ..self }
    }

    /// Returns the name for the log, where there are rules.
    pub fn name(&self) -> Option<&str> {
        self.principal.as_ref().map(Principal::as_str)
    }

    /// Returns the principal that locks are bound to.
    pub(crate) fn bound(&self) -> Option<Principal> {
        self.principal.clone().filter(|_| self.is_bound)
    }

    /// Returns the prefixes of the keys that a listing may show.
    pub(crate) fn prefixes(&self) -> Option<&[String]> {
        self.prefixes.as_deref()
    }

    /// # Errors
    /// `forbidden`, unless the caller has the right that the operation needs.
    pub(crate) fn check_scope(&self, operation: &Operation) -> Result<(), Problem> {
        let detail = match operation.scope {
            // The keys are checked when the request is read.
            Some(Scope::Anyone | Scope::Keys) => return Ok(()),
            Some(Scope::Transactions) if self.transactions => return Ok(()),
            Some(Scope::Transactions) => {
                "The bearer of this token may not use transactions. Ask whoever runs the service."
            }
            None => "Nobody may use this operation: it has no scope.",
        };
        Err(Problem::new(ProblemType::Forbidden, detail))
    }

    /// # Errors
    /// `forbidden`, unless the caller may touch this key. The problem does not depend on the table.
    pub(crate) fn check_key(&self, key: &str) -> Result<(), Problem> {
        let begins = |prefix: &String| key.as_bytes().starts_with(prefix.as_bytes());
        match self.prefixes() {
            Some(prefixes) if !prefixes.iter().any(begins) => Err(self.refused("touch this key")),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// `forbidden`, if the caller may touch no key at all.
    pub(crate) fn check_any_key(&self) -> Result<(), Problem> {
        match self.prefixes() {
            Some([]) => Err(self.refused("touch any key")),
            _ => Ok(()),
        }
    }

    fn refused(&self, what: &str) -> Problem {
        let detail = match self.name() {
            Some(name) => format!(
                "{name} may not {what}. Ask whoever runs the service for a scope: it says what a key must begin with."
            ),
            None => "The service cannot tell who calls: the token lacks the claim that says it, as a text of 1 to 1000 bytes, or \
                     the caller is of a kind that it does not know. Ask whoever runs the service."
                .to_owned(),
        };
        Problem::new(ProblemType::Forbidden, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(name: &str) -> Option<Principal> {
        Principal::new(name).ok()
    }

    fn access(scopes: &str, owner_binding: bool) -> Access {
        Access { scopes: Some(Scopes::parse(scopes).expect("valid")), owner_binding }
    }

    #[test]
    fn without_rules_nobody_is_asked() {
        for caller in [None, principal("direct")] {
            assert_eq!(Access::default().caller(caller), Caller::unrestricted());
        }
        let caller = Caller::unrestricted();
        assert!(caller.check_key("k").is_ok() && caller.check_any_key().is_ok() && caller.bound().is_none());
    }

    #[test]
    fn key_must_begin_as_a_scope_says_byte_for_byte() {
        let caller =
            access(r#"[{"principal":"direct","prefixes":["orders/","é"]}]"#, false).caller(principal("direct"));
        for (key, may) in [
            ("orders/", true),
            ("orders/1", true),
            ("orders/../billing", true),
            ("orders", false),
            ("orders-evil", false),
            ("orders\u{2215}1", false),
            ("Orders/1", false),
            (" orders/1", false),
            ("/orders/1", false),
            ("my/orders/1", false),
            ("é1", true),
            // The same letter, in two characters.
            ("e\u{301}1", false),
            ("", false),
        ] {
            let answer = caller.check_key(key);
            assert_eq!(answer.is_ok(), may, "{key:?}");
            assert!(answer.err().is_none_or(|problem| problem.problem_type == ProblemType::Forbidden));
        }
        assert!(caller.bound().is_none());
    }

    #[test]
    fn all_scopes_of_a_principal_count_and_no_others() {
        let access = access(
            r#"[{"principal":"direct","prefixes":["a/"]},{"principal":"*","prefixes":["public/"]},
                {"principal":"jwt:root","prefixes":[""]}]"#,
            true,
        );
        let direct = access.caller(principal("direct"));
        assert!(direct.check_key("a/1").is_ok() && direct.check_key("public/1").is_ok());
        assert!(direct.check_key("b/1").is_err());
        assert_eq!(direct.bound(), principal("direct"));
        let root = access.caller(principal("jwt:root"));
        assert_eq!(root.prefixes(), None, "an empty prefix is every key");
        assert_eq!(access.caller(principal("anonymous")).prefixes(), Some(&["public/".to_owned()][..]));
    }

    #[test]
    fn unidentified_callers_are_denied_when_there_are_rules() {
        for access in
            [access(r#"[{"principal":"*","prefixes":[""]}]"#, false), Access { scopes: None, owner_binding: true }]
        {
            let caller = access.caller(None);
            assert!(caller.check_key("k").is_err() && caller.check_any_key().is_err() && caller.bound().is_none());
        }
    }
}
