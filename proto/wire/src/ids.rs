//! Identifiers. Each is its own type so that none is ever used for another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

/// The most slices of one VM, those that have left it included: numbers are below that.
pub const SLICES_MAX: u16 = 64;

id!(
    /// A slice of one VM: the process that runs the VM's part on one host. The bootstrap slice is 0.
    SliceId(u16),
    "slice"
);
id!(
    /// A virtual CPU of the VM. Equal to its x2APIC id.
    VcpuId(u32),
    "vcpu"
);
id!(
    /// A guest frame number: guest-physical address divided by 4 KiB. Never a byte address.
    Gfn(u64),
    "gfn"
);
id!(
    /// Version of membership, homes and locations. A frame from another epoch is refused.
    Epoch(u32),
    "epoch"
);
id!(
    /// A device of the VM that may be used from any slice, in the order of the command line.
    DeviceId(u16),
    "device"
);
