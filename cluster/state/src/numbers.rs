//! The three numbers that fence: of a leader, of a VM's placement, and of its data plane.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta] $name:ident),* $(,)?) => {$(
        #[$doc]
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )*};
}

number! {
    /// Which leader of the orchestrators: the store's number of it.
    Term,
    /// Which version of what is wanted of a VM, and of where it is.
    Generation,
    /// Which version of a running VM's Placement.
    Epoch,
}
