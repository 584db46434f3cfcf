//! Names and numbers.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($of:ty), $shown:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub $of);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $shown, self.0)
            }
        }
    };
}

number! {
    /// The identity of a VM, for ever: 128 random bits.
    Vm(u128), "{:032x}"
}
number! {
    /// Which orchestrator asks: each new leader has a higher one.
    Term(u64), "term {}"
}
number! {
    /// Which life of a VM: it rises when the VM goes on from a checkpoint.
    Generation(u64), "generation {}"
}
number! {
    /// What a reservation is for: 128 random bits.
    Operation(u128), "{:032x}"
}
number! {
    /// One start of one slice. Its process carries it.
    Token(u64), "{}"
}

/// A slice of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceName {
    /// The VM.
    pub vm: Vm,
    /// Its number there.
    pub number: u16,
}

impl fmt::Display for SliceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slice {} of {}", self.number, self.vm)
    }
}
