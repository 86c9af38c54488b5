//! The changes of a semaphore, for people and for programs.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::time::Duration;

use leasehold_client::stale_after;
use leasehold_client::wire::semaphore::{self, Holder, SemaphoreState, Ticket, permits};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::output::{lease, plain, short};
use crate::sightings::seconds;

/// One that holds permits, or waits for them.
#[derive(Debug, Clone)]
pub(super) enum Member {
    Holder(Holder),
    Ticket(Ticket),
}

/// A member, and since when its version was seen.
#[derive(Debug, Clone)]
struct Known {
    member: Member,
    since: Instant,
    /// The line that it may be passed was printed.
    told_stale: bool,
}

/// The semaphore as it was seen last.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    state: Option<SemaphoreState>,
    known: HashMap<String, Known>,
}

/// A change that is worth a line.
#[derive(Debug)]
pub(super) enum Change {
    /// The first look.
    Found(SemaphoreState),
    Capacity {
        now: u64,
        before: u64,
    },
    /// Permits were granted, or a ticket was given.
    Came(Member),
    /// A sign of life.
    Heartbeat {
        member: Member,
        after: Duration,
    },
    /// A holder gave some of its permits back.
    Kept {
        holder: Holder,
        before: u64,
    },
    /// It gave all back, withdrew, was removed, or was granted what it waited for.
    Gone(Member),
    /// Its version was seen for its lease.
    Stale(Member),
}

impl Member {
    fn id(&self) -> &str {
        match self {
            Self::Holder(holder) => &holder.holder_id,
            Self::Ticket(ticket) => &ticket.ticket_id,
        }
    }

    fn owner(&self) -> String {
        match self {
            Self::Holder(holder) => plain(&holder.owner_name),
            Self::Ticket(ticket) => plain(&ticket.owner_name),
        }
    }

    fn version(&self) -> &str {
        match self {
            Self::Holder(holder) => &holder.version,
            Self::Ticket(ticket) => &ticket.version,
        }
    }

    fn lease_ms(&self) -> u64 {
        match self {
            Self::Holder(holder) => holder.lease_duration_ms,
            Self::Ticket(ticket) => ticket.lease_duration_ms,
        }
    }

    /// How long it must be silent before it is dead.
    fn stale_after(&self) -> Duration {
        stale_after(Duration::from_millis(self.lease_ms()))
    }

    fn permits(&self) -> String {
        match self {
            Self::Holder(Holder { permits, .. }) | Self::Ticket(Ticket { permits, .. }) => semaphore::permits(*permits),
        }
    }

    fn json(&self) -> (&'static str, Value) {
        match self {
            Self::Holder(holder) => ("holder", json!(holder)),
            Self::Ticket(ticket) => ("ticket", json!(ticket)),
        }
    }
}

impl Seen {
    /// The changes since the last look. `now` is after the answer arrived.
    pub(super) fn changes(&mut self, state: SemaphoreState, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        match &self.state {
            None => changes.push(Change::Found(state.clone())),
            Some(before) if before.capacity != state.capacity => {
                changes.push(Change::Capacity { now: state.capacity, before: before.capacity });
            }
            Some(_) => {}
        }
        let holders = state.holders.iter().cloned().map(Member::Holder);
        let members: Vec<_> = holders.chain(state.queue.iter().cloned().map(Member::Ticket)).collect();
        let mut before = std::mem::take(&mut self.known);
        let mut came = Vec::new();
        for member in members {
            let known = before.remove(member.id());
            match &known {
                None => came.push(Change::Came(member.clone())),
                Some(Known { member: old, since, .. }) if old.version() != member.version() => {
                    came.push(match (old, &member) {
                        (Member::Holder(old), Member::Holder(new)) if old.permits != new.permits => {
                            Change::Kept { holder: new.clone(), before: old.permits }
                        }
                        _ => Change::Heartbeat { member: member.clone(), after: now - *since },
                    });
                }
                Some(_) => {}
            }
            let fresh = Known { member, since: now, told_stale: false };
            let mut known = known.filter(|known| known.member.version() == fresh.member.version()).unwrap_or(fresh);
            if !known.told_stale && now >= known.since + known.member.stale_after() {
                known.told_stale = true;
                came.push(Change::Stale(known.member.clone()));
            }
            self.known.insert(known.member.id().to_owned(), known);
        }
        // Members that left come first: the next member was granted their permits.
        let mut gone: Vec<_> = before.into_values().map(|known| known.member).collect();
        gone.sort_by(|one, other| one.id().cmp(other.id()));
        changes.extend(gone.into_iter().map(Change::Gone));
        changes.extend(came);
        self.state = Some(state);
        changes
    }

