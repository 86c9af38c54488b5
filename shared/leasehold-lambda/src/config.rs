//! Configuration from the environment, read once.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use leasehold_api::access::{Access, Bearers, Scopes, TokenEntry};
use leasehold_protocol::{Policy, TableSchema};
use leasehold_transactions as transactions;

/// The maximum idle time of transactions: one process looks at an open transaction twice, this time apart, and Lambda
/// ends it after fifteen minutes.
const MAX_IDLE_SECONDS: u64 = 840;

/// The days for which an entry of the history stays, and the most of them.
const HISTORY_DAYS: u64 = 30;
const MAX_HISTORY_DAYS: u64 = 3650;

/// Whether the table of the locks is in several regions.
const MULTI_REGION: &str = "LEASEHOLD_MULTI_REGION";

/// The configuration of a function of the locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `LEASEHOLD_TABLE_NAME` (required), `LEASEHOLD_PARTITION_KEY` (default `key`), `LEASEHOLD_SORT_KEY` (default:
    /// the table has none).
    pub schema: TableSchema,
    /// `LEASEHOLD_RETENTION_SECONDS` (default 604800, 7 days), `LEASEHOLD_CLOCK_SKEW_MS` (default 1000).
    pub policy: Policy,
    /// `LEASEHOLD_KEY_SCOPES` (JSON; default: every caller may touch every key), `LEASEHOLD_OWNER_BINDING` (`true` or
    /// `false`, the default).
    pub access: Access,
    /// `LEASEHOLD_TAKEOVER_CLOCK_CHECK` (`false`, the default, or `true`): whether a takeover by an observed version
    /// also needs the server's clock to be past the lease.
    pub takeover_clock_check: bool,
    /// `LEASEHOLD_MULTI_REGION` (`false`, the default, or `true`): whether the table is in several regions, with strong
    /// consistency.
    pub multi_region: bool,
    /// `LEASEHOLD_JWT_CLAIM` (default `sub`): the claim of a token that names its bearer.
    pub jwt_claim: String,
    /// `LEASEHOLD_EXECUTION_KEY` (default: none): the KMS key, for HMAC, behind the lease ids of Step Functions
    /// executions.
    pub execution_key: Option<String>,
    /// `LEASEHOLD_HISTORY_TABLE_NAME` (default: none is kept), `LEASEHOLD_HISTORY_DAYS` (default 30): the table of the
    /// history, and the time for which an entry stays.
    pub history: Option<(String, Duration)>,
    /// `LEASEHOLD_TERRAFORM_BUCKET` (default: none): the bucket of Terraform's states.
    pub terraform_bucket: Option<String>,
    /// `LEASEHOLD_TERRAFORM_TOKENS` (JSON, as in a token file; default: the gateway names the callers): the tokens of
    /// the callers of Terraform's states.
    pub terraform_tokens: Option<Bearers>,
    /// `LEASEHOLD_METRICS` (`true`, the default, or `false`): whether the functions print metrics of the operations.
    pub metrics: bool,
    /// `LEASEHOLD_STACK` (default: none): a dimension of the metrics, so that those of two stacks stay apart.
    pub stack: Option<String>,
}

/// The mistakes in the configuration, one sentence each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError(Vec<String>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// Chooses the function by the name of its handler, which Lambda sets in the environment. `bootstrap` means that no
/// handler was chosen.
///
/// # Errors
/// `choose` does not know the name.
pub(crate) fn handler<T>(choose: impl Fn(&str) -> Option<T>) -> Result<T, ConfigError> {
    let name = std::env::var("_HANDLER").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "bootstrap".to_owned());
    choose(&name).ok_or_else(|| ConfigError(vec![format!("This code has no handler {name:?}.")]))
}

