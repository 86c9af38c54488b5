//! Patterns of principals.

use leasehold_protocol::Principal;

/// A pattern of principals. `*` stands for any characters but `/` and `:`. A pattern that is only `*` matches everyone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(String);

impl Pattern {
    /// # Errors
    /// Returns a sentence where no principal can match the pattern.
    pub(super) fn parse(pattern: &str) -> Result<Self, String> {
        let mistake = match pattern {
            "*" | "anonymous" | "direct" => None,
            "jwt:" => Some("lacks a claim's value: no token without one is let in"),
            "authorizer:" => Some("lacks a name: an authorizer that gives none lets nobody in"),
            _ if pattern.starts_with("jwt:") || pattern.starts_with("authorizer:") => None,
            _ => arn_mistake(pattern),
        };
        mistake.map_or_else(|| Ok(Self(pattern.to_owned())), |mistake| Err(format!("{pattern:?} {mistake}.")))
    }

    pub(super) fn matches(&self, principal: &Principal) -> bool {
        self.0 == "*" || is_match(self.0.as_bytes(), principal.as_str().as_bytes())
    }
}

/// Returns the reason why no caller's ARN can match the pattern.
fn arn_mistake(pattern: &str) -> Option<&'static str> {
    let fields: Vec<_> = pattern.splitn(6, ':').collect();
    let [scheme, partition, service, region, account, resource] = fields[..] else {
        return Some(
            "is no principal: write an ARN, jwt: and a claim's value, authorizer: and a name, direct, anonymous, or * for everyone",
        );
    };
    let (kind, name) = resource.split_once('/').unwrap_or((resource, ""));
    let is_account =
        account.contains('*') || (account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit()));
    match (service, kind) {
        _ if scheme != "arn" || !(partition.contains('*') || partition.starts_with("aws")) => {
            Some("is no ARN of AWS: one begins with arn:aws:, or another partition")
        }
        _ if !region.is_empty() || !is_account => Some("lacks an account of 12 digits (or *), after two colons"),
        ("sts", "assumed-role") => {
            Some("names a session: name its role, arn:aws:iam::ACCOUNT:role/NAME, for all of them")
        }
        ("iam", "role") if name.contains('/') => {
            Some("has a path, which a caller's ARN does not show: write arn:aws:iam::ACCOUNT:role/NAME")
        }
        ("iam", "role" | "user") | ("sts", "federated-user") if name.is_empty() => Some("lacks a name"),
        ("iam", "role" | "user") | ("sts", "federated-user") => None,
        ("iam", "root") if name.is_empty() => None,
        _ => Some("is not the ARN of a role, a user, a federated user or an account's root"),
    }
}

