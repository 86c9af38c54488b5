//! Callers differ in their names only: states that differ in nothing else count as one.

use leasehold_protocol::{Field, LeaseIdHash};

use crate::caller::{Caller, Request};
use crate::world::{Answer, Attempt, LEASE_IDS, Sender, Stored, World, known, name};

/// The new place of each caller.
type Places = Vec<usize>;

/// The state with its callers in an order that does not depend on their names.
pub(crate) fn representative(world: &World) -> World {
    let mut order: Vec<usize> = (0..world.callers.len()).collect();
    order.sort_by_cached_key(|&caller| rank(world, caller));
    let mut places = vec![0; order.len()];
    for (place, &caller) in order.iter().enumerate() {
        places[caller] = place;
    }
    let mut next = world.clone();
    if places.is_sorted() {
        return next;
    }
    next.callers = order.iter().map(|&caller| renamed_caller(&world.callers[caller], &places)).collect();
    for attempt in &mut next.network {
        rename_attempt(attempt, &places);
    }
    next.network.sort();
    for (caller, _) in next.done_by.iter_mut().chain(&mut next.completed_by) {
        *caller = places[*caller];
    }
    next.completed_by.sort_unstable();
    if let Some((version, ..)) = &mut next.java.seen {
        rename(version, &places);
    }
    if let Some(Stored(row)) = &mut next.row {
        let names = [&mut row.owner_name, &mut row.rvn, &mut row.lease_version, &mut row.previous.owner_name];
        for text in names.into_iter().filter_map(|field| if let Field::Value(text) = field { Some(text) } else { None })
        {
            rename(text, &places);
        }
        let versions = [&mut row.ended_version, &mut row.broken_version, &mut row.deleted_version];
        for version in versions.into_iter().flatten() {
            rename(version, &places);
        }
        for hash in [&mut row.lease_id_hash, &mut row.previous.lease_id_hash].into_iter().flatten() {
            rename_hash(hash, &places);
        }
    }
    next
}

/// Ranks a caller by all that contains no name. With equal ranks a state may count twice, which does no other harm.
fn rank(world: &World, caller: usize) -> impl Ord + use<> {
    let Caller { lease_id: count, number, pending, seen, until, token, was_granted, is_broken } =
        &world.callers[caller];
    let pending = pending.as_ref().map(|pending| {
        let kind = match pending.request {
            Request::Acquire { .. } => 0,
            Request::Heartbeat { .. } => 1,
            Request::Release { .. } => 2,
        };
        let answers = (pending.answer.is_some(), pending.carried_out.is_some());
        (kind, pending.request.lease(), pending.first_sent, pending.last_sent, pending.attempts, answers)
    });
    let hash = Some(&known(caller, *count).hash);
    let row = world.row();
    let is_holder = row.is_some_and(|row| row.lease_id_hash.as_ref() == hash);
    let was_holder = row.is_some_and(|row| row.previous.lease_id_hash.as_ref() == hash);
    let seen = seen.as_ref().map(|(_, lease, since)| (*lease, *since));
    let under_way =
        world.network.iter().filter(|attempt| attempt.is_by(caller)).map(|attempt| attempt.stamp).sum::<u16>();
    ((*count, *number, pending), (seen, *until, *token), (*was_granted, *is_broken, is_holder, was_holder, under_way))
}

fn renamed_caller(caller: &Caller, places: &Places) -> Caller {
    let mut next = caller.clone();
    if let Some((version, ..)) = &mut next.seen {
        rename(version, places);
    }
    if let Some(pending) = &mut next.pending {
        rename_request(&mut pending.request, places);
        for answer in [&mut pending.answer, &mut pending.carried_out].into_iter().flatten() {
            if let Answer::Held { version, .. } = answer {
                rename(version, places);
            }
        }
    }
    next
}

fn rename_attempt(attempt: &mut Attempt, places: &Places) {
    rename(&mut attempt.version, places);
    match &mut attempt.sender {
        Sender::Caller { caller, request, .. } => {
            *caller = places[*caller];
            rename_request(request, places);
        }
        Sender::Operator { seen } => rename(seen, places),
        Sender::Resetter { seen, done_by } => {
            rename(seen, places);
            if let Some((caller, _)) = done_by {
                *caller = places[*caller];
            }
        }
        Sender::Waiter => {}
    }
}

fn rename_request(request: &mut Request, places: &Places) {
    if let Request::Acquire { observed: Some(version), .. } = request {
        rename(version, places);
    }
}

/// Renames a caller's name, or a version, which begins with one. All names have three letters.
fn rename(text: &mut String, places: &Places) {
    let caller = (0..places.len()).find(|&caller| text.starts_with(name(caller)));
    if let Some(caller) = caller {
        text.replace_range(..3, name(places[caller]));
    }
}

fn rename_hash(hash: &mut LeaseIdHash, places: &Places) {
    let mut ids = (0..places.len()).flat_map(|caller| (0..LEASE_IDS).map(move |count| (caller, count)));
    if let Some((caller, count)) = ids.find(|&(caller, count)| known(caller, count).hash == *hash) {
        hash.clone_from(&known(places[caller], count).hash);
    }
}