impl Config {
    /// Reads the configuration from the environment.
    ///
    /// # Errors
    /// A sentence for each variable that is missing or wrong.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads the configuration from any source of variables. An empty variable counts as absent: templates pass empty
    /// parameters.
    ///
    /// # Errors
    /// A sentence for each variable that is missing or wrong.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut variables = Variables::new(lookup);
        let default = Policy::default();
        let retention = "LEASEHOLD_RETENTION_SECONDS";
        let retention_seconds =
            variables.number(retention, default.retention_seconds, 1..=Policy::MAX_RETENTION_SECONDS);
        let clock_skew_ms =
            variables.number("LEASEHOLD_CLOCK_SKEW_MS", default.clock_skew_ms, 1..=Policy::MAX_CLOCK_SKEW_MS);
        let metrics = variables.flag("LEASEHOLD_METRICS", true);
        let owner_binding = variables.flag("LEASEHOLD_OWNER_BINDING", false);
        let takeover_clock_check = variables.flag("LEASEHOLD_TAKEOVER_CLOCK_CHECK", false);
        let multi_region = variables.flag(MULTI_REGION, false);
        let scopes = variables.text("LEASEHOLD_KEY_SCOPES").and_then(|json| {
            let mistake = |mistake: String| format!("LEASEHOLD_KEY_SCOPES{}", after_name(&mistake));
            variables.checked(Scopes::parse(&json).map_err(mistake))
        });
        let mut schema =
            TableSchema::new(variables.required("LEASEHOLD_TABLE_NAME", "the DynamoDB table of the locks"));
        if let Some(name) = variables.text("LEASEHOLD_PARTITION_KEY") {
            schema.partition_key = name;
        }
        schema.sort_key = variables.text("LEASEHOLD_SORT_KEY");
        variables.checked(schema.check());
        let jwt_claim = variables.text("LEASEHOLD_JWT_CLAIM").unwrap_or_else(|| "sub".to_owned());
        let execution_key = variables.text("LEASEHOLD_EXECUTION_KEY");
        let days = variables.number("LEASEHOLD_HISTORY_DAYS", HISTORY_DAYS, 1..=MAX_HISTORY_DAYS);
        let history = variables.text("LEASEHOLD_HISTORY_TABLE_NAME");
        let history = history.map(|table| (table, Duration::from_secs(days * 24 * 3600)));
        let terraform_bucket = variables.text("LEASEHOLD_TERRAFORM_BUCKET");
        let terraform_tokens = variables.text("LEASEHOLD_TERRAFORM_TOKENS").and_then(|json| {
            let bearers = TokenEntry::list(&json).and_then(|entries| Bearers::new(&entries, owner_binding));
            let some = bearers.and_then(|bearers| {
                if bearers.is_empty() {
                    Err("It has no token, so that nobody could use the states.".to_owned())
                } else {
                    Ok(bearers)
                }
            });
            let mistake = |mistake: String| format!("LEASEHOLD_TERRAFORM_TOKENS{}", after_name(&mistake));
            variables.checked(some.map_err(mistake))
        });
        let stack = variables.text("LEASEHOLD_STACK");
        variables.complete(Self {
            schema,
            policy: Policy { retention_seconds, clock_skew_ms },
            access: Access { scopes, owner_binding },
            takeover_clock_check,
            multi_region,
            jwt_claim,
            execution_key,
            history,
            terraform_bucket,
            terraform_tokens,
            metrics,
            stack,
        })
    }
}

/// Joins a mistake to the name of its variable. A mistake begins with its place in the JSON, `[0].principal: …`, or is
/// about the whole value.
fn after_name(mistake: &str) -> String {
    if mistake.starts_with('[') { mistake.to_owned() } else { format!(": {mistake}") }
}

/// The configuration of a function of the transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionConfig {
    /// `LEASEHOLD_TRANSACTION_TABLE_NAME` (required).
    pub table_name: String,
    /// `LEASEHOLD_TRANSACTION_IDLE_SECONDS` (default 60), `LEASEHOLD_TRANSACTION_RETENTION_SECONDS` (default 604800, 7
    /// days), `LEASEHOLD_TRANSACTION_PATIENCE_MS` (default 1000).
    pub policy: transactions::Policy,
    /// `LEASEHOLD_TABLE_NAME`, if it is set: no transaction may touch the locks.
    pub lock_table_name: Option<String>,
    /// `LEASEHOLD_MULTI_REGION` (`false`, the default, or `true`): whether all transactions are refused, since the
    /// locks are in several regions.
    pub multi_region: bool,
    /// `LEASEHOLD_METRICS` (`true`, the default, or `false`): whether the functions print metrics of the operations.
    pub metrics: bool,
    /// `LEASEHOLD_STACK` (default: none): a dimension of the metrics, so that those of two stacks stay apart.
    pub stack: Option<String>,
}

