//! The shape of a VM: slices, vCPUs, memory, and the choices that all slices must share.

use super::BOOTSTRAP;
use super::peripherals::{BackEndShape, DeviceSpec};
use crate::interrupts::InterruptBackEnd;
use crate::timer_spacing::TimerSpacing;
use crate::tsc::ClockRate;
use devices::HotplugConfig;
use devices::acpi::{AcpiConfig, VcpuPlace};
use devices::layout::{LayoutError, MemoryLayout};
use dsm::{HoldError, HoldPolicy, HomeTable, NodeConfig, Replicate};
use migrate::{DevicePlace, MemoryPlace, Placement, PlacementError};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;
use wire::{Epoch, SliceId, VcpuId};

/// The most vCPUs of one VM.
pub(crate) const VCPUS_MAX: u32 = 256;
/// The most slices of one VM.
pub(crate) const SLICES_MAX: usize = 32;
/// The most devices: one bus, without the host bridge.
pub(crate) const DEVICES_MAX: usize = 31;

/// Epoch of the placement that a VM begins with.
pub(crate) const FIRST_EPOCH: Epoch = Epoch(1);

/// What one slice gives to the VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceSpec {
    /// vCPUs that run there at the start.
    pub vcpus: u32,
    /// More vCPUs that wait there for the guest to be told of them. Their numbers come after those of all slices at the start.
    #[serde(default)]
    pub spare_vcpus: u32,
    /// Bytes of memory that it is home of; a multiple of 2 MiB, zero allowed.
    pub memory: u64,
}

/// How interrupts reach vCPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interrupts {
    /// Ghosts where every host passes the self-test, else user space.
    #[default]
    Auto,
    /// The kernel's APIC and parked ghosts.
    Ghost,
    /// An APIC in user space.
    Userspace,
}

impl Interrupts {
    /// The back end that a decided choice stands for; `Auto` stands for its first wish.
    pub(crate) fn back_end(self) -> InterruptBackEnd {
        match self {
            Self::Userspace => InterruptBackEnd::Userspace,
            Self::Auto | Self::Ghost => InterruptBackEnd::Ghost,
        }
    }
}

impl FromStr for Interrupts {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "ghost" => Ok(Self::Ghost),
            "userspace" => Ok(Self::Userspace),
            _ => Err(SpecError::Choice { what: "interrupts", text: text.into() }),
        }
    }
}

/// How page-table pages are kept coherent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PageTables {
    /// Replicas where some host's page walks need write access.
    #[default]
    Auto,
    /// Replicas.
    Replicate,
    /// Replicas of the kernel's tables; those of processes are ordinary pages.
    Kernel,
    /// Ordinary pages.
    Coherent,
}

impl PageTables {
    /// The choice that `Auto` leaves, knowing whether page walks of some host need write access.
    pub(crate) fn settle(self, walks_write: bool) -> Self {
        match self {
            Self::Auto if walks_write => Self::Replicate,
            Self::Auto => Self::Coherent,
            settled => settled,
        }
    }

    /// What the protocol is told. Unsettled means replicas, which work on every host.
    pub(crate) fn scope(self) -> Replicate {
        match self {
            Self::Auto | Self::Replicate => Replicate::AllTables,
            Self::Kernel => Replicate::KernelTables,
            Self::Coherent => Replicate::Nothing,
        }
    }
}

impl FromStr for PageTables {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "replicate" => Ok(Self::Replicate),
            "kernel" => Ok(Self::Kernel),
            "coherent" => Ok(Self::Coherent),
            _ => Err(SpecError::Choice { what: "page tables", text: text.into() }),
        }
    }
}

