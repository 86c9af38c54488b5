//! Requests to a semaphore, and their parts. A value that exists is valid.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::attributes::hex;
use crate::error::{Error, ErrorKind};
use crate::lifecycle::NUMBER_LIMIT;
use crate::model::{Data, LeaseDuration, LeaseId, LockKey, OwnerName, Principal, Rvn, Sequence, check_length};

/// The maximum number of permits of a semaphore: far above any use, and far below what a number can hold.
pub const MAX_PERMITS: u64 = 1_000_000_000;
/// The maximum number of holders of a semaphore, and of tickets: a write is billed by the size of the row.
pub const MAX_ENTRIES: usize = 100;
/// The longest owner name of a holder or a ticket, in bytes of UTF-8.
pub const MAX_ENTRY_NAME_BYTES: usize = 128;
/// The largest payload of a holder.
pub const MAX_ENTRY_DATA_BYTES: usize = 256;
/// The maximum number of dead holders and tickets that a request removes: each takes a part of an expression of 4 KB.
pub const MAX_DEAD: usize = 10;
/// The lease of a holder that names none. It is longer than a lock's, since a heartbeat pays for the whole row.
pub const DEFAULT_HOLDER_LEASE_MS: u64 = 60_000;
/// The lease of a ticket that names none.
pub const DEFAULT_TICKET_LEASE_MS: u64 = 120_000;

/// The number of ends that each ring of a row remembers, and of claims by which a caller's epoch may be behind.
pub const RING: u64 = 16;

const HOLDER_PREFIX: &str = "h-";
const TICKET_PREFIX: &str = "t-";

/// A number of permits: a capacity, or a share of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Permits(u64);

impl Permits {
    /// # Errors
    /// `InvalidRequest`, naming `field`, unless it is 1 to 1,000,000,000.
    pub fn new(field: &'static str, permits: u64) -> Result<Self, Error> {
        if (1..=MAX_PERMITS).contains(&permits) {
            return Ok(Self(permits));
        }
        Err(Error::invalid(field, format!("{field} must be 1 to {MAX_PERMITS}, not {permits}.")))
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Checks the name of a holder or a ticket.
///
/// # Errors
/// `InvalidRequest` unless it has 1 to 128 bytes.
pub fn entry_name(name: String) -> Result<OwnerName, Error> {
    check_length("ownerName", &name, MAX_ENTRY_NAME_BYTES)?;
    OwnerName::new(name)
}

/// Checks the payload of a holder.
///
/// # Errors
/// `TooLarge` above 256 bytes.
pub fn entry_data(data: Data) -> Result<Data, Error> {
    match data.as_bytes().len() {
        0..=MAX_ENTRY_DATA_BYTES => Ok(data),
        length => Err(Error::new(
            ErrorKind::TooLarge,
            format!("data is {length} bytes long; a holder of a semaphore may have {MAX_ENTRY_DATA_BYTES}."),
        )),
    }
}

/// A caller of a semaphore, as its row names it: by its public ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    id: String,
}

impl Member {
    /// Returns the caller that uses this lease id.
    pub fn new(key: &LockKey, lease_id: &LeaseId) -> Self {
        let mut digest = Sha256::new_with_prefix("leasehold semaphore member");
        // The length before each part marks its end, so that no two lists of parts give the same text.
        for part in [key.partition(), key.sort().unwrap_or_default(), lease_id.expose()] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        let half = &digest.finalize()[..16];
        Self { id: hex(half) }
    }

    /// The caller's id as a holder.
    pub fn holder_id(&self) -> String {
        format!("{HOLDER_PREFIX}{}", self.id)
    }

    /// The caller's id in the queue.
    pub fn ticket_id(&self) -> String {
        format!("{TICKET_PREFIX}{}", self.id)
    }

