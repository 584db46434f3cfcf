//! Who calls whom, in which VM, and why.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Read};
use wire::{Epoch, SliceId};

/// Names one VM. Random, made by the bootstrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VmId(pub [u8; 16]);

impl VmId {
    /// A new one.
    ///
    /// # Errors
    /// The system's source of randomness cannot be read.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The bootstrap takes a companion into a VM.
    Control,
    /// Frames of the class at this place (0 interrupt, 1 coherence, 2 run, 3 bulk), over TCP.
    Frames(u8),
    /// The descriptors of shared memory, over a UNIX socket.
    SharedMemory,
}

/// The identity of a connection: who calls whom, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId {
    /// What for.
    pub role: Role,
    /// The VM.
    pub vm: VmId,
    /// The epoch of the membership.
    pub epoch: Epoch,
    /// The caller.
    pub from: SliceId,
    /// The listener.
    pub to: SliceId,
}
