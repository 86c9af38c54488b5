//! The refusals that a service answered, beside the table of operations.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use leasehold_wire::ProblemType;
use leasehold_wire::operation::Operation;
use serde::Deserialize;
use serde_json::Value;

/// The refusals that were answered. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Refusals(Arc<Mutex<BTreeSet<(&'static str, ProblemType)>>>);

impl Refusals {
    /// Records the answer of an operation, unless it is a success or of a gateway.
    ///
    /// # Panics
    /// The operation's entry in the table has no such refusal, or the kind has another status.
    pub fn record(&self, operation: &'static Operation, status: u16, body: &Value) {
        let Some(slug) = body.get("type").filter(|_| status != 200) else { return };
        let kind = ProblemType::deserialize(slug).unwrap_or_else(|_| panic!("{slug} is no kind of problem"));
        let name = operation.name;
        assert_eq!(status, kind.status(), "the status of {slug}, which {name} answers");
        let is_known = operation.all_refusals().any(|refusal| refusal.kinds.contains(&kind));
        assert!(is_known, "the entry of {name} has no {slug}: {body}");
        self.0.lock().expect("not poisoned").insert((name, kind));
    }

    /// Returns the kinds of refusals that an operation answered.
    pub fn of(&self, operation: &Operation) -> BTreeSet<ProblemType> {
        let seen = self.0.lock().expect("not poisoned");
        seen.iter().filter(|(name, _)| *name == operation.name).map(|&(_, kind)| kind).collect()
    }
}