    /// The part that its two ids have in common.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The slot, of 16, that remembers the caller's end.
    pub(crate) fn slot(&self) -> &'static str {
        SLOTS[usize::from(Sha256::digest(&self.id)[0] >> 4)]
    }
}

/// The names of the slots that remember ends.
pub(crate) const SLOTS: [&str; 16] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b", "c", "d", "e", "f"];

/// The slot of a ring that remembers the end of the claim with this number.
pub(crate) fn ring_slot(number: u64) -> &'static str {
    SLOTS[(number % RING) as usize]
}

/// The age of a view: the row's fencing token, the number of its next ticket, and the number of events after which it
/// may no longer be a ticket's turn. All of them only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    pub(crate) token: u64,
    pub(crate) ticket: u64,
    /// Absent in an epoch that an earlier version showed.
    pub(crate) reordered: Option<u64>,
}

impl Epoch {
    /// # Errors
    /// `InvalidRequest` for a text that no answer showed.
    pub fn new(text: &str) -> Result<Self, Error> {
        let read = |part: &str| part.parse().ok().filter(|number| *number < NUMBER_LIMIT);
        let parts: Option<Vec<u64>> = text.split('.').map(read).collect();
        let epoch = parts.and_then(|parts| match parts[..] {
            [token, ticket] => Some(Self { token, ticket, reordered: None }),
            [token, ticket, reordered] => Some(Self { token, ticket, reordered: Some(reordered) }),
            _ => None,
        });
        epoch.ok_or_else(|| Error::invalid("epoch", "epoch must be one that an answer of this semaphore showed."))
    }

    /// Whether a row at `now` may have forgotten the end of a claim that was made after this epoch.
    pub(crate) fn is_outdated(self, now: Self) -> bool {
        now.token > self.token + RING || now.ticket > self.ticket + RING
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.token, self.ticket, self.reordered.unwrap_or_default())
    }
}

/// A public id that a caller names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicId {
    /// The id of a holder.
    Holder(Member),
    /// The id of a ticket.
    Ticket(Member),
}

impl PublicId {
    /// # Errors
    /// `InvalidRequest`, naming `field`, unless it begins with `h-` or `t-` and has at most 64 bytes.
    pub fn new(field: &'static str, text: &str) -> Result<Self, Error> {
        check_length(field, text, 64)?;
        let member = |id: &str| Some(Member { id: id.to_owned() }).filter(|_| !id.is_empty());
        let holder = text.strip_prefix(HOLDER_PREFIX).and_then(member).map(Self::Holder);
        let ticket = || text.strip_prefix(TICKET_PREFIX).and_then(member).map(Self::Ticket);
        holder.or_else(ticket).ok_or_else(|| {
            Error::invalid(field, format!("{field} must be a holderId, which begins with h-, or a ticketId, with t-."))
        })
    }

    /// The caller that the id belongs to.
    pub(crate) fn member(&self) -> &Member {
        match self {
            Self::Holder(member) | Self::Ticket(member) => member,
        }
    }
}

/// A dead holder or ticket, as the caller observed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dead {
    /// The public id of the entry.
    pub id: PublicId,
    /// The version that the caller saw unchanged for the entry's own lease.
    pub version: Rvn,
    /// The number of permits that the holder was seen with. Unused for a ticket, which has none.
    pub permits: u64,
    /// The holder's token, or the ticket's number: see [`Release::number`].
    pub number: Option<u64>,
}

/// The dead entries that one request removes: at most ten, each once.
///
/// The caller's own entry is left out: a caller whose grant got lost on its way finds itself among the dead, as the
/// owner of a lock finds its own version, and its request renews what it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllDead(Vec<Dead>);

