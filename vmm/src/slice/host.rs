//! What a host brings, and whether it can run a slice at all.

use super::one_line;
use super::peripherals::{BackEndShape, BackEnds, DeviceSpec, OpenError};
use super::spec::{Interrupts, Shape};
use crate::cpuid::Cpuid;
use crate::machine::{MachineError, ghost_self_test, host_tsc_khz};
use crate::walk_probe::walks_need_write;
use dsm::{Memory, RamError, UffdError};
use kvm_bindings::KVM_MAX_CPUID_ENTRIES;
use kvm_ioctls::Kvm;
use migrate::{Placement, plan};
use serde::{Deserialize, Serialize};
use std::fs;
use std::thread;
use thiserror::Error;
use transport::RdmaMemory;
use wire::SliceId;

/// What a companion tells the bootstrap about its host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostFacts {
    /// Name of the host.
    pub name: String,
    /// Release of its kernel.
    pub kernel: String,
    /// What its KVM can show to a guest.
    pub cpuid: Cpuid,
    /// Frequency of its time stamp counter.
    pub tsc_khz: u32,
    /// True when a guest's page walks need write access to page-table pages here.
    pub walks_write: bool,
    /// Why ghost vCPUs do not work here; empty when they do, or when nobody wants them.
    pub ghosts: String,
    /// The devices that it has for the VM: their numbers in the VM's description, and what they are.
    #[serde(default)]
    pub devices: Vec<(u16, BackEndShape)>,
    /// The devices that it can have later, and what they are there.
    #[serde(default)]
    pub(crate) standbys: Vec<(u16, BackEndShape)>,
    /// What devices that can move contain here, as far as one looks.
    #[serde(default)]
    pub(crate) samples: Vec<(u16, String)>,
    /// What it offers to the VM.
    #[serde(default)]
    pub(crate) offered: Offered,
    /// The newest life of a VM that is restored, as records beside its images here say.
    #[serde(default)]
    pub(crate) newest_life: Option<u64>,
}

/// What a host offers to the VM, what its slice has at the start included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offered {
    /// vCPUs that may run there.
    pub(crate) vcpus: u32,
    /// Bytes of memory that it may be home of.
    pub(crate) bytes: u64,
}

impl Offered {
    /// To a slice of a VM with these devices, if its processors have all that the VM needs.
    pub(crate) fn of_slice(&self, slice: SliceId, devices: &[DeviceSpec]) -> plan::Offer {
        let reached = (0u16..).zip(devices).filter(|(_, device)| device.reaches(slice));
        let reaches = reached.map(|(number, _)| number).collect();
        plan::Offer { vcpus: self.vcpus, bytes: self.bytes, reaches, ..plan::Offer::default() }
    }
}

/// How much a host's operator lets a VM have, what its slice has at the start included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// vCPUs; as many as this process may use cores if none.
    pub vcpus: Option<u32>,
    /// Bytes of memory; what is available at the start if none.
    pub bytes: Option<u64>,
}