    /// The time until somebody could be stale.
    pub(super) fn stale_in(&self, now: Instant) -> Option<Duration> {
        let due = self.known.values().filter(|known| !known.told_stale);
        due.map(|known| (known.since + known.member.stale_after()).saturating_duration_since(now)).min()
    }

    /// The line at the bottom of a terminal.
    pub(super) fn describe(&self, line: &mut String, now: Instant) -> fmt::Result {
        let Some(state) = &self.state else { return line.write_str("no such semaphore") };
        line.write_str(&summary(state))?;
        match self.known.values().min_by_key(|known| known.since) {
            Some(known) => {
                let suffix = if known.told_stale { ", stale" } else { "" };
                write!(line, "; {} silent for {}{suffix}", known.member.owner(), seconds(now - known.since))
            }
            None => Ok(()),
        }
    }
}

impl Change {
    pub(super) fn line(&self) -> String {
        match self {
            Self::Found(state) => format!("semaphore  {}", summary(state)),
            Self::Capacity { now, before } => format!("capacity   {}, before {before}", permits(*now)),
            Self::Came(member) => {
                let (what, detail) = match member {
                    Member::Holder(holder) => ("granted    ", format!("token {}", holder.fencing_token)),
                    Member::Ticket(ticket) => ("queued     ", format!("number {}", ticket.number)),
                };
                let preposition = if matches!(member, Member::Holder(_)) { "to" } else { "for" };
                format!(
                    "{what}{} {preposition} {}, lease {}, {detail}, version {}",
                    member.permits(),
                    member.owner(),
                    lease(member.lease_ms()),
                    short(member.version())
                )
            }
            Self::Heartbeat { member, after } => {
                let place = if matches!(member, Member::Ticket(_)) { " in the queue" } else { "" };
                let (owner, version) = (member.owner(), short(member.version()));
                format!("heartbeat  of {owner}{place}, after {:.1}s, version {version}", after.as_secs_f64())
            }
            Self::Kept { holder, before } => {
                let returned = permits(before.saturating_sub(holder.permits));
                format!("returned   {returned} of {}, who keeps {}", plain(&holder.owner_name), holder.permits)
            }
            Self::Gone(member @ Member::Holder(_)) => format!("returned   {} of {}", member.permits(), member.owner()),
            Self::Gone(member @ Member::Ticket(_)) => format!("left       the queue: {}", member.owner()),
            Self::Stale(member) => {
                let (owner, lease) = (member.owner(), lease(member.lease_ms()));
                let what = if matches!(member, Member::Ticket(_)) { "pass it" } else { "take its permits" };
                format!("stale      no heartbeat of {owner} for {lease}: whoever saw that may {what}")
            }
        }
    }

    /// The name of the change, and its fields.
    pub(super) fn event(&self) -> (&'static str, Vec<(&'static str, Value)>) {
        match self {
            Self::Found(state) => ("semaphore", vec![("semaphore", json!(state))]),
            Self::Capacity { now, before } => ("capacity", vec![("capacity", json!(now)), ("before", json!(before))]),
            Self::Came(member @ Member::Holder(_)) => ("granted", vec![member.json()]),
            Self::Came(member @ Member::Ticket(_)) => ("queued", vec![member.json()]),
            Self::Heartbeat { member, after } => {
                let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                ("heartbeat", vec![member.json(), ("afterMs", json!(after))])
            }
            Self::Kept { holder, before } => ("returned", vec![("holder", json!(holder)), ("before", json!(before))]),
            Self::Gone(member @ Member::Holder(_)) => ("returned", vec![member.json()]),
            Self::Gone(member @ Member::Ticket(_)) => ("left", vec![member.json()]),
            Self::Stale(member) => ("stale", vec![member.json()]),
        }
    }
}

