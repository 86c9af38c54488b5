//! The names of the branches of a machine.

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
