//! Names of things, as numbers. Whoever asks the scheduler knows what they are called.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($number:ty), $label:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub $number);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($label, " {}"), self.0)
            }
        }
    };
}

id!(
    /// A host, by its place in the cluster.
    HostId(u32), "host"
);
id!(
    /// A VM. Never used again for another one.
    VmId(u32), "VM"
);
id!(
    /// A reservation. Never used again.
    ReservationId(u64), "reservation"
);
id!(
    /// Hosts that reach each other within the bound on round trips that Aggregate VMs need.
    Fabric(u32), "fabric"
);
id!(
    /// Hosts that are lost together: a rack, a power feed.
    FailureDomain(u32), "failure domain"
);
id!(
    /// Whose VM it is.
    Tenant(u32), "tenant"
);
id!(
    /// VMs of which no two may be on one host.
    Group(u32), "group"
);
id!(
    /// A kind of device back end, or of anything else that a host has a number of, as Mbit/s of a network. Below 64.
    DeviceKind(u8), "device kind"
);

/// Abilities of a CPU and its host, a bit each; what each bit means is agreed elsewhere.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Features(pub u64);

impl Features {
    /// What is wanted and not here.
    #[must_use]
    pub fn missing_of(self, wanted: Self) -> Self {
        Self(wanted.0 & !self.0)
    }

    /// Whether no bit is set.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}