impl AllDead {
    /// # Errors
    /// `InvalidRequest` above ten, and for an entry that is named twice.
    pub fn new(mut dead: Vec<Dead>, caller: &Member) -> Result<Self, Error> {
        let invalid = |message: String| Err(Error::invalid("observed", message));
        if dead.len() > MAX_DEAD {
            return invalid(format!("observed names {} entries; at most {MAX_DEAD} are allowed.", dead.len()));
        }
        for (index, one) in dead.iter().enumerate() {
            if dead[..index].iter().any(|other| other.id == one.id) {
                return invalid("observed names an entry twice.".to_owned());
            }
        }
        dead.retain(|one| one.id.member() != caller);
        Ok(Self(dead))
    }

    /// The entries that the table itself judges dead, by the clock: any number of them.
    pub(crate) fn judged(dead: Vec<Dead>) -> Self {
        Self(dead)
    }

    /// The first entries, as many as one write removes.
    pub(crate) fn first(&self) -> Self {
        Self(self.0.iter().take(MAX_DEAD).cloned().collect())
    }

    /// Whether one write cannot remove them all.
    pub(crate) fn are_many(&self) -> bool {
        self.0.len() > MAX_DEAD
    }

    /// The dead holders, with their members.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (&Member, &Dead)> {
        self.0.iter().filter_map(|dead| match &dead.id {
            PublicId::Holder(member) => Some((member, dead)),
            PublicId::Ticket(_) => None,
        })
    }

    /// The dead tickets, with their members.
    pub(crate) fn tickets(&self) -> impl Iterator<Item = (&Member, &Dead)> {
        self.0.iter().filter_map(|dead| match &dead.id {
            PublicId::Ticket(member) => Some((member, dead)),
            PublicId::Holder(_) => None,
        })
    }

    /// The permits that the removal of the dead returns.
    pub(crate) fn permits(&self) -> u64 {
        self.holders().map(|(_, dead)| dead.permits).sum()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A request for permits.
#[derive(Debug, Clone)]
pub struct Acquire {
    /// The semaphore's key.
    pub key: LockKey,
    /// The owner who asks for the permits: see [`entry_name`].
    pub owner_name: OwnerName,
    /// The secret that will prove possession.
    pub lease_id: LeaseId,
    /// The place of this request in the order of requests under the lease id.
    pub sequence: Option<Sequence>,
    /// The lease.
    pub lease_duration: LeaseDuration,
    /// The number of permits.
    pub permits: Permits,
    /// The number of permits in all, for a semaphore that does not exist yet.
    pub capacity: Permits,
    /// The dead entries, as the caller observed them.
    pub dead: AllDead,
    /// Whether the dead holders must be dead by the server's clock as well.
    pub checked_by_clock: bool,
    /// Whether the table judges by its clock which entries are dead, in place of the caller.
    pub by_clock: bool,
    /// The epoch that the caller saw, before this lease id had a claim. Of a caller that names its ticket: the epoch of
    /// the view in which it was the ticket's turn.
    pub epoch: Option<Epoch>,
    /// The number of the caller's ticket. Without that ticket, nothing is granted.
    pub number: Option<u64>,
    /// Whether the caller passes tickets ahead that it takes for dead, or that leave permits which they could take. It
    /// names its ticket, and the epoch of the view that shows so.
    pub passes: bool,
    /// The payload of this holder, which others may read: see [`entry_data`].
    pub data: Option<Data>,
    /// The principal that the permits are bound to.
    pub principal: Option<Principal>,
}

impl Acquire {
    /// The epoch of the view in which it was the turn of the caller's ticket, by the caller's word.
    pub(crate) fn vouches(&self) -> Option<Epoch> {
        self.epoch.filter(|_| self.number.is_some())
    }

    /// Whether a grant may take the permits of a ticket ahead.
    pub(crate) fn passes_tickets(&self) -> bool {
        self.passes && self.vouches().is_some()
    }
}

/// A holder's renewal.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The semaphore's key.
    pub key: LockKey,
    /// The proof of possession.
    pub lease_id: LeaseId,
    /// The place of this request in the order of requests under the lease id.
    pub sequence: Option<Sequence>,
    /// The new lease. Without it, the old one stays.
    pub lease_duration: Option<LeaseDuration>,
    /// The new payload. Without it, the old one stays.
    pub data: Option<Data>,
    /// The version that the holder must still have, if given.
    pub expected: Option<Rvn>,
    /// The token of the caller's grant, if given: a holder with another token is not the caller.
    pub fencing_token: Option<u64>,
    /// The permits to give back.
    pub shrink: Option<Shrink>,
    /// The principal, if given: the permits must be bound to no other.
    pub principal: Option<Principal>,
}