/// Matches the whole text. Backtracking to the last `*` is enough: the last one can match everything that an earlier
/// one could, up to the same `/` or `:`. The number of steps is therefore at most the product of the lengths, for every
/// caller's name.
fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut taken) = (0, 0);
    let mut last_star = None;
    loop {
        let (wanted, next) = (pattern.get(at), text.get(taken));
        if wanted == Some(&b'*') {
            at += 1;
            last_star = Some((at, taken));
        } else if wanted.is_some() && wanted == next {
            (at, taken) = (at + 1, taken + 1);
        } else if wanted.is_none() && next.is_none() {
            return true;
        } else {
            let Some((after, end)) =
                last_star.filter(|&(_, end)| text.get(end).is_some_and(|byte| !b"/:".contains(byte)))
            else {
                return false;
            };
            (at, taken) = (after, end + 1);
            last_star = Some((after, end + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, principal: &str) -> bool {
        let pattern = Pattern::parse(pattern).unwrap_or_else(|mistake| panic!("{mistake}"));
        pattern.matches(&Principal::new(principal).expect("valid"))
    }

    #[test]
    fn look_alikes_do_not_match() {
        const ROLE: &str = "arn:aws:iam::123456789012:role/deploy";
        for (pattern, principal, expected) in [
            (ROLE, ROLE, true),
            (ROLE, "arn:aws:iam::123456789012:role/deployer", false),
            (ROLE, "arn:aws:iam::123456789012:role/my-deploy", false),
            (ROLE, "arn:aws:iam::123456789012:role/Deploy", false),
            (ROLE, "arn:aws:iam::210987654321:role/deploy", false),
            (ROLE, "arn:aws-cn:iam::123456789012:role/deploy", false),
            (ROLE, "arn:aws:iam::123456789012:user/deploy", false),
            (ROLE, "jwt:arn:aws:iam::123456789012:role/deploy", false),
            (ROLE, " arn:aws:iam::123456789012:role/deploy", false),
            ("arn:aws:iam::123456789012:role/deploy-*", "arn:aws:iam::123456789012:role/deploy-blue", true),
            ("arn:aws:iam::123456789012:role/deploy-*", "arn:aws:iam::123456789012:role/deploy-", true),
            ("arn:aws:iam::123456789012:role/deploy-*", ROLE, false),
            ("arn:aws:iam::123456789012:user/*", "arn:aws:iam::123456789012:user/bob", true),
            ("arn:aws:iam::123456789012:user/*", "arn:aws:iam::123456789012:user/eng/bob", false),
            ("arn:aws:iam::123456789012:user/*/bob", "arn:aws:iam::123456789012:user/eng/bob", true),
            ("arn:*:iam::*:role/deploy", "arn:aws-us-gov:iam::210987654321:role/deploy", true),
            ("arn:*:iam::*:role/deploy", "arn:aws:iam::1:role/x:role/deploy", false),
            ("jwt:team-*", "jwt:team-blue", true),
            ("jwt:team-*", "jwt:team-blue:admin", false),
            ("jwt:team-*", "jwt:team-blue/admin", false),
            ("jwt:team-*", "jwt:my-team-blue", false),
            ("jwt:*", "jwt:*", true),
            ("authorizer:team-*", "authorizer:team-blue", true),
            ("authorizer:*", "jwt:team-blue", false),
            ("jwt:a", "jwt:*", false),
            ("jwt:*", "direct", false),
            ("jwt:repo:org/app:ref:refs/heads/*", "jwt:repo:org/app:ref:refs/heads/main", true),
            ("jwt:repo:org/*:ref:refs/heads/main", "jwt:repo:org/app:ref:refs/heads/x:ref:refs/heads/main", false),
            ("direct", "direct", true),
            ("direct", "jwt:direct", false),
            ("anonymous", "jwt:anonymous", false),
            ("*", "arn:aws:iam::123456789012:user/eng/bob", true),
            ("*", "anonymous", true),
        ] {
            assert_eq!(matches(pattern, principal), expected, "{pattern} {principal}");
        }
    }

    #[test]
    fn pattern_that_nobody_can_match_is_a_mistake() {
        for (pattern, part) in [
            ("", "is no principal"),
            ("deploy", "is no principal"),
            ("**", "is no principal"),
            ("Direct", "is no principal"),
            ("direct:", "is no principal"),
            ("jwt:", "lacks a claim's value"),
            ("authorizer:", "lacks a name"),
            ("arn:aws:iam::123456789012", "is no principal"),
            ("urn:aws:iam::123456789012:role/a", "is no ARN of AWS"),
            ("arn:azure:iam::123456789012:role/a", "is no ARN of AWS"),
            ("arn:aws:iam:eu-west-1:123456789012:role/a", "an account"),
            ("arn:aws:iam::12345:role/a", "an account"),
            ("arn:aws:iam:::role/a", "an account"),
            ("arn:aws:iam::123456789012:role/path/a", "has a path"),
            ("arn:aws:iam::123456789012:role/*/a", "has a path"),
            ("arn:aws:iam::123456789012:role/", "lacks a name"),
            ("arn:aws:iam::123456789012:role", "lacks a name"),
            ("arn:aws:sts::123456789012:assumed-role/a/*", "names a session"),
            ("arn:aws:s3::123456789012:role/a", "is not the ARN"),
            ("arn:aws:iam::123456789012:group/a", "is not the ARN"),
            ("arn:aws:sts::123456789012:role/a", "is not the ARN"),
        ] {
            let mistake = Pattern::parse(pattern).expect_err(pattern);
            assert!(mistake.contains(part) && mistake.starts_with('"') && mistake.ends_with('.'), "{mistake}");
        }
        for pattern in ["arn:aws-cn:iam::123456789012:root", "arn:aws:sts::123456789012:federated-user/*", "jwt:a b"] {
            assert!(Pattern::parse(pattern).is_ok(), "{pattern}");
        }
    }

    /// The definition of a match, without regard to its running time.
    fn is_match_by_definition(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.split_first() {
            None => text.is_empty(),
            Some((b'*', rest)) => {
                let reach = text.iter().position(|byte| b"/:".contains(byte)).unwrap_or(text.len());
                (0..=reach).any(|taken| is_match_by_definition(rest, &text[taken..]))
            }
            Some((wanted, rest)) => {
                text.split_first().is_some_and(|(next, text)| next == wanted && is_match_by_definition(rest, text))
            }
        }
    }

    /// Tests all patterns and texts of up to five characters.
    #[test]
    fn going_back_to_the_last_star_is_enough() {
        let words = |letters: &[u8]| {
            (0..5).fold(vec![Vec::new()], |mut words: Vec<Vec<u8>>, length| {
                let longer: Vec<_> = words.iter().filter(|word| word.len() == length).cloned().collect();
                words.extend(
                    longer.iter().flat_map(|word| letters.iter().map(|&letter| [&word[..], &[letter]].concat())),
                );
                words
            })
        };
        let (patterns, texts) = (words(b"*a/b"), words(b"a/b:"));
        for (pattern, text) in patterns.iter().flat_map(|pattern| texts.iter().map(move |text| (pattern, text))) {
            let expected = is_match_by_definition(pattern, text);
            assert_eq!(is_match(pattern, text), expected, "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn long_name_and_many_stars_take_no_time() {
        let pattern = format!("jwt:{}", "*a".repeat(500));
        assert!(!matches(&pattern, &format!("jwt:{}b", "a".repeat(1000))));
    }
}
