//! What there is to know of a VM besides its state: what it consists of, and which one it is.

use crate::cpuid::Cpuid;
use crate::slice::peripherals::BackEndShape;
use crate::slice::spec::{Interrupts, VmSpec};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};

/// Which VM it is, and which of its lives: a restart from a checkpoint is a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Identity {
    /// Of the VM, for all of its lives.
    pub(crate) vm: [u8; 16],
    /// How often it was restored.
    pub(crate) generation: u64,
}

impl Identity {
    /// A VM that nobody knows.
    ///
    /// # Errors
    /// There is no randomness.
    pub(crate) fn random() -> io::Result<Self> {
        let mut vm = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut vm)?;
        Ok(Self { vm, generation: 0 })
    }

    /// The next life.
    pub(crate) fn restored(self) -> Self {
        Self { generation: self.generation + 1, ..self }
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
