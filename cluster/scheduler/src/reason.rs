//! Why a host is not taken, in words.

use crate::ids::{DeviceKind, Features, Group, Tenant};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a host is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WhyNot {
    /// It takes nothing.
    Closed,
    /// The VM could not start there a while ago.
    Avoided,
    /// Its CPUs cannot do this, a bit each.
    Features(Features),
    /// It is a tenant's alone.
    Dedicated(Tenant),
    /// The VM is to be on hosts of its tenant alone, and this is none.
    NotDedicated,
    /// It has no devices of a kind.
    NoDevice(DeviceKind),
    /// Its kernel cannot share memory with other hosts.
    CannotShare,
    /// A VM of the same group is there.
    AntiAffinity(Group),
    /// It has as many slices of Aggregate VMs as it carries.
    SlicesFull,
    /// So many cores are free.
    Cores(u32),
    /// So much memory is free, in units of 2 MiB.
    Memory(u32),
    /// Too few devices of a kind are free.
    Devices(DeviceKind),
    /// The VM would lie over several NUMA nodes, and elsewhere it does not.
    SpansNodes,
}

impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("it takes nothing new"),
            Self::Avoided => f.write_str("the VM could not start there a while ago"),
            Self::Features(missing) => write!(f, "it lacks CPU features {:#x}", missing.0),
            Self::Dedicated(tenant) => write!(f, "it is for {tenant} alone"),
            Self::NotDedicated => f.write_str("it is not for the VM's tenant alone"),
            Self::NoDevice(kind) => write!(f, "it has no {kind}"),
            Self::CannotShare => f.write_str("its kernel cannot share memory with other hosts"),
            Self::AntiAffinity(group) => write!(f, "a VM of {group} is there"),
            Self::SlicesFull => f.write_str("it carries no more slices of Aggregate VMs"),
            Self::Cores(free) => write!(f, "{free} cores are free"),
            Self::Memory(free) => write!(f, "{} MiB are free", u64::from(*free) * 2),
            Self::Devices(kind) => write!(f, "too few of {kind} are free"),
            Self::SpansNodes => f.write_str("the VM would lie over several NUMA nodes"),
        }
    }
}