/// Everything that the slices of a VM must agree on before it exists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// The slices; the first is the bootstrap.
    pub slices: Vec<SliceSpec>,
    /// How interrupts reach vCPUs.
    pub interrupts: Interrupts,
    /// Page tables.
    pub page_tables: PageTables,
    /// Seconds between log lines that say where the vCPUs are.
    #[serde(default)]
    pub sample: Option<u32>,
    /// Guest seconds per real second.
    pub clock_rate: f64,
    /// As [`TimerSpacing`] reads it.
    pub timer_spacing: String,
    /// Least and most hold window, microseconds.
    pub hold_us: (u64, u64),
    /// Devices on PCI, in the order of their addresses. Without any there is no PCI.
    #[serde(default)]
    pub devices: Vec<DeviceSpec>,
    /// Another life of the VM begins when the bootstrap's process ends for no good reason, as soon as its other slices must have missed
    /// it, and the supervisor asks that slice for checkpoints. So the bootstrap's slice cannot leave, and coordinates.
    #[serde(default)]
    pub supervised: bool,
    /// All vCPUs of the start are on the bootstrap's slice at first. [`bootstrap`](super::bootstrap()) says it, by its options.
    #[serde(default)]
    pub boots_at_home: bool,
}

/// Why a shape is impossible.
#[derive(Debug, Error)]
pub enum SpecError {
    /// No slice, or more than can be.
    #[error("a VM has 1 to {SLICES_MAX} slices, not {0}")]
    Slices(usize),
    /// No vCPU, or more than can be.
    #[error("a VM has 1 to {VCPUS_MAX} vCPUs, not {0}")]
    Vcpus(u32),
    /// The boot vCPU must be where the devices are.
    #[error("the bootstrap slice runs vCPU 0 and needs at least one vCPU")]
    NoBootVcpu,
    /// The memory cannot be laid out.
    #[error("lay out guest memory")]
    Layout(#[from] LayoutError),
    /// The parts do not fit the slices.
    #[error("place the VM's parts on its slices")]
    Placement(#[from] PlacementError),
    /// A word that is no choice.
    #[error("{text:?} is no choice for {what}")]
    Choice {
        /// Of what.
        what: &'static str,
        /// What was given.
        text: String,
    },
    /// More devices than fit on the bus.
    #[error("a VM has at most {DEVICES_MAX} devices, not {0}")]
    Devices(usize),
    /// A device on a slice that is not.
    #[error(
        "device {device} names slice {slice} by slice= or standby=, which the VM does not have"
    )]
    DeviceSlice {
        /// The device, counted from 0.
        device: usize,
        /// The slice.
        slice: u16,
    },
    /// The hold window's bounds are impossible.
    #[error(transparent)]
    Hold(#[from] HoldError),
}

/// A checked shape.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) layout: MemoryLayout,
    /// Where vCPUs and memory are at the start. Devices are placed once their shapes are known ([`Self::place`]).
    pub(crate) placement: Placement,
    /// How many of the vCPUs, the first ones, the guest has at the start, if others can come later.
    pub(crate) present: Option<u32>,
    pub(crate) clock_rate: ClockRate,
    pub(crate) timer_spacing: TimerSpacing,
    pub(crate) hold: HoldPolicy,
    pub(crate) sample: Option<Duration>,
    /// Slices with nothing but devices, whose rings are read elsewhere: no guest memory is ever there, and
    /// the guest outlives them.
    pub(crate) bystanders: Vec<SliceId>,
    /// The bootstrap's slice cannot leave.
    pub(crate) supervised: bool,
    /// All vCPUs are on the bootstrap's slice at first. [`Self::placement`] and what the guest is told have them where they go then.
    pub(crate) boots_at_home: bool,
    pub(crate) devices: Vec<DeviceSpec>,
}