/// A holder that keeps fewer permits than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shrink {
    /// The number of permits that it has.
    held: Permits,
    /// The number of permits that it keeps.
    kept: Permits,
}

impl Shrink {
    /// # Errors
    /// `InvalidRequest` where `kept` is above `held`: a heartbeat cannot add permits.
    pub fn new(held: Permits, kept: Permits) -> Result<Self, Error> {
        if kept > held {
            return Err(Error::invalid("permits", "A heartbeat can give permits back, and cannot take more."));
        }
        Ok(Self { held, kept })
    }

    /// The number of permits that it has.
    pub(crate) fn held(self) -> u64 {
        self.held.get()
    }

    /// The number of permits that it keeps.
    pub(crate) fn kept(self) -> u64 {
        self.kept.get()
    }

    /// The number of permits that come back.
    pub(crate) fn back(self) -> u64 {
        self.held() - self.kept()
    }
}

/// A holder's release, or a waiter's withdrawal.
#[derive(Debug, Clone)]
pub struct Release {
    /// The semaphore's key.
    pub key: LockKey,
    /// The proof of possession.
    pub lease_id: LeaseId,
    /// The version that the holder, or the ticket, must still have, if given.
    pub expected: Option<Rvn>,
    /// The claim that ends: it saves a write, since the row remembers ends by their numbers. A wrong one, or none,
    /// makes a second write with the number that the row shows.
    pub number: Option<ClaimNumber>,
    /// The principal, if given: the entry must be bound to no other.
    pub principal: Option<Principal>,
}

/// The number of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimNumber {
    /// The fencing token of a holder.
    Token(u64),
    /// The number of a ticket.
    Ticket(u64),
}

/// An operator's removal of a holder or a ticket.
#[derive(Debug, Clone)]
pub struct Break {
    /// The semaphore's key.
    pub key: LockKey,
    /// The public id of the holder or the ticket.
    pub id: PublicId,
    /// The version that the operator saw.
    pub seen: Rvn,
    /// The holder's token, or the ticket's number: see [`Release::number`].
    pub number: Option<u64>,
}

/// A request for a place in the queue, or its renewal.
#[derive(Debug, Clone)]
pub struct Enqueue {
    /// The semaphore's key.
    pub key: LockKey,
    /// The owner who waits: see [`entry_name`].
    pub owner_name: OwnerName,
    /// The secret under which the permits will be acquired.
    pub lease_id: LeaseId,
    /// The place of this request in the order of requests under the lease id.
    pub sequence: Option<Sequence>,
    /// The ticket's lease.
    pub lease_duration: LeaseDuration,
    /// The number of permits that it waits for.
    pub permits: Permits,
    /// The number of permits in all, for a semaphore that does not exist yet.
    pub capacity: Permits,
    /// The dead entries, as the caller observed them.
    pub dead: AllDead,
    /// Whether the dead holders must be dead by the server's clock as well.
    pub checked_by_clock: bool,
    /// The epoch that the caller saw, before this lease id had a claim.
    pub epoch: Option<Epoch>,
    /// The number of the caller's ticket, for a renewal. Without that ticket, the caller gets no other.
    pub number: Option<u64>,
    /// The lease of the permits, where they are granted at once.
    pub grant_lease: LeaseDuration,
    /// The payload of the holder, where the permits are granted at once: see [`entry_data`].
    pub data: Option<Data>,
    /// The principal that the ticket is bound to.
    pub principal: Option<Principal>,
}

