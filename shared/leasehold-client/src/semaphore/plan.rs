//! The next step of a caller that waits for permits, as a pure function. Rule K5.

use std::cmp::Reverse;
use std::time::Duration;

use leasehold_wire::semaphore::{Holder, ObservedEntry, SemaphoreState, Ticket};

use crate::watching::LONGEST_WATCH;

/// The time in which a waiter may leave permits that it could take, before those behind it pass.
const PATIENCE: Duration = Duration::from_secs(5);

/// The service's limit of entries that one request names.
pub(crate) const MAX_NAMES: usize = 10;

/// The next step of a waiting caller.
#[derive(Debug, PartialEq)]
pub(crate) enum Plan {
    /// Request the permits, and name these entries as dead.
    Ask(Vec<ObservedEntry>, Turn),
    /// Take a place in the queue, or renew it, and name these entries as dead: the first of too many for one request.
    Enqueue(Vec<ObservedEntry>),
    /// Look at the semaphore, for at most this time.
    Wait(Duration),
}

/// The reason why a waiter requests its permits now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The answer of the service tells what became of the ticket or the capacity, or the caller has no ticket.
    Unknown,
    /// The view shows that it is the ticket's turn.
    Own,
    /// The view shows that the tickets ahead are dead, or leave permits that they could take.
    Passing,
}

/// A waiting caller.
#[derive(Debug)]
pub(crate) struct Waiter<'a> {
    pub(crate) permits: u64,
    /// The caller's place in the queue, if it has one.
    pub(crate) ticket_id: Option<&'a str>,
    /// The time until the caller's ticket must be refreshed.
    pub(crate) refresh_in: Option<Duration>,
    /// The rest of the caller's wait.
    pub(crate) left: Duration,
    /// The time for which the caller's views have shown no change.
    pub(crate) unchanged: Duration,
    /// The time since the first of these views: the next view may show that so much is unchanged.
    pub(crate) watched: Duration,
}

impl Waiter<'_> {
    /// A caller that has no place in the queue.
    pub(crate) fn without_a_ticket(permits: u64, left: Duration) -> Self {
        let (unchanged, watched) = (Duration::ZERO, Duration::ZERO);
        Self { permits, ticket_id: None, refresh_in: None, left, unchanged, watched }
    }
}

/// Returns the next step of `waiter` with this view. `stale_in` returns the time until an entry with this id, version
/// and lease is dead.
pub(crate) fn plan(
    view: &SemaphoreState,
    waiter: &Waiter<'_>,
    stale_in: impl Fn(&str, &str, Duration) -> Duration,
) -> Plan {
    let ticket_stale_in =
        |ticket: &Ticket| stale_in(&ticket.ticket_id, &ticket.version, Duration::from_millis(ticket.lease_duration_ms));
    let holder_stale_in =
        |holder: &Holder| stale_in(&holder.holder_id, &holder.version, Duration::from_millis(holder.lease_duration_ms));
    let mine = waiter.ticket_id.map(|id| view.queue.iter().find(|ticket| ticket.ticket_id == id));
    if waiter.permits > view.capacity || mine == Some(None) {
        // The answer of the service tells the reason.
        return Plan::Ask(Vec::new(), Turn::Unknown);
    }
    let mine = mine.flatten();
    let is_ahead =
        |ticket: &&Ticket| ticket.permits <= view.capacity && mine.is_none_or(|mine| ticket.number < mine.number);
    let ahead: Vec<_> = view.queue.iter().filter(is_ahead).collect();
    // The permits that the living ahead are to get, and whether one of them leaves permits that it could take.
    let (mut reserved, mut is_left) = (0, false);
    for ticket in ahead.iter().filter(|ticket| !ticket_stale_in(ticket).is_zero()) {
        let fits = view.available >= reserved + ticket.permits;
        if fits && waiter.unchanged >= PATIENCE {
            continue;
        }
        is_left |= fits;
        reserved += ticket.permits;
    }

    let wait = || {
        let alive = ahead.iter().map(|ticket| ticket_stale_in(ticket)).chain(view.holders.iter().map(holder_stale_in));
        let passes = is_left.then(|| PATIENCE.saturating_sub(waiter.watched));
        let bounds = alive.filter(|stale_in| !stale_in.is_zero()).chain(waiter.refresh_in).chain(passes);
        Plan::Wait(bounds.fold(waiter.left.min(LONGEST_WATCH), Duration::min))
    };
    // The service counts the living for a caller without a ticket.
    if mine.is_none() && ahead.iter().any(|ticket| !ticket_stale_in(ticket).is_zero()) {
        return wait();
    }
    let tickets = ahead.iter().filter(|_| mine.is_none()).map(|ticket| ticket_named(ticket));
    let mut names: Vec<_> = tickets.collect();
    let mut dead: Vec<_> = view.holders.iter().filter(|holder| holder_stale_in(holder).is_zero()).collect();
    dead.sort_by_key(|holder| (Reverse(holder.permits), &holder.holder_id));
    let (mut free, mut dead) = (view.available, dead.into_iter());
    while free < waiter.permits + reserved {
        let Some(holder) = dead.next() else { return wait() };
        free += holder.permits;
        names.push(ObservedEntry {
            holder_id: holder.holder_id.clone(),
            version: holder.version.clone(),
            permits: Some(holder.permits),
            number: Some(holder.fencing_token),
        });
    }
    if names.len() > MAX_NAMES {
        names.truncate(MAX_NAMES);
        return Plan::Enqueue(names);
    }
    if mine.is_some() {
        // The grant removes them, so that nobody behind waits for them again.
        let dead = ahead.iter().filter(|ticket| ticket_stale_in(ticket).is_zero());
        names.extend(dead.map(|ticket| ticket_named(ticket)).take(MAX_NAMES - names.len()));
    }
    let is_named = |ticket: &&&Ticket| names.iter().any(|name| name.holder_id == ticket.ticket_id);
    let wanted: u64 = ahead.iter().filter(|ticket| !is_named(ticket)).map(|ticket| ticket.permits).sum();
    let turn = match mine {
        None => Turn::Unknown,
        Some(_) if free >= wanted + waiter.permits => Turn::Own,
        Some(_) => Turn::Passing,
    };
    Plan::Ask(names, turn)
}

