//! Quotas: how many locks and tickets one principal may have at a time.
//!
//! The counts are in the memory of one process. After a restart they begin at zero, and each heartbeat counts its lock
//! again. A lock whose holder is silent for its lease is not counted any longer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold_protocol::{LeaseDuration, LeaseId, LockKey};
use leasehold_wire::{Problem, ProblemType};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::access::Caller;

/// Quotas of each principal.
#[derive(Debug, Default)]
pub struct Quota {
    locks: Option<usize>,
    tickets: Option<usize>,
    claims: Mutex<HashMap<String, Claims>>,
}

/// The claims of one principal, and when each ends without a sign of life.
type Claims = HashMap<Claim, Instant>;

/// The kind of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A lock, or permits of a semaphore.
    Lock,
    /// A place in the queue of a semaphore.
    Ticket,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Claim {
    kind: Kind,
    key: LockKey,
    /// No lease id is kept.
    lease: [u8; 32],
}

/// A claim that is counted while a request is under way. When it is dropped, the count is as before, unless it was
/// kept.
#[derive(Debug)]
#[must_use]
pub(crate) struct Entered<'a> {
    /// Absent where there is no bound.
    claimed: Option<Claimed<'a>>,
}

#[derive(Debug)]
struct Claimed<'a> {
    quota: &'a Quota,
    name: String,
    claim: Claim,
    end: Instant,
    is_new: bool,
}

impl Entered<'_> {
    /// The request succeeded.
    pub(crate) fn keep(mut self) {
        if let Some(Claimed { quota, name, claim, end, .. }) = self.claimed.take() {
            // A refused request with the same lease id may have removed the claim meanwhile.
            quota.insert(name, claim, end);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(Claimed { quota, name, claim, .. }) = self.claimed.take().filter(|claimed| claimed.is_new) {
            quota.remove(&name, &claim);
        }
    }
}

impl Quota {
    /// Quotas of each principal. An absent one is no bound.
    pub fn new(locks: Option<usize>, tickets: Option<usize>) -> Self {
        Self { locks, tickets, claims: Mutex::default() }
    }

    /// Counts a claim before it is asked for.
    ///
    /// # Errors
    /// `throttled`: the principal has as many as it may have.
    pub(crate) fn enter(
        &self,
        caller: &Caller,
        kind: Kind,
        key: &LockKey,
        lease_id: &LeaseId,
        lease: LeaseDuration,
    ) -> Result<Entered<'_>, Problem> {
        let (limit, what) = match kind {
            Kind::Lock => (self.locks, "locks"),
            Kind::Ticket => (self.tickets, "tickets"),
        };
        let (Some(limit), Some(name)) = (limit, caller.name()) else { return Ok(Entered { claimed: None }) };
        let (claim, now) = (Claim::new(kind, key, lease_id), Instant::now());
        let end = now + Duration::from_millis(lease.as_millis());
        let mut all = self.claims();
        let claims = all.entry(name.to_owned()).or_default();
        claims.retain(|_, end| *end > now);
        let is_new = !claims.contains_key(&claim);
        if is_new && claims.keys().filter(|other| other.kind == kind).count() >= limit {
            let detail = format!("{name} has {limit} {what}, and may have no more at a time. Release one first.");
            return Err(Problem::new(ProblemType::Throttled, detail));
        }
        if is_new {
            claims.insert(claim.clone(), end);
        }
        Ok(Entered { claimed: Some(Claimed { quota: self, name: name.to_owned(), claim, end, is_new }) })
    }

    /// Counts a claim that there is, for its next lease.
    pub(crate) fn renew(&self, caller: &Caller, kind: Kind, key: &LockKey, lease_id: &LeaseId, lease_ms: u64) {
        let is_bounded = match kind {
            Kind::Lock => self.locks.is_some(),
            Kind::Ticket => self.tickets.is_some(),
        };
        if let Some(name) = caller.name().filter(|_| is_bounded) {
            let end = Instant::now() + Duration::from_millis(lease_ms);
            self.insert(name.to_owned(), Claim::new(kind, key, lease_id), end);
        }
    }

    /// Counts a claim no longer.
    pub(crate) fn leave(&self, caller: &Caller, kind: Kind, key: &LockKey, lease_id: &LeaseId) {
        if let Some(name) = caller.name() {
            self.remove(name, &Claim::new(kind, key, lease_id));
        }
    }

    fn insert(&self, name: String, claim: Claim, end: Instant) {
        let mut all = self.claims();
        let last = all.entry(name).or_default().entry(claim).or_insert(end);
        *last = end.max(*last);
    }

    fn remove(&self, name: &str, claim: &Claim) {
        let mut all = self.claims();
        if let Some(claims) = all.get_mut(name) {
            claims.remove(claim);
            if claims.is_empty() {
                all.remove(name);
            }
        }
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<String, Claims>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    fn new(kind: Kind, key: &LockKey, lease_id: &LeaseId) -> Self {
        Self { kind, key: key.clone(), lease: Sha256::digest(lease_id.expose()).into() }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::Principal;

    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn caller(name: &str) -> Caller {
        Caller::named(Principal::new(name).expect("short"), None, false)
    }

    fn key(name: &str) -> LockKey {
        LockKey::new(name, None).expect("valid")
    }

    #[tokio::test(start_paused = true)]
    async fn principal_has_as_many_locks_as_it_may() {
        let (quota, lease_id) = (Quota::new(Some(2), None), LeaseId::generate());
        let lease = LeaseDuration::from_millis(10_000).expect("valid");
        let (one, two) = (caller("token:one"), caller("token:two"));
        let enter = |caller: &Caller, name: &str| quota.enter(caller, Kind::Lock, &key(name), &lease_id, lease);
        enter(&one, "a").expect("free").keep();
        enter(&one, "b").expect("free").keep();
        assert_eq!(enter(&one, "c").expect_err("full").status, 429);
        enter(&one, "a").expect("it has this one").keep();
        enter(&two, "c").expect("of another").keep();
        quota.enter(&one, Kind::Ticket, &key("c"), &lease_id, lease).expect("no bound").keep();
        enter(&Caller::unrestricted(), "d").expect("no name").keep();

        quota.leave(&one, Kind::Lock, &key("a"), &lease_id);
        drop(enter(&one, "c").expect("free"));
        enter(&one, "c").expect("a refused request counts no longer").keep();
        tokio::time::advance(LEASE / 2).await;
        quota.renew(&one, Kind::Lock, &key("c"), &lease_id, 10_000);
        tokio::time::advance(LEASE * 3 / 4).await;
        enter(&one, "d").expect("b is silent").keep();
        assert_eq!(enter(&one, "e").expect_err("c lives").status, 429);
    }
}
