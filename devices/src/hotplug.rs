//! CPU hot-plug: vCPUs that the guest is told of later, and those that it gives back.
//!
//! Every vCPU exists on all slices from the start. Here is only whether the guest may know it. Each has one state:
//!
//! ```text
//!             add              taken            _OST: done
//!   Absent -------> Announced -------> Adding ------------> Present
//!     ^ ^               |                 |                  ^  | remove (from the two before as well)
//!     | |               |_OST: failed     |                  |  v
//!     | +---------------+-----------------+             add  | Asked --taken--> Leaving
//!     |                                                 _OST: failed  |           |
//!     +-------------------------------- _EJ0 (from any state) --------+-----------+
//! ```
//! `add` takes back what is asked and not yet taken; `_OST: failed` of Asked or Leaving leads back to Present. Announced and
//! Asked are requests: a [general-purpose event](crate::gpe) has the guest run `_E00`, which takes them one by one
//! (`acpi/vcpus.rs` has the methods). Each request raises the event.
//!
//! Registers, each read and written as 4 bytes; other accesses read as ones and write nothing:
//!
//! | offset | name | read | written |
//! |---|---|---|---|
//! | 0 | select | the vCPU that state and answer are about | another one |
//! | 4 | request | the next request, which is then taken and selected: vCPU in bits 0-15, notification in bits 16-23; all ones if none | nothing |
//! | 8 | state | what `_STA` gives: 15 if the guest may know the vCPU, else 0 | 1: ejected |
//! | 12 | answer | 0 | what `_OST` is given: event in bits 16-31, status in bits 0-15 |
//! | 16 | node | what `_PXM` gives: the node where the vCPU was when it was last added | nothing |

mod saved;

pub use saved::HotplugState;

use thiserror::Error;

/// As many as a placement may have.
const VCPUS_MAX: u32 = 256;

/// The registers.
pub(crate) const HOTPLUG_PORT: u16 = 0x620;
/// Bytes of them.
pub(crate) const HOTPLUG_BYTES: u8 = 20;
/// No request.
pub(crate) const NO_REQUEST: u32 = u32::MAX;

/// Notification "device check" (ACPI 6.5, table 5.165).
const DEVICE_CHECK: u32 = 1;
/// Notification "eject request".
const EJECT_REQUEST: u32 = 3;
/// Event of `_OST` for an ejection that the guest itself has begun (ACPI 6.5, table 6.63).
const GUEST_EJECTS: u32 = 0x103;
/// Status of `_OST` (ACPI 6.5, tables 6.64 to 6.66): done.
const DONE: u32 = 0;
/// A device is still being inserted.
const INSERTING: u32 = 0x80;
/// A device is still being ejected.
const EJECTING: u32 = 0x84;
/// What `_STA` gives for a device that is present, enabled, shown and sound.
const THERE: u32 = 0xf;

/// Where a vCPU is on its way into the guest, or out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum PlugState {
    /// The guest does not know it.
    #[default]
    Absent = 0,
    /// The guest is to be told of it.
    Announced = 1,
    /// The guest was told, and has not said what came of it.
    Adding = 2,
    /// The guest has it.
    Present = 3,
    /// The guest is to be asked to give it back.
    Asked = 4,
    /// The guest was asked, and has not said what came of it.
    Leaving = 5,
}

impl PlugState {
    const ALL: [Self; 6] =
        [Self::Absent, Self::Announced, Self::Adding, Self::Present, Self::Asked, Self::Leaving];
}

/// Why a vCPU is neither announced nor asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlugError {
    /// All vCPUs were there from the start.
    #[error("this machine was made without vCPUs that can come later")]
    NoHotplug,
    /// It does not exist.
    #[error("there is no vCPU {0}")]
    NoSuchVcpu(u32),
    /// Guests do not give it back.
    #[error("vCPU 0 has booted the guest and stays")]
    BootVcpu,
    /// Both at once cannot be.
    #[error("the guest is still giving vCPU {0} back")]
    Leaving(u32),
}

/// What a machine has in which vCPUs can come later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotplugConfig {
    /// How many of the vCPUs, the first ones, the guest has at the start
    /// ([`AcpiConfig::present`](crate::acpi::AcpiConfig::present)).
    pub present: u32,
    /// The node of each vCPU at the start.
    pub vcpu_nodes: Vec<u8>,
    /// How many nodes the guest knows.
    pub nodes: u8,
}

/// One vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plug {
    /// Where it is on its way.
    pub state: PlugState,
    /// The guest's last refusal since a request was made: the low byte of the status of `_OST`, 0 if there is none.
    pub refusal: u8,
    /// The node that the guest is told when it asks.
    pub node: u8,
}

/// The vCPUs and the registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hotplug {
    vcpus: Vec<Plug>,
    nodes: u8,
    selected: u32,
}