impl VmSpec {
    pub(crate) fn shape(&self) -> Result<Shape, SpecError> {
        let count = self.slices.len();
        if count == 0 || count > SLICES_MAX {
            return Err(SpecError::Slices(count));
        }
        let all = |of: fn(&SliceSpec) -> u32| {
            self.slices.iter().fold(0u32, |sum, slice| sum.saturating_add(of(slice)))
        };
        let (present, spare) = (all(|slice| slice.vcpus), all(|slice| slice.spare_vcpus));
        let vcpus = present.saturating_add(spare);
        if vcpus == 0 || vcpus > VCPUS_MAX {
            return Err(SpecError::Vcpus(vcpus));
        }
        if self.slices[0].vcpus == 0 {
            return Err(SpecError::NoBootVcpu);
        }
        let bytes: Vec<u64> = self.slices.iter().map(|slice| slice.memory).collect();
        let layout = MemoryLayout::new(&bytes)?;
        let slice_of = |node: u32| SliceId(u16::try_from(node).expect("at most 32 slices"));
        let memory = layout.ranges().iter().map(|range| MemoryPlace {
            frames: range.start / 4096..(range.start + range.len) / 4096,
            home: slice_of(range.node),
        });
        let slices: Vec<SliceId> = (0u32..).take(count).map(slice_of).collect();
        let each = |of: fn(&SliceSpec) -> u32| {
            let specs = slices.iter().zip(&self.slices);
            specs.flat_map(move |(id, spec)| (0..of(spec)).map(|_| *id))
        };
        let vcpus = each(|slice| slice.vcpus).chain(each(|slice| slice.spare_vcpus)).collect();
        let placement =
            Placement::new(FIRST_EPOCH, slices.clone(), vcpus, memory.collect(), Vec::new())?;
        let hold = HoldPolicy::between(self.hold_us)?;
        if self.devices.len() > DEVICES_MAX {
            return Err(SpecError::Devices(self.devices.len()));
        }
        for (device, spec) in self.devices.iter().enumerate() {
            let mut places = spec.standby.iter().map(|standby| standby.slice).chain([spec.slice]);
            if let Some(slice) = places.find(|slice| usize::from(*slice) >= count) {
                return Err(SpecError::DeviceSlice { device, slice });
            }
        }
        let choice = |what, text: &str| SpecError::Choice { what, text: text.into() };
        // A peer's zero would mean a flood of kicks.
        let sample = self.sample.map(|seconds| Duration::from_secs(seconds.max(1).into()));
        let bystander = |slice: &&SliceId| {
            let spec = &self.slices[usize::from(slice.0)];
            let reads_memory =
                |device: &DeviceSpec| device.slice == slice.0 && device.has_rings_at_home();
            spec.vcpus + spec.spare_vcpus == 0
                && spec.memory == 0
                && !self.devices.iter().any(reads_memory)
        };
        let bystanders = slices.iter().filter(bystander).copied().collect();
        Ok(Shape {
            bystanders,
            supervised: self.supervised,
            boots_at_home: self.boots_at_home,
            devices: self.devices.clone(),
            sample,
            layout,
            placement,
            present: (spare > 0).then_some(present),
            clock_rate: ClockRate::new(self.clock_rate)
                .map_err(|_| choice("the guest clock rate", &self.clock_rate.to_string()))?,
            timer_spacing: self
                .timer_spacing
                .parse()
                .map_err(|_| choice("the timer spacing", &self.timer_spacing))?,
            hold,
        })
    }
}

impl Shape {
    /// Number of vCPUs.
    pub(crate) fn vcpus(&self) -> u32 {
        u32::try_from(self.placement.vcpus().len()).expect("at most 256 vCPUs")
    }

    /// Which vCPUs the guest has at the start and where, if others can come later.
    pub(crate) fn hotplug(&self) -> Option<HotplugConfig> {
        let node = |slice: &SliceId| slice.0.to_le_bytes()[0];
        let (vcpus, members) = (self.placement.vcpus(), self.placement.members());
        Some(HotplugConfig {
            present: self.present?,
            vcpu_nodes: vcpus.iter().map(node).collect(),
            nodes: members.last().map_or(1, |last| node(last) + 1),
        })
    }

    /// Ranges of the vCPUs that are not the bootstrap's at the start.
    pub(crate) fn borrowed(&self) -> Vec<Range<u32>> {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for (VcpuId(vcpu), _) in self.lent() {
            match ranges.last_mut() {
                Some(last) if last.end == vcpu => last.end += 1,
                _ => ranges.push(vcpu..vcpu + 1),
            }
        }
        ranges
    }