impl TransactionConfig {
    /// Reads the configuration from the environment.
    ///
    /// # Errors
    /// A sentence for each variable that is missing or wrong.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// Reads the configuration from any source of variables. An empty variable counts as absent.
    ///
    /// # Errors
    /// A sentence for each variable that is missing or wrong.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut variables = Variables::new(lookup);
        let default = transactions::Policy::default();
        let idle = variables.number("LEASEHOLD_TRANSACTION_IDLE_SECONDS", default.idle_ms / 1000, 1..=MAX_IDLE_SECONDS);
        let retention = variables.number(
            "LEASEHOLD_TRANSACTION_RETENTION_SECONDS",
            default.retention_ms / 1000,
            transactions::Policy::MIN_RETENTION_SECONDS..=Policy::MAX_RETENTION_SECONDS,
        );
        let patience = "LEASEHOLD_TRANSACTION_PATIENCE_MS";
        let patience_ms = variables.number(patience, default.patience_ms, 1..=transactions::Policy::MAX_PATIENCE_MS);
        let policy =
            transactions::Policy { patience_ms, idle_ms: idle * 1000, retention_ms: retention * 1000, ..default };
        let table = "the DynamoDB table of the transactions";
        let table_name = variables.required("LEASEHOLD_TRANSACTION_TABLE_NAME", table);
        let lock_table_name = variables.text("LEASEHOLD_TABLE_NAME");
        if lock_table_name.as_ref() == Some(&table_name) {
            variables.refuse(format!("The locks and the transactions need a table each, not both {table_name:?}."));
        }
        let metrics = variables.flag("LEASEHOLD_METRICS", true);
        let stack = variables.text("LEASEHOLD_STACK");
        let multi_region = variables.flag(MULTI_REGION, false);
        variables.complete(Self { table_name, policy, lock_table_name, multi_region, metrics, stack })
    }
}

/// The variables of a configuration, and a sentence for each mistake in them.
struct Variables<L> {
    lookup: L,
    mistakes: Vec<String>,
}

impl<L: Fn(&str) -> Option<String>> Variables<L> {
    const fn new(lookup: L) -> Self {
        Self { lookup, mistakes: Vec::new() }
    }

    fn refuse(&mut self, mistake: String) {
        self.mistakes.push(mistake);
    }

