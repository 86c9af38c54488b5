//! The branches of a machine, and what a step along one gives.

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Step<B, A> {
    /// The branch.
    pub branch: B,
    /// The actions, in order.
    pub actions: Vec<A>,
}

/// Names the branches of a machine, so that a recorder can count them.
macro_rules! branches {
    ($($(#[doc = $doc:literal])+ $branch:ident = $name:literal,)+) => {
        /// The branch that a step took. Each step takes one.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Branch {
            $($(#[doc = $doc])+ $branch,)+
        }

        impl Branch {
            /// All branches.
            pub const ALL: &[Self] = &[$(Self::$branch),+];

            /// Returns the name in traces.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$branch => $name,)+
                }
            }
        }
    };
}
pub(crate) use branches;
