//! The history of a semaphore, and its rules.

use std::collections::BTreeMap;

/// One event, as the participants see it. A grant counts from its answer, an end from its request or from the end of
/// belief in the permits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PermitEvent {
    /// A caller takes a place in the queue.
    Queued {
        /// The name of the caller.
        who: String,
        /// The number of its ticket.
        number: u64,
    },
    /// A caller no longer waits: it withdrew, or died.
    Left {
        /// The name of the caller.
        who: String,
    },
    /// A caller got permits.
    Granted {
        /// The name of the caller.
        who: String,
        /// The number of permits.
        permits: u64,
        /// The grant's fencing token.
        token: u64,
    },
    /// A holder reduced its permits.
    Kept {
        /// The name of the holder.
        who: String,
        /// The number of permits that it keeps.
        permits: u64,
    },
    /// A holder no longer believes in its permits.
    Ended {
        /// The name of the holder.
        who: String,
    },
    /// An operator changed the capacity.
    Capacity(u64),
}

/// Checks a history that begins with this capacity, without holders and waiters.
///
/// # Errors
/// Returns the first forbidden event, and the reason.
pub fn check_permits(mut capacity: u64, events: &[PermitEvent]) -> Result<(), String> {
    let mut holders: BTreeMap<&str, u64> = BTreeMap::new();
    let mut queue: BTreeMap<&str, u64> = BTreeMap::new();
    let mut last_token = 0;
    for (index, event) in events.iter().enumerate() {
        let wrong = |why: &str| Err(format!("{why}: {event:?}, the event {index}"));
        match event {
            PermitEvent::Queued { who, number } => {
                if queue.values().any(|other| other >= number) {
                    return wrong("the number is not above all that wait");
                }
                queue.insert(who, *number);
            }
            PermitEvent::Left { who } => {
                queue.remove(who.as_str());
            }
            PermitEvent::Granted { who, permits, token } => {
                let own = queue.remove(who.as_str());
                if queue.values().any(|other| own.is_none_or(|own| *other < own)) {
                    return wrong("somebody who is alive was before it");
                }
                if *token <= last_token {
                    return wrong("the token does not rise");
                }
                last_token = *token;
                if holders.insert(who, *permits).is_some() {
                    return wrong("it has permits already");
                }
                if holders.values().sum::<u64>() > capacity {
                    return wrong("more permits are out than there are");
                }
            }
            PermitEvent::Kept { who, permits } => match holders.get_mut(who.as_str()) {
                Some(held) if *permits <= *held => *held = *permits,
                _ => return wrong("it has not so many"),
            },
            PermitEvent::Ended { who } => {
                holders.remove(who.as_str());
            }
            PermitEvent::Capacity(new) => capacity = *new,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(who: &str, permits: u64, token: u64) -> PermitEvent {
        PermitEvent::Granted { who: who.into(), permits, token }
    }

    fn queued(who: &str, number: u64) -> PermitEvent {
        PermitEvent::Queued { who: who.into(), number }
    }

    fn ended(who: &str) -> PermitEvent {
        PermitEvent::Ended { who: who.into() }
    }

    #[test]
    fn good_histories_pass() {
        let kept = PermitEvent::Kept { who: "a".into(), permits: 1 };
        let left = PermitEvent::Left { who: "b".into() };
        for history in [
            vec![granted("a", 2, 1), ended("a"), granted("b", 1, 2), granted("c", 1, 3)],
            vec![granted("a", 2, 1), queued("b", 1), queued("c", 2), kept, left, granted("c", 1, 2)],
            vec![granted("a", 2, 1), PermitEvent::Capacity(1), ended("a"), granted("b", 1, 2)],
        ] {
            assert_eq!(check_permits(2, &history), Ok(()));
        }
    }

    #[test]
    fn bad_histories_are_found() {
        for (history, why) in [
            (vec![granted("a", 2, 1), granted("b", 1, 2)], "more permits"),
            (vec![granted("a", 1, 1), granted("b", 1, 2), granted("c", 1, 3)], "more permits"),
            (vec![PermitEvent::Capacity(1), granted("a", 1, 1), granted("b", 1, 2)], "more permits"),
            (vec![granted("a", 1, 2), granted("b", 1, 2)], "the token"),
            (vec![granted("a", 1, 2), ended("a"), granted("b", 1, 1)], "the token"),
            (vec![granted("a", 1, 1), granted("a", 1, 2)], "it has permits already"),
            (vec![queued("a", 1), granted("b", 1, 1)], "somebody who is alive"),
            (vec![queued("a", 1), queued("b", 2), granted("b", 1, 1)], "somebody who is alive"),
            (vec![queued("a", 2), queued("b", 1)], "the number"),
            (vec![granted("a", 1, 1), PermitEvent::Kept { who: "a".into(), permits: 2 }], "it has not so many"),
        ] {
            let error = check_permits(2, &history).expect_err(why);
            assert!(error.starts_with(why), "{error}");
        }
    }
}