fn summary(state: &SemaphoreState) -> String {
    let waiting = match state.queue.len() {
        0 => String::new(),
        1 => ", 1 waits".to_owned(),
        waiting => format!(", {waiting} wait"),
    };
    let holders = match state.holders.len() {
        1 => "1 holder".to_owned(),
        number => format!("{number} holders"),
    };
    format!("{} of {} free, {holders}{waiting}", state.available, permits(state.capacity))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(name: &str, version: &str, permits: u64) -> Value {
        json!({
            "holderId": format!("h-{name}"), "ownerName": name, "version": version, "leaseDurationMs": 3000,
            "permits": permits, "fencingToken": 7,
        })
    }

    fn ticket(name: &str, version: &str) -> Value {
        json!({
            "ticketId": format!("t-{name}"), "ownerName": name, "version": version, "leaseDurationMs": 9000,
            "permits": 1, "number": 4,
        })
    }

    fn state(capacity: u64, holders: &[Value], queue: &[Value]) -> SemaphoreState {
        let taken: u64 = holders.iter().map(|holder| holder["permits"].as_u64().expect("a number")).sum();
        let state = json!({
            "kind": "semaphore", "capacity": capacity, "available": capacity.saturating_sub(taken), "changed": "c",
            "holders": holders, "queue": queue,
        });
        serde_json::from_value(state).expect("a semaphore")
    }

    /// The lines for what is found second by second.
    fn lines(found: &[SemaphoreState]) -> Vec<String> {
        let (start, mut seen, mut lines) = (Instant::now(), Seen::default(), Vec::new());
        for (second, state) in (0..).zip(found) {
            let changes = seen.changes(state.clone(), start + Duration::from_secs(second));
            lines.extend(changes.iter().map(|change| format!("{second} {}", change.line())));
        }
        lines
    }

    #[test]
    fn each_change_of_a_semaphore_has_a_line() {
        let found = [
            state(3, &[holder("ann", "v1", 3)], &[]),
            state(3, &[holder("ann", "v2", 3)], &[ticket("bob", "v1")]),
            state(3, &[holder("ann", "v3", 2)], &[ticket("bob", "v2")]),
            state(5, &[holder("bob", "v1", 1)], &[]),
        ];
        assert_eq!(
            lines(&found),
            [
                "0 semaphore  0 of 3 permits free, 1 holder",
                "0 granted    3 permits to ann, lease 3s, token 7, version v1",
                "1 heartbeat  of ann, after 1.0s, version v2",
                "1 queued     1 permit for bob, lease 9s, number 4, version v1",
                "2 returned   1 permit of ann, who keeps 2",
                "2 heartbeat  of bob in the queue, after 1.0s, version v2",
                "3 capacity   5 permits, before 3",
                "3 returned   2 permits of ann",
                "3 left       the queue: bob",
                "3 granted    1 permit to bob, lease 3s, token 7, version v1",
            ]
        );
    }

    #[test]
    fn silent_holder_is_told_stale_once() {
        let still = state(3, &[holder("ann", "v1", 1)], &[ticket("bob", "v1")]);
        let found: Vec<_> = std::iter::repeat_n(still, 12).collect();
        assert_eq!(
            lines(&found)[3..],
            [
                "4 stale      no heartbeat of ann for 3s: whoever saw that may take its permits",
                "10 stale      no heartbeat of bob for 9s: whoever saw that may pass it",
            ],
            "a lease, and a thousandth"
        );
    }

    #[test]
    fn line_at_the_bottom_names_the_most_silent() {
        let (start, mut seen, mut line) = (Instant::now(), Seen::default(), String::new());
        seen.changes(state(3, &[holder("ann", "v1", 1)], &[]), start);
        let later = start + Duration::from_secs(2);
        seen.changes(state(3, &[holder("ann", "v1", 1), holder("bob", "v1", 1)], &[]), later);
        seen.describe(&mut line, later).unwrap();
        assert_eq!(line, "1 of 3 permits free, 2 holders; ann silent for 2s");
        assert_eq!(seen.stale_in(later), Some(Duration::from_millis(1003)));
    }
}
