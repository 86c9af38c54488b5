//! The instants and the last numbers, which no pair of expression and function can disagree on: both call the same
//! code.

use aws_sdk_dynamodb::types::AttributeValue;

use super::*;
use crate::TableSchema;
use crate::attributes::Item;
use crate::item::{FENCING_TOKEN, LEASE_DURATION, LEASE_VERSION, OWNER_NAME, RECORD_VERSION_NUMBER, STALE_AT};

const POLICY: Policy = Policy { retention_seconds: 100, clock_skew_ms: 250 };

fn stamp() -> Stamp {
    Stamp { rvn: "new".into(), now_us: 1_700_000_000_123_999 }
}

/// A row of the lease 2 s with these attributes as well.
fn row<const N: usize>(attributes: [(&str, AttributeValue); N]) -> Row {
    let text = |value: &str| AttributeValue::S(value.into());
    let own = [
        ("key", text("Moe")),
        (OWNER_NAME, text("host")),
        (LEASE_DURATION, text("2000")),
        (RECORD_VERSION_NUMBER, text("old")),
    ];
    let item: Item = own.into_iter().chain(attributes).map(|(name, value)| (name.to_owned(), value)).collect();
    TableSchema::new("t").decode_row(item).expect("has a key")
}

#[test]
fn times_of_a_row_follow_the_clock() {
    assert_eq!(stamp().now_ms(), 1_700_000_000_123);
    assert_eq!(POLICY.expire_at(&stamp(), Some(2_000)), 1_700_000_003 + 100, "rounded up");
    assert_eq!(POLICY.expire_at(&stamp(), None), 1_700_000_001 + MAX_LEASE_MS / 1000 + 100);
    assert_eq!(POLICY.stale_before(&stamp()), 1_699_999_999_873);
}

#[test]
fn clock_judges_a_row_only_after_its_last_millisecond() {
    let observed = || Rvn::new("observedRecordVersionNumber", "old").expect("valid");
    let number = |value: u64| AttributeValue::N(value.to_string());
    let last = POLICY.stale_before(&stamp());
    for (stale_at, is_past) in [(last - 1, true), (last, false), (last + 1, false)] {
        let row = row([(STALE_AT, number(stale_at))]);
        assert_eq!(row.is_stale(&Staleness::Clock, &stamp(), &POLICY), is_past, "{stale_at}");
        assert_eq!(row.is_stale(&Staleness::ObservedAndClock(observed()), &stamp(), &POLICY), is_past, "{stale_at}");
        assert!(row.is_stale(&Staleness::Observed(observed()), &stamp(), &POLICY), "without the clock");
    }
    // A row of a Java client that took ours over in place: its `staleAt` is of another lease.
    let taken = row([(STALE_AT, number(last - 1)), (LEASE_VERSION, AttributeValue::S("before".into()))]);
    assert!(!taken.is_stale(&Staleness::Clock, &stamp(), &POLICY));
    let taken = row([(STALE_AT, number(last + 1)), (LEASE_VERSION, AttributeValue::S("before".into()))]);
    assert!(taken.is_stale(&Staleness::ObservedAndClock(observed()), &stamp(), &POLICY));
}

#[test]
fn last_fencing_token_is_used_up() {
    let token = |token: u64| row([(FENCING_TOKEN, AttributeValue::N(token.to_string()))]).countable_token();
    assert_eq!(token(LAST_COUNTABLE_TOKEN), Ok(Some(LAST_COUNTABLE_TOKEN)));
    let error = token(LAST_COUNTABLE_TOKEN + 1).expect_err("its successor is no number of a row");
    assert!(error.to_string().contains("used up"), "{error}");
    assert_eq!(row([]).countable_token(), Ok(None));
}
