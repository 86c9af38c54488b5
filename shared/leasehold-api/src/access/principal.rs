//! The names of callers.
//!
//! Each kind of name has its own prefix: `arn:…`, `jwt:…`, `direct`, `anonymous`. A value that a caller can choose,
//! such as a session's name or a claim, therefore cannot make one kind look like another.

use leasehold_protocol::Principal;

/// The name of a caller whom the HTTP API does not authenticate.
pub fn anonymous() -> Option<Principal> {
    Principal::new("anonymous").ok()
}

/// The name of every caller that may `lambda:InvokeFunction`.
pub fn direct() -> Option<Principal> {
    Principal::new("direct").ok()
}

/// The name of a caller that signs its requests, from the ARN that AWS reports. A session of a role has the name of its
/// role, without the path that the role may have, because AWS does not report the path. Other ARNs give no name.
pub fn from_arn(arn: &str) -> Option<Principal> {
    let fields: Vec<_> = arn.splitn(6, ':').collect();
    let ["arn", partition, service, "", account, resource] = fields[..] else { return None };
    let name = match (service, resource.split_once('/')) {
        // The role comes first: its name has no slash, even if the session's name had one.
        ("sts", Some(("assumed-role", role_session))) => {
            let (role, _session) = role_session.split_once('/').filter(|(role, _)| !role.is_empty())?;
            format!("arn:{partition}:iam::{account}:role/{role}")
        }
        ("sts", Some(("federated-user", name))) | ("iam", Some(("user", name))) if !name.is_empty() => arn.to_owned(),
        ("iam", None) if resource == "root" => arn.to_owned(),
        _ => return None,
    };
    Principal::new(name).ok()
}

/// The name of a caller with a token, from the value of a claim. An empty value gives no name.
pub fn from_claim(value: &str) -> Option<Principal> {
    Principal::new(format!("jwt:{value}")).ok().filter(|_| !value.is_empty())
}

/// The name of a caller whom a Lambda authorizer of the gateway names. An empty value gives no name.
pub fn from_authorizer(value: &str) -> Option<Principal> {
    Principal::new(format!("authorizer:{value}")).ok().filter(|_| !value.is_empty())
}

/// The name of a caller that signs its requests to VPC Lattice, from the ARN that Lattice reports. That of a role's
/// session may name IAM in place of STS, and a role may stand there with its path.
pub fn from_lattice(arn: &str) -> Option<Principal> {
    let (before, resource) = arn.rsplit_once(':')?;
    match resource.split_once('/') {
        Some(("assumed-role", _)) => from_arn(&arn.replacen(":iam:", ":sts:", 1)),
        Some(("role", name)) => {
            let name = name.rsplit('/').next()?;
            from_arn(&format!("{}:assumed-role/{name}/session", before.replacen(":iam:", ":sts:", 1)))
        }
        _ => from_arn(arn),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(principal: Option<Principal>) -> Option<String> {
        principal.map(|principal| principal.as_str().to_owned())
    }

    #[test]
    fn session_is_called_like_its_role() {
        for (arn, name) in [
            ("arn:aws:sts::123456789012:assumed-role/deploy/i-0abc", "arn:aws:iam::123456789012:role/deploy"),
            ("arn:aws-cn:sts::123456789012:assumed-role/deploy/s", "arn:aws-cn:iam::123456789012:role/deploy"),
            ("arn:aws-us-gov:sts::123456789012:assumed-role/deploy/s", "arn:aws-us-gov:iam::123456789012:role/deploy"),
            ("arn:aws:iam::123456789012:user/eng/bob", "arn:aws:iam::123456789012:user/eng/bob"),
            ("arn:aws:iam::123456789012:root", "arn:aws:iam::123456789012:root"),
            ("arn:aws:sts::123456789012:federated-user/bob", "arn:aws:sts::123456789012:federated-user/bob"),
        ] {
            assert_eq!(named(from_arn(arn)).as_deref(), Some(name), "{arn}");
        }
    }

    /// AWS allows letters, digits and `_+=,.@-` in the name of a session. The test also covers other characters.
    #[test]
    fn name_of_a_session_cannot_name_another_role() {
        for session in
            ["deploy", "assumed-role/deploy/s", "x/role/deploy", ":role/deploy", "arn:aws:iam::1:role/deploy", "*", "/"]
        {
            let arn = format!("arn:aws:sts::123456789012:assumed-role/reader/{session}");
            assert_eq!(named(from_arn(&arn)).as_deref(), Some("arn:aws:iam::123456789012:role/reader"), "{arn}");
        }
    }

    #[test]
    fn arn_of_no_caller_has_no_name() {
        for arn in [
            "",
            "direct",
            "arn:aws:sts::123456789012:assumed-role/deploy",
            "arn:aws:sts::123456789012:assumed-role//session",
            "arn:aws:iam::123456789012:role/deploy",
            "arn:aws:iam::123456789012:user/",
            "arn:aws:iam::123456789012:root/x",
            "arn:aws:sts:eu-west-1:123456789012:assumed-role/deploy/s",
            "arn:aws:lambda::123456789012:function:deploy",
            "ARN:aws:iam::123456789012:root",
        ] {
            assert_eq!(named(from_arn(arn)), None, "{arn}");
        }
    }

    #[test]
    fn lattice_names_roles_as_other_gateways_do() {
        for arn in [
            "arn:aws:iam::123456789012:assumed-role/deploy/session",
            "arn:aws:sts::123456789012:assumed-role/deploy/session",
            "arn:aws:iam::123456789012:role/deploy",
            "arn:aws:iam::123456789012:role/service-role/deploy",
        ] {
            assert_eq!(named(from_lattice(arn)).as_deref(), Some("arn:aws:iam::123456789012:role/deploy"), "{arn}");
        }
        let user = "arn:aws:iam::123456789012:user/eng/bob";
        assert_eq!(named(from_lattice(user)).as_deref(), Some(user));
        for arn in ["", "direct", "arn:aws:iam::123456789012:role/", "arn:aws:lambda::123456789012:role/deploy"] {
            assert_eq!(named(from_lattice(arn)), None, "{arn}");
        }
        assert_eq!(named(from_authorizer("direct")).as_deref(), Some("authorizer:direct"));
        assert_eq!(named(from_authorizer("")), None);
    }

    #[test]
    fn claim_names_a_token_and_nothing_else() {
        for claim in ["direct", "arn:aws:iam::123456789012:role/deploy", "*", "a/b:c", " ", "jwt:x"] {
            assert_eq!(named(from_claim(claim)), Some(format!("jwt:{claim}")));
        }
        assert_eq!(named(from_claim("")), None);
        assert_eq!(named(from_claim(&"x".repeat(2000))), None);
    }
}
