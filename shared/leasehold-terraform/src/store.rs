//! The place of the states, and the one rule of who may change them.

use leasehold_wire::{Problem, ProblemType};

use crate::Name;

/// A change of a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// None: the fence alone is raised.
    Raise,
    /// The state is replaced.
    Write(Vec<u8>),
    /// The state is removed, if there is one.
    Remove,
}

/// States, each with a fence: the newest fencing token under which somebody could change it.
pub trait Store: Send + Sync + 'static {
    /// Returns the state, if there is one.
    ///
    /// # Errors
    /// `unavailable`
    fn read(&self, name: &Name) -> impl Future<Output = Result<Option<Vec<u8>>, Problem>> + Send;

    /// Raises the fence to this token and carries out the change, in one step: nothing else happens to the state
    /// between the decision of [`admit`] and the change.
    ///
    /// # Errors
    /// `lost`: [`admit`] refuses the token. `unavailable`: the change may have happened.
    fn change(&self, name: &Name, token: u64, change: Change) -> impl Future<Output = Result<(), Problem>> + Send;
}

/// Decides about a change under `token`, where `fence` is the newest token that the state has seen, or 0. Returns
/// whether the token is newer, so that the fence must be raised to it.
///
/// # Errors
/// `lost`: there was a later holder.
pub fn admit(token: u64, fence: u64) -> Result<bool, Problem> {
    if token < fence {
        return Err(Problem::new(
            ProblemType::Lost,
            "The state has had a holder with a later token, and nothing was written. Either this run lost its lock, or the \
             table of the locks is older than the states: then make it anew with `leasehold restore`.",
        ));
    }
    Ok(token > fence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_admitted_unless_a_later_one_was() {
        assert_eq!(admit(1, 0).ok(), Some(true));
        assert_eq!(admit(7, 7).ok(), Some(false));
        assert_eq!(admit(8, 7).ok(), Some(true));
        assert_eq!(admit(6, 7).expect_err("late").status, 409);
    }
}