    /// The vCPUs that are not the bootstrap's, and whose they are.
    pub(crate) fn lent(&self) -> Vec<(VcpuId, SliceId)> {
        let all = (0u32..).map(VcpuId).zip(self.placement.vcpus().iter().copied());
        all.filter(|(_, slice)| *slice != BOOTSTRAP).collect()
    }

    /// How many vCPUs of the start are the bootstrap's own.
    pub(crate) fn own_vcpus(&self) -> u32 {
        let present = self.present.map_or(usize::MAX, |present| present as usize);
        let own = self.placement.vcpus().iter().take(present).filter(|slice| **slice == BOOTSTRAP);
        u32::try_from(own.count()).expect("at most 256 vCPUs")
    }

    /// The slices but for the bootstrap.
    pub(crate) fn companions(&self) -> impl Iterator<Item = SliceId> + '_ {
        self.placement.members().iter().copied().filter(|slice| *slice != BOOTSTRAP)
    }

    /// Where everything is at the start, devices of these shapes included.
    ///
    /// # Errors
    /// A device would be on a slice that is not of the VM.
    pub(crate) fn place(&self, shapes: &[BackEndShape]) -> Result<Placement, PlacementError> {
        let mut vcpus = self.placement.vcpus().to_vec();
        if self.boots_at_home {
            // Those that come later have run nothing, and the guest hears then where they are.
            let present = self.present.map_or(vcpus.len(), |present| present as usize);
            vcpus[..present].fill(BOOTSTRAP);
        }
        let device = |(shape, spec): (&BackEndShape, &DeviceSpec)| DevicePlace {
            owner: SliceId(spec.slice),
            queues: shape.homes(spec, &vcpus),
        };
        let devices = shapes.iter().zip(&self.devices).map(device).collect();
        let (members, memory) =
            (self.placement.members().to_vec(), self.placement.memory().to_vec());
        Placement::new(self.placement.epoch(), members, vcpus, memory, devices)
    }

    pub(crate) fn acpi(&self) -> AcpiConfig {
        let places = (0u32..)
            .zip(self.placement.vcpus())
            .map(|(apic_id, slice)| VcpuPlace { apic_id, node: u32::from(slice.0) });
        let config = AcpiConfig::new(places.collect(), &self.layout);
        let config = AcpiConfig { present: self.present, ..config };
        if self.devices.is_empty() { config } else { config.with_pci() }
    }

    /// Frame ranges that hold memory, ascending.
    pub(crate) fn frames(&self) -> Vec<Range<u64>> {
        let blocks = self.layout.blocks();
        blocks.iter().map(|b| b.start / 4096..(b.start + b.len) / 4096).collect()
    }

    /// The configuration of a slice's part of the coherence protocol, with the homes of this placement.
    ///
    /// # Errors
    /// None for a placement, whose ranges are checked.
    pub(crate) fn node(
        &self,
        placement: &Placement,
        (local, epoch): (SliceId, Epoch),
        replicate: Replicate,
    ) -> NodeConfig {
        let member = |slice: &SliceId| *slice == local || !self.bystanders.contains(slice);
        let members = placement.members().iter().copied().filter(member).collect();
        let homes = HomeTable::from(placement);
        let mut config = NodeConfig::new(local, members, homes, epoch);
        config.hold = self.hold;
        config.replicate = replicate;
        config.vcpus = self.vcpus();
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(slices: &[(u32, u64)]) -> VmSpec {
        VmSpec {
            slices: slices
                .iter()
                .map(|(vcpus, mib)| SliceSpec { vcpus: *vcpus, spare_vcpus: 0, memory: mib << 20 })
                .collect(),
            interrupts: Interrupts::Auto,
            page_tables: PageTables::Auto,
            sample: None,
            clock_rate: 1.0,
            timer_spacing: "off".into(),
            hold_us: (20, 2000),
            devices: Vec::new(),
            supervised: false,
            boots_at_home: false,
        }
    }

    #[test]
    fn vcpus_that_boot_at_home_are_there_and_the_guest_is_told_of_their_slices() {
        let mut spec = VmSpec { boots_at_home: true, ..spec(&[(1, 256), (2, 64)]) };
        let shape = spec.shape().unwrap();
        assert_eq!(shape.place(&[]).unwrap().vcpus(), [BOOTSTRAP; 3]);
        assert_eq!(shape.borrowed(), std::slice::from_ref(&(1..3)));
        assert_eq!(shape.lent(), [(VcpuId(1), SliceId(1)), (VcpuId(2), SliceId(1))]);
        let nodes: Vec<u32> = shape.acpi().vcpus.iter().map(|it| it.node).collect();
        assert_eq!(nodes, [0, 1, 1]);
        spec.slices[1].spare_vcpus = 1;
        let shape = spec.shape().unwrap();
        let vcpus = shape.place(&[]).unwrap().vcpus().to_vec();
        assert_eq!(vcpus, [BOOTSTRAP, BOOTSTRAP, BOOTSTRAP, SliceId(1)], "the last comes later");
    }

    #[test]
    fn shape_of_unequal_slices_places_vcpus_in_order() {
        let shape = spec(&[(2, 256), (1, 64), (0, 128)]).shape().unwrap();

        let placement = &shape.placement;
        assert_eq!(placement.vcpus(), [SliceId(0), SliceId(0), SliceId(1)]);
        assert_eq!(placement.home_of(wire::Gfn((256 + 64) << 8)), Some(SliceId(2)));
        assert_eq!(placement.vcpus_on(SliceId(2)), []);
    }

    #[test]
    fn vcpus_that_come_later_have_the_last_numbers() {
        let mut spec = spec(&[(2, 256), (1, 64)]);
        let places = |spec: &VmSpec| {
            let shape = spec.shape().unwrap();
            let slices = shape.placement.vcpus().iter().map(|slice| slice.0).collect::<Vec<_>>();
            let borrowed: Vec<u32> = shape.borrowed().into_iter().flatten().collect();
            (slices, shape.present, borrowed)
        };
        assert_eq!(places(&spec), (vec![0, 0, 1], None, vec![2]));
        (spec.slices[0].spare_vcpus, spec.slices[1].spare_vcpus) = (1, 2);
        assert_eq!(places(&spec), (vec![0, 0, 1, 0, 1, 1], Some(3), vec![2, 4, 5]));
        spec.slices[1].spare_vcpus = 253;
        assert!(matches!(spec.shape(), Err(SpecError::Vcpus(257))));
    }

    #[test]
    fn shape_without_boot_vcpu_is_refused() {
        assert!(matches!(spec(&[(0, 256), (1, 64)]).shape(), Err(SpecError::NoBootVcpu)));
    }

    #[test]
    fn slice_that_reads_rings_is_no_bystander() {
        let with = |devices: &[(&str, &str)]| {
            let device = |(option, text): &(&str, &str)| DeviceSpec::parse(option, text).unwrap();
            let devices = devices.iter().map(device).collect();
            let shape = VmSpec { devices, ..spec(&[(1, 64), (0, 0)]) }.shape().unwrap();
            shape.bystanders == [SliceId(1)]
        };
        assert!(with(&[]));
        assert!(with(&[("disk", "/d,slice=1")]));
        assert!(!with(&[("disk", "/d,slice=1,rings=coherent")]));
        assert!(!with(&[("console", "stdio,slice=1")]));
        assert!(!with(&[("vsock", "cid=3,socket=/s,slice=1")]));
    }

    #[test]
    fn shape_with_odd_memory_is_refused() {
        assert!(matches!(spec(&[(1, 255)]).shape(), Err(SpecError::Layout(_))));
    }
}
