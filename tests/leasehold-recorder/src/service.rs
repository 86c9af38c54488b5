//! The service: the real pure life cycle of each lock.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold_client_core::{LossReason, Numbered, Reply, holder};
use leasehold_protocol::{
    Acquire, AcquireAnswer, Attributes, Break, DataChange, Disposal, Heartbeat, HeartbeatAnswer, LeaseDuration,
    LeaseId, LockKey, LostReason, OwnerName, Policy, Release, ReleaseAnswer, ReleaseOutcome, Row, Rvn, Sequence,
    Staleness, Stamp, Want, lifecycle,
};

/// The rows, by key.
#[derive(Debug, Default)]
pub(crate) struct Service {
    rows: BTreeMap<String, Row>,
    versions: u64,
}

fn valid<T>(value: Result<T, leasehold_protocol::Error>) -> T {
    value.expect("the recorder names valid values")
}

fn key(name: &str) -> LockKey {
    valid(LockKey::new(name, None))
}

fn id(lease_id: &str) -> LeaseId {
    valid(LeaseId::new(lease_id.to_owned()))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a bounded time")
}

fn reason(reason: LostReason) -> LossReason {
    match reason {
        LostReason::Absent => LossReason::Absent,
        LostReason::Released => LossReason::Released,
        LostReason::VersionMismatch => LossReason::VersionMismatch,
        LostReason::TakenOver | LostReason::Queued | LostReason::NotQueued => LossReason::TakenOver,
    }
}

impl Service {
    fn stamp(&mut self, now: Duration) -> Stamp {
        self.versions += 1;
        let micros = u64::try_from(now.as_micros()).expect("a bounded time");
        Stamp { rvn: format!("v{}", self.versions), now_us: 1_000_000 + micros }
    }

    /// Acquires all of these locks, or none.
    pub(crate) fn acquire(
        &mut self,
        keys: &[String],
        lease_id: &str,
        lease: Duration,
        numbered: &Numbered<String, Duration>,
        now: Duration,
    ) -> Reply {
        let stamp = self.stamp(now);
        let mut rows = Vec::new();
        for name in keys {
            let request = Acquire {
                key: key(name),
                owner_name: valid(OwnerName::new(lease_id)),
                lease_id: id(lease_id),
                sequence: Some(valid(Sequence::new(numbered.sequence, Some(numbered.id.clone())))),
                lease_duration: valid(LeaseDuration::from_millis(
                    u64::try_from(lease.as_millis()).expect("a bounded lease"),
                )),
                staleness: Staleness::Never,
                data: None,
                replace_data: true,
                only_if_exists: false,
                once: None,
                attributes: Attributes::new(),
                principal: None,
            };
            let row = self.rows.get(name);
            let step = lifecycle::acquire(row, &request, &stamp, &Policy::default()).expect("a readable row");
            match step.answer {
                AcquireAnswer::Granted(_) => rows.push((name.clone(), step.row.expect("a granted row"))),
                AcquireAnswer::Lost(_) => return Reply::Lost,
                AcquireAnswer::Superseded(superseded) => {
                    return Reply::Superseded { sequence: superseded.sequence };
                }
                _ => return Reply::Refused,
            }
        }
        self.rows.extend(rows);
        Reply::Done { lease: Some(lease), found: true }
    }

    pub(crate) fn release(&mut self, name: &str, lease_id: &str, now: Duration) -> Reply {
        let request = Release {
            key: key(name),
            lease_id: id(lease_id),
            disposal: Disposal::Keep(None),
            expected: None,
            principal: None,
        };
        let stamp = self.stamp(now);
        let step = lifecycle::release(self.rows.get(name), &request, &stamp, &Policy::default());
        if step.change.is_some() {
            self.rows.extend(step.row.map(|row| (name.to_owned(), row)));
        }
        match step.answer {
            ReleaseAnswer::Done(released) => {
                Reply::Done { lease: None, found: released.outcome != ReleaseOutcome::Absent }
            }
            ReleaseAnswer::Lost(_) => Reply::Lost,
            _ => Reply::Refused,
        }
    }

    /// An operator ends the lock.
    pub(crate) fn break_lock(&mut self, name: &str, now: Duration) {
        let stamp = self.stamp(now);
        let Some(row) = self.rows.get(name) else { return };
        let seen = row.rvn.value().expect("written here").clone();
        let request = Break { key: key(name), seen: valid(Rvn::new("recordVersionNumber", seen)) };
        let step = lifecycle::break_lock(Some(row), &request, &stamp, &Policy::default());
        self.rows.extend(step.row.map(|row| (name.to_owned(), row)));
    }