impl Hotplug {
    /// vCPU 0 is there in any case, and at most 256 are.
    pub(crate) fn new(config: &HotplugConfig) -> Self {
        let plug = |(vcpu, node)| Plug {
            state: if vcpu < config.present.max(1) {
                PlugState::Present
            } else {
                PlugState::Absent
            },
            refusal: 0,
            node,
        };
        let nodes = config.vcpu_nodes.iter().copied();
        let nodes = nodes.chain(config.vcpu_nodes.is_empty().then_some(0));
        let vcpus = (0..VCPUS_MAX).zip(nodes).map(plug).collect();
        Self { vcpus, nodes: config.nodes, selected: 0 }
    }

    /// All vCPUs in their order.
    pub(crate) fn plugs(&self) -> &[Plug] {
        &self.vcpus
    }

    fn plug(&mut self, vcpu: u32) -> Option<&mut Plug> {
        self.vcpus.get_mut(usize::try_from(vcpu).ok()?)
    }

    /// The guest is to have this vCPU, which is at a node. If the guest does not know that one, it is told the last that it
    /// does. True: there is a request.
    pub(crate) fn add(&mut self, vcpu: u32, node: u8) -> Result<bool, PlugError> {
        let nodes = self.nodes;
        let plug = self.plug(vcpu).ok_or(PlugError::NoSuchVcpu(vcpu))?;
        plug.refusal = 0;
        match plug.state {
            PlugState::Absent | PlugState::Announced => {
                plug.state = PlugState::Announced;
                plug.node = if node < nodes { node } else { plug.node };
            }
            PlugState::Asked => {
                plug.state = PlugState::Present;
                return Ok(false);
            }
            PlugState::Adding | PlugState::Present => return Ok(false),
            PlugState::Leaving => return Err(PlugError::Leaving(vcpu)),
        }
        Ok(true)
    }

    /// The guest is to give this vCPU back. True: there is a request.
    pub(crate) fn remove(&mut self, vcpu: u32) -> Result<bool, PlugError> {
        if vcpu == 0 {
            return Err(PlugError::BootVcpu);
        }
        let plug = self.plug(vcpu).ok_or(PlugError::NoSuchVcpu(vcpu))?;
        plug.refusal = 0;
        if plug.state == PlugState::Absent {
            return Ok(false);
        }
        plug.state = PlugState::Asked;
        Ok(true)
    }

    /// Reads a register.
    pub(crate) fn read(&mut self, offset: u16) -> u32 {
        match offset {
            0 => self.selected,
            4 => self.take(),
            8 => match self.plug(self.selected) {
                Some(plug) if plug.state != PlugState::Absent => THERE,
                _ => 0,
            },
            12 => 0,
            16 => self.plug(self.selected).map_or(0, |plug| plug.node.into()),
            _ => u32::MAX,
        }
    }

    /// Writes a register.
    pub(crate) fn write(&mut self, offset: u16, value: u32) {
        match offset {
            0 => self.selected = value,
            8 if value == 1 => self.eject(),
            12 => self.answer(value >> 16, value & 0xffff),
            _ => {}
        }
    }

    /// The lowest vCPU about which something is asked.
    fn take(&mut self) -> u32 {
        for (vcpu, plug) in (0u32..).zip(&mut self.vcpus) {
            let (notification, next) = match plug.state {
                PlugState::Announced => (DEVICE_CHECK, PlugState::Adding),
                PlugState::Asked => (EJECT_REQUEST, PlugState::Leaving),
                _ => continue,
            };
            plug.state = next;
            self.selected = vcpu;
            return vcpu | notification << 16;
        }
        NO_REQUEST
    }

    fn eject(&mut self) {
        if self.selected != 0
            && let Some(plug) = self.plug(self.selected)
        {
            plug.state = PlugState::Absent;
        }
    }

    fn answer(&mut self, event: u32, status: u32) {
        let Some(plug) = self.plug(self.selected) else { return };
        let next = match (event, status, plug.state) {
            (_, INSERTING, PlugState::Adding) | (_, EJECTING, PlugState::Leaving) => return,
            (DEVICE_CHECK, DONE, PlugState::Announced | PlugState::Adding) => PlugState::Present,
            (DEVICE_CHECK, _, PlugState::Announced | PlugState::Adding) => PlugState::Absent,
            // It is done when the guest has ejected it, and not before.
            (EJECT_REQUEST | GUEST_EJECTS, DONE, _) => return,
            (EJECT_REQUEST | GUEST_EJECTS, _, PlugState::Asked | PlugState::Leaving) => {
                PlugState::Present
            }
            _ => return,
        };
        plug.state = next;
        if status != DONE {
            // Statuses are of one byte; 0 would be none.
            plug.refusal = u8::try_from(status).unwrap_or(u8::MAX);
        }
    }
}

#[cfg(test)]
mod tests;
