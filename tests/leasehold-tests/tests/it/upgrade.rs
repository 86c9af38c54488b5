//! Rows of the first version with owner binding (21 November 2026) under this version of the service, and rows of this
//! one under the first: functions of both may work on one table while a stack is updated, or when the update is taken
//! back.
//!
//! The first version is here as the writes that it sent, word for word. It knew no sequences, tombstones, occurrences,
//! marks of waiters or semaphores.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use leasehold_protocol::{
    AcquireAnswer, Disposal, HeartbeatAnswer, Release, ReleaseAnswer, ReleaseOutcome, Rvn, Staleness,
};
use leasehold_tests::{World, acquire, heartbeat, release, run_seeds};
use sha2::{Digest, Sha256};

const LEASE_MS: u64 = 20_000;
/// The start of the world's clock.
const EPOCH_MS: u64 = 1_767_225_600_000;

const IS_OURS: &str = "(attribute_not_exists(leaseVersion) OR leaseVersion = recordVersionNumber)";
const IS_COUNTABLE: &str = "(attribute_not_exists(fencingToken) OR fencingToken BETWEEN :zero AND :lastToken)";
const IS_READABLE: &str = "attribute_type(ownerName, :string) AND leaseDuration BETWEEN :firstDigit AND :pastLastDigit \
     AND size(leaseDuration) <= :maxDigits AND NOT contains(leaseDuration, :goUnit)";

fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// The first version of the service.
struct First<'a> {
    world: &'a World,
    writes: u64,
}

impl First<'_> {
    /// Sends an update; None: its condition failed.
    async fn update(
        &mut self,
        condition: String,
        update: String,
        values: Vec<(&str, AttributeValue)>,
    ) -> Option<HashMap<String, AttributeValue>> {
        let mut request = self.world.dynamodb.update_item().table_name("locks").key("key", text("Moe"));
        if condition.contains("#key") {
            request = request.expression_attribute_names("#key", "key");
        }
        for (name, value) in values {
            request = request.expression_attribute_values(name, value);
        }
        let request = request.condition_expression(condition).update_expression(update);
        match request.return_values(aws_sdk_dynamodb::types::ReturnValue::AllNew).send().await {
            Ok(output) => output.attributes,
            Err(error) => {
                let error = error.into_service_error();
                assert!(error.is_conditional_check_failed_exception(), "{error:?}");
                None
            }
        }
    }

    fn stamp(&mut self) -> (String, u64) {
        self.writes += 1;
        (format!("first-{}", self.writes), EPOCH_MS + self.writes)
    }

    fn hash(owner: &str) -> AttributeValue {
        AttributeValue::B(Blob::new(Sha256::digest(owner).to_vec()))
    }

    /// Returns the fencing token of a grant.
    async fn acquire(&mut self, owner: &str, observed: Option<&str>) -> Option<u64> {
        let (version, now_ms) = self.stamp();
        let renewable = format!("leaseIdHash = :leaseIdHash AND {IS_OURS}");
        let free = "(attribute_exists(isReleased) AND leaseIdHash <> :leaseIdHash)";
        let mut values = vec![
            (":leaseIdHash", Self::hash(owner)),
            (":zero", number(0)),
            (":lastToken", number(9_007_199_254_740_990)),
            (":ownerName", text(owner)),
            (":leaseDuration", text(LEASE_MS.to_string())),
            (":leaseMs", number(LEASE_MS)),
            (":rvn", text(version)),
            (":seed", number(now_ms * 1000)),
            (":one", number(1)),
            (":staleAt", number(now_ms + LEASE_MS)),
            (":expireAt", number(now_ms / 1000 + 604_800)),
        ];
        let renewable_or_dead = match observed {
            None => renewable,
            Some(version) => {
                values.extend([
                    (":observed", text(version)),
                    (":string", text("S")),
                    (":firstDigit", text("1")),
                    (":pastLastDigit", text(":")),
                    (":goUnit", text("s")),
                    (":maxDigits", number(15)),
                ]);
                format!("(({renewable}) OR (recordVersionNumber = :observed AND {IS_READABLE}))")
            }
        };
        let held = format!("(attribute_not_exists(isReleased) AND {renewable_or_dead})");
        let condition = format!("attribute_not_exists(#key) OR (({free} OR {held}) AND {IS_COUNTABLE})");
        let update = "SET ownerName = :ownerName, leaseDuration = :leaseDuration, leaseMs = :leaseMs, \
                      recordVersionNumber = :rvn, leaseVersion = :rvn, leaseIdHash = :leaseIdHash, \
                      fencingToken = if_not_exists(fencingToken, :seed) + :one, \
                      staleAt = :staleAt, expireAt = :expireAt REMOVE isReleased, ownerPrincipal";
        let row = self.update(condition, update.to_owned(), values).await?;
        row["fencingToken"].as_n().expect("a number").parse().ok()
    }

    async fn heartbeat(&mut self, owner: &str) -> bool {
        let (version, now_ms) = self.stamp();
        let condition = format!("leaseIdHash = :leaseIdHash AND {IS_OURS} AND attribute_not_exists(isReleased)");
        let update = "SET recordVersionNumber = :rvn, leaseVersion = :rvn, expireAt = :expireAt, \
                      staleAt = :now + if_not_exists(leaseMs, :longestLease)";
        let values = vec![
            (":leaseIdHash", Self::hash(owner)),
            (":rvn", text(version)),
            (":expireAt", number(now_ms / 1000 + 604_800)),
            (":now", number(now_ms)),
            (":longestLease", number(86_400_000)),
        ];
        self.update(condition, update.to_owned(), values).await.is_some()
    }

    async fn release(&mut self, owner: &str) -> bool {
        let (_, now_ms) = self.stamp();
        let condition = format!("leaseIdHash = :leaseIdHash AND {IS_OURS} AND attribute_not_exists(isReleased)");
        let values = vec![
            (":leaseIdHash", Self::hash(owner)),
            (":isReleased", text("1")),
            (":expireAt", number(now_ms / 1000 + 604_800)),
        ];
        self.update(condition, "SET isReleased = :isReleased, expireAt = :expireAt".into(), values).await.is_some()
    }
}