impl Enqueue {
    /// The request for the permits themselves.
    pub(crate) fn ask(&self) -> Acquire {
        Acquire {
            key: self.key.clone(),
            owner_name: self.owner_name.clone(),
            lease_id: self.lease_id.clone(),
            sequence: self.sequence.clone(),
            lease_duration: self.grant_lease,
            permits: self.permits,
            capacity: self.capacity,
            dead: self.dead.clone(),
            checked_by_clock: self.checked_by_clock,
            by_clock: false,
            epoch: self.epoch,
            number: None,
            passes: false,
            data: self.data.clone(),
            principal: self.principal.clone(),
        }
    }
}

/// An operator's change of the capacity.
#[derive(Debug, Clone)]
pub struct SetCapacity {
    /// The semaphore's key.
    pub key: LockKey,
    /// The new capacity. Where holders have more permits, it takes effect as soon as enough came back.
    pub capacity: Permits,
    /// The capacity that the operator saw.
    pub expected: Permits,
    /// The version of the capacity that the operator saw, if given: see [`Semaphore::capacity_version`].
    ///
    /// [`Semaphore::capacity_version`]: super::Semaphore::capacity_version
    pub expected_version: Option<Rvn>,
    /// Tells this request from others: a repeat is answered, and not carried out again.
    pub request_id: Option<String>,
}

/// Checks the id of an operator's request.
///
/// # Errors
/// `InvalidRequest` unless it has 1 to 64 bytes.
pub fn operator_request_id(id: String) -> Result<String, Error> {
    check_length("requestId", &id, 64)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(key: &str, sort: Option<&str>, lease_id: &str) -> Member {
        let key = LockKey::new(key, sort.map(str::to_owned)).expect("valid");
        Member::new(&key, &LeaseId::new(lease_id).expect("valid"))
    }

    #[test]
    fn public_id_differs_for_each_key_and_lease_id() {
        let members = [
            member("a", None, "bc"),
            member("ab", None, "c"),
            member("a", Some("b"), "c"),
            member("a", None, "c"),
            member("b", None, "bc"),
        ];
        for (index, one) in members.iter().enumerate() {
            assert!(members[..index].iter().all(|other| other != one), "{one:?}");
        }
        assert_eq!(member("a", None, "bc"), members[0]);
    }

    #[test]
    fn public_id_tells_nothing_of_the_stored_hash() {
        let lease_id = LeaseId::new("secret").expect("valid");
        let hash: String = hex(&lease_id.hash().0);
        let member = member("key", None, "secret");
        assert!(!hash.contains(member.id()) && member.id() != "secret");
    }

    #[test]
    fn observed_entries_are_refused_when_named_twice_or_own() {
        let me = member("key", None, "me");
        let dead = |id: &str| Dead {
            id: PublicId::new("observed", id).expect("valid"),
            version: Rvn::new("version", "v").expect("valid"),
            permits: 1,
            number: None,
        };
        assert!(AllDead::new(vec![dead("h-1"), dead("t-1")], &me).is_ok());
        assert!(AllDead::new(vec![dead("h-1"), dead("h-1")], &me).is_err());
        let own = vec![dead("h-1"), dead(&me.holder_id()), dead(&me.ticket_id())];
        assert_eq!(AllDead::new(own, &me).expect("valid"), AllDead(vec![dead("h-1")]));
        let many = |count: usize| (0..count).map(|n| dead(&format!("h-{n}"))).collect::<Vec<_>>();
        assert!(AllDead::new(many(MAX_DEAD), &me).is_ok());
        assert!(AllDead::new(many(MAX_DEAD + 1), &me).is_err());
        for text in ["", "h-", "x-1", "1", &format!("h-{}", "0".repeat(63))] {
            assert!(PublicId::new("holderId", text).is_err(), "{text}");
        }
    }
}