    /// Renews the lease of a lock.
    pub(crate) fn heartbeat(
        &mut self,
        name: &str,
        lease_id: &str,
        lease: Duration,
        numbered: (u64, &str, u64),
        now: Duration,
    ) -> holder::Reply {
        let (sequence, request_id, token) = numbered;
        let request = Heartbeat {
            key: key(name),
            lease_id: id(lease_id),
            sequence: Some(valid(Sequence::new(sequence, Some(request_id.to_owned())))),
            lease_duration: Some(valid(LeaseDuration::from_millis(millis(lease)))),
            data: DataChange::Keep,
            expected: None,
            fencing_token: Some(token),
            principal: None,
        };
        let stamp = self.stamp(now);
        let row = self.rows.get(name);
        let wanted = row.is_some_and(|row| row.wanted_by().is_some());
        let step = lifecycle::heartbeat(row, &request, &stamp, &[], &Policy::default());
        if step.change.is_some() {
            self.rows.extend(step.row.map(|row| (name.to_owned(), row)));
        }
        match step.answer {
            HeartbeatAnswer::Renewed(row) => holder::Reply::Renewed {
                lease: Duration::from_millis(*row.lease_ms.value().expect("written here")),
                token: *row.fencing_token.value().expect("written here"),
                wanted,
            },
            HeartbeatAnswer::Lost(lost) => holder::Reply::Lost { reason: reason(lost.reason) },
            HeartbeatAnswer::Superseded(superseded) => {
                holder::Reply::Superseded { sequence: superseded.sequence, token: superseded.fencing_token }
            }
            HeartbeatAnswer::Forbidden | HeartbeatAnswer::WrongKind => holder::Reply::Refused,
        }
    }

    /// Ends a hold. Returns the reason of a loss.
    pub(crate) fn give_back(&mut self, name: &str, lease_id: &str, now: Duration) -> holder::Return {
        match self.release(name, lease_id, now) {
            Reply::Done { .. } => holder::Return::Done,
            Reply::Lost => holder::Return::Lost { reason: LossReason::TakenOver },
            _ => holder::Return::Failed,
        }
    }

    /// Takes over a lock whose version was seen for its lease. Returns whether it was granted.
    pub(crate) fn take_over(&mut self, name: &str, lease_id: &str, seen: &str, lease: Duration, now: Duration) -> bool {
        let request = Acquire {
            key: key(name),
            owner_name: valid(OwnerName::new(lease_id)),
            lease_id: id(lease_id),
            sequence: None,
            lease_duration: valid(LeaseDuration::from_millis(millis(lease))),
            staleness: Staleness::Observed(valid(Rvn::new("observedRecordVersionNumber", seen))),
            data: None,
            replace_data: true,
            only_if_exists: false,
            once: None,
            attributes: Attributes::new(),
            principal: None,
        };
        let stamp = self.stamp(now);
        let row = self.rows.get(name);
        let step = lifecycle::acquire(row, &request, &stamp, &Policy::default()).expect("a readable row");
        let AcquireAnswer::Granted(_) = step.answer else { return false };
        self.rows.extend(step.row.map(|row| (name.to_owned(), row)));
        true
    }

    /// Leaves the mark of a waiter.
    pub(crate) fn want(&mut self, name: &str, owner_name: &str) {
        let request = Want { key: key(name), owner_name: valid(OwnerName::new(owner_name)) };
        let step = lifecycle::want(self.rows.get(name), &request);
        self.rows.extend(step.row.map(|row| (name.to_owned(), row)));
    }

    /// The version, the lease and the token of a lock that is held.
    pub(crate) fn held(&self, name: &str) -> Option<(String, Duration, u64)> {
        let row = self.rows.get(name).filter(|row| !row.released)?;
        let lease = Duration::from_millis(*row.lease_ms.value()?);
        Some((row.rvn.value()?.clone(), lease, *row.fencing_token.value()?))
    }

    /// A read.
    pub(crate) fn get(&self, name: &str) -> Reply {
        match self.rows.get(name) {
            Some(_) => Reply::Done { lease: None, found: true },
            None => Reply::Refused,
        }
    }

    /// Whether this lease id holds the lock.
    pub(crate) fn is_held_by(&self, name: &str, lease_id: &str) -> bool {
        let hash = id(lease_id).hash();
        self.rows.get(name).is_some_and(|row| !row.released && row.lease_id_hash.as_ref() == Some(&hash))
    }
}