async fn version(world: &World) -> String {
    world.row().await.expect("a row").rvn.into_value().expect("readable")
}

/// Returns the fencing token of a grant.
async fn granted(world: &World, owner: &str, staleness: Staleness) -> Option<u64> {
    match world.table.acquire(&acquire(owner, LEASE_MS, staleness)).await.expect("answered") {
        AcquireAnswer::Granted(grant) => Some(grant.fencing_token),
        AcquireAnswer::Held(_) | AcquireAnswer::Lost(_) => None,
        other => panic!("{other:?}"),
    }
}

async fn renewed(world: &World, owner: &str) -> bool {
    matches!(world.table.heartbeat(&heartbeat(owner)).await.expect("answered"), HeartbeatAnswer::Renewed(_))
}

async fn released(world: &World, request: &Release) -> bool {
    match world.table.release(request).await.expect("answered") {
        ReleaseAnswer::Done(done) => done.outcome == ReleaseOutcome::Released,
        _ => false,
    }
}

#[tokio::test]
async fn lock_of_the_first_version_is_renewed_and_released() {
    let world = World::new().await;
    let mut first = First { world: &world, writes: 0 };
    let token = first.acquire("moe", None).await.expect("granted");
    assert_eq!(granted(&world, "larry", Staleness::Never).await, None);
    assert!(renewed(&world, "moe").await && first.heartbeat("moe").await && renewed(&world, "moe").await);
    assert_eq!(granted(&world, "moe", Staleness::Never).await.map(|renewed| renewed >= token), Some(true), "a repeat");
    assert!(released(&world, &release("moe")).await);
    assert!(!first.heartbeat("moe").await && !renewed(&world, "moe").await);
    assert!(granted(&world, "larry", Staleness::Never).await > Some(token));
}

