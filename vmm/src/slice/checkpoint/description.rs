//! What there is to know of a VM besides its state: what it consists of, and which one it is.

use crate::control::VmName;
use crate::cpuid::Cpuid;
use crate::slice::peripherals::BackEndShape;
use crate::slice::spec::{Interrupts, VmSpec};
use devices::back_end::image::Writer;
use serde::{Deserialize, Serialize};
use std::io;
use transport::VmId;

/// Which VM it is, and which of its lives: a restart from a checkpoint is a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    /// Of the VM, for all of its lives.
    pub(crate) vm: [u8; 16],
    /// 0 for the first; a later one has a higher number, below
    /// [`GENERATION_MAX`](devices::back_end::image::GENERATION_MAX).
    pub(crate) generation: u64,
}

impl Identity {
    /// A VM that nobody knows.
    ///
    /// # Errors
    /// There is no randomness.
    pub(crate) fn random() -> io::Result<Self> {
        Ok(Self { vm: VmId::random()?.0, generation: 0 })
    }

    /// A later life than any before, also than those that went on from an earlier moment: it begins now, in seconds since
    /// 1970.
    pub(crate) fn restored(self, now: u64) -> Self {
        self.after(self.generation).at(now)
    }

    /// The life of this number, which whoever begins it has chosen.
    pub(crate) fn begun_as(self, life: u64) -> Self {
        self.after(self.generation).at(life)
    }

    /// A later life than this one too, which has left something that it may still change. The clock may have been put back since.
    pub(crate) fn after(self, former: u64) -> Self {
        self.at(former.saturating_add(1))
    }

    /// As people name it.
    pub(crate) fn name(self) -> VmName {
        VmName { vm: self.vm, life: self.generation }
    }

    /// As records beside images name it.
    pub(crate) fn writer(self) -> Writer {
        Writer { vm: self.vm, generation: self.generation }
    }

    fn at(self, least: u64) -> Self {
        Self { generation: self.generation.max(least), ..self }
    }
}

/// What a VM consists of, as its guest knows it. In a manifest, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    /// As it was started.
    pub(crate) spec: VmSpec,
    /// What its vCPUs show.
    pub(crate) cpuid: Cpuid,
    /// How interrupts reach them: `ghost` or `userspace`.
    pub(crate) interrupts: Interrupts,
    /// Frequency of its hosts' counters.
    pub(crate) tsc_khz: u32,
    /// The devices, as drivers know them.
    pub(crate) devices: Vec<BackEndShape>,
    /// Which one it is.
    pub(crate) identity: Identity,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restored_vm_is_later_than_all_that_is_known_whatever_the_clock_says() {
        let identity = Identity { vm: [1; 16], generation: 100 };
        let generation = |identity: Identity| identity.generation;
        assert_eq!(generation(identity.restored(1000)), 1000);
        assert_eq!(generation(identity.restored(7)), 101);
        assert_eq!(generation(identity.restored(1000).after(5)), 1000);
        assert_eq!(generation(identity.restored(1000).after(1000)), 1001);
        assert_eq!(generation(identity.restored(7).after(5000)), 5001);
    }
}
