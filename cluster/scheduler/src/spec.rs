//! What a VM wants of the cluster.

use crate::ids::{DeviceKind, Features, Group, HostId, Tenant};
use crate::resources::Resources;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Kinds of devices that there may be.
pub const DEVICE_KINDS: u8 = 64;
/// Kinds of devices that one VM may want.
pub const DEVICES_MAX: usize = 16;

/// How much the vCPUs of a VM share, which says how far it may be spread (FragVisor, Figure 1).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Class {
    /// Serial jobs beside each other, functions as a service.
    Independent,
    /// Requests of some 40 ms and more.
    Requests,
    /// Nobody knows.
    #[default]
    Default,
    /// Threads that share memory, requests that are quick. Never split: it waits, or runs on one host.
    Shared,
}

impl Class {
    /// Slices that a VM of the class may have.
    #[must_use]
    pub fn slices_max(self) -> u16 {
        match self {
            Self::Independent => 8,
            Self::Requests => 4,
            Self::Default => 2,
            Self::Shared => 1,
        }
    }

    /// The share of its time that a VM of the class may wait for pages, in millionths.
    #[must_use]
    pub fn stall_budget(self) -> u32 {
        match self {
            Self::Independent => 450_000,
            Self::Requests => 300_000,
            Self::Default => 200_000,
            Self::Shared => 0,
        }
    }

    /// The share of its time that a VM of the class is taken to wait for pages until somebody has measured it, in millionths.
    #[must_use]
    pub fn stall_expected(self) -> u32 {
        match self {
            Self::Independent => 100_000,
            Self::Requests => 150_000,
            Self::Default => 250_000,
            Self::Shared => 900_000,
        }
    }
}

/// So many of a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceCount {
    /// Which.
    pub kind: DeviceKind,
    /// At least one.
    pub count: u32,
}

/// What a VM wants. VMs of one deployment share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Cores and memory.
    pub needs: Resources,
    /// How much its vCPUs share.
    pub class: Class,
    /// Slices that it may have; from the class, unless somebody knows better.
    pub slices_max: u16,
    /// Whose it is.
    pub tenant: Tenant,
    /// It runs only on hosts that are its tenant's alone.
    pub dedicated: bool,
    /// No other VM of this group may be on its hosts.
    pub anti_affinity: Option<Group>,
    /// Hosts that it does not begin on: it could not start there a while ago. Its moves may go there.
    pub avoid: Vec<HostId>,
    /// What it sees of CPUs, on each host that it ever runs on. It never sees more, so a later host needs no more.
    pub features: Features,
    /// Devices, by kind in ascending order. All of a kind are on one host.
    pub devices: Vec<DeviceCount>,
}

impl Spec {
    /// A VM of a class that wants nothing else.
    #[must_use]
    pub fn new(needs: Resources, class: Class) -> Self {
        Self {
            needs,
            class,
            slices_max: class.slices_max(),
            tenant: Tenant::default(),
            dedicated: false,
            anti_affinity: None,
            avoid: Vec::new(),
            features: Features::default(),
            devices: Vec::new(),
        }
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.needs.cores == 0 || self.needs.memory == 0 {
            return Err(SpecError::Empty);
        }
        if self.slices_max == 0 {
            return Err(SpecError::NoSlices);
        }
        check_devices(&self.devices)
    }
}

/// Their kinds, a bit each.
pub(crate) fn device_mask(devices: &[DeviceCount]) -> u64 {
    devices.iter().fold(0, |mask, device| mask | 1 << device.kind.0)
}

pub(crate) fn check_devices(devices: &[DeviceCount]) -> Result<(), SpecError> {
    if devices.len() > DEVICES_MAX {
        return Err(SpecError::TooManyDevices(devices.len()));
    }
    if let Some(device) = devices.iter().find(|it| it.kind.0 >= DEVICE_KINDS || it.count == 0) {
        return Err(SpecError::Device(*device));
    }
    let ascending = devices.windows(2).all(|pair| pair[0].kind < pair[1].kind);
    if ascending { Ok(()) } else { Err(SpecError::DeviceOrder) }
}

/// What is wrong with the words of a VM or a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum SpecError {
    /// A VM without cores or without memory.
    #[error("a VM has at least one core and 2 MiB of memory")]
    Empty,
    /// A VM that may have no slice.
    #[error("a VM has at least one slice")]
    NoSlices,
    /// More kinds of devices than [`DEVICES_MAX`].
    #[error("{0} kinds of devices, {DEVICES_MAX} are allowed")]
    TooManyDevices(usize),
    /// A kind that there cannot be, or none of it.
    #[error("{} of {}: kinds are below {DEVICE_KINDS}, and there is at least one of each", .0.count, .0.kind)]
    Device(DeviceCount),
    /// Kinds of devices out of order, or twice.
    #[error("kinds of devices are not in ascending order")]
    DeviceOrder,
    /// A host without NUMA nodes, or with more than can be named.
    #[error("a host has 1 to 255 NUMA nodes, not {0}")]
    Nodes(usize),
    /// Nodes of a host that have more together than can be counted.
    #[error("the nodes of the host have more together than can be counted")]
    TooLarge,
}