/// Names a dead ticket.
pub(crate) fn ticket_named(ticket: &Ticket) -> ObservedEntry {
    ObservedEntry {
        holder_id: ticket.ticket_id.clone(),
        version: ticket.version.clone(),
        permits: Some(ticket.permits),
        number: Some(ticket.number),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::timing::stale_after;
    use crate::vectors::{cases, ms};

    fn view(given: &Value) -> SemaphoreState {
        let holder = |entry: &Value| {
            json!({
                "holderId": entry[0], "version": entry[1], "leaseDurationMs": entry[2], "permits": entry[3],
                "ownerName": "A", "fencingToken": 1,
            })
        };
        let ticket = |entry: &Value| {
            json!({
                "ticketId": entry[0], "version": entry[1], "leaseDurationMs": entry[2], "permits": entry[3],
                "number": entry[4], "ownerName": "A",
            })
        };
        let all = |entries: &Value, read: &dyn Fn(&Value) -> Value| -> Vec<Value> {
            entries.as_array().expect("entries").iter().map(read).collect()
        };
        let view = json!({
            "kind": "semaphore", "changed": "c-1", "capacity": given["capacity"], "available": given["available"],
            "holders": all(&given["holders"], &holder), "queue": all(&given["queue"], &ticket),
        });
        serde_json::from_value(view).expect("a semaphore")
    }

    #[test]
    fn plans_follow_the_vectors() {
        for case in cases("coordination.json", "plan") {
            let given = &case["given"];
            let seen = |entry: &Value| (json!([entry[0], entry[1]]), ms(&entry[2]));
            let ages: HashMap<Value, Duration> =
                given["observations"].as_array().expect("observations").iter().map(seen).collect();
            let waiter = Waiter {
                permits: given["permits"].as_u64().expect("a number"),
                ticket_id: given["ticketId"].as_str(),
                refresh_in: given["refreshInMs"].as_u64().map(Duration::from_millis),
                left: ms(&given["leftMs"]),
                unchanged: Duration::from_millis(given["unchangedMs"].as_u64().unwrap_or_default()),
                watched: Duration::from_millis(given["unchangedMs"].as_u64().unwrap_or_default()),
            };
            let plan = plan(&view(given), &waiter, |id, version, lease| {
                let age = ages.get(&json!([id, version])).copied().unwrap_or_default();
                stale_after(lease).saturating_sub(age)
            });
            let shown = |names: Vec<ObservedEntry>| {
                let entry = |it: ObservedEntry| json!({ "holderId": it.holder_id, "version": it.version, "permits": it.permits });
                names.into_iter().map(entry).collect::<Value>()
            };
            let plan = match plan {
                Plan::Ask(names, Turn::Passing) => json!({ "ask": shown(names), "passes": true }),
                Plan::Ask(names, _) => json!({ "ask": shown(names) }),
                Plan::Enqueue(names) => json!({ "enqueue": shown(names) }),
                Plan::Wait(longest) => json!({ "waitMs": longest.as_millis() }),
            };
            assert_eq!(plan, case["expect"], "{}", case["name"]);
        }
    }
}
