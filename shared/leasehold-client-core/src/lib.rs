//! # The caller's rules, once
//!
//! The life cycles of a client as pure state machines: events go in, actions come out. The crate has no clock, no
//! randomness and no I/O. `docs/client.md` gives the rules.
//!
//! ```
//! use std::time::Duration;
//!
//! use leasehold_client_core::{Action, Call, Chance, Event, Memory, Purpose, Terms};
//!
//! struct Always;
//! impl Chance for Always {
//!     fn fraction(&mut self, _: Purpose) -> f64 {
//!         0.5
//!     }
//!     fn id(&mut self, _: Purpose) -> String {
//!         "59dc6280".into()
//!     }
//! }
//!
//! let (mut memory, timeout) = (Memory::default(), Duration::from_secs(5));
//! let mut call = Call::under_lease(Terms { longest: timeout, bound: 2 * timeout, ..Terms::default() }, 1);
//! let asked = call.step(&mut memory, Event::Start { request: "Moe", timeout }, Duration::ZERO, &mut Always);
//! assert!(matches!(&asked.actions[..], [Action::Send { send: 1, .. }]));
//! ```
//!
//! ## Types
//!
//! * [`Call`]: one retried request, or the requests under one lease id and the release of what they leave behind.
//! * [`Holder`]: what is held under one lease id, with its heartbeats, its belief, its loss and its end.
//! * [`Event`], [`Action`]: the two directions. [`holder`] has its own. A driver feeds the events, carries out the
//!   actions, and decides nothing.
//! * [`Chance`]: the source of fractions and ids. [`Memory`]: what one client knows across its calls.
//! * [`Turns`]: the numbers of requests. [`Budget`]: the bound of a wait. [`timing`]: pauses, bounds and time-outs.
//!
//! Python and TypeScript have ports of the machines. `clients/vectors/traces` has recorded runs that each port replays.
//!
//! ## Limits
//!
//! Times are durations since any fixed moment of one monotonic clock, in whole milliseconds.

mod branch;
mod budget;
mod call;
mod chance;
pub mod holder;
mod loss;
mod numbers;
pub mod timing;

pub use budget::{Budget, Wait};
pub use call::{Action, Branch, Call, Cause, Event, Memory, Outcome, Reply, State, Step, Terms, What};
pub use chance::{Chance, Purpose};
pub use holder::Holder;
pub use loss::LossReason;
pub use numbers::{Ending, Numbered, Turns};