#[tokio::test]
async fn dead_holder_of_the_first_version_is_taken_over() {
    let world = World::new().await;
    let mut first = First { world: &world, writes: 0 };
    let token = first.acquire("moe", None).await.expect("granted");
    let seen = Rvn::new("", version(&world).await).expect("valid");
    assert!(granted(&world, "larry", Staleness::Observed(seen)).await > Some(token));
    assert!(!first.heartbeat("moe").await && !first.release("moe").await);
    assert!(!renewed(&world, "moe").await);
}

#[tokio::test]
async fn lock_of_this_version_is_renewed_and_released_by_the_first() {
    for disposal in [Disposal::Keep(None), Disposal::Delete] {
        let world = World::new().await;
        let mut first = First { world: &world, writes: 0 };
        let token = granted(&world, "moe", Staleness::Never).await.expect("granted");
        assert_eq!(first.acquire("larry", None).await, None);
        assert!(first.heartbeat("moe").await && renewed(&world, "moe").await);
        assert!(released(&world, &Release { disposal, ..release("moe") }).await);
        // A tombstone is a released lock to the first version.
        let next = first.acquire("larry", None).await.expect("granted");
        assert!(next > token, "{next} {token}");
        assert!(renewed(&world, "larry").await && !renewed(&world, "moe").await);
        assert_eq!(world.row().await.expect("a row").lock().expect("readable").owner_name, "larry");
        assert!(first.release("larry").await);
        assert!(granted(&world, "curly", Staleness::Never).await > Some(next));
    }
}

/// Both versions serve holders at random. At most one holds the lock, tokens rise, and who lost the lock never has it
/// again.
#[test]
fn lock_stays_exclusive_when_both_versions_serve() {
    run_seeds("lock_stays_exclusive_when_both_versions_serve", 40, async |seed| {
        let mut random = fastrand::Rng::with_seed(seed);
        let world = World::new().await;
        let mut first = First { world: &world, writes: 0 };
        let (mut holder, mut former, mut last_token) = (None::<String>, Vec::<String>::new(), 0);
        for step in 0..120 {
            let (by_first, owner) = (random.bool(), format!("owner-{step}"));
            match random.u8(..6) {
                0 | 1 => {
                    let takes_over = holder.is_some() && random.u8(..4) == 0;
                    let seen = if takes_over { Some(version(&world).await) } else { None };
                    let token = if by_first {
                        first.acquire(&owner, seen.as_deref()).await
                    } else {
                        let staleness = seen
                            .map_or(Staleness::Never, |seen| Staleness::Observed(Rvn::new("", seen).expect("valid")));
                        granted(&world, &owner, staleness).await
                    };
                    assert_eq!(token.is_some(), holder.is_none() || takes_over, "step {step}");
                    if let Some(token) = token {
                        assert!(token > last_token, "step {step}: {token} after {last_token}");
                        last_token = token;
                        former.extend(holder.replace(owner));
                    }
                }
                2 | 3 => {
                    if let Some(holder) = &holder {
                        let held = if by_first { first.heartbeat(holder).await } else { renewed(&world, holder).await };
                        assert!(held, "step {step}: {holder} lost the lock");
                    }
                }
                4 => {
                    if let Some(holder) = holder.take() {
                        let disposal = if random.bool() { Disposal::Keep(None) } else { Disposal::Delete };
                        let done = if by_first {
                            first.release(&holder).await
                        } else {
                            released(&world, &Release { disposal, ..release(&holder) }).await
                        };
                        assert!(done, "step {step}: {holder} could not release");
                        former.push(holder);
                    }
                }
                _ => {
                    if let Some(former) = random.choice(&former) {
                        assert!(
                            !first.heartbeat(former).await && !renewed(&world, former).await,
                            "step {step}: {former}"
                        );
                    }
                }
            }
        }
    });
}