    /// Takes a valid value, or records the mistake.
    fn checked<T>(&mut self, value: Result<T, String>) -> Option<T> {
        value.map_err(|mistake| self.refuse(mistake)).ok()
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn required(&mut self, name: &str, named: &str) -> String {
        let value = self.text(name).ok_or_else(|| format!("{name} is not set: it must name {named}."));
        self.checked(value).unwrap_or_default()
    }

    fn number(&mut self, name: &str, default: u64, range: RangeInclusive<u64>) -> u64 {
        let Some(value) = self.text(name) else { return default };
        let number = value.parse().ok().filter(|number| range.contains(number));
        let (min, max) = range.into_inner();
        let mistake = || format!("{name} must be a whole number from {min} to {max}, not {value:?}.");
        self.checked(number.ok_or_else(mistake)).unwrap_or(default)
    }

    fn flag(&mut self, name: &str, default: bool) -> bool {
        let Some(value) = self.text(name) else { return default };
        let mistake = |_| format!("{name} must be true or false, not {value:?}.");
        self.checked(value.parse().map_err(mistake)).unwrap_or(default)
    }

    /// The configuration, unless there were mistakes.
    fn complete<T>(self, config: T) -> Result<T, ConfigError> {
        if self.mistakes.is_empty() { Ok(config) } else { Err(ConfigError(self.mistakes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, String> {
        Config::from_lookup(lookup(variables)).map_err(|error| error.to_string())
    }

    fn lookup(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    const SCOPES: &str = r#"[{"principal":"direct","prefixes":["jobs/"]}]"#;

    #[test]
    fn table_name_is_enough() {
        let config =
            read(&[("LEASEHOLD_TABLE_NAME", "locks"), ("LEASEHOLD_SORT_KEY", ""), ("LEASEHOLD_KEY_SCOPES", "")])
                .expect("valid");
        let expected = Config {
            schema: TableSchema::new("locks"),
            policy: Policy::default(),
            access: Access::default(),
            takeover_clock_check: false,
            multi_region: false,
            jwt_claim: "sub".into(),
            execution_key: None,
            history: None,
            terraform_bucket: None,
            terraform_tokens: None,
            metrics: true,
            stack: None,
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn everything_can_be_set() {
        let config = read(&[
            ("LEASEHOLD_TABLE_NAME", "locks"),
            ("LEASEHOLD_PARTITION_KEY", "pk"),
            ("LEASEHOLD_SORT_KEY", "sk"),
            ("LEASEHOLD_RETENTION_SECONDS", "60"),
            ("LEASEHOLD_CLOCK_SKEW_MS", "250"),
            ("LEASEHOLD_TAKEOVER_CLOCK_CHECK", "true"),
            ("LEASEHOLD_MULTI_REGION", "true"),
            ("LEASEHOLD_KEY_SCOPES", SCOPES),
            ("LEASEHOLD_OWNER_BINDING", "true"),
            ("LEASEHOLD_JWT_CLAIM", "client_id"),
            ("LEASEHOLD_EXECUTION_KEY", "key/1"),
            ("LEASEHOLD_HISTORY_TABLE_NAME", "past"),
            ("LEASEHOLD_HISTORY_DAYS", "2"),
            ("LEASEHOLD_METRICS", "false"),
            ("LEASEHOLD_STACK", "orders-locks"),
        ])
        .expect("valid");
        assert_eq!((config.schema.partition_key.as_str(), config.schema.sort_key.as_deref()), ("pk", Some("sk")));
        assert_eq!(config.policy, Policy { retention_seconds: 60, clock_skew_ms: 250 });
        assert!(config.takeover_clock_check && config.multi_region);
        assert_eq!(config.history, Some(("past".to_owned(), Duration::from_hours(48))));
        let scopes = Some(Scopes::parse(SCOPES).expect("valid"));
        assert_eq!(config.access, Access { scopes, owner_binding: true });
        assert_eq!((config.jwt_claim.as_str(), config.metrics), ("client_id", false));
        assert_eq!((config.execution_key.as_deref(), config.stack.as_deref()), (Some("key/1"), Some("orders-locks")));
    }

    #[test]
    fn each_mistake_gets_a_sentence() {
        let error = read(&[("LEASEHOLD_RETENTION_SECONDS", "7d"), ("LEASEHOLD_PARTITION_KEY", "data")]);
        assert_eq!(
            error.expect_err("wrong"),
            "LEASEHOLD_RETENTION_SECONDS must be a whole number from 1 to 316224000, not \"7d\". \
             LEASEHOLD_TABLE_NAME is not set: it must name the DynamoDB table of the locks. \
             The key attribute \"data\" belongs to the lock record: name the key otherwise."
        );
        let error =
            read(&[("LEASEHOLD_TABLE_NAME", "t"), ("LEASEHOLD_PARTITION_KEY", "a"), ("LEASEHOLD_SORT_KEY", "a")]);
        assert_eq!(error.expect_err("wrong"), "The partition key and the sort key are both named \"a\".");
    }

    /// Malformed rules must not grant access to anyone.
    #[test]
    fn rules_that_cannot_be_read_are_no_configuration() {
        for (name, value, sentence) in [
            ("LEASEHOLD_OWNER_BINDING", "yes", "LEASEHOLD_OWNER_BINDING must be true or false, not \"yes\"."),
            (
                "LEASEHOLD_KEY_SCOPES",
                "[]",
                "LEASEHOLD_KEY_SCOPES: It names nobody, so that nobody could touch any key.",
            ),
            ("LEASEHOLD_KEY_SCOPES", " ", "LEASEHOLD_KEY_SCOPES: EOF while parsing a value at line 1 column 1."),
            (
                "LEASEHOLD_KEY_SCOPES",
                r#"[{"principal":"jwt:","prefixes":["a"]}]"#,
                "LEASEHOLD_KEY_SCOPES[0].principal: \"jwt:\" lacks a claim's value: no token without one is let in.",
            ),
            (
                "LEASEHOLD_KEY_SCOPES",
                r#"[{"principal":"direct","prefixes":[]}]"#,
                "LEASEHOLD_KEY_SCOPES[0].prefixes: It is empty: leave the entry out, or write [\"\"] for every key.",
            ),
        ] {
            let error = read(&[("LEASEHOLD_TABLE_NAME", "locks"), (name, value)]).expect_err("wrong");
            assert_eq!(error, sentence);
        }
    }
    fn read_transactions(variables: &[(&str, &str)]) -> Result<TransactionConfig, String> {
        TransactionConfig::from_lookup(lookup(variables)).map_err(|error| error.to_string())
    }

    #[test]
    fn transactions_need_a_table_of_their_own() {
        let config = read_transactions(&[("LEASEHOLD_TRANSACTION_TABLE_NAME", "tx"), ("LEASEHOLD_TABLE_NAME", "")]);
        let policy = transactions::Policy::default();
        assert_eq!(
            config,
            Ok(TransactionConfig {
                table_name: "tx".into(),
                policy,
                lock_table_name: None,
                multi_region: false,
                metrics: true,
                stack: None
            })
        );
        let config = read_transactions(&[
            ("LEASEHOLD_TRANSACTION_TABLE_NAME", "tx"),
            ("LEASEHOLD_TABLE_NAME", "locks"),
            ("LEASEHOLD_TRANSACTION_IDLE_SECONDS", "30"),
            ("LEASEHOLD_TRANSACTION_RETENTION_SECONDS", "3600"),
            ("LEASEHOLD_TRANSACTION_PATIENCE_MS", "500"),
        ])
        .expect("valid");
        assert_eq!(config.lock_table_name.as_deref(), Some("locks"));
        let set = transactions::Policy { patience_ms: 500, idle_ms: 30_000, retention_ms: 3_600_000, ..policy };
        assert_eq!(config.policy, set);

        for (variables, sentence) in [
            (
                &[("LEASEHOLD_TABLE_NAME", "locks")][..],
                "LEASEHOLD_TRANSACTION_TABLE_NAME is not set: it must name the DynamoDB table of the transactions.",
            ),
            (
                &[("LEASEHOLD_TABLE_NAME", "one"), ("LEASEHOLD_TRANSACTION_TABLE_NAME", "one")],
                "The locks and the transactions need a table each, not both \"one\".",
            ),
            (
                &[("LEASEHOLD_TRANSACTION_TABLE_NAME", "tx"), ("LEASEHOLD_TRANSACTION_IDLE_SECONDS", "0")],
                "LEASEHOLD_TRANSACTION_IDLE_SECONDS must be a whole number from 1 to 840, not \"0\".",
            ),
            (
                &[("LEASEHOLD_TRANSACTION_TABLE_NAME", "tx"), ("LEASEHOLD_TRANSACTION_IDLE_SECONDS", "841")],
                "LEASEHOLD_TRANSACTION_IDLE_SECONDS must be a whole number from 1 to 840, not \"841\".",
            ),
            (
                &[("LEASEHOLD_TRANSACTION_TABLE_NAME", "tx"), ("LEASEHOLD_TRANSACTION_RETENTION_SECONDS", "3599")],
                "LEASEHOLD_TRANSACTION_RETENTION_SECONDS must be a whole number from 3600 to 316224000, not \"3599\".",
            ),
        ] {
            assert_eq!(read_transactions(variables).expect_err("wrong"), sentence);
        }
    }
}