/// Why this host cannot run a slice.
#[derive(Debug, Error)]
pub enum HostError {
    /// No KVM.
    #[error("open /dev/kvm (load kvm_amd or kvm_intel, and give this user access)")]
    Kvm(#[source] kvm_ioctls::Error),
    /// KVM does not tell its CPUID.
    #[error("read the CPUID that KVM supports")]
    Cpuid(#[source] kvm_ioctls::Error),
    /// KVM does not know the counter's frequency.
    #[error("read the frequency of the time stamp counter")]
    Tsc(#[source] MachineError),
    /// No usable userfaultfd.
    #[error("use userfaultfd")]
    Userfaultfd(#[from] UffdError),
    /// The kind of memory that was chosen cannot be had.
    #[error("find memory for the slice")]
    Kind(#[from] RamError),
    /// Less memory than is to be pinned.
    #[error(
        "registered memory is pinned on every host: {asked} MiB, and {available} MiB are available; choose \
         --rdma-memory pool"
    )]
    Pinned {
        /// MiB of the VM.
        asked: u64,
        /// MiB that the host has.
        available: u64,
    },
    /// Less memory than asked for.
    #[error("the slice is to be home of {asked} MiB, the host has {available} MiB available")]
    Memory {
        /// MiB asked for.
        asked: u64,
        /// MiB there are.
        available: u64,
    },
}

impl HostFacts {
    /// Looks at this host; at its ghosts only when the VM may use them.
    ///
    /// # Errors
    /// KVM is missing, not permitted or too old.
    pub fn gather(interrupts: Interrupts) -> Result<Self, HostError> {
        let kvm = Kvm::new().map_err(HostError::Kvm)?;
        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(HostError::Cpuid)?;
        Ok(Self {
            name: first_line("/proc/sys/kernel/hostname"),
            kernel: first_line("/proc/sys/kernel/osrelease"),
            cpuid: Cpuid::from_kvm(cpuid.as_slice()),
            tsc_khz: host_tsc_khz().map_err(HostError::Tsc)?,
            walks_write: walks_write(),
            ghosts: match interrupts {
                Interrupts::Userspace => String::new(),
                _ => ghost_self_test().err().map(|e| one_line(&e)).unwrap_or_default(),
            },
            devices: Vec::new(),
            standbys: Vec::new(),
            samples: Vec::new(),
            offered: Offered::default(),
            newest_life: None,
        })
    }
}

/// Checks that the host has the memory that a slice is to be home of and, where slices share memory (`shares`),
/// userfaultfd. If all of the VM's memory is to be pinned here, the host must have all of it.
pub(crate) fn check(
    shape: &Shape,
    local: SliceId,
    memory: Memory,
    (pinned, shares): (RdmaMemory, bool),
) -> Result<(), HostError> {
    if shares {
        dsm::check_host()?;
    }
    let own = shape.placement.frames_of(local);
    memory.check(&own)?;
    let available = available_kib() / 1024;
    // Memory for the whole VM, or for what this slice is home of.
    let taken = match memory {
        Memory::MemfdPrealloc => {
            shape.placement.memory().iter().map(|place| place.frames.clone()).collect()
        }
        _ => own.clone(),
    };
    let pages: u64 = taken.iter().map(|range| range.end - range.start).sum();
    let asked = (pages / 256).saturating_sub(memory.set_aside_mib(&own));
    if asked > available {
        return Err(HostError::Memory { asked, available });
    }
    if shares && pinned == RdmaMemory::Registered && memory == Memory::Memfd {
        let all: u64 = shape.frames().iter().map(|range| range.end - range.start).sum();
        if all / 256 > available {
            return Err(HostError::Pinned { asked: all / 256, available });
        }
    }
    Ok(())
}

impl Offer {
    /// What a host offers to a slice that has its part of this placement at the start.
    pub(crate) fn of_host(self, placement: &Placement, slice: SliceId) -> Offered {
        let vcpus = u32::try_from(placement.vcpus_on(slice).len()).unwrap_or(u32::MAX);
        let bytes = placement.frame_count(slice).saturating_mul(4096);
        let cores = thread::available_parallelism().map_or(0, usize::from);
        let cores = || u32::try_from(cores).unwrap_or(u32::MAX);
        let available = || available_kib().saturating_mul(1024);
        Offered {
            vcpus: self.vcpus.unwrap_or_else(cores).max(vcpus),
            bytes: self.bytes.unwrap_or_else(available).max(bytes),
        }
    }
}

impl HostFacts {
    /// With the devices that this host has for the VM, or can have later.
    ///
    /// # Errors
    /// One cannot be read.
    pub(crate) fn with_devices(mut self, back_ends: &BackEnds) -> Result<Self, OpenError> {
        self.devices = back_ends.shapes();
        self.standbys = back_ends.standby_shapes();
        self.samples = back_ends.samples()?;
        Ok(self)
    }
}

/// Asks the host. True is the safe answer: replicas cost a little where they are not needed, and
/// coherent tables do not boot where they are.
fn walks_write() -> bool {
    walks_need_write().unwrap_or_else(|error| {
        let cause = one_line(&error);
        tracing::warn!("page walks are taken to write, the probe failed: {cause}");
        true
    })
}

fn first_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

fn available_kib() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(u64::MAX)
}
