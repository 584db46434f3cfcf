//! The VM's generation id (Microsoft, "Virtual Machine Generation ID"): 16 random bytes in guest memory that are others
//! whenever the guest goes on from a state from which it may have gone on before.
//!
//! ```text
//!   start:    boot payload --> 16 bytes at GENERATION_ADDRESS
//!   restored: memory and devices restored --> 16 others written --> Chipset::notify_generation --> vCPUs run
//!                                                                    GPE 1: \_GPE._E01: Notify(\_SB.VGEN, 0x80)
//! ```
//! Linux (`drivers/virt/vmgenid.c`) then reads the bytes, and if they differ it reseeds its random numbers before anything
//! else draws on them. A move of a part of a VM that goes on, or of all of it, changes nothing: there is still one of it.
//!
//! The id is nowhere but in guest memory. Where that is: [`GENERATION_ADDRESS`]. What the tables say of it: `acpi/generation.rs`.

pub use crate::layout::GENERATION_ADDRESS;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};

/// A generation id.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GenerationId([u8; 16]);

impl GenerationId {
    /// A new one.
    ///
    /// # Errors
    /// The system's source of randomness cannot be read.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// As it lies in guest memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// The guest seeds its random numbers with it, so it is in no log.
impl fmt::Debug for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerationId").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_are_not_shown() {
        let [one, two] = [(); 2].map(|()| GenerationId::random().unwrap());
        assert_ne!(one.bytes(), two.bytes());
        assert_eq!(format!("{one:?}"), "GenerationId { .. }");
    }
}
